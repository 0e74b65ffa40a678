"""replSetConsumerRead: gives a reader of a named consumer the events behind its position, or waits for some.

Only the primary answers it, with committed entries; read_here.py is for other members. An exclusive or failover
consumer keeps nothing for its reader: a read begins behind the position, or behind a later token that the reader names.
A shared one gives each event to one reader (features/consumers/shared_window.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from replset.auth.roles import Action
from replset.bson import DateTime, Int64, RawDocument, encode
from replset.errors import BadValueError, ConsumerMovedError, ConsumerTakenError, NotWritablePrimaryError
from replset.features.change_streams.event_reader import EventOptions, EventReader, ToldEvent
from replset.features.consumers import kept_events
from replset.features.consumers.consumer import Claim, Consumer
from replset.features.consumers.consumer_directory import ConsumerDirectory, PrimaryState, change
from replset.features.consumers.operations import Mode, Read
from replset.features.consumers.shared_window import PendingEvent, Refusal, SharedWindow
from replset.features.crud.filters import Filter, filter_of
from replset.ids import Millis
from replset.operations import fields
from replset.operations.authorization import authorize
from replset.operations.command import CommandContext
from replset.operations.evaluation import compiled, evaluate, weight_of
from replset.operations.kernel import Kernel
from replset.operations.majority_write import write_to_majority
from replset.operations.read_preference import ReadPreference, other_readers
from replset.operations.request import Reply
from replset.query.change_events import Watched
from replset.query.change_tokens import Kind, Token
from replset.replication.write_ops import ReplicatedDocument, WriteGroup

MOST_BYTES = 1 << 20
"""How many bytes of events a reply has. The last one may go beyond; of a shared consumer only one that comes alone."""
LEAST_LOOK_MS = 1_000
"""How long a read looks for events that its filter wants, also one that does not wait."""
FULL_MS = 100
"""A read that has no room for another event looks this often whether it has."""
GATHER_MS = 30
"""Once it has an event, it goes on for so long to find more."""
MOST_LOOKED_AT = 100
"""Events that one look finds where some may have to be held."""
LOOK_MS = 5_000
"""A read that waits looks this often whether it still may."""
SAVE_MS = 10_000
"""How often a position is saved that moved because nothing in between was for the consumer."""
T = TypeVar("T")


class FoundEvent(NamedTuple):
    """token: of the event, as text. key: of its document, b"" for an event of a collection or database."""

    token: str
    key: bytes
    document: bytes


async def read(ctx: CommandContext, asked: Read, consumer: Consumer) -> Reply:
    """Give the events behind the position, or wait for some. The consumer is the one that the command names."""
    if asked.after is not None and asked.generation is None:
        raise fields.missing(ctx.name, "generation")
    wait_ms = asked.wait_ms if ctx.left_ms is None else min(asked.wait_ms, ctx.left_ms // 2)
    until = Millis(ctx.member.clock.now() + wait_ms)
    source = await EventSource.of(ctx.member, consumer)
    if consumer.mode is Mode.SHARED:
        if asked.after is not None:
            raise BadValueError(f"consumer {consumer.name} is shared: who reads it cannot say where to begin")
        return await _read_shared(ctx, asked, until, consumer, source)
    return await _read_in_order(ctx, asked, until, consumer, source)


def state_of(member: Kernel) -> PrimaryState:
    """NotWritablePrimaryError: this member is primary no more."""
    if not member.node.writable:
        raise NotWritablePrimaryError()
    return member[ConsumerDirectory].state


async def save(ctx: CommandContext, name: str, new: Callable[[Consumer], Consumer]) -> Consumer:
    """Change a consumer's document and wait until a majority has it; ReplError when that cannot be said.

    Where nothing changes this waits for the newest entry: the document may be of a write that is not committed yet.
    """

    def operation(group: WriteGroup) -> Consumer:
        return change(group, name, new)

    await save_by(ctx, operation)
    return ctx.member[ConsumerDirectory].find(name)


async def save_by(ctx: CommandContext, operation: Callable[[WriteGroup], T]) -> T:
    """Do as `save` with a whole operation; return what it returned."""
    return (await write_to_majority(ctx, operation, "the change of the consumer is not on a majority"))[0]


def find_for(ctx: CommandContext, name: str, action: Action) -> Consumer:
    """The consumer of this name; 13: the sender may not do this with what it follows."""
    consumer = ctx.member[ConsumerDirectory].find(name)
    authorize(ctx.member, ctx.sender, action, consumer.database, ctx.name)
    return consumer


# --- events --------------------------------------------------------------------------------------------------------


class EventSource:
    """Finds the events of one consumer in the set's history."""

    def __init__(self, member: Kernel, consumer: Consumer, wanted: Filter, weight: int) -> None:
        self._member = member
        self._reader = EventReader(member, EventOptions(Watched(consumer.database, consumer.collection)))
        self._wanted = wanted
        self._weight = weight

    @classmethod
    async def of(cls, member: Kernel, consumer: Consumer) -> EventSource:
        query = dict(consumer.filter)
        weight = weight_of(len(encode(query)), query) if query else 0
        return cls(member, consumer, await compiled(member, weight, lambda: filter_of(query)), weight)

    async def after(self, token: str, most: int, until: Millis) -> tuple[list[FoundEvent], str]:
        """The first events behind `token`, and the token up to which was looked: of the last event, or further.

        Without an event it looks on until `until`, or for a second; what a filter leaves out may be long.
        """
        at, clock, size = Token.parse(token), self._member.clock, 0
        until = max(until, Millis(clock.now() + LEAST_LOOK_MS))
        found: list[FoundEvent] = []
        while True:
            told, reached = await self._reader.read(at, limit=most - len(found), max_bytes=MOST_BYTES - size)
            before = at
            more, at = await self._chosen(told, reached)
            if more and not found:
                until = Millis(clock.now() + GATHER_MS)
            found += more
            size += sum(len(event.document) for event in more)
            is_end = at == before or self._reader.is_at_end(at)
            if is_end or len(found) == most or size >= MOST_BYTES or clock.now() >= until:
                return found, str(at)
            await asyncio.sleep(0)

    async def event(self, token: str, until: Millis) -> FoundEvent | None:
        """The event of this token, which was found before."""
        found, _ = await self.after(str(Token.parse(token)._replace(kind=Kind.BEFORE)), 1, until)
        return found[0] if found and found[0].token == token else None

    async def wait(self, token: str, timeout_ms: int) -> str:
        """Wait for an event behind `token`; up to the token that is returned there is none."""
        return str(await self._reader.wait(Token.parse(token), timeout_ms))

    async def _chosen(self, told: Sequence[ToldEvent], reached: Token) -> tuple[list[FoundEvent], Token]:
        """Those that the filter wants, and how far it looked. A dropped collection's end is none for a consumer."""
        events = {event.raw: event for event in told if not event.is_last}
        chosen, looked_at = await evaluate(self._member, self._weight, list(events), self._if_wanted)
        found = [FoundEvent(str(events[raw].token), events[raw].key or b"", raw) for raw in chosen]
        if looked_at < len(events):
            reached = list(events.values())[looked_at - 1].token
        return found, reached

    def _if_wanted(self, raw: bytes) -> bytes | None:
        return raw if self._wanted.matches_raw(raw) else None


# --- exclusive and failover ------------------------------------------------------------------------------------------


async def _read_in_order(
    ctx: CommandContext, asked: Read, until: Millis, consumer: Consumer, source: EventSource
) -> Reply:
    member = ctx.member
    found = await _hold(ctx, asked, until)
    if isinstance(found, str):
        return {"consumer": asked.name, "active": False, "holder": found, "events": []}
    consumer, state = found, state_of(member)
    position = max(consumer.position, state.passed_of(consumer))
    after = begin = max(str(asked.after or "") if asked.generation == consumer.generation else "", position)
    events: list[FoundEvent] = []
    while True:
        now = member.clock.now()
        wait_until = until
        delayed = state.delayed_until(consumer, now)
        if delayed > now:
            wait_until = min(wait_until, delayed)
        else:
            events, after = await source.after(after, asked.most, wait_until)
        now = member.clock.now()
        consumer = same(ctx, consumer)
        state.leases.renew(consumer, now)
        if events or now >= until:
            break
        left_ms = min(wait_until - now, LOOK_MS, consumer.ack_timeout_ms // 3)
        if delayed > now:
            await asyncio.sleep(left_ms / 1000)
        else:
            after = await source.wait(after, max(1, left_ms))
        consumer = same(ctx, consumer)
    if not events and begin == position:
        consumer = await _pass(ctx, state, consumer, after)
    reply = {"consumer": consumer.name, "active": True, **events_reply(consumer, events, after)}
    return reply | _read_from(member, consumer)


def events_reply(consumer: Consumer, events: Sequence[FoundEvent], after: str) -> dict[str, object]:
    """What the holder of a consumer gets. after: where it goes on."""
    return {
        "consumer": consumer.name,
        "generation": Int64(consumer.generation),
        "position": consumer.position,
        "events": [RawDocument(event.document) for event in events],
        "next": after,
    }


def _read_from(member: Kernel, consumer: Consumer) -> dict[str, str]:
    """The secondary at which the holder may read on (read_here.py), while this member has more to do than it can."""
    if not member.node.is_overloaded:
        return {}
    most_s = max(1, consumer.ack_timeout_ms // 1000)
    found = other_readers(member, ReadPreference("secondary", max_staleness_s=most_s))
    return {"readFrom": found[0]} if found else {}


async def _hold(ctx: CommandContext, asked: Read, until: Millis) -> Consumer | str:
    """Make the reader the holder; the name of the holder if that does not go away in time.

    ConsumerTakenError: another reader holds an exclusive consumer.
    """
    member = ctx.member
    while True:
        state, consumer, now = state_of(member), member[ConsumerDirectory].find(asked.name), member.clock.now()
        match state.leases.claim(consumer, asked.reader, now):
            case Claim.HOLDS:
                return consumer
            case Claim.MAY_TAKE:
                try:
                    return await save(ctx, consumer.name, partial(_taken, consumer.generation, asked.reader))
                except ConsumerMovedError:
                    continue
        due = state.leases.due(consumer, now)
        if consumer.mode is Mode.EXCLUSIVE:
            raise ConsumerTakenError(
                f"consumer {consumer.name} is exclusive, and {consumer.holder!r} reads it: it must leave, or be silent"
                f" for {consumer.ack_timeout_ms} ms",
                details={"holder": consumer.holder},
            )
        if now >= until:
            return consumer.holder
        await member.wait_for_change(min(until, due) - now)


def _taken(generation: int, reader: str, consumer: Consumer) -> Consumer:
    consumer.check_generation(generation)
    return consumer.taken_by(reader)


def same(ctx: CommandContext, consumer: Consumer) -> Consumer:
    """The consumer as it is now. An error once it is gone or another's, or this member leads no more."""
    state_of(ctx.member)
    found = ctx.member[ConsumerDirectory].find(consumer.name)
    found.check_generation(consumer.generation)
    return found


async def _pass(ctx: CommandContext, state: PrimaryState, consumer: Consumer, token: str) -> Consumer:
    """Note that up to `token` there is nothing to acknowledge. Now and then that is saved; not with every read."""
    name, now, generation = consumer.name, ctx.member.clock.now(), consumer.generation
    state.passed[name] = generation, token
    if token <= consumer.position or now - state.saved.setdefault(name, now) < SAVE_MS:
        return consumer
    state.saved[name] = now
    return await save(ctx, name, lambda now: now.acknowledged_through(generation, token))


# --- shared ----------------------------------------------------------------------------------------------------------


async def _read_shared(
    ctx: CommandContext, asked: Read, until: Millis, consumer: Consumer, source: EventSource
) -> Reply:
    member, state = ctx.member, state_of(ctx.member)
    while True:
        async with state.locks[consumer.name]:
            same(ctx, consumer)
            window = state.window(consumer)
            given = await _give(ctx, asked, until, consumer, source, state)
        now = member.clock.now()
        if given or now >= until:
            break
        due = window.next_due(now)
        wake = min(until, until if due is None else due, Millis(now + LOOK_MS))
        wall_ms = member.clock.wall_ms()
        if (held_until := kept_events.next_time(member.store, consumer.name, wall_ms)) is not None:
            wake = min(wake, Millis(now + held_until - wall_ms))
        if _room(member, consumer, window) > 0:
            await source.wait(window.through, max(1, wake - now))
        else:
            await asyncio.sleep(min(max(1, wake - now), FULL_MS) / 1000)
    if not given and state.windows.get(consumer.name) is window:
        consumer = await _pass(ctx, state, consumer, window.acknowledge(()))
    return {
        "consumer": consumer.name,
        "generation": Int64(consumer.generation),
        "position": consumer.position,
        "events": [RawDocument(event.document) for event, _ in given],
        "deliveries": [attempts for _, attempts in given],
        "outstanding": window.outstanding,
    }


async def _give(
    ctx: CommandContext, asked: Read, until: Millis, consumer: Consumer, source: EventSource, state: PrimaryState
) -> list[tuple[FoundEvent, int]]:
    """Events for this reader, each with how often it was given to anybody; the caller has the lock.

    What the reply has no room for is given back at once.
    """
    member, window = ctx.member, state.window(consumer)
    await park(ctx, consumer, state, source)
    now, wall_ms = member.clock.now(), member.clock.wall_ms()
    window.add_kept(kept_events.due(member.store, consumer.name, wall_ms, window.kept_room))
    taken = window.take(asked.reader, asked.most, now, consumer.ack_timeout_ms)
    new: dict[str, FoundEvent] = {}
    # Where events may have to be kept, which waits for a majority, nothing is taken before that.
    while len(taken) < asked.most and not (taken and consumer.deliver_after):
        most = min(_room(member, consumer, window), asked.most - len(taken))
        if consumer.deliver_after:
            most = min(_room(member, consumer, window), MOST_LOOKED_AT)
        if most <= 0:
            break
        events, through = await source.after(window.through, most, until)
        window.add(((event.token, event.key) for event in events), through)
        later = [(event, at_ms) for event in events if (at_ms := _time_of(consumer, event)) > member.clock.wall_ms()]
        if later:
            await _keep_until(ctx, consumer, state, window, later)
        new = {event.token: event for event in events}
        taken += window.take(asked.reader, asked.most - len(taken), member.clock.now(), consumer.ack_timeout_ms)
        if taken or not later or member.clock.now() >= max(until, now + LEAST_LOOK_MS):
            break
    given: list[tuple[FoundEvent, int]] = []
    size = 0
    for number, pending in enumerate(taken):
        event = new.get(pending.token) or await _event_of(member, source, pending, until)
        if event is None:
            window.drop_kept(pending.token)
            continue
        size += len(event.document)
        if given and size > MOST_BYTES:
            window.give_back([rest.token for rest in taken[number:]], now)
            break
        given.append((event, pending.attempts))
    return given


async def _event_of(member: Kernel, source: EventSource, pending: PendingEvent, until: Millis) -> FoundEvent | None:
    if not pending.kept:
        return await source.event(pending.token, until)
    raw = kept_events.event_in(ReplicatedDocument(kept_events.HELD_NS, pending.kept).read(member.store))
    return None if raw is None else FoundEvent(pending.token, b"", raw)


# --- kept events -----------------------------------------------------------------------------------------------------


def _room(member: Kernel, consumer: Consumer, window: SharedWindow) -> int:
    """How many new events may be looked at; each may have to be held."""
    room = window.room
    if consumer.deliver_after and room > 0:
        held = kept_events.count(member.store, kept_events.HELD_NS, consumer.name)
        return min(room, kept_events.MOST_KEPT - held)
    return room


def _time_of(consumer: Consumer, event: FoundEvent) -> int:
    """From when on the event is given to readers, by the wall clock; 0: at once.

    Only an event that has the whole document says it: an insert or a replacement.
    """
    if not consumer.deliver_after:
        return 0
    found: bytes | None = event.document
    *path, last = ("fullDocument", *consumer.deliver_after.split("."))
    for name in path:
        found = None if found is None else RawDocument(found).get_raw(name)
    date = None if found is None else RawDocument(found).get(last)
    return date.ms if isinstance(date, DateTime) else 0


async def _keep_until(
    ctx: CommandContext,
    consumer: Consumer,
    state: PrimaryState,
    window: SharedWindow,
    later: list[tuple[FoundEvent, int]],
) -> None:
    """Keep these events until their times, and acknowledge them, in one write. One that is too large is parked."""
    now = ctx.member.clock.now()

    def put(group: WriteGroup) -> list[str]:
        # Another primary may have given one, by a clock that was ahead, and it was acknowledged there or meanwhile.
        mine = [(event, at_ms) for event, at_ms in later if window.is_pending(event.token)]
        for event, at_ms in mine:
            if len(event.document) <= kept_events.LARGEST_KEPT:
                kept_events.put_held(group, consumer.name, event.token, at_ms, event.document)
            else:
                why = Refusal(now, "", "the event is too large to be held until its time")
                pending = PendingEvent(event.token, "", b"", refusals=[why])
                kept_events.put_parked(group, consumer.name, pending, event.document, now)
        return [event.token for event, _ in mine]

    await _keep(ctx, consumer, state, window, put)


async def park(ctx: CommandContext, consumer: Consumer, state: PrimaryState, source: EventSource | None = None) -> int:
    """Park events that were refused too often, and acknowledge them, in one write; return how many.

    Where too many are parked they are given to readers again, and their refusals count anew.
    """
    member, window, now = ctx.member, state.window(consumer), ctx.member.clock.now()
    refused = window.refused_too_often(now)[: kept_events.AT_ONCE]
    if not refused:
        return 0
    if kept_events.count(member.store, kept_events.PARKED_NS, consumer.name) >= kept_events.MOST_KEPT:
        for pending in refused:
            pending.refused = 0
        return 0
    source = source or await EventSource.of(member, consumer)
    found: list[tuple[PendingEvent, bytes]] = []
    size = 0
    for pending in refused:
        event = await _event_of(member, source, pending, Millis(now))
        if event is None:
            window.drop_kept(pending.token)
            continue
        found.append((pending, event.document))
        size += len(event.document)
        if size > MOST_BYTES:
            break

    def put(group: WriteGroup) -> list[str]:
        # It may have been acknowledged meanwhile: by a reader that was slow, or that it came to again.
        mine = [
            (pending, raw)
            for pending, raw in found
            if window.has(pending) and (not pending.kept or kept_events.is_held(group, pending.kept))
        ]
        tokens = [pending.token for pending, _ in mine]
        kept_events.remove_kept(group, consumer.name, tokens)
        for pending, raw in mine:
            kept_events.put_parked(group, consumer.name, pending, raw, now)
        return tokens

    return await _keep(ctx, consumer, state, window, put)


async def _keep(
    ctx: CommandContext,
    consumer: Consumer,
    state: PrimaryState,
    window: SharedWindow,
    put: Callable[[WriteGroup], list[str]],
) -> int:
    """Acknowledge the events whose documents `put` makes, in the same write; return how many."""

    def operation(group: WriteGroup) -> int:
        if state.windows.get(consumer.name) is not window:
            return 0  # it may count what no document holds
        tokens = put(group)
        change(group, consumer.name, acknowledging(window, consumer.generation, tokens))
        return len(tokens)

    return await save_counted(ctx, consumer, state, operation)


async def save_counted(
    ctx: CommandContext, consumer: Consumer, state: PrimaryState, operation: Callable[[WriteGroup], T]
) -> T:
    """Do as `save_by` with an operation that acknowledges in the window; that is made anew where it fails."""
    try:
        return await save_by(ctx, operation)
    except BaseException:
        state.windows.pop(consumer.name, None)  # it may count what no document holds
        raise


def acknowledging(window: SharedWindow, generation: int, tokens: Sequence[str]) -> Callable[[Consumer], Consumer]:
    """The change of a shared consumer's document by which these events are acknowledged."""

    def acknowledged(now: Consumer) -> Consumer:
        with_these = now.acknowledged(generation, tokens)
        if window.generation != generation:
            return with_these
        return with_these.acknowledged_through(generation, window.acknowledge(tokens))

    return acknowledged
