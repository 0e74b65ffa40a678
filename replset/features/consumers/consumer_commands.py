"""The commands on named consumers. They write config.consumers, which no client writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replset.auth.roles import Action
from replset.bson import DateTime, Timestamp, decode, encode
from replset.errors import (
    BadValueError,
    ChangeStreamHistoryLostError,
    InvalidNamespaceError,
    NamespaceExistsError,
    OverloadedError,
)
from replset.features.consumers.consumer import (
    CONSUMERS_NS,
    LONGEST_NAME,
    MOST_CONSUMERS,
    MOST_OUTSTANDING,
    REMOVED_ID,
    Consumer,
    Mode,
    first_generation,
    removed_document,
    removed_generation,
)
from replset.features.consumers.consumer_directory import (
    REMOVED_KEY,
    ConsumerDirectory,
    document_of,
    lag_document,
    not_found,
    removed_in,
)
from replset.features.consumers.consumer_reads import read, reader_of, save, save_by, state_of, token_of
from replset.features.crud.filters import filter_of
from replset.ids import Millis, pack_ts
from replset.operations import fields
from replset.operations.authorization import authorize, is_allowed
from replset.operations.command import Command, CommandContext, Handler, Where
from replset.operations.evaluation import read_statement
from replset.operations.history import History
from replset.operations.namespaces import check_database, namespace
from replset.operations.request import Reply
from replset.query.change_events import HIDDEN_DATABASES
from replset.query.change_tokens import Token, behind, in_front_of
from replset.replication.write_ops import WriteGroup, do_create
from replset.storage.sqlite import first_row

LEAST_TIMEOUT_MS, MOST_TIMEOUT_MS, USUAL_TIMEOUT_MS = 100, 24 * 3_600_000, 30_000
MOST_DELAY_MS = 24 * 3_600_000
LARGEST_FILTER = 16 << 10


# --- create, list, remove, seek --------------------------------------------------------------------------------------


async def create(ctx: CommandContext) -> Reply:
    """Create a named consumer; one that is there with the same options stays as it is."""
    body = ctx.body
    name, (database, collection) = _name(ctx), _namespace(fields.text(body, "ns", ctx.name, ""))
    _authorize(ctx, Action.MANAGE_CONSUMERS, database)
    query = fields.document(body, "filter", ctx.name)
    if query is not None and len(query.raw) > LARGEST_FILTER:
        raise BadValueError(f"the filter of a consumer has at most {LARGEST_FILTER} bytes")
    wanted = {} if query is None else query.decode()
    await read_statement(ctx.member, body, lambda: filter_of(wanted))
    made = Consumer(
        name,
        database,
        collection,
        wanted,
        _mode(fields.text(body, "mode", ctx.name, Mode.EXCLUSIVE.value)),
        "",
        ack_timeout_ms=fields.whole(
            body, "ackTimeoutMS", ctx.name, USUAL_TIMEOUT_MS, least=LEAST_TIMEOUT_MS, most=MOST_TIMEOUT_MS
        ),
    )
    place = _place(ctx, "startAt")

    def operation(group: WriteGroup) -> None:
        coll = group.txn.catalog.by_ns.get(CONSUMERS_NS) or do_create(group, CONSUMERS_NS)
        before = document_of(name).read_in(group.txn)
        if before is not None:
            if not Consumer.parse(decode(before)).has_same_options(made):
                raise NamespaceExistsError(f"consumer {name!r} is there already, with other options")
            return
        (count,) = first_row(group.txn.connection, f"SELECT count(*) FROM {coll.table} WHERE key != ?", (REMOVED_KEY,))
        if count >= MOST_CONSUMERS:
            raise OverloadedError(f"the set has {count} consumers: remove one first")
        generation = first_generation(group.next_optime(), removed_generation(removed_in(group.txn)))
        new = replace(made, position=str(place()), generation=generation)
        document_of(name).put(group, encode(new.document()))

    await save_by(ctx, operation)
    return _shown(ctx, ctx.member[ConsumerDirectory].find(name))


async def list_consumers(ctx: CommandContext) -> Reply:
    """All consumers, or the one that is named, with how far each is behind, as this member knows it."""
    value = ctx.body.get(ctx.name)
    found = (
        [ctx.member[ConsumerDirectory].find(value)] if isinstance(value, str) else ctx.member[ConsumerDirectory].all()
    )
    allowed = [
        consumer
        for consumer in found
        if is_allowed(ctx.member, ctx.sender, Action.CHANGE_STREAM, consumer.database)
        or is_allowed(ctx.member, ctx.sender, Action.SET_STATUS)
    ]
    if isinstance(value, str) and not allowed:
        raise not_found(value)
    return {"consumers": [_shown(ctx, consumer) for consumer in allowed]}


async def remove(ctx: CommandContext) -> Reply:
    """Remove a consumer. What it held back of the oplog may go."""
    consumer = _find(ctx, Action.MANAGE_CONSUMERS)

    def operation(group: WriteGroup) -> None:
        before = document_of(consumer.name).remove(group)
        if before is None:
            raise not_found(consumer.name)
        removed = removed_document(removed_in(group.txn), Consumer.parse(decode(before)))
        document_of(REMOVED_ID).put(group, encode(removed))

    await save_by(ctx, operation)
    ctx.member[ConsumerDirectory].state.forget(consumer.name)
    return {}


async def seek(ctx: CommandContext) -> Reply:
    """Set the position of a consumer: to a token, a time, "oldest" or "now". What was read before counts no more."""
    consumer = _find(ctx, Action.MANAGE_CONSUMERS)
    if fields.is_absent(ctx.body, "to"):
        raise fields.missing(ctx.name, "to")
    place = _place(ctx, "to")
    moved = await save(ctx, consumer.name, lambda now: now.moved_to(str(place())))
    return _shown(ctx, moved)


def _place(ctx: CommandContext, name: str) -> Callable[[], Token]:
    """The place that the field names, found when it is called: what is there now may be gone then.

    286: its entries are gone. BadValueError: nothing is committed there yet.
    """
    value, member = ctx.body.get(name), ctx.member

    def place() -> Token:
        committed, oldest = member[History].committed, member[History].oldest()
        first = in_front_of(oldest.ts, oldest.term)
        if value is None or value == "now":
            return behind(committed)
        if value == "oldest":
            return first
        if isinstance(value, Timestamp):
            token = in_front_of(pack_ts(value.time, value.inc))
        elif isinstance(value, DateTime):
            # No entry's optime is behind its wall time. So nothing that was written from then on is left out, and after
            # a clock that was ahead more may come than was asked for.
            token = in_front_of(pack_ts(max(0, value.ms // 1000), 0))
        else:
            token = token_of(value)
        if token.ts > committed.ts:
            raise BadValueError(f"{name}: {value!r:.100} is later than the newest committed entry, {committed}")
        if token.ts >= oldest.ts:
            return token
        if not member.store.trimmed_through:
            return first
        raise ChangeStreamHistoryLostError(
            f"{name}: the entries from {value!r:.100} on are gone, the oldest one is {oldest}",
            details={"oldestToken": first.document()},
        )

    return place


# --- acknowledging -------------------------------------------------------------------------------------------------


async def acknowledge(ctx: CommandContext) -> Reply:
    """Acknowledge all events up to `token`; of a shared consumer the events of `tokens`. A majority has it then."""
    consumer = _find(ctx, Action.CHANGE_STREAM)
    generation, state = _generation(ctx), state_of(ctx.member)
    if consumer.mode is not Mode.SHARED:
        token = _past(ctx, ctx.body.get("token"), "token")
        now = ctx.member.clock.now()
        delay_ms = consumer.delay_ms if state.delayed_until(consumer, now) > now else 0

        def acknowledged_through(now: Consumer) -> Consumer:
            return now.acknowledged_through(generation, token).given_back(generation, delay_ms)

        consumer = await save(ctx, consumer.name, acknowledged_through)
        state.leases.renew(consumer, ctx.member.clock.now())
        return {"position": consumer.position}
    tokens = [_past(ctx, value, "tokens") for value in _tokens(ctx)]
    window = state.window(consumer)

    def acknowledged(now: Consumer) -> Consumer:
        with_these = now.acknowledged(generation, tokens)
        if window.generation != generation:
            return with_these
        return with_these.acknowledged_through(generation, window.acknowledge(tokens))

    try:
        consumer = await save(ctx, consumer.name, acknowledged)
    except BaseException:
        state.windows.pop(consumer.name, None)  # it may count what no document holds
        raise
    return {"position": consumer.position, "outstanding": window.outstanding}


async def give_back(ctx: CommandContext) -> Reply:
    """Give back what was read and is not acknowledged; it comes again after `delayMS`. With `leave` the reader goes."""
    consumer = _find(ctx, Action.CHANGE_STREAM)
    generation, state = _generation(ctx), state_of(ctx.member)
    delay_ms = fields.whole(ctx.body, "delayMS", ctx.name, 0, least=0, most=MOST_DELAY_MS)
    leaves, now = fields.boolean(ctx.body, "leave", ctx.name), ctx.member.clock.now()
    consumer.check_generation(generation)
    until = Millis(now + delay_ms)
    if consumer.mode is Mode.SHARED:
        window = state.window(consumer)
        if leaves:
            return {"n": window.give_back(window.held_by(reader_of(ctx)), until)}
        return {"n": window.give_back([str(token_of(value)) for value in _tokens(ctx)], until)}
    if consumer.delay_ms != delay_ms:
        consumer = await save(ctx, consumer.name, lambda now: now.given_back(generation, delay_ms))
    state.delays[consumer.name] = until
    if leaves:
        state.leases.end(consumer, now)
    return {}


def _past(ctx: CommandContext, value: object, name: str) -> str:
    """The text of a token that events can have had. What is not committed yet was shown to nobody."""
    token, committed = token_of(value), ctx.member[History].committed
    if token.ts > committed.ts:
        raise BadValueError(f"{name}: {token} is later than the newest committed entry, {committed}: it was never read")
    return str(token)


def _tokens(ctx: CommandContext) -> list[object]:
    """The tokens of single events: no reader has more of them."""
    found = fields.values(ctx.body, "tokens", ctx.name)
    if len(found) > MOST_OUTSTANDING:
        raise BadValueError(f"tokens: {len(found)} of them; at most {MOST_OUTSTANDING} events are with readers at once")
    return found


def _generation(ctx: CommandContext) -> int:
    if fields.is_absent(ctx.body, "generation"):
        raise fields.missing(ctx.name, "generation")
    return fields.whole(ctx.body, "generation", ctx.name)


async def read_events(ctx: CommandContext) -> Reply:
    """Read the events behind the position of a consumer, or wait for some."""
    return await read(ctx, _find(ctx, Action.CHANGE_STREAM))


# --- reading the commands ------------------------------------------------------------------------------------------


def _name(ctx: CommandContext) -> str:
    name = fields.text(ctx.body, ctx.name, ctx.name)
    if not 0 < len(name) <= LONGEST_NAME or not all(char.isalnum() or char in "-_." for char in name):
        raise BadValueError(f"a consumer's name has 1 to {LONGEST_NAME} letters, digits, and - _ .")
    return name


def _find(ctx: CommandContext, action: Action) -> Consumer:
    """The consumer that the command names; 13: the sender may not do this with what it follows."""
    consumer = ctx.member[ConsumerDirectory].find(_name(ctx))
    _authorize(ctx, action, consumer.database)
    return consumer


def _authorize(ctx: CommandContext, action: Action, database: str) -> None:
    """database "": all of them, which takes a role on any database."""
    authorize(ctx.member, ctx.sender, action, database, ctx.name)


def _namespace(ns: str) -> tuple[str, str]:
    database, dot, collection = ns.partition(".")
    if database:
        check_database(database)
    if dot or (ns and not database):
        namespace(database, collection)
    if database in HIDDEN_DATABASES or collection.startswith("system."):
        raise InvalidNamespaceError(f"{ns} is the members' own: no consumer follows it")
    return database, collection


def _mode(name: str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        modes = ", ".join(mode.value for mode in Mode)
        raise BadValueError(f"mode {name!r:.50} is none of {modes}") from None


def _shown(ctx: CommandContext, consumer: Consumer) -> dict[str, object]:
    """The consumer with how far it is behind."""
    document = {"name": consumer.name, **consumer.document()}
    del document["_id"], document["acked"]
    return document | {"ackedAhead": len(consumer.acked)} | lag_document(ctx.member, consumer)


def _command(name: str, run: Handler, taken: set[str], *, where: Where = Where.PRIMARY) -> Command:
    return Command(name, run, frozenset(taken), where=where, admin_only=True, needs=Action.LOGIN)


COMMANDS: tuple[Command, ...] = (
    _command("replSetConsumerCreate", create, {"ns", "filter", "mode", "startAt", "ackTimeoutMS"}),
    _command("replSetConsumers", list_consumers, set(), where=Where.ANYWHERE),
    _command("replSetConsumerRemove", remove, set()),
    _command("replSetConsumerSeek", seek, {"to"}),
    _command("replSetConsumerRead", read_events, {"reader", "after", "generation", "maxEvents", "waitMS"}),
    _command("replSetConsumerAck", acknowledge, {"generation", "token", "tokens"}),
    _command("replSetConsumerNack", give_back, {"generation", "tokens", "reader", "delayMS", "leave"}),
)
"""Each asks for more than a login: a right on what the consumer follows."""
