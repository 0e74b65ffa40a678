"""Takes an insert of one document from the bytes of its message into the next group, without a task and a context.

A connection remembers the shapes of its last inserts (`Shape`): which bytes of the message are the same each time, and
where the document and the session stand. A shape is made only of a message that went the whole way with all its checks.
A later message that differs from it in nothing else needs none of them again, except those that depend on the moment:
`PreparedInserts.take` has them all. Whatever is not foreseen there, and whatever a document or the group refuses, goes
the usual way with the same bytes, which gives every error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from replset.bson import RawDocument, encode, walk
from replset.commands.evaluation import SMALL_STATEMENT
from replset.commands.ports import CommandRequest, ConnectionContext
from replset.commands.replies import encode_write_reply, write_times
from replset.commands.sessions.session_request import (
    NOBODY,
    SessionRequest,
    check_cluster_time,
    parse_lsid,
)
from replset.commands.slow_operations import SlowReason
from replset.commands.users.authorization import authorize
from replset.commands.write_concern import (
    begin_wait,
    default_concern,
    note_awaited,
    parse_write_concern,
    wait_for_write_concern,
)
from replset.commands.writes.insert import COMMANDS, prepare
from replset.core.write_concern import WriteConcern
from replset.errors import ErrorCode, InvariantError, OutOfDiskSpaceError, ReplError, StorageError
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.replication.session_write import SessionWrite
from replset.replication.write_ops import WriteGroup, do_insert
from replset.storage.sessions import read_record
from replset.wire.framing import OP_MSG

if TYPE_CHECKING:
    from replset.commands.command import CommandContext
    from replset.commands.dispatcher import Dispatcher

log = logging.getLogger("replset.commands")

(INSERT,) = COMMANDS
BODY_AT: Final = 21
"""Where the body begins in an OP_MSG whose first section it is."""
MOST_SHAPES: Final = 4
"""That a connection remembers: a driver sends one or two on each."""
MOST_IN_VAIN: Final = 16
"""So many shapes are made for a connection without one that is used again; then no more are."""
_DOCUMENTS: Final = "documents"
_SEQUENCE: Final = b"documents\0"
_LSID_BYTES: Final = 30
"""Of {id: UUID}."""
_UUID_AT: Final = 13
"""Where the 16 bytes of the UUID begin in it."""
_CONSTANT: Final = frozenset({"insert", "ordered", "writeConcern", "comment", "$db", "$readPreference"})
"""Fields that the usual way has checked, and whose meaning depends on nothing that changes."""


class Target:
    """The collection that an insert names, as its namespace and as `top` counts its use."""

    __slots__ = ("database", "ns", "use")

    def __init__(self, database: str, collection: str) -> None:
        self.database = database
        self.ns = f"{database}.{collection}"
        self.use = (database, collection, "insert")


class Place(NamedTuple):
    """Bytes of a message. is_behind: they stand behind the document, so that its size moves them."""

    at: int
    size: int
    is_behind: bool


class Shape:
    """What inserts of one document have in common. It is bytes alone and knows no member.

    target, concern: of its commands; concern None: they name none, the set's default counts.
    """

    __slots__ = (
        "_back",
        "_document_at",
        "_front",
        "_rest",
        "_sizes",
        "cluster_time",
        "concern",
        "lsid",
        "number",
        "target",
        "template_size",
    )

    def __init__(self, message: bytes, document: Place, sizes: list[int], slots: dict[str, Place]) -> None:
        """message: one such. sizes: where the lengths stand that grow with the document, its own included."""
        self.template_size = len(message)
        self._rest = len(message) - document.size
        self._document_at = document.at
        self._sizes = [(at, int.from_bytes(message[at : at + 4], "little") - document.size) for at in sizes]
        self.lsid, self.number, self.cluster_time = (slots.get(name) for name in ("lsid", "txnNumber", "$clusterTime"))
        self.target = Target("", "")
        self.concern: WriteConcern | None = None
        free = [(4, 12), (document.at, document.at + document.size), *((at, at + 4) for at in sizes)]
        free += [(place.at, place.at + place.size) for place in slots.values()]
        self._front: list[tuple[int, bytes]] = []
        self._back: list[tuple[int, bytes]] = []
        at = 0
        for start, end in (*sorted(free), (len(message), len(message))):
            if at < start:
                (self._front if at < document.at else self._back).append((at, message[at:start]))
            at = max(at, end)

    def document_in(self, message: bytes) -> bytes | None:
        """Return the document of a message of this shape; None: it is of another one. The document is not validated."""
        size = len(message) - self._rest
        for at, constant in self._front:
            if not message.startswith(constant, at):
                return None
        for at, more in self._sizes:
            if int.from_bytes(message[at : at + 4], "little") != size + more:
                return None
        if self._back:
            moved = len(message) - self.template_size
            for at, constant in self._back:
                if not message.startswith(constant, at + moved):
                    return None
        return message[self._document_at : self._document_at + size]

    def read(self, place: Place, message: bytes) -> bytes:
        """Return the bytes of one of the places in a message of this shape."""
        at = place.at + len(message) - self.template_size if place.is_behind else place.at
        return message[at : at + place.size]


def shape_of(body: bytes, document: bytes | None) -> Shape | None:
    """Return the shape of an insert that was carried out; None: it has fields that are not foreseen.

    body: of its message. document: the only one of the message's sequence; None: it is in the body.
    """
    slots: dict[str, Place] = {}
    sizes = [0]
    place: Place | None = None
    names: set[str] = set()
    for name, kind, start, end in walk(body):
        if name in names:
            return None
        names.add(name)
        at, size = BODY_AT + start, end - start
        if name == "lsid" and kind == 0x03 and size == _LSID_BYTES:
            slots[name] = Place(at + _UUID_AT, 16, place is not None)
        elif name == "txnNumber" and kind == 0x12:
            slots[name] = Place(at, 8, place is not None)
        elif name == "$clusterTime" and kind == 0x03:
            slots[name] = Place(at, size, place is not None)
        elif name == _DOCUMENTS and kind == 0x04 and document is None:
            elements = walk(body[start:end])
            if len(elements) != 1 or elements[0][:2] != ("0", 0x03):
                return None
            _, _, first, last = elements[0]
            place = Place(at + first, last - first, False)
            sizes += [BODY_AT, at, at + first]
        elif name not in _CONSTANT:
            return None
    message = bytes(12) + OP_MSG.to_bytes(4, "little") + bytes(5) + body
    if document is not None:
        sequence_at = len(message) + 1
        head = message + b"\x01" + (4 + len(_SEQUENCE) + len(document)).to_bytes(4, "little") + _SEQUENCE
        place = Place(len(head), len(document), False)
        sizes += [sequence_at, len(head)]
        message = head + document
    if place is None:
        return None
    return Shape(len(message).to_bytes(4, "little") + message[4:], place, sizes, slots)


class _UnusualError(Exception):
    """The insert has to go the usual way; nothing of it is left in the group."""


class PreparedInserts:
    """Makes shapes of commands, and takes messages of these shapes, on one member."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.member = dispatcher.member

    def shape_of(self, request: CommandRequest) -> Shape | None:
        """Return the shape of an insert that was answered without an error; None: of a kind that is not foreseen."""
        body, sequences = request.body, request.sequences
        documents = sequences.get(_DOCUMENTS)
        if body.first_key != "insert" or len(body.raw) > SMALL_STATEMENT or request.acting is not None:
            return None
        if sequences and (len(sequences) != 1 or documents is None or len(documents) != 1):
            return None
        shape = shape_of(body.raw, documents[0].raw if documents else None)
        config = self.member.node.config
        if shape is None or config is None:
            return None
        shape.target = Target(request.database, str(body.get("insert")))
        raw = body.get_raw("writeConcern")
        if raw is not None:
            shape.concern = parse_write_concern(raw, lambda: default_concern(self.member.store, config).w)
            if "w" not in RawDocument(raw):
                return None
        elif "writeConcern" in body:
            return None
        return shape

    def take(
        self, shape: Shape, message: bytes, connection: ConnectionContext, finish: Callable[[bytes | None], None]
    ) -> PreparedInsert | None:
        """Put the insert of a message of this shape into the next group; None: it has to go the usual way.

        finish: called with the reply once there is one; with None if the insert has to go the usual way after all.
        """
        member = self.member
        document = shape.document_in(message)
        if document is None or len(document) > SMALL_STATEMENT or not self.may_take():
            return None
        session: SessionRequest | None = None
        try:
            uid = NOBODY
            if member.users.required:
                if connection.login is None or not member.users.knows(connection.login):
                    return None
                authorize(member, connection, INSERT.needs, shape.target.database, "insert")
                uid = connection.login.uid
            if shape.cluster_time is not None:
                check_cluster_time(shape.read(shape.cluster_time, message), member)
            if shape.lsid is not None:
                number = shape.number and int.from_bytes(shape.read(shape.number, message), "little", signed=True)
                if number is not None and number < 0:
                    return None
                key, lsid = parse_lsid(_LSID_HEAD + shape.read(shape.lsid, message) + b"\0", uid)
                session = SessionRequest(key, lsid, number)
            elif shape.number is not None:
                return None
            request = partial(_request_of, shape.target.database, message, document, connection)
            return self.begin(shape.target, document, shape.concern, session, request, finish)
        except ReplError:
            return None

    def may_take(self) -> bool:
        """Whether the member, as it is now, asks for no look that an insert of this kind does without."""
        config = self.member.node.config
        if config is None or not self.member.node.writable or self.member.fail_points.active:
            return False
        return config.settings.min_in_sync <= 1 and not config.settings.durability_levels

    def begin(
        self,
        target: Target,
        document: bytes,
        concern: WriteConcern | None,
        session: SessionRequest | None,
        request: Callable[[], CommandRequest],
        finish: Callable[[bytes | None], None],
    ) -> PreparedInsert | None:
        """Put a document into the next group. `may_take` and the sender's rights are asked for before.

        concern: None for the set's default. request: makes the request, for those who look at it. ReplError: it has to
        go the usual way, as for None.
        """
        member, dispatcher = self.member, self.dispatcher
        concern = concern or default_concern(member.store, member.node.config)
        if concern.wtimeout_ms:
            return None
        key, document = prepare(document, member)
        if session is not None:
            dispatcher.sessions.note_use(session.key, member.clock.now())
            if session.txn_number is not None:
                member.transactions.check_retryable_write(session.key, session.txn_number)
                if not dispatcher.sessions.check_out_now(session.key):
                    return None
        insert = PreparedInsert(self, target, request, finish, key, document, concern, session)
        try:
            member.submit(insert.run, insert)
        except ReplError:
            insert.check_in()
            raise
        note_awaited(member, concern)
        dispatcher.operations.begin_prepared(insert)
        dispatcher.counts["insert"] += 1
        return insert


_LSID_HEAD: Final = _LSID_BYTES.to_bytes(4, "little") + b"\x05id\0\x10\0\0\0\x04"


def _request_of(database: str, message: bytes, document: bytes, connection: ConnectionContext) -> CommandRequest:
    """Return the request that the usual way would have made of a message that has a shape."""
    size = int.from_bytes(message[BODY_AT : BODY_AT + 4], "little")
    body = RawDocument(message[BODY_AT : BODY_AT + size])
    sequences = {} if _DOCUMENTS in body else {_DOCUMENTS: [RawDocument(document)]}
    return CommandRequest(database, body, sequences, connection)


class PreparedInsert:
    """One insert on its way: first it waits for its group, then for its write concern. It is a `Completion` of both.

    id, began, is_killed: as in `Operation`.
    """

    __slots__ = (
        "_concern",
        "_ctx",
        "_document",
        "_finish",
        "_is_checked_out",
        "_is_over",
        "_is_unusual",
        "_key",
        "_lane",
        "_optime",
        "_request",
        "_session",
        "_slow_wait",
        "_term",
        "_written",
        "began",
        "held_before",
        "id",
        "is_killed",
        "target",
    )

    def __init__(
        self,
        lane: PreparedInserts,
        target: Target,
        request: Callable[[], CommandRequest],
        finish: Callable[[bytes | None], None],
        key: bytes,
        document: bytes,
        concern: WriteConcern,
        session: SessionRequest | None,
    ) -> None:
        self.id = self.held_before = 0
        self.began = self._written = Millis(0)
        self.is_killed = False
        self.target = target
        self._lane = lane
        self._request = request
        self._finish = finish
        self._key = key
        self._document = document
        self._concern = concern
        self._session = session
        self._is_checked_out = session is not None and session.txn_number is not None
        self._is_over = self._is_unusual = False
        self._optime = OPTIME_NULL
        self._term = 0
        self._ctx: CommandContext | None = None
        self._slow_wait: asyncio.Task[None] | None = None

    # --- in the group -----------------------------------------------------------------------------------------------

    def run(self, group: WriteGroup) -> OpTime:
        """Insert the document. Whatever it raises, it then goes the usual way."""
        try:
            coll, session = group.txn.catalog.by_ns.get(self.target.ns), self._session
            if coll is None or coll.has_validator or coll.view_on is not None:
                raise _UnusualError
            if session is not None and session.txn_number is not None:
                record = group.txn.session(session.key)
                if record is not None and read_record(record).txn_number >= session.txn_number:
                    raise _UnusualError  # a retry, or one that is too late
                group.session_write = SessionWrite(session.key, session.lsid.raw, session.txn_number)
            if do_insert(group, coll, self._key, self._document) is None:
                raise _UnusualError  # the key is there already
        except (ReplError, _UnusualError) as error:
            self._is_unusual = not isinstance(error, StorageError | OutOfDiskSpaceError)
            raise
        finally:
            group.session_write = None
        self._is_unusual = False
        self._term = group.term
        return group.txn.last

    def done(self) -> bool:
        """Whether its client has gone, or it was killed: what it waits for passes it over."""
        return self._is_over

    def set_result(self, result: OpTime | None) -> None:
        """Go on: its group is committed, and its newest entry is at `result`; then its write concern is met, None."""
        try:
            self._go_on(result)
        except InvariantError:
            raise
        except Exception as error:  # those that end with it must not wait for ever
            log.exception("a prepared insert failed")
            self._refuse(error)

    def _go_on(self, result: OpTime | None) -> None:
        if result is None:
            self._observe_wait()
            self._reply()
            return
        self._optime = result
        self._written = self._lane.member.clock.now()
        self.check_in()
        concern = self._concern
        if concern.w == 0 or (concern.w == 1 and not concern.j):
            self._reply()
        elif begin_wait(self._lane.member, result, concern, self, endless=True) is not None:
            self._wait_as_usual()

    def set_exception(self, error: BaseException) -> None:
        """Go the usual way, or answer why the group failed; or find out why the write concern is not met."""
        if self._optime is not OPTIME_NULL:
            self._wait_as_usual()
            return
        self.check_in()
        if self._is_unusual:
            self._leave_table(counts=False)
            self._lane.dispatcher.counts["insert"] -= 1
            self._finish(None)
        else:
            self._refuse(error)

    def check_in(self) -> None:
        """Let the session's next write go on."""
        if self._is_checked_out and self._session is not None:
            self._is_checked_out = False
            self._lane.dispatcher.sessions.check_in(self._session.key)

    # --- its end ----------------------------------------------------------------------------------------------------

    def _reply(self) -> None:
        self._leave_table()
        self._finish(encode_write_reply((("n", 1),), self._optime, self._term))

    def _refuse(self, error: BaseException) -> None:
        reply = self._lane.dispatcher.refuse(self.ctx.request, self.ctx, error)
        self._leave_table(failed=True)
        self._finish(encode(reply))

    def _wait_as_usual(self) -> None:
        """Wait for the write concern as every other command does: it is not met, or it is not yet clear."""
        self._slow_wait = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        try:
            failure = await wait_for_write_concern(self.ctx, self._optime, self._concern)
        except Exception as error:
            self._refuse(error)
            return
        if failure is None:
            self._reply()
            return
        reply = {"n": 1, "writeConcernError": failure, **write_times(self._optime, self._term)}
        reply = self._lane.dispatcher.complete(self.ctx.request, self.ctx, reply)
        self._leave_table()
        self._finish(encode(reply))

    def _observe_wait(self) -> None:
        waited_ms = self._lane.member.clock.now() - self._written
        self._lane.dispatcher.operations.write_concern_waits.observe(waited_ms / 1000)

    def leave(self) -> None:
        """End without an answer: the client has gone. What is committed stays."""
        if not self._is_over:
            self.check_in()
            self._leave_table()
            self._stop_waiting()

    def kill(self) -> None:
        """Answer 11601 (killOp). What is committed stays."""
        if not self._is_over:
            self.is_killed = True
            self.check_in()
            self._stop_waiting()
            self._refuse(ReplError("operation was interrupted", code=ErrorCode.INTERRUPTED))

    def _stop_waiting(self) -> None:
        if self._slow_wait is not None:
            self._slow_wait.cancel()

    def _leave_table(self, *, counts: bool = True, failed: bool = False) -> None:
        self._is_over = True
        operations = self._lane.dispatcher.operations
        operations.failed += failed
        operations.end_prepared(self, counts=counts)

    # --- for those who look at it -------------------------------------------------------------------------------

    @property
    def ctx(self) -> CommandContext:
        """The context that the usual way would have made; only made where somebody looks."""
        if self._ctx is None:
            self._ctx = self._lane.dispatcher.context_of_insert(self._request(), self._session)
            self._ctx.has_written = self._session is not None and self._session.txn_number is not None
        if self._written:
            self._ctx.work.waits = {
                SlowReason.WRITE_QUEUE: self._written - self.began,
                SlowReason.WRITE_CONCERN: self._lane.member.clock.now() - self._written,
            }
        return self._ctx
