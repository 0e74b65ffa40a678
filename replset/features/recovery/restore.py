"""Puts lost writes back: decide, note the decision on disk, write, read again.

Nothing is remembered between runs, because a write that was put back is seen as there. So a run that was killed is
just run again, and a second run changes nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from replset.errors import CorruptDataError, IllegalOperationError, ReplError
from replset.features.recovery.compare import Comparison, by_hand
from replset.features.recovery.live_set import (
    LARGEST_STATEMENT,
    LiveSet,
    UnconfirmedError,
    Write,
    WriteResult,
    may_retry,
)
from replset.features.recovery.lost_writes import CommandKind, DocumentId, LostCommand, LostDocument, LostWrites
from replset.features.recovery.policy import (
    Decision,
    Policy,
    RestoreAction,
    Versions,
    decide,
    decide_command,
    operators,
)
from replset.features.recovery.report import document_json, summary
from replset.operations.namespaces import writable_namespace
from replset.replication.rollback_manifest import Manifest, RollbackState, read_manifest, verify_file


class AuditLog:
    """The audit log of a restore: what was decided, what was there before, and the outcome. One JSON document a line.

    Each decision to write is on disk before the write is sent, together with the document that it replaces. So whatever
    was overwritten can be found again. Use it in `with`. OSError when it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        """Create the file; FileExistsError when it exists."""
        self.path = path
        self._file = path.open("xb")

    @classmethod
    def beside(cls, manifest: Path, now: datetime.datetime) -> Self:
        """Create `restore.ID.TIME.N.jsonl` next to the manifest, with the first N that is free."""
        stamp = now.strftime("%Y-%m-%dT%H-%M-%S")
        number = 0
        while True:
            try:
                return cls(manifest.parent / f"restore.{manifest.stem}.{stamp}.{number}.jsonl")
            except FileExistsError:
                number += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            self._file.close()

    def add(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def sync(self) -> None:
        """Make what was added survive a crash."""
        self._file.flush()
        os.fsync(self._file.fileno())


ATTEMPTS = 8
PAUSE_S = 0.1


class Result(Enum):
    DONE = "done"
    THERE = "there"
    WOULD = "would"  # of a dry run
    LEFT = "left"  # stays undone


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one lost write. versions: those that the decision was made from; None for a command."""

    lost: LostDocument | LostCommand
    versions: Versions | None
    decision: Decision
    result: Result
    policy: Policy

    def row(self) -> dict[str, Any]:
        """The row of `--json`."""
        lost = self.lost
        if isinstance(lost, LostCommand):
            head: dict[str, Any] = {"ns": lost.ns, "class": "command", "command": lost.name}
        else:
            head = summary(lost)
        tail: dict[str, Any] = {
            "standing": self.decision.status.value,
            "result": self.result.value,
            "reason": self.decision.reason,
        }
        if self.decision.conflicts:
            tail["conflicts"] = list(self.decision.conflicts)
        return head | tail


Choose = Callable[[LostDocument | LostCommand, Versions | None, Decision], Policy | None]
"""Asks a person about one lost write; None leaves it undone."""


def read_restorable_manifest(path: Path) -> Manifest:
    """Read a manifest whose lost writes can be put back.

    IllegalOperationError when the rollback is not over, or undid nothing. CorruptDataError when a file is damaged:
    putting back what a damaged file says could replace good documents with bad ones.
    """
    manifest = read_manifest(path)
    if manifest.state is RollbackState.PLANNED:
        raise IllegalOperationError(
            f"{manifest.id} is planned, not settled yet: start {manifest.member}, then come back"
        )
    if manifest.state is RollbackState.ABANDONED:
        raise IllegalOperationError(f"{manifest.id} is abandoned: nothing was undone, so there is nothing to put back")
    for file in manifest.files:
        problem = verify_file(path.parent, file)
        if problem is not None:
            raise CorruptDataError(f"{file.name}: {problem} (see `rollback-tools verify {path}`)")
    return manifest


class Restore:
    """One restore of one rollback. counts: by result, of the outcomes so far."""

    def __init__(
        self,
        lost: LostWrites,
        live: LiveSet,
        policy: Policy,
        *,
        collection: str = "",
        choose: Choose | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """collection: the name that TO_COLLECTION copies to, in each document's database. InvalidNamespaceError when
        clients may not write to it. choose: asked about each write that is not there.
        """
        self._lost = lost
        self._live = live
        self._policy = policy
        self._collection = collection
        self._choose = choose
        self._pause = pause
        with_entries = policy is Policy.KEEP_NEWER or choose is not None
        self._comparison = Comparison(lost, live, with_entries=with_entries)
        if policy is Policy.TO_COLLECTION:
            for database in {row.ns.partition(".")[0] for row in self._comparison.documents if not by_hand(row)}:
                writable_namespace(database, collection)
        self.total = self._comparison.total
        self._audit: AuditLog | None = None
        self.has_written = False
        """Whether anything was sent that changes the set."""
        self._dropped: set[str] = set()  # namespaces that a dry run would have dropped
        self.counts: Counter[str] = Counter({result.value: 0 for result in Result})

    def head(self, audit: AuditLog | None) -> dict[str, Any]:
        manifest = self._lost.manifest
        return {
            "id": manifest.id,
            "set": manifest.set_name or None,
            "primary": self._live.primary,
            "policy": f"{self._policy.value} {self._collection}".rstrip(),
            "dryRun": audit is None,
            "audit": None if audit is None else str(audit.path),
        }

    def run(self, audit: AuditLog | None, now: Callable[[], datetime.datetime]) -> Generator[Outcome]:
        """Yield each outcome as soon as it is certain. audit: None for a dry run; else close this
        generator before the log."""
        self._audit = audit
        if audit is not None:
            audit.add({"restore": {**self.head(audit), "at": now().isoformat()}})
        try:
            for outcome in self._outcomes():
                self.counts[outcome.result.value] += 1
                yield outcome
        except BaseException as error:  # also GeneratorExit, when the reader has stopped
            if audit is not None:
                audit.add({"error": str(error) or "broken off", "counts": dict(self.counts), "at": now().isoformat()})
            raise
        if audit is not None:
            audit.add({"counts": dict(self.counts), "at": now().isoformat()})

    def _outcomes(self) -> Iterator[Outcome]:
        """Commands first, because documents need their collections."""
        yield from self._run_commands()
        for batch in self._comparison.batches():
            order = {(row.uuid, row.key): index for index, row in enumerate(batch)}
            yield from sorted(self._run_batch(batch), key=lambda outcome: order[_document_id(outcome)])

    # --- commands

    def _run_commands(self) -> Iterator[Outcome]:
        commands = self._comparison.commands
        live = self._live.collections() if commands else {}
        for command in commands:
            policy, decision = self._policy, decide_command(self._policy, command, live)
            if decision.action is not RestoreAction.NOTHING and self._choose is not None:
                chosen = self._choose(command, None, decision)
                policy = self._policy if chosen is None else chosen
                decision = _leave(decision) if chosen is None else decide_command(chosen, command, live)
            outcome = Outcome(command, None, decision, _result(decision, self._audit is None), policy)
            if decision.action is RestoreAction.WRITE:
                if self._audit is not None:
                    self._audit.add({"decision": outcome.row()})
                    self._audit.sync()
                self._run_command(command, live)
            self._note_outcome(outcome)
            yield outcome

    def _run_command(self, command: LostCommand, live: dict[str, bytes]) -> None:
        self.has_written = self._audit is not None
        match command.kind:
            case CommandKind.DROP:
                live.pop(command.ns, None)
                if self._audit is None:
                    self._dropped.add(command.ns)
                else:
                    self._live.drop(command.ns)
            case CommandKind.CREATE:
                live[command.ns] = b""
                if self._audit is not None:
                    self._live.create(command.ns, command.options)

    # --- documents

    def _run_batch(self, rows: list[LostDocument]) -> Iterator[Outcome]:
        """Write documents of one namespace until a majority has each of them, or it cannot be written.

        A write changes nothing if another client was faster. Then the document is read again and decided anew, so
        no newer write is overwritten by a decision about an older version.
        """
        ns = rows[0].ns
        if self._policy is Policy.TO_COLLECTION:
            ns = f"{ns.partition('.')[0]}.{self._collection}"
        sent: dict[DocumentId, Outcome] = {}
        trouble = "the set keeps changing the document"
        for attempt in range(ATTEMPTS):
            if attempt > 1:
                self._pause(PAUSE_S * attempt)
            writes: list[Outcome] = []
            found = self._comparison.versions(rows, ns=ns, is_gone=ns in self._dropped)
            for row, versions in zip(rows, found, strict=True):
                before = sent.get((row.uuid, row.key))
                outcome = self._decide(row, versions, before)
                if before is not None and outcome.result is Result.THERE:
                    outcome = replace(before, result=Result.DONE)
                elif outcome.decision.action is RestoreAction.WRITE and self._audit is not None:
                    writes.append(outcome)
                    continue
                self._note_outcome(outcome)
                yield outcome
            if not writes:
                return
            written, trouble = self._write(ns, writes, trouble)
            rest: list[Outcome] = []
            for index, outcome in enumerate(writes):
                if index in written.refused:
                    outcome = _left_undone(outcome, written.refused[index])
                elif index not in written.done:
                    rest.append(outcome)
                    continue
                self._note_outcome(outcome)
                yield outcome
            rows = [outcome.lost for outcome in rest if isinstance(outcome.lost, LostDocument)]
            sent = {(row.uuid, row.key): outcome for row, outcome in zip(rows, rest, strict=True)}
            if not rows:
                return
        for outcome in sent.values():
            left = _left_undone(outcome, trouble)
            self._note_outcome(left)
            yield left

    def _decide(self, row: LostDocument, versions: Versions, sent: Outcome | None) -> Outcome:
        """sent: the outcome that was sent before and is not certain. A person is asked again only if `live` changed."""
        policy = self._policy if sent is None else sent.policy
        decision = decide(policy, versions)
        if reason := by_hand(row):
            return Outcome(row, versions, _leave(decision, reason), Result.LEFT, policy)
        if decision.action is RestoreAction.NOTHING:
            return Outcome(row, versions, decision, Result.THERE, policy)
        if self._choose is not None and (sent is None or versions.live != _live_version(sent)):
            chosen = self._choose(row, versions, decision)
            policy = self._policy if chosen is None else chosen
            decision = _leave(decision) if chosen is None else decide(policy, versions)
        return Outcome(row, versions, decision, _result(decision, self._audit is None), policy)

    def _write(self, ns: str, writes: list[Outcome], trouble: str) -> tuple[WriteResult, str]:
        """Note the writes in the audit log, then send them; also returns what went wrong with all of them.

        The log has each document that is about to be replaced, and it is synced before anything is sent. So whatever
        a restore overwrites can be found again, even if this process dies in the middle.
        """
        assert self._audit is not None  # a dry run writes nothing
        for outcome in writes:
            live, target = document_json(_live_version(outcome)), document_json(outcome.decision.target)
            self._audit.add({"decision": outcome.row(), "into": ns, "live": live, "becomes": target})
        self._audit.sync()
        self.has_written = True
        try:
            return self._live.write([_statement(ns, outcome) for outcome in writes]), trouble
        except UnconfirmedError as error:
            return WriteResult(set(), {}), error.message
        except ReplError as error:
            if not may_retry(error.code):
                raise
            return WriteResult(set(), {}), error.message  # applied or not: the next read shows it

    def _note_outcome(self, outcome: Outcome) -> None:
        if self._audit is not None:
            self._audit.add({"outcome": outcome.row()})


def _result(decision: Decision, is_dry: bool) -> Result:
    match decision.action:
        case RestoreAction.NOTHING:
            return Result.THERE
        case RestoreAction.LEAVE:
            return Result.LEFT
        case RestoreAction.WRITE:
            return Result.WOULD if is_dry else Result.DONE


def _leave(decision: Decision, reason: str = "left by choice") -> Decision:
    return Decision(RestoreAction.LEAVE, decision.status, reason, conflicts=decision.conflicts)


def _left_undone(outcome: Outcome, reason: str) -> Outcome:
    return replace(outcome, decision=_leave(outcome.decision, reason), result=Result.LEFT)


def _document_id(outcome: Outcome) -> DocumentId:
    assert isinstance(outcome.lost, LostDocument)
    return outcome.lost.uuid, outcome.lost.key


def _live_version(outcome: Outcome) -> bytes | None:
    return None if outcome.versions is None else outcome.versions.live


def _statement(ns: str, outcome: Outcome) -> Write:
    live, target = _live_version(outcome), outcome.decision.target
    assert isinstance(outcome.lost, LostDocument)  # commands go another way
    change = None
    if live is not None and target is not None and len(live) + len(target) > LARGEST_STATEMENT // 2:
        change = operators(live, target)
    return Write(ns, outcome.lost.id_element, live, target, change)
