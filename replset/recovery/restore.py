"""Putting lost writes back: decide, note it durably, write, read again. Running it twice changes nothing more.

Nothing is remembered between runs: what was put back is seen as there. So a run that was killed is just run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from replset.errors import ReplError
from replset.recovery.audit import AuditLog
from replset.recovery.compare import Comparison, LiveReading
from replset.recovery.live_set import LARGEST_STATEMENT, RETRIED, UnconfirmedError, Write, Written
from replset.recovery.lost_writes import LostDocument
from replset.recovery.policy import (
    Action,
    CommandKind,
    Decision,
    LostChange,
    Policy,
    Versions,
    decide,
    decide_change,
    lost_changes,
    operators,
)
from replset.recovery.report import about, document

ATTEMPTS = 8
PAUSE_S = 0.1


class LiveWriting(LiveReading, Protocol):
    """What putting back needs of the set; `live.LiveSet` writes to a real one."""

    def collections(self) -> dict[str, bytes]: ...

    def write(self, writes: Sequence[Write]) -> Written: ...

    def create(self, ns: str, options: dict[str, object]) -> None: ...

    def drop(self, ns: str) -> None: ...


class Result(Enum):
    DONE = "done"
    THERE = "there"
    WOULD = "would"  # of a dry run
    LEFT = "left"  # stays undone


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one lost write. `versions` as they were when it was decided; None of a command."""

    lost: LostDocument | LostChange
    versions: Versions | None
    decision: Decision
    result: Result
    policy: Policy

    def row(self) -> dict[str, Any]:
        """For scripts."""
        lost = self.lost
        if isinstance(lost, LostChange):
            head: dict[str, Any] = {"ns": lost.ns, "class": "command", "command": lost.name}
        else:
            head = about(lost)
        tail: dict[str, Any] = {
            "standing": self.decision.standing.value,
            "result": self.result.value,
            "reason": self.decision.reason,
        }
        if self.decision.conflicts:
            tail["conflicts"] = list(self.decision.conflicts)
        return head | tail


Choose = Callable[[LostDocument | LostChange, Versions | None, Decision], Policy | None]
"""Asks a person about one lost write; None: leave it."""


class PuttingBack:
    """One run over one rollback."""

    def __init__(
        self,
        comparing: Comparison,
        live: LiveWriting,
        policy: Policy,
        *,
        collection: str = "",
        audit: AuditLog | None = None,
        choose: Choose | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """collection: the name that TO_COLLECTION copies to, in each document's database. audit: None is a dry run:
        nothing is written anywhere. choose: asked about each write that is not there.
        """
        self._comparing = comparing
        self._live = live
        self._policy = policy
        self._collection = collection
        self._audit = audit
        self._choose = choose
        self._pause = pause
        self.has_written = False
        """Whether anything was sent that changes the set."""
        self._gone: set[str] = set()  # namespaces that a dry run would have dropped

    def run(self) -> Iterator[Outcome]:
        """Each outcome once it is certain; commands first, since documents need their collections."""
        yield from self._changes()
        for batch in self._comparing.batches():
            order = {(row.uuid, row.key): index for index, row in enumerate(batch)}
            yield from sorted(self._batch(batch), key=lambda outcome: order[_key(outcome)])

    # --- commands

    def _changes(self) -> Iterator[Outcome]:
        changes = [change for change in lost_changes(self._comparing.lost) if change.optime > self._comparing.shared]
        live = self._live.collections() if changes else {}
        for change in changes:
            policy, decision = self._policy, decide_change(self._policy, change, live)
            if decision.action is not Action.NOTHING and self._choose is not None:
                policy, decision = self._chosen_change(change, decision, live)
            outcome = Outcome(change, None, decision, _result(decision, self._audit is None), policy)
            if decision.action is Action.PUT:
                self._note({"decision": outcome.row()}, sync=True)
                self._carry_out(change, live)
            self._finish(outcome)
            yield outcome

    def _chosen_change(self, change: LostChange, decision: Decision, live: dict[str, bytes]) -> tuple[Policy, Decision]:
        assert self._choose is not None
        policy = self._choose(change, None, decision)
        if policy is None:
            return self._policy, _left(decision)
        return policy, decide_change(policy, change, live)

    def _carry_out(self, change: LostChange, live: dict[str, bytes]) -> None:
        self.has_written = self._audit is not None
        match change.kind:
            case CommandKind.DROP:
                live.pop(change.ns, None)
                if self._audit is None:
                    self._gone.add(change.ns)
                else:
                    self._live.drop(change.ns)
            case CommandKind.CREATE:
                live[change.ns] = b""
                if self._audit is not None:
                    self._live.create(change.ns, dict(change.options))

    # --- documents

    def _batch(self, rows: list[LostDocument]) -> Iterator[Outcome]:
        """rows: of one namespace. Written until a majority has what was decided, or it cannot be."""
        ns = self._target(rows[0].ns)
        sent: dict[tuple[bytes, bytes], Outcome] = {}
        trouble = "the set keeps changing the document"
        for attempt in range(ATTEMPTS):
            if attempt > 1:
                self._pause(PAUSE_S * attempt)
            writes: list[Outcome] = []
            for row, versions in zip(rows, self._read(rows, ns), strict=True):
                before = sent.get((row.uuid, row.key))
                outcome = self._decided(row, versions, before)
                if before is not None and outcome.result is Result.THERE:
                    outcome = replace(before, result=Result.DONE)
                elif outcome.decision.action is Action.PUT and self._audit is not None:
                    writes.append(outcome)
                    continue
                self._finish(outcome)
                yield outcome
            if not writes:
                return
            written, trouble = self._write(ns, writes, trouble)
            rest: list[Outcome] = []
            for index, outcome in enumerate(writes):
                if index in written.refused:
                    outcome = _undone(outcome, written.refused[index])
                elif index not in written.done:
                    rest.append(outcome)
                    continue
                self._finish(outcome)
                yield outcome
            rows = [outcome.lost for outcome in rest if isinstance(outcome.lost, LostDocument)]
            sent = {(row.uuid, row.key): outcome for row, outcome in zip(rows, rest, strict=True)}
            if not rows:
                return
        for outcome in sent.values():
            left = _undone(outcome, trouble)
            self._finish(left)
            yield left

    def _target(self, ns: str) -> str:
        if self._policy is not Policy.TO_COLLECTION:
            return ns
        return f"{ns.partition('.')[0]}.{self._collection}"

    def _read(self, rows: list[LostDocument], ns: str) -> list[Versions]:
        return self._comparing.versions(rows, ns=ns, is_gone=ns in self._gone)

    def _decided(self, row: LostDocument, versions: Versions, sent: Outcome | None) -> Outcome:
        """sent: what was decided and sent before."""
        policy = self._policy if sent is None else sent.policy
        decision = decide(policy, versions)
        if decision.action is Action.NOTHING:
            return Outcome(row, versions, decision, Result.THERE, policy)
        if self._choose is not None and (sent is None or versions.live != _live_of(sent)):
            chosen = self._choose(row, versions, decision)
            policy = self._policy if chosen is None else chosen
            decision = _left(decision) if chosen is None else decide(policy, versions)
        return Outcome(row, versions, decision, _result(decision, self._audit is None), policy)

    def _write(self, ns: str, writes: list[Outcome], trouble: str) -> tuple[Written, str]:
        """Note and send; also what went wrong with all of them."""
        for outcome in writes:
            assert outcome.versions is not None
            live, target = document(outcome.versions.live), document(outcome.decision.target)
            self._note({"decision": outcome.row(), "into": ns, "live": live, "becomes": target})
        self._note({}, sync=True)
        self.has_written = True
        try:
            return self._live.write([_statement(ns, outcome) for outcome in writes]), trouble
        except UnconfirmedError as error:
            return Written(set(), {}), error.message
        except ReplError as error:
            if error.code not in RETRIED:
                raise
            return Written(set(), {}), error.message  # applied or not: reading again tells

    # --- the record

    def _note(self, row: dict[str, Any], *, sync: bool = False) -> None:
        if self._audit is None:
            return
        if row:
            self._audit.add(row)
        if sync:
            self._audit.sync()

    def _finish(self, outcome: Outcome) -> None:
        self._note({"outcome": outcome.row()})


def _result(decision: Decision, is_dry: bool) -> Result:
    match decision.action:
        case Action.NOTHING:
            return Result.THERE
        case Action.LEAVE:
            return Result.LEFT
        case Action.PUT:
            return Result.WOULD if is_dry else Result.DONE


def _left(decision: Decision) -> Decision:
    return Decision(Action.LEAVE, decision.standing, "left by choice", conflicts=decision.conflicts)


def _undone(outcome: Outcome, reason: str) -> Outcome:
    decision = Decision(Action.LEAVE, outcome.decision.standing, reason, conflicts=outcome.decision.conflicts)
    return replace(outcome, decision=decision, result=Result.LEFT)


def _key(outcome: Outcome) -> tuple[bytes, bytes]:
    assert isinstance(outcome.lost, LostDocument)
    return outcome.lost.uuid, outcome.lost.key


def _live_of(outcome: Outcome) -> bytes | None:
    return None if outcome.versions is None else outcome.versions.live


def _statement(ns: str, outcome: Outcome) -> Write:
    versions, target = outcome.versions, outcome.decision.target
    assert versions is not None and isinstance(outcome.lost, LostDocument)  # noqa: PT018 - commands go another way
    change = None
    if versions.live is not None and target is not None and len(versions.live) + len(target) > LARGEST_STATEMENT // 2:
        change = operators(versions.live, target)
    return Write(ns, outcome.lost.id_element, versions.live, target, change)
