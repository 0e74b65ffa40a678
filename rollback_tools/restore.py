"""`rollback-tools restore MANIFEST --host HOST:PORT`: put lost writes back, by a policy or by hand."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.errors import BadValueError, ReplError
from replset.replication.lost_writes import LostDocument, LostWrites
from replset.replication.put_back import Decision, LostChange, Policy, Standing, Versions
from replset.replication.rollback_files import Manifest, RollbackState, read_manifest, verify_file
from rollback_tools import place
from rollback_tools.audit import Audit
from rollback_tools.comparing import Comparing
from rollback_tools.diff import print_document
from rollback_tools.live import Live
from rollback_tools.putting_back import Outcome, PuttingBack, Result
from rollback_tools.report import JsonReport, printable, short

DEFAULT_HOST = "127.0.0.1:27017"
AUDIT_HELP = "the record of the run; default: beside the manifest, of a member's manifest in the current folder"
JOINT = " "
"""Between `to-collection` and its NAME, which main.py makes one argument of."""
HELP = "skip, overwrite, keep-newer, merge, or to-collection NAME"
VERBS = {
    Result.DONE: "put back",
    Result.THERE: "there",
    Result.WOULD: "would put back",
    Result.LEFT: "left",
}
ANSWERS = "p: put back, m: merge, n: only if newer, k: keep what is live, a: as the policy says from here on, q: stop"


def restore(
    manifest: Annotated[str, typer.Argument(help=place.HELP)],
    host: Annotated[str, typer.Option(help="any member of the set, HOST:PORT of its wire port")] = DEFAULT_HOST,
    policy: Annotated[str, typer.Option(help=f"where the set changed the document since: {HELP}")] = "skip",
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
        path = stack.enter_context(place.at_hand(manifest))
        found = readable(path)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(Live(host, found.set_name))
        comparing = Comparing(lost, live, with_entries=chosen is Policy.KEEP_NEWER or interactive)
        record = None if dry_run else stack.enter_context(_audit(manifest, path, audit))
        run = PuttingBack(
            comparing,
            live,
            chosen,
            collection=collection,
            audit=record,
            choose=Asking(chosen).choose if interactive else None,
        )
        head: dict[str, Any] = {
            "id": found.id,
            "set": found.set_name,
            "primary": live.primary,
            "policy": policy,
            "dryRun": dry_run,
            "audit": None if record is None else str(record.path),
        }
        if record is not None:
            record.add({"restore": {**head, "at": _now().isoformat()}})
        counts = _tell(run.run(), head, as_json=as_json)
        if record is not None:
            record.add({"counts": counts, "at": _now().isoformat()})
        if not as_json:
            _sum_up(counts, manifest, record)
    return 1 if counts["left"] else 0


def parse_policy(text: str) -> tuple[Policy, str]:
    """The policy, and the collection's name of to-collection. BadValueError."""
    name, _, collection = text.partition(JOINT)
    if name not in {policy.value for policy in Policy}:
        raise BadValueError(f"no policy {text!r}; there are {HELP}")
    policy = Policy(name)
    if (policy is Policy.TO_COLLECTION) != bool(collection):
        raise BadValueError(f"{name} takes {'the NAME of a collection' if not collection else 'no NAME'}")
    return policy, collection


def readable(path: Path) -> Manifest:
    """The manifest, when its rollback is over and its files are sound; ReplError says what is wrong."""
    manifest = read_manifest(path)
    if manifest.state is RollbackState.PLANNED:
        raise ReplError(f"{manifest.id} is planned, not settled yet: start {manifest.member}, then come back")
    if manifest.state is RollbackState.ABANDONED:
        raise ReplError(f"{manifest.id} is abandoned: nothing was undone, so there is nothing to put back")
    for file in manifest.files:
        problem = verify_file(path.parent, file)
        if problem is not None:
            raise ReplError(f"{file.name}: {problem} (see `rollback-tools verify {path}`)")
    return manifest


def _audit(manifest: str, path: Path, chosen: Path | None) -> Audit:
    """manifest: as it was given. path: where it is at hand."""
    if chosen is not None:
        return Audit(chosen)
    folder = Path.cwd() if place.is_remote(manifest) else path.parent
    return Audit.beside(folder / path.name, _now().strftime("%Y-%m-%dT%H-%M-%S"))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a tool's record, not a member's time


# --- telling ----------------------------------------------------------------------------------------------------


def _tell(outcomes: Iterator[Outcome], head: dict[str, Any], *, as_json: bool) -> dict[str, int]:
    counts: Counter[str] = Counter({result.value: 0 for result in Result})
    report = JsonReport(sys.stdout, head, "writes") if as_json else None
    for outcome in outcomes:
        counts[outcome.result.value] += 1
        if report is not None:
            report.row(outcome.row())
        else:
            typer.echo(line_of(outcome))
    if report is not None:
        report.close({"counts": counts})
    return dict(counts)


def line_of(outcome: Outcome) -> str:
    lost = outcome.lost
    if isinstance(lost, LostChange):
        what = f"{printable(lost.ns)}: lost {printable(lost.name)}"
    else:
        kind = lost.kind.value if lost.kind is not None else ""
        what = f"{printable(lost.ns)} {short(lost.id)}: lost {kind}"
    return f"{VERBS[outcome.result]}  {what}; {printable(outcome.decision.reason)}"


def _sum_up(counts: dict[str, int], manifest: str, record: Audit | None) -> None:
    parts = [f"{counts[result.value]} {VERBS[result]}" for result in Result if counts[result.value]]
    typer.echo(", ".join(parts) or "nothing was lost")
    if record is not None:
        typer.echo(f"record: {record.path}")
    if not counts["left"] and not counts["would"]:
        typer.echo(f"All is in the set. Acknowledge it: rollback-tools ack {manifest}")


# --- asking -----------------------------------------------------------------------------------------------------


class Asking:
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
        fitting = "k" if decision.standing is Standing.CONFLICT else "p"
        typer.echo(f"[p/m/n/k/a/q, ?: help] ({fitting}) ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:  # nobody is there to ask any more
            typer.echo("", err=True)
            return "q"
        return line.strip().lower() or fitting
