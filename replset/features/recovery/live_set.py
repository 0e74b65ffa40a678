"""Reads and writes the set as it is now, over the wire port of its primary.

Reads use the read concern "majority". A write names the version of the document that it replaces, and it does nothing
if the document has another version by then. It counts as done once a majority has it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from replset.bson import RawDocument, Timestamp, decode, encode, encode_key, walk
from replset.client import WireClient
from replset.errors import BadValueError, ErrorCode, HostUnreachableError, ReplError, Trait, has_trait
from replset.features.recovery.oplog_history import DocumentKey, OplogHistory, ends_of_terms, taken_names
from replset.ids import INCREMENT_BITS, OPTIME_NULL, OpTime
from replset.oplog_entry import APPLY_OPS, COMMAND, OplogEntry
from replset.optime import timestamp
from replset.target import Target, hello

T = TypeVar("T")
LARGEST_STATEMENT = 16 << 20
OPLOG = "local.oplog.rs"
PAUSE_S = 0.2
HISTORY_SECONDS = 600
WAIT_FOR_MAJORITY_MS = 30_000


def may_retry(code: int) -> bool:
    """Whether the error says nothing about the request: no primary, a new primary, a broken connection, a lost read."""
    return has_trait(code, Trait.RETRYABLE) or code in (ErrorCode.CURSOR_NOT_FOUND, ErrorCode.SNAPSHOT_UNAVAILABLE)


class UnconfirmedError(ReplError, code=ErrorCode.WRITE_CONCERN_TIMEOUT):
    """A write was applied, but no majority had it in time. It may be rolled back."""


@dataclass(frozen=True, slots=True)
class Write:
    """One statement: `before` (None: no document) becomes `after` (None: deleted), or nothing happens."""

    ns: str
    id_element: bytes
    before: bytes | None
    after: bytes | None
    change: dict[str, object] | None = None  # the same as operators, for two documents too large for one message


@dataclass(frozen=True, slots=True)
class WriteResult:
    """done: indexes of the statements that a majority has. refused: index -> why. For the rest, read again."""

    done: set[int]
    refused: dict[int, str]


class LiveSet:
    """A connection to the primary of the set that `host` belongs to, also after a failover. Use it in `with`."""

    def __init__(self, host: str | Target, set_name: str | None = None, *, timeout_s: float | None = None) -> None:
        """host: HOST:PORT of a member, or a connection string. set_name: refuse any other set.

        HostUnreachableError when no host that was named answers, or no primary is found in time. BadValueError: a
        malformed connection string.
        """
        self._target = host if isinstance(host, Target) else Target(host)
        self.host = self._target.hosts[0]
        self._set_names = {"the rollback was in": set_name, "the connection string says": self._target.set_name}
        self._timeout_s = self._target.selection_timeout_s if timeout_s is None else timeout_s
        self._hosts = list(self._target.hosts)
        self._client: WireClient | None = None
        self._last_entries: dict[DocumentKey, OpTime] = {}
        self._dropped: dict[str, OpTime] = {}
        self._prepared: set[tuple[str, object]] = set()
        self._scanned_to: OpTime | None = None
        self.oplog_is_complete = True
        """Whether the oplog reached back to where the scan began. Only then does "no entry" mean "not written"."""
        self._find_one()
        self._retry(lambda client: None)

    def _find_one(self) -> None:
        """Fail at once for wrong addresses; waiting helps only for a primary."""
        errors: list[HostUnreachableError] = []
        for host in self._hosts:
            try:
                self._target.connect(host).close()
                return
            except HostUnreachableError as error:
                errors.append(error)
        raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    @property
    def primary(self) -> str:
        return self.host if self._client is None else self._client.host

    # --- reading

    def collections(self, *, every: bool = False) -> dict[str, bytes]:
        """Namespace -> UUID of every collection that clients may write to. every: of the database `admin` too."""
        names = [row["name"] for row in self._command("admin", {"listDatabases": 1, "nameOnly": True})["databases"]]
        found: dict[str, bytes] = {}
        for database in names:
            if database == "local" or (database == "admin" and not every):
                continue
            try:
                rows = self._retry(functools.partial(self._list_collections, database))
            except ReplError as error:
                if error.code != ErrorCode.UNAUTHORIZED or database not in ("admin", "config"):
                    raise
                continue  # not needed: nothing of a mongod's own is put back
            for row in rows:
                uuid = row["info"].get("uuid")
                if uuid is not None:  # a view has none
                    found[f"{database}.{row['name']}"] = bytes(uuid)
        return found

    def _list_collections(self, database: str, client: WireClient) -> list[dict[str, Any]]:
        return [decode(raw) for raw in self._cursor(client, database, {"listCollections": 1})]

    def check_common_point(self, common: OpTime) -> None:
        """BadValueError when the set's oplog reaches back to `common`, and has no entry at its timestamp."""
        if common == OPTIME_NULL:
            return
        first, there = self._first_entry({}), self._first_entry({"ts": {"$gte": timestamp(common.ts)}})
        if first is not None and first.ts <= common.ts and (there is None or there.ts != common.ts):
            raise BadValueError(
                f"the set's oplog has no entry {common.seconds}:{common.increment}: no common point of it"
            )

    def ends_of_terms(self, until_s: int) -> list[OpTime]:
        """The entries after which the set changed its primary, of the day before `until_s`; the newest ten."""
        since, until = ((until_s - ago) << INCREMENT_BITS for ago in (86_400, -1))
        found = ends_of_terms(lambda ts: self._first_entry({"ts": {"$gte": timestamp(ts)}}), since, until)
        return list(found)[-10:]

    def documents(self, ns: str, ids: Sequence[object]) -> dict[bytes, bytes]:
        """encode_key of the `_id` -> the document's bytes, for the documents that exist."""
        command = {"filter": {"_id": {"$in": list(ids)}}, "readConcern": {"level": "majority"}}

        def read(client: WireClient) -> dict[bytes, bytes]:
            return {encode_key(RawDocument(raw).get("_id")): raw for raw in self._find(client, ns, command)}

        return self._retry(read)

    def scan(self, since: OpTime, wanted: frozenset[DocumentKey]) -> None:
        """Note the last oplog entry after `since` for each wanted document. Continues where the last scan stopped."""
        if self._scanned_to is None:
            first = self._first_entry({})
            self.oplog_is_complete = first is not None and first.ts <= since.ts
            self._scanned_to = since
        self._retry(lambda client: self._scan(client, wanted))

    def _scan(self, client: WireClient, wanted: frozenset[DocumentKey]) -> None:
        after = self._scanned_to
        assert after is not None
        edge = timestamp(after.ts)
        namespaces = frozenset(ns for ns, _ in wanted)
        for raw in self._find(client, OPLOG, {"filter": {"ts": {"$gt": edge}}}):
            entry = OplogEntry(raw)
            self._scanned_to = entry.optime
            if entry.op == COMMAND:
                self._note_transaction(entry)
            for operation in entry.operations:
                self._note(operation, wanted, namespaces)

    def _note_transaction(self, entry: OplogEntry) -> None:
        """What a mongod commits in two entries may have its operations before the scan: then nobody sees them."""
        name, transaction = entry.o.first_key, (str(entry.get("lsid")), entry.get("txnNumber"))
        if name == APPLY_OPS and entry.o.get("prepare"):
            self._prepared.add(transaction)
        elif name == "commitTransaction" and transaction not in self._prepared:
            self.oplog_is_complete = False

    def _note(self, entry: OplogEntry, wanted: frozenset[DocumentKey], namespaces: frozenset[str]) -> None:
        if entry.op == COMMAND:
            for ns in taken_names(entry):
                self._dropped[ns] = entry.optime
        elif entry.ns in namespaces and (key := entry.key()) is not None and (entry.ns, key) in wanted:
            self._last_entries[entry.ns, key] = entry.optime

    def versions_at(self, common: OpTime, wanted: frozenset[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        """The versions at `common`, None where there was none, as far as the set's oplog before it tells them.

        It is read backwards in pieces that grow, until each wanted document has an entry that tells all of it.
        """
        first = self._first_entry({})
        history = OplogHistory(wanted)
        high, seconds = common.ts, HISTORY_SECONDS
        while first is not None and first.ts <= high and not history.is_complete:
            low = max(first.ts - 1, high - (seconds << INCREMENT_BITS))
            span = {"$gt": timestamp(low), "$lte": timestamp(high)}
            command: dict[str, object] = {"filter": {"ts": span, "ns": {"$in": history.namespaces}}}
            pages = self._retry(functools.partial(self._read_all, command))
            history.add_before(map(OplogEntry, pages))
            high, seconds = low, seconds * 2
        return history.versions()

    def _read_all(self, command: dict[str, object], client: WireClient) -> list[bytes]:
        return list(self._find(client, OPLOG, command))

    def last_entry(self, key: DocumentKey) -> OpTime | None:
        """The last scanned entry about this document, or about the name of its collection; None if there is none."""
        found = [at for at in (self._last_entries.get(key), self._dropped.get(key[0])) if at is not None]
        return max(found, default=None)

    def has_entry(self, optime: OpTime) -> bool:
        """Whether the set's oplog has this very entry."""
        return self._first_entry({"ts": {"$gte": timestamp(optime.ts)}}) == optime

    def _first_entry(self, query: dict[str, object]) -> OpTime | None:
        command = {"filter": query, "limit": 1, "batchSize": 1, "singleBatch": True}
        found = self._retry(lambda client: list(self._find(client, OPLOG, command)))
        return OplogEntry(found[0]).optime if found else None

    def _find(self, client: WireClient, ns: str, options: dict[str, object]) -> Iterator[bytes]:
        """Yield all results, batch by batch."""
        database, _, name = ns.partition(".")
        return self._cursor(client, database, {"find": name, **options})

    def _cursor(self, client: WireClient, database: str, command: dict[str, object]) -> Iterator[bytes]:
        field = "firstBatch"
        while True:
            cursor = RawDocument(self._send(client, database, command).get_raw("cursor") or b"")
            raw = cursor.get_raw(field) or b""
            for _, _, start, end in walk(raw):
                yield raw[start:end]
            number, ns = cursor.get("id"), str(cursor.get("ns"))
            if not number:
                return
            command, field = {"getMore": number, "collection": ns.partition(".")[2]}, "nextBatch"

    # --- writing

    def write(self, writes: Sequence[Write]) -> WriteResult:
        """Run statements on one namespace.

        A statement does nothing if the document has another version by now. UnconfirmedError when no majority has the
        writes in time. HostUnreachableError and others when the primary went away; then some may be applied.
        """
        written = WriteResult(set(), {})
        kinds: dict[str, list[int]] = {"insert": [], "update": [], "delete": []}
        for index, write in enumerate(writes):
            kinds["insert" if write.before is None else "delete" if write.after is None else "update"].append(index)
        for command, indexes in kinds.items():
            for part in _message_batches(command, indexes, writes, written.refused):
                self._write_batch(command, part, writes, written)
        return written

    def _write_batch(
        self, command: str, part: list[tuple[int, bytes]], writes: Sequence[Write], written: WriteResult
    ) -> None:
        field = {"insert": "documents", "update": "updates", "delete": "deletes"}[command]
        database, _, name = writes[0].ns.partition(".")
        document: dict[str, object] = {command: name, "ordered": False, "writeConcern": _MAJORITY}
        if any(_has_empty_timestamp(writes[index].after) for index, _ in part):
            document["bypassEmptyTsReplacement"] = True  # restore it exactly as it was; an old mongod refuses this
        client = self._connected()
        try:
            reply: dict[str, Any] = decode(client.ask(database, document, (field, [raw for _, raw in part])).raw)
        except HostUnreachableError:
            self._disconnect()
            raise
        self._check(reply)
        errors = {part[error["index"]][0]: error for error in reply.get("writeErrors", [])}
        for index, error in errors.items():
            if error["code"] != ErrorCode.DUPLICATE_KEY:  # a duplicate is another version of the document
                written.refused[index] = f"{error['code']}: {error['errmsg']}"
        _confirm(reply)
        rest = {index for index, _ in part} - set(errors)
        if reply.get("n") == len(rest):
            written.done.update(rest)

    def create(self, ns: str, options: dict[str, object]) -> None:
        """Create a collection. NamespaceExists (48) is no error: another client was faster."""
        database, _, name = ns.partition(".")
        command = {"create": name, **options, "writeConcern": _MAJORITY}
        self._command(database, command, accepted=ErrorCode.NAMESPACE_EXISTS)

    def drop(self, ns: str) -> None:
        """Drop a collection. NamespaceNotFound (26) is no error."""
        database, _, name = ns.partition(".")
        command: dict[str, object] = {"drop": name, "writeConcern": _MAJORITY}
        self._command(database, command, accepted=ErrorCode.NAMESPACE_NOT_FOUND)

    # --- the connection

    def _command(self, database: str, document: dict[str, object], accepted: ErrorCode | None = None) -> dict[str, Any]:
        reply = self._retry(lambda client: decode(self._send(client, database, document, accepted).raw))
        _confirm(reply)
        return reply

    def _send(
        self, client: WireClient, database: str, document: dict[str, object], accepted: ErrorCode | None = None
    ) -> RawDocument:
        reply = client.ask(database, document)
        if not reply.get("ok") and (accepted is None or reply.get("code") != accepted):
            self._check(reply.decode())
        return reply

    def _retry(self, work: Callable[[WireClient], T]) -> T:
        """Repeat `work` on the current primary, while its error says nothing about the request."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return work(self._connected())
            except ReplError as error:
                self._disconnect()
                if not may_retry(error.code) or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)

    def _connected(self) -> WireClient:
        """HostUnreachableError when no known member is primary or knows one."""
        if self._client is not None:
            return self._client
        reason = ""
        for host in list(self._hosts):
            try:
                self._client = self._primary_by(host)
                return self._client
            except HostUnreachableError as error:
                reason = reason or error.message
        raise HostUnreachableError(reason)

    def _primary_by(self, host: str, asked: frozenset[str] = frozenset()) -> WireClient:
        """Connect to the primary that `host` knows, which may be `host` itself.

        asked: who named `host`. Two members may each take the other for the primary while one takes over.
        """
        client = self._target.connect(host, WAIT_FOR_MAJORITY_MS / 1000 + 10)
        try:
            found = hello(client)
            name = found.get("setName")
            if found.get("msg") == "isdbgrid":
                raise BadValueError(f"{host} is a mongos: give the members of the shard that rolled back")
            for whose, expected in self._set_names.items():
                if expected is not None and name != expected:
                    raise BadValueError(f"{host} is a member of {name or 'no set'}, {whose} {expected}")
            if found.get("isWritablePrimary"):
                self._note_hosts(host, found)
                return client
            if self._target.is_direct:
                raise BadValueError(f"{host} is no primary, and directConnection=true allows no other")
            self._note_hosts(host, found)
        except BaseException:
            client.close()
            raise
        client.close()
        primary = found.get("primary")
        if primary is None or primary == host or primary in asked:
            raise HostUnreachableError(f"{host} knows no primary (see `replset status --host {host}`)")
        return self._primary_by(str(primary), asked | {host})

    def _note_hosts(self, host: str, found: dict[str, Any]) -> None:
        others = [] if self._target.is_direct else map(str, found.get("hosts", ()))
        self._hosts = list(dict.fromkeys([*self._target.hosts, host, *others]))

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _check(self, reply: dict[str, Any]) -> None:
        """Raise the error of a reply with ok: 0."""
        if reply.get("ok"):
            return
        code = int(reply.get("code", 1))
        if may_retry(code):
            self._disconnect()
        raise ReplError(f"{self.primary}: {reply.get('errmsg', 'failed')}", code=code)


_EMPTY_TIMESTAMP = bytes(8)
_MAJORITY = {"w": "majority", "wtimeout": WAIT_FOR_MAJORITY_MS}


def _confirm(reply: dict[str, Any]) -> None:
    failure = reply.get("writeConcernError")
    if failure is not None:
        raise UnconfirmedError(f"applied, but not confirmed by a majority: {failure.get('errmsg')}")


def _has_empty_timestamp(raw: bytes | None) -> bool:
    """Whether a field of the document is one that a server replaces by the time."""
    return raw is not None and _EMPTY_TIMESTAMP in raw and Timestamp(0, 0) in decode(raw).values()


def statement(write: Write) -> bytes:
    """The bytes of an insert's document, or of an element of `updates` or `deletes`.

    An update or delete matches only the exact document that the decision was made about. If another client has changed
    it, the statement matches nothing, so that newer write is not lost. For the same reason an insert expects no
    document with its `_id`.
    """
    if write.before is None:
        assert write.after is not None  # no caller asks for a write that does nothing
        return write.after
    seen: dict[str, object] = {"$eq": ["$$ROOT", {"$literal": RawDocument(write.before)}]}
    query: dict[str, object] = {"_id": {"$eq": RawDocument(write.id_element).get("_id")}, "$expr": seen}
    if write.after is None:
        return encode({"q": query, "limit": 1})
    whole = len(write.before) + len(write.after) < LARGEST_STATEMENT - 4096
    return encode({"q": query, "u": RawDocument(write.after) if whole or not write.change else write.change})


def _message_batches(
    command: str, indexes: Iterable[int], writes: Sequence[Write], refused: dict[int, str]
) -> Iterator[list[tuple[int, bytes]]]:
    """Group statements, with their indexes, into messages. A statement too large for a message is refused."""
    part: list[tuple[int, bytes]] = []
    size = 0
    for index in indexes:
        raw = statement(writes[index])
        if len(raw) > LARGEST_STATEMENT:
            refused[index] = f"too large to be put back safely: {len(raw)} bytes with the version that is there"
            continue
        if part and size + len(raw) > LARGEST_STATEMENT:
            yield part
            part, size = [], 0
        part.append((index, raw))
        size += len(raw)
    if part:
        yield part
