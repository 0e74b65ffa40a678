"""`rollback-tools restore MANIFEST --host HOST:PORT`: puts lost writes back, by a policy or by a person's answers."""

from __future__ import annotations

import datetime
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer

from replset.errors import CorruptDataError
from replset.features.recovery import mongod_files
from replset.features.recovery.live_set import LiveSet
from replset.features.recovery.lost_writes import LostCommand, LostDocument, LostWrites
from replset.features.recovery.policy import POLICIES, ConflictStatus, Decision, Policy, Versions, parse_policy
from replset.features.recovery.report import JsonReport
from replset.features.recovery.restore import AuditLog, Outcome, Restore, Result, read_restorable_manifest
from replset.features.recovery.verify import verify_rollback
from replset.long_work import LongWork
from replset.replication.rollback_manifest import Manifest
from replset.terminal import echo
from rollback_tools import manifest_source
from rollback_tools.bson_text import short
from rollback_tools.diff import print_document

DEFAULT_HOST = "127.0.0.1:27017"
AUDIT_HELP = "the record of the run; default: beside the manifest, of a member's or mongod's in the current folder"
JOINT = " "
"""Separates `to-collection` from its NAME, which main.py joins to one argument."""
RESULT_TEXT = {
    Result.DONE: "put back",
    Result.THERE: "there",
    Result.WOULD: "would put back",
    Result.LEFT: "left",
}
ANSWERS = "p: put back, m: merge, n: only if newer, k: keep what is live, a: as the policy says from here on, q: stop"


def restore(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    host: Annotated[str, typer.Option(help=manifest_source.HOST_HELP)] = DEFAULT_HOST,
    policy: Annotated[str, typer.Option(help=f"where the set changed the document since: {POLICIES}")] = "skip",
    interactive: Annotated[bool, typer.Option("--interactive", help="ask about each lost write")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done; write nothing")] = False,
    common_point: Annotated[str, typer.Option(help=manifest_source.COMMON_POINT_HELP)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of lines")] = False,
    audit: Annotated[Path | None, typer.Option(help=AUDIT_HELP)] = None,
) -> int:
    """Put lost writes back as new writes that a majority has. Run twice, it changes nothing the second time.

    Exit status 0: every lost write is in the set. 1: something stays undone; the lines say what and why.
    """
    name, _, collection = policy.partition(JOINT)
    chosen = parse_policy(name, collection)
    with ExitStack() as stack:
        work = stack.enter_context(LongWork("rollback-tools"))
        path = stack.enter_context(manifest_source.local_manifest(manifest, work))
        work.begin("reading the files of the rollback")
        found = manifest_source.with_common_point(_restorable(path), common_point)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(LiveSet(manifest_source.target_of(host), found.set_name or None))
        choose = Prompt(chosen).choose if interactive else None
        run = Restore(lost, live, chosen, collection=collection, choose=choose)
        is_elsewhere = manifest_source.is_remote(manifest) or found.from_mongod
        log = None if dry_run else stack.enter_context(_audit_log(path, audit, is_elsewhere=is_elsewhere))
        outcomes = stack.enter_context(closing(run.run(log, _now)))
        report = JsonReport(sys.stdout, run.head(log), "writes") if as_json else None
        work.begin("comparing with the set, and putting back", run.total, "lost writes")
        if interactive:
            work.close()
        for outcome in outcomes:
            work.on_row()
            if report is not None:
                report.row(outcome.row())
            else:
                echo(line_of(outcome))
        work.close()
        if report is not None:
            report.close({"counts": run.counts})
        else:
            _print_summary(run, "" if found.from_mongod else manifest, log)
            manifest_source.tell_unknown(found)
    return 1 if run.counts["left"] else 0


def _restorable(path: Path) -> Manifest:
    """The rollback, whose files are sound: a damaged document must not replace a good one."""
    if not mongod_files.is_mongods(path):
        return read_restorable_manifest(path)
    found = mongod_files.read_rollback(path)
    for row in verify_rollback(path, found).files:
        if row.problems:
            raise CorruptDataError(f"{row.file.name}: {row.problems[0][1]} (see `rollback-tools verify {path}`)")
    return found


def _audit_log(path: Path, chosen: Path | None, *, is_elsewhere: bool) -> AuditLog:
    """path: of the manifest. is_elsewhere: that folder is a member's or mongod's, not ours to write to."""
    if chosen is not None:
        return AuditLog(chosen)
    folder = Path.cwd() if is_elsewhere else path.parent
    return AuditLog.beside(folder / path.name, _now())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a tool's record, not a member's time


def line_of(outcome: Outcome) -> str:
    lost = outcome.lost
    if isinstance(lost, LostCommand):
        what = f"{lost.ns}: lost {lost.name}"
    else:
        kind = lost.kind.value if lost.kind is not None else ""
        what = f"{lost.ns} {short(lost.id)}: lost {kind}"
    return f"{RESULT_TEXT[outcome.result]}  {what}; {outcome.decision.reason}"


def _print_summary(run: Restore, manifest: str, log: AuditLog | None) -> None:
    parts = [f"{run.counts[result.value]} {RESULT_TEXT[result]}" for result in Result if run.counts[result.value]]
    echo(", ".join(parts) or "nothing was lost")
    if log is not None:
        echo(f"record: {log.path}")
    if not run.counts["left"] and not run.counts["would"]:
        echo("All is in the set." + (f" Acknowledge it: rollback-tools ack {manifest}" if manifest else ""))


class Prompt:
    """Asks a person about one lost write after the other, on standard error."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answer_for_all: Policy | None = None
        self._stopped = False

    def choose(self, lost: LostDocument | LostCommand, versions: Versions | None, decision: Decision) -> Policy | None:
        """The policy for this lost write; None leaves it undone."""
        if self._stopped:
            return None
        if self._answer_for_all is not None:
            return self._answer_for_all
        if isinstance(lost, LostCommand):
            echo(f"{lost.ns}: lost {lost.name}; {decision.reason}", err=True)
        elif versions is not None:
            print_document(lost, versions, decision.status, err=True)
        while True:
            match self._answer(decision):
                case "p":
                    return Policy.TO_COLLECTION if self._policy is Policy.TO_COLLECTION else Policy.OVERWRITE
                case "m" if self._policy is not Policy.TO_COLLECTION:
                    return Policy.MERGE
                case "n" if self._policy is not Policy.TO_COLLECTION:
                    return Policy.KEEP_NEWER
                case "k":
                    return None
                case "a":
                    self._answer_for_all = self._policy
                    return self._answer_for_all
                case "q":
                    self._stopped = True
                    return None
                case _:
                    echo(ANSWERS, err=True)

    def _answer(self, decision: Decision) -> str:
        default = "k" if decision.status is ConflictStatus.CONFLICT else "p"
        echo(f"[p/m/n/k/a/q, ?: help] ({default}) ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:  # the input has ended, so nobody can answer
            echo("", err=True)
            return "q"
        return line.strip().lower() or default
