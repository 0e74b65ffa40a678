"""One connection of the wire port: its task runs the commands of a client or a member in order.

No task is made per command. On an idle connection a find by `_id` is answered as it arrives, and a write of a shape
that it has sent before joins the group at once (operations/prepared.py). One message waits behind
the command that runs; what a client sends beyond it is not looked at, and nothing more is read. The commands of all
clients share each turn of the event loop (turns.py). If a connection closes, the command that it waits for is
cancelled. Commands that need no answer (moreToCome: w: 0) and had arrived completely before the client closed are still
run, up to the first one that needs an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from replset.bson import InvalidBSONError, RawDocument, decode, encode
from replset.errors import (
    BadValueError,
    ErrorCode,
    LocalProtocolError,
    OverloadedError,
    RemoteProtocolError,
    ReplError,
    UnknownFieldError,
    code_name,
)
from replset.operations.admission import SMALL_BYTES, STALLED_S
from replset.operations.command import PROVE, Repeat
from replset.operations.evaluation import SMALL_STATEMENT
from replset.operations.prepared import PreparedWrite
from replset.operations.request import CommandRequest, ConnectionContext, Owner, Reply
from replset.operations.shapes import ARRAYS, MOST_IN_VAIN, KnownShapes
from replset.wire.framing import LARGE_BYTES, FrameReader, WireMessage, encode_msg, encode_reply

if TYPE_CHECKING:
    from replset.member.net.server import WireServer
    from replset.operations.dispatcher import Dispatcher


EMPTY = encode({})
MOST_FIELDS = 1_000
"""Fields of a command. A look at each of a million of them took the event loop two seconds."""
TURN = 16
"""Commands of one connection that run before other tasks of the event loop run."""
STRANGER = ReplError("a message of this size requires authentication", code=ErrorCode.UNAUTHORIZED)
_IN_ADMIN = encode({"$db": "admin"})[4:]
HELLO_COMMANDS = frozenset({"hello", "isMaster", "ismaster"})
_WRITES = tuple(name.encode() + b"\0" for name in ARRAYS)
ALLOWED_WHEN_FULL = HELLO_COMMANDS | {"ping", "endSessions", "killCursors", "replSetGetStatus", "serverStatus", PROVE}
"""Commands that an overloaded member still answers: they need little memory and show what is wrong."""


class WireConnection(asyncio.BufferedProtocol):
    """Is one connection of a client or a member."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._received_at = 0.0
        self._admitted_bytes = 0  # bytes of what has to be admitted, counted by the server for all connections
        self._reader = FrameReader(self._admit)
        self._buffer = server.small_buffer  # where the last bytes went
        self._next: WireMessage | None = None  # the one that waits behind the command that runs
        self._held = b""  # a message of a known shape that came when the turn was full, as it came
        self._arrived: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self._current: WireMessage | None = None
        self._is_closed_by_client = False  # yet commands that need no answer are left
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._context = ConnectionContext(next(server.connection_ids))
        self._writes, self._finds = KnownShapes(), KnownShapes()
        self._repeated: _Repeated | None = None  # of a member
        self._repeats_in_vain = 0
        self._open: PreparedWrite | _OpenCommand | None = None  # what is under way here outside of the task
        self._write_message = b""

    # --- called by the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._received_at = self._loop.time()
        if not self._server.slots.take(self):
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self._context.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        self._context.is_certified = self._server.certifies(transport.get_extra_info("ssl_object"))
        self._server.connections[self] = None
        self._server.traffic.connections += 1
        self._task = self._context.task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        first = self._current or self._next
        self._transport = None
        self._server.slots.give_back_descriptor()
        self._writable.set()
        if exc is None and self._task is not None and first is not None and first.more_to_come and self._open is None:
            self._is_closed_by_client = True
        else:
            self.end()

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def end(self) -> asyncio.Task[None] | None:
        """Close the connection and cancel the running command. What was answered before is sent."""
        self._server.send_all()
        self._server.connections.pop(self, None)
        self._server.slots.release(self)
        self._held = b""
        if self._transport is not None:
            self._transport.abort()
        self._release(self._admitted_bytes)
        under_way, self._open = self._open, None
        if under_way is not None:
            under_way.leave()
        if self.owner is not None:
            self._server.client_left(self.owner)
        task, self._task = self._task, None
        self._context.task = None
        if task is not None:
            task.cancel()
        return task

    @property
    def dispatcher(self) -> Dispatcher:
        return self._server.dispatcher

    @property
    def peer(self) -> str:
        return self._context.peer

    @property
    def is_member(self) -> bool:
        return self._context.is_member

    @property
    def _is_stranger(self) -> bool:
        """Whether its client has to log in first."""
        return self._server.needs_login and self._context.login is None and not self._context.is_member

    @property
    def owner(self) -> Owner | None:
        return self._context.owner

    @property
    def idle_since(self) -> float | None:
        """See connections.SlotUser: no command runs, no answer waits to be sent, and the client is no member."""
        return None if self._is_at_work or self._context.is_member else self._received_at

    @property
    def is_serving(self) -> bool:
        """Whether a command of a client runs here, or its answer waits to be sent."""
        return self._is_at_work and not self._context.is_member

    @property
    def _is_at_work(self) -> bool:
        is_running = self._current is not None or self._next is not None or self._open is not None
        return is_running or bool(self._held) or not self._writable.is_set()

    def close_idle(self) -> None:
        self.end()

    @property
    def is_stalled(self) -> bool:
        """Whether its client sent a part of a large message and then nothing more for STALLED_S."""
        since = self._loop.time() - self._received_at
        return self._reading and self._reader.pending > 0 and since > STALLED_S

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: little of a client at once, unless it is amid a large message."""
        self._buffer = self._server.large_buffer if self._reader.is_amid_large else self._server.small_buffer
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self._server.traffic.bytes_in += len(data)
        was_idle = self._next is None and not self._held
        may_be_shaped = was_idle and not self._reader.pending and bool(self._writes.shapes or self._finds.shapes)
        if may_be_shaped and not self._is_busy and self._may_run_outside():
            turns = self._server.turns
            if not turns.has_room():
                if self._has_shape(data):
                    self._held = data
                    turns.call(len(data), self._take_held)
                    return
            elif self._take_shaped(data):
                turns.count(len(data))
                return
        if was_idle and self._repeated is not None and self._repeat(self._repeated, data):
            return
        if not self._read_next(data) or self._next is None:
            return
        if was_idle and self._run_at_once(self._next, data):
            return
        self._wake()

    def _wake(self) -> None:
        """Let the task run the next message."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _read_next(self, data: bytes) -> bool:
        """Add the bytes, and find the next message unless one waits. False: the connection is closed."""
        try:
            is_idle = self._next is None and self._open is None and not self._held
            for message in self._reader.feed(data, int(is_idle)):
                self._next = message
        except RemoteProtocolError as error:
            self._end_for(error)
            return False
        if self._reader.has_more == self._reading and self._transport is not None:
            self._reading = not self._reading
            if self._reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        return True

    def _run_at_once(self, message: WireMessage, data: bytes) -> bool:
        """Run a command that needs no task in this turn. False: it has to be queued. data: what came in this turn."""
        server, member = self._server, self._context.member
        if message.exhaust_allowed or message.more_to_come or message.legacy_query or message.unverified:
            return False
        command = None if message.admitted or message.uncut else server.dispatcher.at_once(message.body)
        if command is None:
            return False
        if not (self._is_free() if member is None else not self._is_busy and not server.drops_inbound(member)):
            return False
        request = self._request_of(message)
        if isinstance(request, bytes):
            return False
        under_way = self._open = _OpenCommand(self, message, request)
        self._next = None  # before the answer, which may come at once
        if not server.dispatcher.begin(command, request, under_way):
            self._open, self._next = None, message
            return False
        if member is None:
            server.turns.count(message.size)
            if command.prepared_read is not None:
                self._remember_shape(self._finds, request)
        elif command.at_once is not None and command.at_once.repeat is not None and len(data) == message.size:
            self._repeats_in_vain += 1
            if self._repeats_in_vain < MOST_IN_VAIN:
                form = command.at_once.repeat(server.dispatcher.member, message.body, data)
                self._repeated = None if form is None else _Repeated(form, command.name, request)
        return True

    def _repeat(self, before: _Repeated, data: bytes) -> bool:
        """Run a member's command that is like the last one. False: it is not, or has to go the usual way."""
        member = self._context.member
        if self._reader.pending or self._is_busy or not before.form.fits(data):
            return False
        if member is None or self._server.drops_inbound(member):
            return False
        message = WireMessage(int.from_bytes(data[4:8], "little"), 0, before.request.body)
        under_way = self._open = _OpenCommand(self, message, before.request)
        if not self._server.dispatcher.again(before.form, before.name, data, under_way):
            self._open = None
            return False
        self._repeats_in_vain = 0
        return True

    def finish(self, message: WireMessage, reply: bytes) -> None:
        """Send the reply of the command that was under way outside of the task."""
        self._open = None
        self._reply(message, reply)
        self._go_on()

    @property
    def _is_busy(self) -> bool:
        """Whether a command runs here, or an answer waits to be sent."""
        arrived = self._arrived
        return arrived is None or arrived.done() or self._open is not None or not self._writable.is_set()

    def _is_free(self) -> bool:
        """Whether a client's command may run here in this turn, outside of the task."""
        return not self._is_busy and self._may_run_outside() and self._server.turns.has_room()

    def _may_run_outside(self) -> bool:
        """Whether a client's command may run outside of the task, apart from what is under way and from the turn."""
        server = self._server
        return self._context.member is None and not server.admission.is_full and not server.slots.is_reserved(self)

    def _has_shape(self, data: bytes) -> bool:
        """Whether `data` is one message of a shape that is known."""
        known = [*self._writes.shapes, *self._finds.shapes]
        return any([shape.document_in(data) is not None for shape in known])

    def _take_held(self) -> None:
        """Take the message that waited for a turn with room, by its shape if it still may; else the task runs it."""
        data, self._held = self._held, b""
        if not data:  # the connection is closed
            return
        try:
            if self._is_busy or not self._may_run_outside() or not self._take_shaped(data):
                (self._next,) = FrameReader().feed(data)
        except Exception:  # a fault, as in `_serve`: the client must not wait for ever
            self.end()
            raise
        if self._open is None:
            self._go_on()

    def _take_shaped(self, data: bytes) -> bool:
        """Put the write into the next group, or answer the find, if `data` is one message of a shape that is known.
        False: it is not.
        """
        prepared = self._server.dispatcher.prepared
        for shape in self._writes.shapes:
            write = prepared.take(shape, data, self._context, self._finish_write)
            if write is not None:
                self._open, self._write_message = write, data
                self._writes.in_vain = 0
                return True
        for shape in self._finds.shapes:
            reply = prepared.answer(shape, data, self._context)
            if reply is not None:
                self._send_frame(data, reply)
                self._finds.in_vain = 0
                return True
        return False

    def _finish_write(self, reply: bytes | None) -> None:
        """Send the reply of the write that was under way. None: it has to go the usual way, before what came since."""
        self._open, message = None, self._write_message
        if reply is None:
            (self._next,) = FrameReader().feed(message)
        else:
            self._send_frame(message, reply)
        self._go_on()

    def _send_frame(self, message: bytes, reply: bytes) -> None:
        frame = encode_msg(next(self._server.reply_ids), int.from_bytes(message[4:8], "little"), reply)
        self._server.send(self, frame)
        self._server.traffic.bytes_out += len(frame)

    def _go_on(self) -> None:
        """Let the task run what came while a command was under way."""
        if self._next is None and (not self._reader.has_more or not self._read_next(b"") or self._next is None):
            return
        self._wake()

    def _remember_shape(self, known: KnownShapes, request: CommandRequest) -> None:
        """Remember the shape of a command that was answered without an error."""
        shape = None if known.is_full else self._server.dispatcher.prepared.shape_of(request)
        if shape is not None:
            known.add(shape)

    def _end_for(self, error: RemoteProtocolError) -> None:
        self._server.repeated.warn("bytes", f"connection {self._context.id} from {self.peer}: {error.message}")
        self.end()

    def _admit(self, size: int) -> bool:
        if self._is_stranger:  # nothing that large is needed to log in
            return False
        if not self._server.admission.admit(size):
            self._server.end_stalled()
            return False
        self._admitted_bytes += size
        return True

    def _release(self, size: int) -> None:
        size = min(size, self._admitted_bytes)  # a connection that ended has given back all
        self._admitted_bytes -= size
        self._server.admission.release(size)

    def pause_writing(self) -> None:
        """Note that the client does not read. An idle task begins to wait for it: a small reply is written after its
        command has ended.
        """
        self._writable.clear()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def resume_writing(self) -> None:
        self._writable.set()

    # --- running commands --------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        run_in_turn, turns = 0, self._server.turns
        try:
            while True:
                if self._next is None:
                    if self._is_closed_by_client:
                        self.end()
                        return
                    run_in_turn = 0
                    self._arrived = self._loop.create_future()
                    await self._arrived
                    if self._next is None:
                        await self._wait_until_sent()
                        continue
                message = self._next
                if self._is_closed_by_client and not message.more_to_come:
                    self.end()
                    return
                if self._context.is_member:
                    if run_in_turn >= TURN:
                        run_in_turn = 0
                        await asyncio.sleep(0)
                elif run_in_turn < TURN and turns.has_room():
                    turns.count(message.size)
                else:
                    run_in_turn = 0
                    await turns.wait(message.size)
                run_in_turn += 1
                self._current, self._next = message, None
                if (self._reader.has_more or not self._reading) and not self._read_next(b""):
                    return
                await self._answer(message)
                self._current = None
                if message.admitted:
                    self._release(message.admitted)
                if not self._writable.is_set():
                    await self._wait_until_sent()
        finally:  # a command's failure is an answer; this is a fault, and the client must not wait for ever
            if self._task is not None:
                self.end()

    async def _wait_until_sent(self) -> None:
        """Wait until the client has read its answer. A client that reads nothing for STALLED_S is disconnected."""
        counted = 0
        while not self._writable.is_set() and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            large = left if left > SMALL_BYTES else 0
            self._admitted_bytes += large - counted
            self._server.admission.add(large - counted)
            counted = large
            try:
                async with asyncio.timeout(STALLED_S):  # wait_for would lose that the connection has ended meanwhile
                    await self._writable.wait()
            except TimeoutError:
                if self._transport is not None and self._transport.get_write_buffer_size() >= left:
                    text = f"{self.peer} read nothing of its answer for {STALLED_S:g} s: closed"
                    self._server.repeated.warn("unread", text)
                    self.end()
                    return
        self._release(counted)

    async def _prepare(self, message: WireMessage) -> bool:
        """Verify the message and separate its documents. False: it is answered already, or the connection is closed."""
        if message.refused:
            self._reply(message, _refusal(STRANGER) if self._is_stranger else self._overloaded())
            return False
        try:
            if message.unverified is not None:
                # One at a time: the checksums of many clients together must not hold the event loop.
                async with self._server.one_checksum:
                    for _ in message.verify():
                        await asyncio.sleep(0)
            for _ in message.cut():
                await asyncio.sleep(0)
        except RemoteProtocolError as error:
            self._end_for(error)
            return False
        except BadValueError as error:
            self._reply(message, _refusal(error))
            return False
        return True

    async def _answer(self, message: WireMessage) -> None:
        if (message.uncut or message.unverified or message.refused) and not await self._prepare(message):
            return
        if len(message.body.raw) > SMALL_STATEMENT and _has_too_many_fields(message.body):
            self._reply(message, _refusal(UnknownFieldError(f"no command has more than {MOST_FIELDS} fields")))
            return
        member = self._context.member
        if member is not None and self._server.drops_inbound(member):
            return
        if self._server.slots.is_reserved(self) and (
            message.exhaust_allowed or not self._may_use_reserved(message.body)
        ):
            # The slot is reserved for members, which are known as such only after their first command. If an ordinary
            # client used it, no slot might be left for a vote or a heartbeat.
            self._reply(message, _refusal(OverloadedError("this member is overloaded: too many connections")))
            self.end()
            return
        request = self._request_of(message)
        if isinstance(request, bytes):
            reply = request
        else:
            answer = await self._server.dispatcher.run(request)
            reply = _encoded(answer)
            is_write = message.body.raw.startswith(_WRITES, 5) and message.size <= LARGE_BYTES
            if is_write and isinstance(answer, bytes) and member is None:
                self._remember_shape(self._writes, request)
        if self._context.is_to_close:
            self.end()
        elif message.exhaust_allowed and not message.more_to_come:
            await self._stream(message, reply)
        else:
            self._reply(message, reply)

    def _reply(self, message: WireMessage, reply: bytes) -> None:
        """Send the reply, unless the client wants none or a test cut drops it."""
        member = self._context.member
        if not message.more_to_come and (member is None or not self._server.drops_outbound(member)):
            self._send(message, reply)

    def _may_use_reserved(self, body: RawDocument) -> bool:
        """Whether this command may run on a reserved slot."""
        return self._context.is_member or (_name_of(body) in ALLOWED_WHEN_FULL and not _is_awaitable(body))

    def _request_of(self, message: WireMessage) -> CommandRequest | bytes:
        """Return the command for the dispatcher, or the reply that refuses it."""
        try:
            if self._context.is_member and message.body.raw.endswith(_IN_ADMIN):  # without a look at all its fields
                database: object = "admin"
            else:
                database = message.database if message.legacy_query else message.body.get("$db")
            if not isinstance(database, str):
                _ = message.body.first_key  # a malformed name is refused first
                return _refusal(ReplError("the command has no $db", code=ErrorCode.MISSING_DATABASE))
        except InvalidBSONError as error:
            return _refusal(error)
        is_full = self._server.admission.is_full and not self._context.is_member and not message.admitted
        if is_full and _name_of(message.body) not in ALLOWED_WHEN_FULL:
            self._server.admission.refused += 1
            return self._overloaded()
        return CommandRequest(
            database,
            message.body,
            message.sequences,
            self._context,
            "wire",
            message.legacy_query,
            message.exhaust_allowed,
        )

    def _overloaded(self) -> bytes:
        return _refusal(self._server.admission.refusal())

    def _send(self, message: WireMessage, reply: bytes, *, more_to_come: bool = False) -> int:
        reply_id = next(self._server.reply_ids)
        try:
            frame = encode_reply(reply_id, message, reply, more_to_come=more_to_come)
        except LocalProtocolError as error:
            frame = encode_reply(reply_id, message, _refusal(error, ErrorCode.DOCUMENT_TOO_LARGE))
        if self._transport is not None:
            self._server.send(self, frame)
            self._server.traffic.bytes_out += len(frame)
        return reply_id

    async def _stream(self, message: WireMessage, reply: bytes) -> None:
        """Send the reply and those that follow it by themselves (exhaust), with moreToCome in all but the last.

        hello: the next one comes when the topology changes or maxAwaitTimeMS ends (map B2). getMore: the next batch.
        """
        while not self._context.is_to_close:
            body = _next_of_stream(message.body, RawDocument(reply))
            reply_id = self._send(message, reply, more_to_come=body is not None)
            if body is None:
                return
            await self._wait_until_sent()
            await asyncio.sleep(0)
            message = WireMessage(reply_id, 0, body, exhaust_allowed=True, has_checksum=message.has_checksum)
            request = self._request_of(message)
            reply = request if isinstance(request, bytes) else _encoded(await self._server.dispatcher.run(request))
        self.end()


class _Repeated(NamedTuple):
    """A member's command, by whose form those after it are read."""

    form: Repeat
    name: str
    request: CommandRequest


class _OpenCommand:
    """A command that runs outside of its connection's task, as a `Completion`."""

    __slots__ = ("_connection", "_is_over", "_message", "_request")

    def __init__(self, connection: WireConnection, message: WireMessage, request: CommandRequest) -> None:
        self._connection = connection
        self._message = message
        self._request = request
        self._is_over = False

    def done(self) -> bool:
        return self._is_over

    def leave(self) -> None:
        """Wait no more: the connection is closed."""
        self._is_over = True

    def set_result(self, reply: bytes) -> None:
        self._is_over = True
        self._connection.finish(self._message, reply)

    def set_exception(self, error: BaseException) -> None:
        reply = self._connection.dispatcher.refuse(self._request, None, error)
        self.set_result(encode(reply))


def _next_of_stream(body: RawDocument, reply: RawDocument) -> RawDocument | None:
    """Return the command that is run next without being asked for; None: `reply` is the last one of the stream."""
    if reply.get("ok") != 1:
        return None
    if body.first_key == "getMore":
        cursor = RawDocument(reply.get_raw("cursor") or EMPTY)
        # A tailing cursor at its end has nothing to send. Its client asks again; a stream would never rest.
        return body if cursor.get("id") and cursor.get_raw("nextBatch") != EMPTY else None
    if body.first_key in HELLO_COMMANDS and _is_awaitable(body):
        return RawDocument(encode({**decode(body.raw), "topologyVersion": reply.get("topologyVersion")}))
    return None


def _name_of(body: RawDocument) -> str | None:
    """The command's name; None also when it is malformed."""
    try:
        return body.first_key
    except InvalidBSONError:
        return None


def _has_too_many_fields(body: RawDocument) -> bool:
    """Whether a command has more fields than any takes."""
    try:
        return not body.has_at_most(MOST_FIELDS)
    except InvalidBSONError:
        return False  # refused where it is read


def _is_awaitable(hello: RawDocument) -> bool:
    """Whether each reply of a stream waits before it is sent. A stream without waiting would block the event loop."""
    max_await_ms = hello.get("maxAwaitTimeMS")
    return "topologyVersion" in hello and isinstance(max_await_ms, int | float) and max_await_ms > 0


def _encoded(reply: Reply) -> bytes:
    if isinstance(reply, bytes):
        return reply
    try:
        return encode(reply)
    except InvalidBSONError as error:
        return _refusal(error)


def _refusal(error: ReplError, code: int | None = None) -> bytes:
    number = error.code if code is None else code
    reply = {"ok": 0.0, "errmsg": error.message, "code": number, "codeName": code_name(number)}
    return encode({**reply, "errorLabels": list(error.labels)} if error.labels else reply)
