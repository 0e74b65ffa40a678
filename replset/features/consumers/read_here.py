"""replSetConsumerReadHere: the holder of an exclusive or failover consumer reads on at any member, a secondary say.

It has claimed the consumer at the primary, and acknowledges there. This member keeps nothing for it and renews no
lease. It shows committed events only, and goes by its committed copy of the consumer's document: the generation and
the holder there are those of the reader, or it is refused.
"""

from __future__ import annotations

from replset.auth.roles import Action
from replset.bson import decode
from replset.errors import (
    BadValueError,
    CatalogChangedError,
    ConsumerMovedError,
    ErrorCode,
    NamespaceNotFoundError,
    NotPrimaryOrSecondaryError,
    ReplError,
    SnapshotCutError,
    SnapshotTooOldError,
)
from replset.features.consumers.consumer import CONSUMERS_NS, Consumer
from replset.features.consumers.consumer_directory import document_of
from replset.features.consumers.consumer_reads import LOOK_MS, EventSource, events_reply
from replset.features.consumers.operations import Mode, ReadHere
from replset.ids import Millis
from replset.operations.authorization import authorize
from replset.operations.command import CommandContext
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.operations.request import Reply


async def read_here(ctx: CommandContext, asked: ReadHere) -> Reply:
    """The events behind `after`, or a wait for some, of a third of `ackTimeoutMS` at most: the lease goes on."""
    clock, wait_ms = ctx.member.clock, asked.wait_ms
    if ctx.left_ms is not None:
        wait_ms = min(wait_ms, ctx.left_ms // 2)
    until = Millis(clock.now() + wait_ms)
    while (consumer := _held_copy(ctx, asked)) is None:
        if clock.now() >= until:
            text = f"this member knows nothing yet of generation {asked.generation} of consumer {asked.name}"
            raise ReplError(f"{text}: read at the primary", code=ErrorCode.READ_PREFERENCE_NOT_SATISFIED)
        await ctx.member.wait_for_change(until - clock.now())
    until = min(until, Millis(clock.now() + consumer.ack_timeout_ms // 3))
    source = await EventSource.of(ctx.member, consumer)
    after = max(str(asked.after), consumer.position)
    while True:
        events, after = await source.after(after, asked.most, until)
        consumer = _held_copy(ctx, asked) or consumer
        now = clock.now()
        if events or now >= until:
            break
        after = await source.wait(after, min(until - now, LOOK_MS))
    return events_reply(consumer, events, after)


def _held_copy(ctx: CommandContext, asked: ReadHere) -> Consumer | None:
    """The consumer, which the reader holds by this member's committed copy; None: the copy is older than its claim.

    ConsumerMovedError: it does not hold it any more. 133, 13436: this member cannot say.
    """
    member = ctx.member
    if not member.node.state.is_readable:
        raise NotPrimaryOrSecondaryError(f"consumers are not read in state {member.node.state.name}")
    consumer = _committed(member, asked.name)
    if consumer is None:
        return None
    authorize(member, ctx.sender, Action.CHANGE_STREAM, consumer.database, ctx.name)
    if consumer.mode is Mode.SHARED:
        raise BadValueError(f"consumer {asked.name} is shared: only the primary gives its events to readers")
    if consumer.generation < asked.generation:
        return None
    consumer.check_generation(asked.generation)
    if consumer.holder != asked.reader:
        raise ConsumerMovedError(f"consumer {asked.name} is not held by {asked.reader!r}: read at the primary")
    # A member that is cut off would give events to a reader whose place another one has taken, for ever.
    lag_ms = member.node.lag_ms()
    if lag_ms is None or lag_ms > consumer.ack_timeout_ms or consumer.delay_ms:
        what = "waits for what was given back" if consumer.delay_ms else f"may be {lag_ms} ms ahead of this member"
        text = f"consumer {asked.name} {what}: read at the primary"
        raise ReplError(text, code=ErrorCode.READ_PREFERENCE_NOT_SATISFIED)
    return consumer


def _committed(member: Kernel, name: str) -> Consumer | None:
    """The consumer as a majority has it; None: this member has none like that."""
    try:
        with member.store.read() as snapshot:
            coll, at = snapshot.collection(CONSUMERS_NS), min(member[History].committed, snapshot.newest)
            raw = None if coll is None else snapshot.get(coll, document_of(name).key, at)
    except (CatalogChangedError, NamespaceNotFoundError, SnapshotCutError, SnapshotTooOldError):
        return None
    return None if raw is None else Consumer.parse(decode(raw))
