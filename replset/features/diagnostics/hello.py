"""hello and isMaster: this member's role and the primary. With topologyVersion it waits for a change (map B2)."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.auth.scram import MECHANISM
from replset.bson import MAX_BSON_SIZE, MAX_MESSAGE_SIZE, MAX_WRITE_BATCH, DateTime, Int64, ObjectId, RawDocument
from replset.config import MAX_GIVEN_VERSION, Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.errors import ErrorCode, ReplError, ShutdownInProgressError, StorageError, TypeMismatchError
from replset.features.diagnostics.diagnostics import MAX_WIRE_VERSION
from replset.features.users.sasl import start_with_hello
from replset.ids import OPTIME_NULL, OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext, remember_client
from replset.operations.kernel import Kernel
from replset.operations.replies import election_id
from replset.operations.request import Reply
from replset.operations.session_request import SESSION_MINUTES
from replset.optime import optime_document
from replset.storage.store import Store


async def hello(ctx: CommandContext) -> Reply:
    """This member's role, its set and the primary that it knows."""
    member = ctx.member
    await _await_change(ctx)
    if member.shutting_down:
        raise ShutdownInProgressError("the member is shutting down")
    reply: dict[str, object] = {"helloOk": True} if ctx.body.get("helloOk") is True else {}
    reply["topologyVersion"] = member.topology.document()
    reply |= set_fields(member, legacy=ctx.name != "hello")
    reply |= {
        "maxBsonObjectSize": MAX_BSON_SIZE,
        "maxMessageSizeBytes": MAX_MESSAGE_SIZE,
        "maxWriteBatchSize": MAX_WRITE_BATCH,
        "localTime": DateTime(member.clock.wall_ms()),
        "logicalSessionTimeoutMinutes": SESSION_MINUTES,
        "connectionId": ctx.connection.id,
        "minWireVersion": 0,
        "maxWireVersion": MAX_WIRE_VERSION,
        "readOnly": False,
    }
    if "saslSupportedMechs" in ctx.body:
        reply["saslSupportedMechs"] = [MECHANISM]  # also of a name that no user has
    reply |= await start_with_hello(ctx)
    remember_client(ctx)
    return reply


async def _await_change(ctx: CommandContext) -> None:
    """Wait while the client's topologyVersion is the current one, for at most maxAwaitTimeMS."""
    body, member = ctx.body, ctx.member
    known = fields.document(body, "topologyVersion", ctx.name)
    waits = not fields.is_absent(body, "maxAwaitTimeMS")
    if (known is None) == waits:
        raise ReplError(
            "topologyVersion and maxAwaitTimeMS must be given together or not at all",
            code=ErrorCode.HELLO_AWAIT_FIELDS_APART,
        )
    if known is None:
        if ctx.request.exhaust:
            raise ReplError(
                "a hello with exhaustAllowed must give topologyVersion and maxAwaitTimeMS",
                code=ErrorCode.HELLO_EXHAUST_WITHOUT_TIME,
            )
        return
    timeout_ms = fields.whole(body, "maxAwaitTimeMS", ctx.name)
    process, counter = _parse_topology_version(known)
    if timeout_ms < 0:
        raise ReplError("maxAwaitTimeMS must be a non-negative integer", code=ErrorCode.HELLO_AWAIT_TIME_NEGATIVE)
    if process != member.topology.process_id:
        return
    if counter > member.topology.counter:
        raise ReplError(
            f"topologyVersion.counter {counter} is newer than mine, {member.topology.counter}",
            code=ErrorCode.HELLO_COUNTER_AHEAD,
        )
    if counter == member.topology.counter:
        await member.topology.wait(counter, timeout_ms)


def _parse_topology_version(known: RawDocument) -> tuple[ObjectId, int]:
    process, counter = known.get("processId"), known.get("counter")
    if not isinstance(process, ObjectId) or not isinstance(counter, int) or isinstance(counter, bool):
        raise TypeMismatchError("topologyVersion must hold processId, an ObjectId, and counter, a long")
    if counter < 0:
        raise ReplError("topologyVersion.counter must be non-negative", code=ErrorCode.HELLO_COUNTER_NEGATIVE)
    return process, int(counter)


def set_fields(member: Kernel, *, legacy: bool) -> dict[str, object]:
    """Return the fields of hello and serverStatus.repl about the set."""
    node = member.node
    config = node.config
    me = None if config is None else config.member_at(member.host)
    writable_name = "ismaster" if legacy else "isWritablePrimary"
    if config is None or me is None:
        info = (
            "Does not have a valid replica set config" if config is None else "This member is not in its set's config"
        )
        return {writable_name: False, "secondary": False, "info": info, "isreplicaset": True}
    state = node.state
    reply: dict[str, object] = _hosts(config)
    reply |= {
        "setName": config.set_name,
        # Drivers keep it as an int32, and compare it within one election.
        "setVersion": min(config.version, MAX_GIVEN_VERSION),
        writable_name: node.writable,
        "secondary": state is MemberState.SECONDARY or (state is MemberState.PRIMARY and not node.writable),
    }
    if node.primary_host is not None:
        reply["primary"] = str(node.primary_host)
    reply |= _own_fields(me)
    reply["me"] = str(me.host)
    reply["httpAddress"] = member.http_address
    if node.writable:
        reply["electionId"] = election_id(node.term)
    if me.bears_data:
        reply["lastWrite"] = _last_write(member)
    return reply


def _hosts(config: ReplSetConfig) -> dict[str, object]:
    """Return the members that clients may see: hidden and delayed members are left out."""
    shown = [member for member in config.members if not member.hidden and member.secondary_delay_secs == 0]
    groups: dict[str, object] = {"hosts": [str(member.host) for member in shown if member.is_electable]}
    passives = [str(member.host) for member in shown if not member.is_electable and member.bears_data]
    arbiters = [str(member.host) for member in config.members if not member.bears_data]
    if passives:
        groups["passives"] = passives
    if arbiters:
        groups["arbiters"] = arbiters
    return groups


def _own_fields(me: Member) -> dict[str, object]:
    own: dict[str, object] = {}
    if not me.bears_data:
        own["arbiterOnly"] = True  # of a witness too: drivers know no other word for who serves neither read nor write
    elif not me.is_electable:
        own["passive"] = True
    if me.hidden:
        own["hidden"] = True
    if not me.build_indexes:
        own["buildIndexes"] = False
    if me.secondary_delay_secs:
        own["secondaryDelaySecs"] = Int64(me.secondary_delay_secs)
    if me.tags:
        own["tags"] = dict(me.tags)
    return own


def _last_write(member: Kernel) -> dict[str, object]:
    store = member.store
    committed = min(member.node.commit_point, store.last_applied)
    return {
        "opTime": optime_document(store.last_applied),
        "lastWriteDate": DateTime(store.last_wall_ms // 1000 * 1000),
        "majorityOpTime": optime_document(committed),
        "majorityWriteDate": DateTime(wall_of(store, committed) // 1000 * 1000),
    }


def wall_of(store: Store, optime: OpTime) -> int:
    """Return the wall clock (ms) of the entry at or before `optime`; 0 if there is none or it cannot be read now."""
    if optime == OPTIME_NULL:
        return 0
    if optime == store.last_applied:
        return store.last_wall_ms
    try:
        row = store.row_at_or_before(optime)
    except StorageError:
        return 0
    return 0 if row is None else row.wall_ms


COMMANDS: tuple[Command, ...] = (Command("hello", hello, None, aliases=("isMaster", "ismaster"), needs=Action.OPEN),)
