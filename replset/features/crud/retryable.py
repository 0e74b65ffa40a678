"""Retryable writes: finds what of a command was executed before, so that it is answered again and not done again.

The session's record names the newest entry of its newest `txnNumber`, and the entries of one number form a chain
(replication/session_write.py). The chain is read only when the record has the command's own number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replset.bson import RawDocument
from replset.errors import ErrorCode, InvalidOptionsError, RemoteProtocolError, ReplError
from replset.features.crud.scan import SLICE_BYTES, pause
from replset.ids import OPTIME_NULL, OpTime
from replset.operations import fields
from replset.operations.command import CommandContext
from replset.operations.fail_command import fail_transactional_write
from replset.operations.session_request import SessionRequest
from replset.oplog_entry import OplogEntry
from replset.optime import parse_optime
from replset.replication.session_write import SessionWrite
from replset.replication.write_ops import WriteGroup
from replset.storage.catalog import SESSIONS
from replset.storage.sessions import SessionRecord, answer_of, image_of, read_record

SLICE_ENTRIES = 200
"""Entries of a chain that are read at once; each costs some 10 microseconds."""


class Executed(NamedTuple):
    """One statement that was executed before. op: of its entry. inserted_id: of an insert.

    image: the document that a findAndModify answers; None: it answers none.
    """

    op: str
    inserted_id: object = None
    image: RawDocument | None = None


def refuse_retryable(retry: RetryableWrite | None, what: str) -> None:
    """Refuse a statement that may change several documents in a retryable write (72)."""
    if retry is not None and not retry.is_keyed:
        raise InvalidOptionsError(f"Cannot use (or request) retryable writes with {what}")


def statement_ids(body: RawDocument, command: str, size: int) -> Sequence[int]:
    """The number of each statement of a write: `stmtIds`, or counted from `stmtId` (0 when absent). 16, 72."""
    if "stmtId" not in body and "stmtIds" not in body:
        return range(size)
    first, given = not fields.is_absent(body, "stmtId"), not fields.is_absent(body, "stmtIds")
    if first and given:
        raise InvalidOptionsError("May not specify both stmtId and stmtIds in write command")
    if not given:
        start = fields.whole(body, "stmtId", command, most=(1 << 31) - 1 - size)
        return range(start, start + size)
    ids = [fields.as_whole(value, "stmtIds", command) for value in fields.values(body, "stmtIds", command)]
    if len(ids) != size:
        raise ReplError("Number of statement ids must match the number of batch entries", code=ErrorCode.INVALID_LENGTH)
    if any(not -(1 << 31) <= number < 1 << 31 for number in ids):
        raise InvalidOptionsError(f"BSON field '{command}.stmtIds' holds a number that is no int")
    return ids


class RetryableWrite:
    """The statements of one command under one `txnNumber`. ids: their numbers, in order."""

    def __init__(self, ctx: CommandContext, session: SessionRequest, size: int) -> None:
        """size: how many statements the command has."""
        self.key = session.key
        self.ids = statement_ids(ctx.body, ctx.name, size)
        self.number = session.txn_number or 0
        self.write = SessionWrite(session.key, session.lsid.raw, self.number)
        self.retried: list[int] = []
        """The numbers of the statements that were answered from the chain."""
        self.unread: OpTime | None = None
        """The newest entry of a chain that must be read before the next group (`read_chain`)."""
        self.is_keyed = session.is_keyed
        """Whether it has an Idempotency-Key: then its answer is recorded, and it may change many documents."""
        self.answer: dict[str, object] | None = None
        """What an earlier attempt answered; only with a key."""
        self._ctx = ctx
        self._keys: dict[int, set[bytes]] = {}
        self._executed: dict[int, Executed] = {}
        self._wanted = self.ids if isinstance(self.ids, range) else frozenset(self.ids)
        """A session may have written far more under this number: what other commands did is not kept."""
        self._is_complete = True

    def begin(self, group: WriteGroup) -> bool:
        """Begin this command's part of a group. False: write nothing, `read_chain` comes first.

        TransactionTooOld (225): the session has used a greater number since.
        """
        document = group.txn.session(self.key)
        record = None if document is None else read_record(document)
        if record is not None and record.txn_number > self.number and not self.is_keyed:
            raise ReplError(
                f"Retryable write with txnNumber {self.number} is prohibited on session because a newer retryable"
                f" write with txnNumber {record.txn_number} has already started on this session.",
                code=ErrorCode.TRANSACTION_TOO_OLD,
            )
        if self.is_keyed and record is not None and document is not None:
            if record.txn_number != self.number:
                text = "this Idempotency-Key was used for another request"
                raise ReplError(text, code=ErrorCode.TRANSACTION_TOO_OLD)
            self.answer = answer_of(document)
            if self.answer is not None:
                return True
        newest = self._newest_of(record)
        if newest != self.write.previous:
            self.unread = newest
            return False
        group.session_write = self.write
        return True

    def taken_back(self, group: WriteGroup) -> None:
        """Go on behind the newest entry that is left: a statement failed, and its entries were taken back."""
        document = group.txn.session(self.key)
        self.write.previous = self._newest_of(None if document is None else read_record(document))

    def _newest_of(self, record: SessionRecord | None) -> OpTime:
        """The newest entry of this number, OPTIME_NULL before the first."""
        return OPTIME_NULL if record is None or record.txn_number < self.number else record.optime

    async def read_chain(self) -> None:
        """Read what was executed under this number. Nobody else writes in the session meanwhile."""
        self._executed.clear()
        self._is_complete = True
        store = self._ctx.member.store
        at = newest = self.unread or OPTIME_NULL
        self.unread = None
        document = store.get(SESSIONS, self.key)
        image = None if document is None else image_of(document)
        entries = size = 0
        while at.ts:
            row = store.oplog_row_at(at)
            if row is None:
                self._is_complete = False
                break
            at = self._note(OplogEntry(row.entry), image)
            entries += 1
            size += len(row.entry)
            if entries >= SLICE_ENTRIES or size > SLICE_BYTES:
                entries = size = 0
                await pause(self._ctx)
        self.write.previous = newest

    def _note(self, entry: OplogEntry, image: RawDocument | None) -> OpTime:
        """Keep what the entry says of its statement; return the optime of the entry before it."""
        statement, previous = entry.get("stmtId"), entry.get("prevOpTime")
        if entry.op == "c" or not isinstance(statement, int):
            raise InvalidOptionsError(f"txnNumber {self.number} of this session was a transaction's")
        if int(statement) in self._wanted:
            self._keep(int(statement), entry, image)
        try:
            return parse_optime(previous)
        except RemoteProtocolError:
            return OPTIME_NULL  # {ts: 0, t: -1}: the first one

    def _keep(self, statement: int, entry: OplogEntry, image: RawDocument | None) -> None:
        if entry.op == "i":
            document = entry.o
            executed = Executed("i", document.get("_id"), document if self.write.image == "postImage" else None)
        else:
            executed = Executed(entry.op, image=image)
        self._executed.setdefault(statement, executed)
        key = entry.key() if self.is_keyed else None
        if key is not None:
            self._keys.setdefault(statement, set()).add(key)

    def keys_of(self, index: int) -> set[bytes]:
        """The keys of the documents that statement `index` changed before it was interrupted; only with a key."""
        return self._keys.get(self.ids[index], set())

    def record_answer(self, group: WriteGroup, answer: Mapping[str, object]) -> None:
        """Keep the answer of the whole command, in the group of its last write."""
        self.write.record_answer(group.txn, answer, group.next_optime(), group.wall_ms)

    def untried(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of these statements if none was executed before; else nothing: ask `executed` of each."""
        if self._executed or not self._is_complete or self._ctx.member.fail_points.active:
            return ()
        return self.ids[start:stop]

    def executed(self, index: int) -> Executed | None:
        """Return what statement `index` did when it was executed before; None: it was not, and comes now.

        IncompleteTransactionHistory (217): it may have been; the entries that would say so are trimmed away.
        """
        statement = self.write.stmt_id = self.ids[index]
        done = self._executed.get(statement)
        if done is not None:
            self.retried.append(statement)
            return done
        if not self._is_complete:
            raise ReplError(
                f"Incomplete history detected for txnNumber {self.number} of this session: the oplog does not reach"
                " back to all of its writes",
                code=ErrorCode.INCOMPLETE_TRANSACTION_HISTORY,
            )
        if self._ctx.member.fail_points.active:
            fail_transactional_write(self._ctx)
        return None
