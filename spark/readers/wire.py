"""The oplog of a running mongod, or of any member by its wire port: `find` and `getMore` on local.oplog.rs.

A read has one cursor, asks for at most so many entries at a time, and goes on behind the last entry when its connection
breaks. An entry's optime stands for all entries before it, as between mongods: while it is there, nothing before it was
rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from replset.bson import InvalidBSONError, RawDocument, walk
from replset.client import WireClient
from replset.errors import ErrorCode, ReplError
from replset.features.recovery.live_set import may_retry
from replset.ids import OPTIME_NULL, OpTime
from replset.optime import timestamp
from replset.target import Target, hello
from spark.oplog import (
    ALL,
    EVERYTHING,
    Bounds,
    EntryFilter,
    OplogError,
    ReadPosition,
    Span,
    rolled_back_error,
    trimmed_error,
)
from spark.readers.pieces import InPieces, Piece, one_piece
from spark.readers.rows import Row, batch_of, entry_optime, entry_row

BATCH_ENTRIES = 1_000
"""What one `find` or `getMore` asks for at most; a mongod gives less where it would be more than 16 MiB."""
_DATABASE, _COLLECTION = "local", "oplog.rs"
_TIMEOUT_S = 60.0
_PATIENCE_S = 30.0
"""So long a member that is known to be there may be away."""
_PAUSE_S = 0.5
_FROM_ANY = {"$readPreference": {"mode": "secondaryPreferred"}}
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class WireOplog(InPieces):
    """`uri`: mongodb://HOST:PORT of one member. pinned: the bounds to keep to."""

    name: str
    uri: str = field(repr=False)
    pinned: Bounds | None = None

    def pin(self) -> WireOplog:
        return self if self.pinned else replace(self, pinned=self.bounds())

    def bounds(self) -> Bounds:
        if self.pinned:
            return self.pinned
        with self._connect() as member:
            return member.bounds()

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        bounds = self.pinned
        if bounds:
            span = bounds.within(span)
        if span.first_ts >= span.end_ts:
            return
        with self._connect() as member:
            last = bounds.newest if bounds else OPTIME_NULL
            for rows in member.read(span, only):
                if not bounds:
                    last = OpTime(rows[-1].term, rows[-1].ts)
                yield batch_of(rows, columns)
            if last != OPTIME_NULL:
                member.check(last)

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        with self._connect() as member:
            reached = member.ahead(after.optime, limit)
            return ReadPosition(reached, None) if reached.ts > after.optime.ts else after

    def between(self, after: ReadPosition, end: ReadPosition) -> WireOplog:
        return replace(self, pinned=Bounds(OpTime(after.optime.term, after.optime.ts + 1), end.optime))

    def _pieces(self) -> list[Piece]:
        return one_piece(self.bounds())

    @contextmanager
    def _connect(self) -> Iterator[_Member]:
        member = None
        try:
            member = _Member(self.name, self.uri, _PATIENCE_S if self.pinned else 0)
            yield member
        except OplogError:
            raise
        except (ReplError, InvalidBSONError) as error:
            raise OplogError(self.name, str(error)) from error
        finally:
            if member is not None:
                member.close()


class _Member:
    """One connection, made anew when it breaks. patience_s: so long nobody may answer; at least once somebody must."""

    def __init__(self, name: str, uri: str, patience_s: float) -> None:
        self._name, self._target, self._patience_s = name, Target(uri), patience_s
        self._client: WireClient | None = None
        self._cursor = 0

    def bounds(self) -> Bounds:
        return self._retry(self._bounds)

    def _bounds(self) -> Bounds:
        oldest, newest = self._end(1), self._end(-1)
        if oldest is None or newest is None:
            return Bounds()
        count = self._ask({"count": _COLLECTION, **_FROM_ANY}).get("n")
        return Bounds(entry_optime(oldest), entry_optime(newest), count if isinstance(count, int) else 0)

    def read(self, span: Span, only: EntryFilter) -> Iterator[list[Row]]:
        first = span.first_ts
        while True:
            batch = self._retry(lambda: self._batch(Span(first, span.end_ts), only))  # noqa: B023 (called at once)
            if batch:
                rows = [entry_row(raw) for raw in batch]
                yield rows
                first = rows[-1].ts + 1
            if not self._cursor:
                return

    def check(self, mark: OpTime) -> None:
        """That this entry is still there."""
        self._retry(lambda: self._check(mark))

    def _check(self, mark: OpTime) -> None:
        found = self._one({"filter": {"ts": {"$gte": timestamp(mark.ts)}}})
        if found is None or entry_optime(found) != mark:
            self._check_reach(mark.ts)
            raise rolled_back_error(self._name, mark)

    def ahead(self, after: OpTime, limit: int) -> OpTime:
        """The entry `limit` behind this one, or the newest. Of term 0 it is a point in time and no entry."""
        return self._retry(lambda: self._ahead(after, limit))

    def _ahead(self, after: OpTime, limit: int) -> OpTime:
        newest = self._end(-1)
        if newest is None:
            return after
        if after.term:
            self._check(after)
        elif after.ts:
            self._check_reach(after.ts + 1)
        skip = min(limit, 1 << 31) - 1
        found = self._one({"filter": {"ts": {"$gt": timestamp(after.ts)}}, "skip": skip})
        return entry_optime(newest if found is None else found)

    def close(self) -> None:
        with suppress(ReplError):
            if self._client is not None and self._cursor:
                self._ask({"killCursors": _COLLECTION, "cursors": [self._cursor]})
        self._disconnect()

    def _batch(self, span: Span, only: EntryFilter) -> list[bytes]:
        """The next entries; of the cursor, or of a new one from `span` on."""
        if self._cursor:
            command = {"getMore": self._cursor, "collection": _COLLECTION, "batchSize": BATCH_ENTRIES}
            return self._entries(self._ask(command), "nextBatch")
        stamps = {"$gte": timestamp(span.first_ts), "$lt": timestamp(min(span.end_ts, EVERYTHING.end_ts))}
        query = {"ts": stamps} | {
            name: {"$in": list(some)} for name, some in (("ns", only.ns), ("op", only.op)) if some
        }
        found = self._entries(
            self._ask({"find": _COLLECTION, "filter": query, "batchSize": BATCH_ENTRIES, **_FROM_ANY}), "firstBatch"
        )
        if span.first_ts:  # now that the cursor stands there
            self._check_reach(span.first_ts)
        return found

    def _entries(self, reply: RawDocument, field_name: str) -> list[bytes]:
        cursor = RawDocument(reply.get_raw("cursor") or b"")
        raw, number = cursor.get_raw(field_name) or b"", cursor.get("id")
        self._cursor = number if isinstance(number, int) else 0
        return [raw[start:end] for _, _, start, end in walk(raw)]

    def _check_reach(self, first_ts: int) -> None:
        """That the oplog still has what was written from there on. A set's first entry has nothing before it."""
        oldest = self._end(1)
        if oldest is not None and (ts := entry_optime(oldest).ts) > first_ts:
            o = RawDocument(oldest).get_raw("o")
            if o is None or RawDocument(o).get("msg") != "initiating set":
                raise trimmed_error(self._name, ts - 1)

    def _end(self, direction: int) -> bytes | None:
        return self._one({"sort": {"$natural": direction}})

    def _one(self, fields: Mapping[str, object]) -> bytes | None:
        command = {"find": _COLLECTION, **fields, "limit": 1, "singleBatch": True, **_FROM_ANY}
        cursor = RawDocument(self._ask(command).get_raw("cursor") or b"")
        raw = cursor.get_raw("firstBatch") or b""
        return next((raw[start:end] for _, _, start, end in walk(raw)), None)

    def _retry(self, work: Callable[[], Found]) -> Found:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                found = work()
            except OplogError:
                raise
            except ReplError as error:
                self._disconnect()
                if error.code == ErrorCode.CAPPED_POSITION_LOST:
                    oldest = self._end(1)
                    raise trimmed_error(self._name, entry_optime(oldest).ts - 1 if oldest else 0) from error
                if not may_retry(error.code) or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._patience_s = _PATIENCE_S
                return found

    def _ask(self, command: Mapping[str, object]) -> RawDocument:
        reply = self._connected().ask(_DATABASE, command)
        if not reply.get("ok"):
            code = reply.get("code")
            raise ReplError(f"the member answers: {reply.get('errmsg')}", code=code if isinstance(code, int) else 1)
        return reply

    def _connected(self) -> WireClient:
        if self._client is None:
            self._client = self._target.connect(self._target.hosts[0], _TIMEOUT_S)
            found = hello(self._client)
            wanted, name = self._target.set_name, found.get("setName")
            if found.get("msg") == "isdbgrid":
                raise OplogError(self._name, "it is a mongos, which has no oplog: give the members of each shard")
            if wanted is not None and name != wanted:
                raise OplogError(self._name, f"it is a member of {name or 'no set'}, the address says {wanted}")
            if found.get("arbiterOnly"):
                raise OplogError(self._name, "it is an arbiter, which has no oplog")
        return self._client

    def _disconnect(self) -> None:
        self._cursor = 0
        if self._client is not None:
            self._client.close()
            self._client = None
