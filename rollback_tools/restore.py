"""`rollback-tools restore MANIFEST --host HOST:PORT`: put lost writes back, by a policy or by hand."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.recovery.audit import AuditLog
from replset.recovery.live_set import LiveSet
from replset.recovery.lost_writes import LostDocument, LostWrites
from replset.recovery.policy import ConflictStatus, Decision, LostChange, Policy, Versions
from replset.recovery.report import JsonReport
from replset.recovery.restore import Outcome, Result
from replset.recovery.restoring import POLICIES, Restoring, policy_of, readable, stamp_of
from rollback_tools import manifest_source
from rollback_tools.diff import print_document
from rollback_tools.text import printable, short

DEFAULT_HOST = "127.0.0.1:27017"
AUDIT_HELP = "the record of the run; default: beside the manifest, of a member's manifest in the current folder"
JOINT = " "
"""Between `to-collection` and its NAME, which main.py makes one argument of."""
VERBS = {
    Result.DONE: "put back",
    Result.THERE: "there",
    Result.WOULD: "would put back",
    Result.LEFT: "left",
}
ANSWERS = "p: put back, m: merge, n: only if newer, k: keep what is live, a: as the policy says from here on, q: stop"


def restore(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    host: Annotated[str, typer.Option(help="any member of the set, HOST:PORT of its wire port")] = DEFAULT_HOST,
    policy: Annotated[str, typer.Option(help=f"where the set changed the document since: {POLICIES}")] = "skip",
    interactive: Annotated[bool, typer.Option("--interactive", help="ask about each lost write")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done; write nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of lines")] = False,
    audit: Annotated[Path | None, typer.Option(help=AUDIT_HELP)] = None,
) -> int:
    """Put lost writes back as new writes that a majority has. Run twice, it changes nothing the second time.

    Exit status 0: every lost write is in the set. 1: something stays undone; the lines say what and why.
    """
    chosen, collection = parse_policy(policy)
    with ExitStack() as stack:
        path = stack.enter_context(manifest_source.local_manifest(manifest))
        found = readable(path)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(LiveSet(host, found.set_name))
        choose = Prompt(chosen).choose if interactive else None
        restoring = Restoring(lost, live, chosen, collection=collection, choose=choose)
        record = None if dry_run else stack.enter_context(_audit(manifest, path, audit))
        outcomes = stack.enter_context(closing(restoring.run(record, _now)))
        _tell(outcomes, restoring, restoring.head(record), as_json=as_json)
        counts = restoring.counts
        if not as_json:
            _sum_up(counts, manifest, record)
    return 1 if counts["left"] else 0


def parse_policy(text: str) -> tuple[Policy, str]:
    """The policy, and the collection's name of to-collection. BadValueError."""
    name, _, collection = text.partition(JOINT)
    return policy_of(name, collection), collection


def _audit(manifest: str, path: Path, chosen: Path | None) -> AuditLog:
    """manifest: as it was given. path: where it is at hand."""
    if chosen is not None:
        return AuditLog(chosen)
    folder = Path.cwd() if manifest_source.is_remote(manifest) else path.parent
    return AuditLog.beside(folder / path.name, stamp_of(_now()))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a tool's record, not a member's time


# --- telling ----------------------------------------------------------------------------------------------------


def _tell(outcomes: Iterator[Outcome], restoring: Restoring, head: dict[str, Any], *, as_json: bool) -> None:
    report = JsonReport(sys.stdout, head, "writes") if as_json else None
    for outcome in outcomes:
        if report is not None:
            report.row(outcome.row())
        else:
            typer.echo(line_of(outcome))
    if report is not None:
        report.close({"counts": restoring.counts})


def line_of(outcome: Outcome) -> str:
    lost = outcome.lost
    if isinstance(lost, LostChange):
        what = f"{printable(lost.ns)}: lost {printable(lost.name)}"
    else:
        kind = lost.kind.value if lost.kind is not None else ""
        what = f"{printable(lost.ns)} {short(lost.id)}: lost {kind}"
    return f"{VERBS[outcome.result]}  {what}; {printable(outcome.decision.reason)}"


def _sum_up(counts: Counter[str], manifest: str, record: AuditLog | None) -> None:
    parts = [f"{counts[result.value]} {VERBS[result]}" for result in Result if counts[result.value]]
    typer.echo(", ".join(parts) or "nothing was lost")
    if record is not None:
        typer.echo(f"record: {record.path}")
    if not counts["left"] and not counts["would"]:
        typer.echo(f"All is in the set. Acknowledge it: rollback-tools ack {manifest}")


# --- asking -----------------------------------------------------------------------------------------------------


class Prompt:
    """Asks a person about one lost write after the other, on standard error."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rest: Policy | None = None  # the answer for all that follow
        self._stopped = False

    def choose(self, lost: LostDocument | LostChange, versions: Versions | None, decision: Decision) -> Policy | None:
        """None: leave it."""
        if self._stopped:
            return None
        if self._rest is not None:
            return self._rest
        if isinstance(lost, LostChange):
            typer.echo(f"{printable(lost.ns)}: lost {printable(lost.name)}; {decision.reason}", err=True)
        elif versions is not None:
            print_document(lost, versions, decision.standing, err=True)
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
                    self._rest = self._policy
                    return self._rest
                case "q":
                    self._stopped = True
                    return None
                case _:
                    typer.echo(ANSWERS, err=True)

    def _answer(self, decision: Decision) -> str:
        fitting = "k" if decision.standing is ConflictStatus.CONFLICT else "p"
        typer.echo(f"[p/m/n/k/a/q, ?: help] ({fitting}) ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:  # nobody is there to ask any more
            typer.echo("", err=True)
            return "q"
        return line.strip().lower() or fitting
