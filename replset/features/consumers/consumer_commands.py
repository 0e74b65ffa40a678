"""The commands on named consumers. They write config.consumers, which no client writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, Timestamp, decode, encode
from replset.config.feature_version import FeatureVersion, refuse_below
from replset.errors import (
    BadValueError,
    ChangeStreamHistoryLostError,
    ErrorCode,
    InvalidNamespaceError,
    InvalidOptionsError,
    NamespaceExistsError,
    OverloadedError,
    ReplError,
)
from replset.features.consumers import kept_events
from replset.features.consumers.consumer import (
    CONSUMERS_NS,
    MOST_CONSUMERS,
    MOST_OUTSTANDING,
    REMOVED_ID,
    Consumer,
    first_generation,
    removed_document,
    removed_generation,
)
from replset.features.consumers.consumer_directory import (
    REMOVED_KEY,
    ConsumerDirectory,
    change,
    document_of,
    lag_document,
    not_found,
    removed_in,
)
from replset.features.consumers.consumer_reads import (
    acknowledging,
    find_for,
    park,
    read,
    save,
    save_by,
    save_counted,
    state_of,
)
from replset.features.consumers.operations import (
    Ack,
    Create,
    Forget,
    Mode,
    Nack,
    Parked,
    Read,
    ReadHere,
    Remove,
    Seek,
    Unpark,
    token_of,
)
from replset.features.consumers.read_here import read_here
from replset.features.crud.filters import filter_of
from replset.ids import Millis, pack_ts
from replset.operations import fields
from replset.operations.authorization import authorize, is_allowed
from replset.operations.command import Command, CommandContext, declared
from replset.operations.evaluation import read_statement
from replset.operations.history import History
from replset.operations.majority_write import CONCERN
from replset.operations.namespaces import check_database, namespace
from replset.operations.request import Reply
from replset.query.change_events import HIDDEN_DATABASES
from replset.query.change_tokens import Token, behind, in_front_of
from replset.replication.write_ops import ReplicatedDocument, WriteGroup, do_create
from replset.storage.sqlite import first_row

LARGEST_FILTER = 16 << 10
Rows = list[tuple[bytes, bytes]]
"""Key and bytes of documents."""


# --- create, list, remove, seek --------------------------------------------------------------------------------------


async def create(ctx: CommandContext, given: Create) -> Reply:
    name, query, (database, collection) = given.name, given.filter, _namespace(given.ns)
    authorize(ctx.member, ctx.sender, Action.MANAGE_CONSUMERS, database, ctx.name)  # "": takes a role on any database
    if query is not None and len(query.raw) > LARGEST_FILTER:
        raise BadValueError(f"the filter of a consumer has at most {LARGEST_FILTER} bytes")
    wanted = {} if query is None else query.decode()
    await read_statement(ctx.member, ctx.body, lambda: filter_of(wanted))
    made = Consumer(name, database, collection, wanted, given.mode, "", ack_timeout_ms=given.ack_timeout_ms)
    made = replace(made, deliver_after=given.deliver_after, max_refusals=given.max_refusals)
    if made.keeps_events and made.mode is not Mode.SHARED:
        raise BadValueError(
            "deliverAfter and maxRefusals are for a shared consumer: in the other modes events keep their order"
        )
    place = _place(ctx, "startAt", given.start_at)

    def operation(group: WriteGroup) -> None:
        if made.keeps_events:
            what = "a consumer with deliverAfter or maxRefusals"
            refuse_below(FeatureVersion(1, 1), ctx.member.node.feature_version, what, InvalidOptionsError)
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


async def remove(ctx: CommandContext, given: Remove) -> Reply:
    consumer = find_for(ctx, given.name, Action.MANAGE_CONSUMERS)

    def operation(group: WriteGroup) -> bool:
        """Remove what is kept of it, and it once there is nothing left."""
        for ns in (kept_events.HELD_NS, kept_events.PARKED_NS):
            rows, _ = kept_events.page(group.txn.connection, group.txn.catalog.by_ns.get(ns), consumer.name)
            if rows:
                for key, _ in rows:
                    ReplicatedDocument(ns, key).remove(group)
                return False
        before = document_of(consumer.name).remove(group)
        if before is None:
            raise not_found(consumer.name)
        removed = removed_document(removed_in(group.txn), Consumer.parse(decode(before)))
        document_of(REMOVED_ID).put(group, encode(removed))
        return True

    while not await save_by(ctx, operation):
        pass
    ctx.member[ConsumerDirectory].state.forget(consumer.name)
    return {}


async def seek(ctx: CommandContext, given: Seek) -> Reply:
    consumer = find_for(ctx, given.name, Action.MANAGE_CONSUMERS)
    place = _place(ctx, "to", given.to)
    moved = await save(ctx, consumer.name, lambda now: now.moved_to(str(place())))
    return _shown(ctx, moved)


def _place(ctx: CommandContext, name: str, value: object) -> Callable[[], Token]:
    """The place that the field's value names, found when it is called: what is there now may be gone then.

    286: its entries are gone. BadValueError: nothing is committed there yet.
    """
    member = ctx.member

    def place() -> Token:
        committed, oldest = member[History].committed, member[History].oldest()
        first = in_front_of(oldest.ts, oldest.term)
        if value == "now":
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


async def acknowledge(ctx: CommandContext, given: Ack) -> Reply:
    consumer = find_for(ctx, given.name, Action.CHANGE_STREAM)
    generation = given.generation
    if consumer.mode is not Mode.SHARED:
        token = await _past(ctx, given.token or token_of(None), "token")
        state, now = state_of(ctx.member), ctx.member.clock.now()
        delay_ms = consumer.delay_ms if state.delayed_until(consumer, now) > now else 0

        def acknowledged_through(now: Consumer) -> Consumer:
            return now.acknowledged_through(generation, token).given_back(generation, delay_ms)

        consumer = await save(ctx, consumer.name, acknowledged_through)
        state.leases.renew(consumer, ctx.member.clock.now())
        return {"position": consumer.position}
    tokens = [await _past(ctx, token, "tokens") for token in _tokens(ctx, given)]
    state = state_of(ctx.member)
    window = state.window(consumer)

    def operation(group: WriteGroup) -> Consumer:
        changed = change(group, consumer.name, acknowledging(window, generation, tokens))
        if changed.keeps_events:
            kept_events.remove_kept(group, consumer.name, tokens)
        return changed

    changed = await save_counted(ctx, consumer, state, operation)
    return {"position": changed.position, "outstanding": window.outstanding}


async def give_back(ctx: CommandContext, given: Nack) -> Reply:
    consumer = find_for(ctx, given.name, Action.CHANGE_STREAM)
    generation, delay_ms, state, now = given.generation, given.delay_ms, state_of(ctx.member), ctx.member.clock.now()
    consumer.check_generation(generation)
    until = Millis(now + delay_ms)
    if consumer.mode is Mode.SHARED:
        window = state.window(consumer)
        if not given.leave:
            count = window.give_back([str(token) for token in _tokens(ctx, given)], until, (now, given.reason))
            return {"n": count, "parked": await park(ctx, consumer, state)} if consumer.max_refusals else {"n": count}
        if given.reader is None:
            raise fields.missing(ctx.name, "reader")
        return {"n": window.give_back(window.held_by(given.reader), until)}
    if consumer.delay_ms != delay_ms:
        consumer = await save(ctx, consumer.name, lambda now: now.given_back(generation, delay_ms))
    state.delays[consumer.name] = until
    if given.leave:
        state.leases.end(consumer, now)
    return {}


async def _past(ctx: CommandContext, token: Token, name: str) -> str:
    """The text of a token that events can have had. What is not committed yet was shown to nobody.

    Where the reader was given them another member may have known a later commit point than a new primary does, until
    that one has committed an entry of its own term.
    """
    member, until = ctx.member, Millis(ctx.member.clock.now() + CONCERN.wtimeout_ms)
    while (committed := member[History].committed).ts < token.ts and committed.term < member.node.term:
        state_of(member)
        if not await member.wait_for_change(max(0, until - member.clock.now())):
            break
    if token.ts > committed.ts:
        raise BadValueError(f"{name}: {token} is later than the newest committed entry, {committed}: it was never read")
    return str(token)


def _tokens(ctx: CommandContext, given: Ack | Nack) -> list[Token]:
    """The tokens of single events: no reader has more of them."""
    if given.tokens is None:
        raise fields.missing(ctx.name, "tokens")
    if len(given.tokens) > MOST_OUTSTANDING:
        many = f"at most {MOST_OUTSTANDING} events are with readers at once"
        raise BadValueError(f"tokens: {len(given.tokens)} of them; {many}")
    return [token_of(value) for value in given.tokens]


async def read_events(ctx: CommandContext, given: Read) -> Reply:
    return await read(ctx, given, find_for(ctx, given.name, Action.CHANGE_STREAM))


# --- what all ask ----------------------------------------------------------------------------------------------------


def _namespace(ns: str) -> tuple[str, str]:
    database, dot, collection = ns.partition(".")
    if database:
        check_database(database)
    if dot or (ns and not database):
        namespace(database, collection)
    if database in HIDDEN_DATABASES or collection.startswith("system."):
        raise InvalidNamespaceError(f"{ns} is the members' own: no consumer follows it")
    return database, collection


def _shown(ctx: CommandContext, consumer: Consumer) -> dict[str, object]:
    """The consumer with how far it is behind."""
    document = {"name": consumer.name, **consumer.document()}
    del document["_id"], document["acked"]
    return document | {"ackedAhead": len(consumer.acked)} | lag_document(ctx.member, consumer)


# --- parked events ---------------------------------------------------------------------------------------------------


async def parked(ctx: CommandContext, given: Parked) -> Reply:
    """A page of the parked events; `next` is where another one begins."""
    consumer, store = find_for(ctx, given.name, Action.CHANGE_STREAM), ctx.member.store
    coll, after = store.collection(kept_events.PARKED_NS), str(given.after or "")
    rows, is_more = store.query(lambda connection: kept_events.page(connection, coll, consumer.name, after))
    shown, events = list[dict[str, object]](), list[RawDocument]()
    for key, raw in rows:
        row, event = RawDocument(raw), kept_events.event_in(raw)
        about = {name: row.get(name) for name in ("at", "refusals", "reasons")}
        shown.append({"id": kept_events.token_in(key), **about} | ({"tooLarge": True} if event is None else {}))
        events.append(RawDocument(event or encode({"_id": {"_data": kept_events.token_in(key)}})))
    return {"consumer": consumer.name, "parked": shown, "events": events} | (
        {"next": shown[-1]["id"]} if is_more else {}
    )


async def unpark(ctx: CommandContext, given: Unpark) -> Reply:
    """Hold them until now, so that they are given to readers again; one that was too large to be kept stays."""

    def put_back(group: WriteGroup, name: str, rows: Rows) -> Rows:
        kept = [(key, raw) for key, raw in rows if kept_events.event_in(raw) is not None]
        if given.id is not None and not kept:
            raise BadValueError(f"event {given.id} was too large to be kept: a seek in front of it gives it again")
        held = group.txn.catalog.by_ns.get(kept_events.HELD_NS)
        if kept_events.count_in(group.txn.connection, held, name) + len(kept) > kept_events.MOST_KEPT:
            raise OverloadedError(
                f"consumer {name} would have over {kept_events.MOST_KEPT} held events: try again later"
            )
        for key, raw in kept:
            kept_events.put_held(group, name, kept_events.token_in(key), 0, kept_events.event_in(raw) or b"")
        return kept

    return await _remove_parked(ctx, given, put_back)


async def forget(ctx: CommandContext, given: Forget) -> Reply:
    return await _remove_parked(ctx, given, lambda _group, _name, rows: rows)


async def _remove_parked(
    ctx: CommandContext, given: Unpark | Forget, choose: Callable[[WriteGroup, str, Rows], Rows]
) -> Reply:
    """Remove those of the parked events that `choose` returns, a page of them in each write; return how many."""
    consumer = find_for(ctx, given.name, Action.MANAGE_CONSUMERS)
    if given.all is (given.id is not None):
        raise BadValueError("either `id` names a parked event, or `all` is true")
    count, after, is_more = 0, "", True

    def operation(group: WriteGroup) -> tuple[int, str, bool]:
        if given.id is None:
            coll = group.txn.catalog.by_ns.get(kept_events.PARKED_NS)
            rows, more = kept_events.page(group.txn.connection, coll, consumer.name, after)
        else:
            document = kept_events.parked_document(consumer.name, str(given.id))
            raw = document.read_in(group.txn)
            if raw is None:
                raise ReplError(f"consumer {consumer.name} has no parked event {given.id}", code=ErrorCode.NO_SUCH_KEY)
            rows, more = [(document.key, raw)], False
        chosen = choose(group, consumer.name, rows)
        for key, _ in chosen:
            ReplicatedDocument(kept_events.PARKED_NS, key).remove(group)
        return len(chosen), kept_events.token_in(rows[-1][0]) if rows else "", more

    while is_more:
        removed, after, is_more = await save_by(ctx, operation)
        count += removed
    return {"n": count}


COMMANDS: tuple[Command, ...] = (
    declared(Create, create),
    Command("replSetConsumers", list_consumers, admin_only=True, needs=Action.LOGIN),
    declared(Remove, remove),
    declared(Seek, seek),
    declared(Read, read_events),
    declared(ReadHere, read_here),
    declared(Ack, acknowledge),
    declared(Nack, give_back),
    declared(Parked, parked),
    declared(Unpark, unpark),
    declared(Forget, forget),
)
