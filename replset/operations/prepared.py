"""Takes a write of one document from the bytes of its message into the next group, without a task and a context, and
answers a find by `_id` in the turn in which it arrives.

A write is an insert, or an update or a delete of a document that its statement names by `_id`. A connection remembers
the shapes of its last commands (shapes.py): which bytes of the message are the same each time. A shape is made only of
a message that went the whole way with all its checks. A later message that differs from it in nothing else needs none
of them again, except those that depend on the moment: `take` and `answer` have them all. Whatever is not foreseen
there, and whatever a document or the group refuses, goes the usual way with the same bytes, which gives every error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from replset.bson import RawDocument, encode
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.quorum import WriteConcern
from replset.errors import ErrorCode, OutOfDiskSpaceError, ReplError, StorageError
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.operations.authorization import authorize
from replset.operations.command import INSERTED_ONE, Counters, PreparedInsert, PreparedWork, UnusualError
from replset.operations.evaluation import SMALL_STATEMENT
from replset.operations.replies import encode_write_reply, write_times
from replset.operations.request import CommandRequest, ConnectionContext
from replset.operations.session_request import (
    NOBODY,
    SessionRequest,
    check_cluster_time,
    parse_lsid,
)
from replset.operations.shapes import ARRAYS, BODY_AT, VARYING, Shape, Target, document_of, lsid_of, shape_of
from replset.operations.slow_operations import SlowReason
from replset.operations.transactions import TransactionTable
from replset.operations.user_directory import UserDirectory
from replset.operations.waiters import Completion
from replset.operations.write_concern import (
    DEFAULTS,
    begin_wait,
    default_concern,
    note_awaited,
    one_of,
    parse_write_concern,
    wait_for_write_concern,
)
from replset.replication.session_write import SessionWrite
from replset.replication.write_ops import WriteGroup, do_inserts_of
from replset.storage.catalog import Collection
from replset.storage.sessions import txn_number_of

if TYPE_CHECKING:
    from replset.operations.command import Command, CommandContext
    from replset.operations.dispatcher import Dispatcher

MAX_RUN: Final = 100
RUN_BYTES: Final = 256 << 10
"""Of inserts that are run as one: about a millisecond."""
EncodeReply: TypeAlias = Callable[[Counters, OpTime, int], Any]
"""Makes the reply of a write without errors, as `encode_write_reply`."""

# --- taking them ------------------------------------------------------------------------------------------------


class PreparedCommands:
    """Makes shapes of commands, and takes messages of these shapes, on one member."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.member = dispatcher.member
        self._users = self.member[UserDirectory]
        self._transactions = self.member[TransactionTable]
        self._known_default: tuple[ReplSetConfig | None, bytes | None, WriteConcern] | None = None

    def shape_of(self, request: CommandRequest) -> Shape | None:
        """Return the shape of a write, or of a find that was answered at once, that had no error; None: of a kind that
        is not foreseen.
        """
        body, sequences = request.body, request.sequences
        name = body.first_key or ""
        varying = VARYING.get(name)
        if varying is None or len(body.raw) > SMALL_STATEMENT or request.acting is not None:
            return None
        documents = sequences.get(varying)
        if sequences and (len(sequences) != 1 or documents is None or len(documents) != 1):
            return None
        shape = shape_of(body.raw, varying, documents[0].raw if documents else None)
        config = self.member.node.config
        if shape is None or config is None:
            return None
        shape.target = Target(name, request.database, str(body.get(name)))
        shape.on_secondary = self.member.node.state is MemberState.SECONDARY  # so its read preference allows that
        raw = body.get_raw("writeConcern")
        if raw is not None:
            shape.concern = one_of(parse_write_concern(raw, lambda: default_concern(self.member.store, config).w))
            if shape.concern.wtimeout_ms or "w" not in RawDocument(raw):
                return None
        elif "writeConcern" in body:
            return None
        return shape

    def take(
        self, shape: Shape, message: bytes, connection: ConnectionContext, finish: Callable[[bytes | None], None]
    ) -> PreparedWrite | None:
        """Put the write of a message of this shape into the next group; None: it has to go the usual way.

        finish: called with the reply once there is one; with None if the write has to go the usual way after all.
        """
        member = self.member
        document = shape.document_in(message)
        if document is None or len(document) > SMALL_STATEMENT or not self.may_take():
            return None
        command = self.dispatcher.commands[shape.target.name]
        if command.prepared is None:
            return None
        try:
            session = self._session(shape, message, connection, command)
            work = command.prepared(document, member)
            if work is None:
                return None
            request = partial(_request_of, shape.target, message, document, connection)
            return self.begin(shape.target, work, shape.concern, session, request, finish)
        except (ReplError, UnusualError):
            return None

    def answer(self, shape: Shape, message: bytes, connection: ConnectionContext) -> bytes | None:
        """The reply to a find by `_id` of this shape; None: it has to go the usual way."""
        member, dispatcher, state = self.member, self.dispatcher, self.member.node.state
        document, command = shape.document_in(message), dispatcher.commands[shape.target.name]
        if document is None or command.prepared_read is None or member.fail_points.active:
            return None
        if state is not MemberState.PRIMARY and not (shape.on_secondary and state is MemberState.SECONDARY):
            return None
        try:
            session = self._session(shape, message, connection, command)
            reply = command.prepared_read(document, member, shape.target.ns)
        except (ReplError, UnusualError):
            return None
        if reply is None:
            return None
        if session is not None:
            dispatcher.sessions.note_use(session.key, member.clock.now())
        dispatcher.counts[shape.target.name] += 1
        dispatcher.operations.count_use(shape.target.use, 0)
        return reply

    def _session(
        self, shape: Shape, message: bytes, connection: ConnectionContext, command: Command
    ) -> SessionRequest | None:
        """Check the sender's rights and the cluster time, and return the session. ReplError, UnusualError: it has to go
        the usual way.
        """
        login = connection.login
        if self._users.required:
            if login is None or not self._users.knows(login):
                raise UnusualError
            authorize(self.member, connection, command.needs, shape.target.database, shape.target.name)
        if shape.cluster_time is not None:
            check_cluster_time(document_of(shape.read(shape.cluster_time, message)), self.member)
        number = shape.number and int.from_bytes(shape.read(shape.number, message), "little", signed=True)
        if number is not None and (number < 0 or shape.lsid is None):
            raise UnusualError
        if shape.lsid is None:
            return None
        uid = NOBODY if login is None else login.uid
        return SessionRequest(*parse_lsid(lsid_of(shape.read(shape.lsid, message)), uid), number)

    def may_take(self) -> bool:
        """Whether the member, as it is now, asks for no look that a prepared write does without."""
        config = self.member.node.config
        if config is None or not self.member.node.writable or self.member.fail_points.active:
            return False
        return config.settings.min_in_sync <= 1 and not config.settings.durability_levels

    def _default_concern(self) -> WriteConcern:
        """The set's default; worked out anew when what decides it is another object."""
        config, stored = self.member.node.config, DEFAULTS.read(self.member.store)
        known = self._known_default
        if known is None or known[0] is not config or known[1] != stored:
            known = self._known_default = (config, stored, one_of(default_concern(self.member.store, config)))
        return known[2]

    def begin(
        self,
        target: Target,
        work: PreparedWork,
        concern: WriteConcern | None,
        session: SessionRequest | None,
        request: Callable[[], CommandRequest],
        finish: Callable[[Any], None],
        encode_reply: EncodeReply = encode_write_reply,
    ) -> PreparedWrite | None:
        """Put a write into the next group. `may_take` and the sender's rights are asked for before.

        concern: None for the set's default. request: makes the request, for those who look at it. finish: called with
        what `encode_reply` makes, with the bytes of an error, or with None. ReplError: it has to go the usual way, as
        for None.
        """
        member, dispatcher = self.member, self.dispatcher
        concern = concern or self._default_concern()
        if concern.wtimeout_ms:
            return None
        if session is not None:
            dispatcher.sessions.note_use(session.key, member.clock.now())
            if session.txn_number is not None:
                self._transactions.check_retryable_write(session.key, session.txn_number)
                if not dispatcher.sessions.check_out_now(session.key):
                    return None
        write = PreparedWrite(self, target, request, finish, work, concern, session, encode_reply)
        try:
            member.submit(write.run, write, waits=write.waits)
        except ReplError:
            write.check_in()
            raise
        note_awaited(member, concern)
        dispatcher.operations.begin_prepared(write)
        dispatcher.counts[target.name] += 1
        return write


def _request_of(target: Target, message: bytes, document: bytes, connection: ConnectionContext) -> CommandRequest:
    """Return the request that the usual way would have made of a message that has a shape."""
    size = int.from_bytes(message[BODY_AT : BODY_AT + 4], "little")
    body = RawDocument(message[BODY_AT : BODY_AT + size])
    array = ARRAYS[target.name]
    sequences = {} if array in body else {array: [RawDocument(document)]}
    return CommandRequest(target.database, body, sequences, connection)


def _collection_of(group: WriteGroup, target: Target) -> Collection | None:
    """The collection of a write. None: there is none, or one that the usual way has to look at."""
    coll = group.txn.catalog.by_ns.get(target.ns)
    return None if coll is None or coll.has_validator or coll.view_on is not None else coll


class PreparedWrite:
    """One write on its way: first it waits for its group, then for its write concern. It is a `Completion` of both.

    id, began, is_killed: as in `Operation`. index: that it used, with the collection's UUID.
    """

    __slots__ = (
        "_concern",
        "_counters",
        "_ctx",
        "_encode_reply",
        "_finish",
        "_is_checked_out",
        "_is_over",
        "_is_unusual",
        "_lane",
        "_optime",
        "_request",
        "_session",
        "_slow_wait",
        "_term",
        "_work",
        "_written",
        "began",
        "held_before",
        "id",
        "index",
        "is_killed",
        "target",
    )

    def __init__(
        self,
        lane: PreparedCommands,
        target: Target,
        request: Callable[[], CommandRequest],
        finish: Callable[[Any], None],
        work: PreparedWork,
        concern: WriteConcern,
        session: SessionRequest | None,
        encode_reply: EncodeReply,
    ) -> None:
        self.id = self.held_before = 0
        self.began = self._written = Millis(0)
        self.is_killed = False
        self.index: tuple[bytes, str] | None = None
        self.target = target
        self._lane = lane
        self._request = request
        self._finish = finish
        self._work = work
        self._counters: Counters = ()
        self._concern = concern
        self._session = session
        self._encode_reply = encode_reply
        self._is_checked_out = session is not None and session.txn_number is not None
        self._is_over = self._is_unusual = False
        self._optime = OPTIME_NULL
        self._term = 0
        self._ctx: CommandContext | None = None
        self._slow_wait: asyncio.Task[None] | None = None

    @property
    def waits(self) -> bool:
        """Whether it is not answered as soon as its group is committed."""
        concern = self._concern
        return concern.w != 0 and (concern.w != 1 or bool(concern.j))

    # --- in the group -----------------------------------------------------------------------------------------------

    def run(self, group: WriteGroup) -> OpTime:
        """Do the write. Whatever it raises, it then goes the usual way."""
        try:
            coll = _collection_of(group, self.target)
            if coll is None:
                raise UnusualError
            group.session_write = self._session_write(group)
            counters = self._work(group, coll)
            if self.target.name != "insert":
                self.index = (coll.uuid, "_id_")
        except (ReplError, UnusualError) as error:
            self._is_unusual = not isinstance(error, StorageError | OutOfDiskSpaceError)
            raise
        finally:
            group.session_write = None
        self._is_done(group, counters)
        return group.txn.last  # also if it changed nothing, as `Batch` (map W7)

    def _is_done(self, group: WriteGroup, counters: Counters) -> None:
        self._is_unusual = False
        self._counters, self._term = counters, group.term

    def _session_write(self, group: WriteGroup) -> SessionWrite | None:
        """The session of a retryable write. UnusualError: this is a retry, or comes too late."""
        session = self._session
        if session is None or session.txn_number is None:
            return None
        record = group.txn.session(session.key)
        if record is not None and txn_number_of(record) >= session.txn_number:
            raise UnusualError
        return SessionWrite(session.key, session.lsid.raw, session.txn_number)

    @staticmethod
    def run_together(group: WriteGroup, completions: Iterable[Completion]) -> list[OpTime]:
        """Run the first of these as one, as far as they are inserts into one collection. Returns their results; none
        if the first has to run by itself.
        """
        writes: list[PreparedWrite] = []
        documents: list[tuple[bytes, bytes]] = []
        sessions: list[SessionWrite | None] = []
        size = 0
        try:
            for write in completions:
                if not isinstance(write, PreparedWrite) or not isinstance(write._work, PreparedInsert):
                    break
                if (writes and write.target.ns != writes[0].target.ns) or len(writes) >= MAX_RUN or size > RUN_BYTES:
                    break
                sessions.append(write._session_write(group))
                documents.append(write._work.row)
                writes.append(write)
                size += len(write._work.row[1])
        except UnusualError:
            pass  # it is a retry: only those before it
        coll = _collection_of(group, writes[0].target) if len(writes) > 1 else None
        if coll is None:
            return []
        optimes = do_inserts_of(group, coll, documents, sessions)
        for write in writes[: len(optimes)]:
            write._is_done(group, INSERTED_ONE)
        return optimes

    def done(self) -> bool:
        """Whether its client has gone, or it was killed: what it waits for passes it over."""
        return self._is_over

    def set_result(self, result: OpTime | None) -> None:
        """Go on: its group is committed, and its newest entry is at `result`; then its write concern is met, None."""
        try:
            self._go_on(result)
        except Exception as error:  # the others of its group must not wait for ever
            if self._is_over:
                raise
            self._refuse(error)

    def _go_on(self, result: OpTime | None) -> None:
        if result is None:
            self._stop_waiting()  # one that found the wait in vain, and was too early
            self._observe_wait()
            self._reply()
            return
        self._optime = result
        self._written = self._lane.member.clock.now()
        self.check_in()
        if not self.waits:
            self._reply()
        elif begin_wait(self._lane.member, result, self._concern, self, endless=True) is not None:
            self._wait_as_usual()

    def set_exception(self, error: BaseException) -> None:
        """Go the usual way, or answer why the group failed; or find out why the write concern is not met."""
        if self._optime is not OPTIME_NULL:
            self._wait_as_usual()
            return
        self.check_in()
        if self._is_unusual:
            self._leave_table(counts=False)
            self._lane.dispatcher.counts[self.target.name] -= 1
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
        self._finish(self._encode_reply(self._counters, self._optime, self._term))

    def _refuse(self, error: BaseException) -> None:
        reply = self._lane.dispatcher.refuse(self.ctx.request, self.ctx, error)
        self._leave_table(failed=True)
        self._finish(encode(reply))

    def _wait_as_usual(self) -> None:
        """Wait for the write concern as every other command does: it is not met, or it is not yet clear."""
        if self._slow_wait is None:
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
        reply = {**dict(self._counters), "writeConcernError": failure, **write_times(self._optime, self._term)}
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
        if counts:
            operations.end_prepared(self, self.target.use, self.index)
        else:
            operations.begins_anew(self)

    # --- for those who look at it -------------------------------------------------------------------------------

    @property
    def ctx(self) -> CommandContext:
        """The context that the usual way would have made; only made where somebody looks."""
        if self._ctx is None:
            self._ctx = self._lane.dispatcher.context_of(
                self._request(), self._lane.dispatcher.commands[self.target.name], self.target.name, None, self._session
            )
            self._ctx.has_written = self._session is not None and self._session.txn_number is not None
        if self.index is not None:
            self._ctx.work.documents = 1
        if self._written:
            self._ctx.work.waits = {
                SlowReason.WRITE_QUEUE: self._written - self.began,
                SlowReason.WRITE_CONCERN: self._lane.member.clock.now() - self._written,
            }
        return self._ctx
