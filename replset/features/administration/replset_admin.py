"""The administrator's commands: initiate, reconfig, add and remove a member, step down, freeze, cuts for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from replset.auth.roles import Action
from replset.bson import RawDocument, Timestamp
from replset.config import ReplSetConfig, next_member_id, parse_host
from replset.config.feature_version import FIELD
from replset.core.messages import (
    AbortCatchUpRequest,
    Done,
    FreezeRequest,
    InitiateRequest,
    MaintenanceRequest,
    ReconfigRequest,
    Refused,
    RequestBody,
    ResyncRequest,
    StepDownRequest,
    SyncFromRequest,
)
from replset.core.quorum import MAJORITY, WriteConcern, implicit_default, kept_default, unsatisfiable
from replset.errors import (
    BadValueError,
    ErrorCode,
    NodeNotFoundError,
    NotWritablePrimaryError,
    NotYetInitializedError,
    ReplError,
)
from replset.features.administration.operations import (
    MEMBER,
    Freeze,
    Maintenance,
    ResizeOplog,
    Resync,
    StepDown,
    SyncFrom,
)
from replset.features.administration.reconfig_effect import reconfig_warning
from replset.ids import OPTIME_NULL, HostPort, Millis, pack_ts
from replset.member.disk.member_files import MemberFiles
from replset.member.net.transport import Transport
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where, declared
from replset.operations.read_concern import append_at_least, beyond_cluster_time, may_write_at
from replset.operations.request import Reply
from replset.operations.write_concern import store_default, stored_default, write_and_wait
from replset.replication.context import MemberContext
from replset.replication.session_write import EXPIRED
from replset.replication.write_ops import do_noop
from replset.storage.member_file import MemberFile, OplogLimits

T = TypeVar("T")
MAX_DELAY_MS = 60_000
MAX_AHEAD_MS = 30 * 86_400_000
RECONFIG_MS = 60_000
DIRECTIONS: dict[str, Literal["both", "in", "out"]] = {"both": "both", "in": "in", "out": "out"}


async def ask(ctx: CommandContext, body: RequestBody) -> dict[str, object]:
    """Put a request to the core; its refusal is an error reply, its info stays."""
    answer = await ctx.member.ask_core(body)
    if isinstance(answer, Refused):
        raise ReplError(answer.reason, code=answer.code)
    return {"info": answer.info} if isinstance(answer, Done) and answer.info else {}


async def initiate(ctx: CommandContext) -> Reply:
    """Make a new set; what the document leaves out is filled in: the set's name, this member alone."""
    given: dict[str, object] = {}
    if ctx.body.type_of(ctx.name) == 3:
        given = fields.decoded(ctx.body, ctx.name, ctx.name)
    elif ctx.body.type_of(ctx.name) not in (10, 1, 16, 18):
        raise fields.wrong_type(ctx.name, ctx.name, ctx.body.type_of(ctx.name), "object")
    document = {"_id": ctx.member.set_name, "version": 1, **given}
    reply: dict[str, object] = {}
    if "members" not in document:
        document["members"] = [{"_id": 0, "host": str(ctx.member.host)}]
        reply = {
            "info2": "no configuration specified. Using a default configuration for the set",
            "me": ctx.member.host,
        }
    return reply | await ask(ctx, InitiateRequest(ReplSetConfig.parse(document)))


async def reconfig(ctx: CommandContext) -> Reply:
    """Install another configuration; with force also without a majority, which may lose acknowledged writes."""
    document = fields.document(ctx.body, ctx.name, ctx.name)
    if document is None:
        raise fields.wrong_type(ctx.name, ctx.name, ctx.body.type_of(ctx.name), "object")
    config, new = _config_in_force(ctx), ReplSetConfig.parse(document.decode(), keep=True)
    refuse_unknown_fields(new, config)
    new = _with_feature_version(document, new, config)
    force = fields.boolean(ctx.body, "force", ctx.name)
    max_time_ms = fields.whole(ctx.body, "maxTimeMS", ctx.name, 0, least=0)
    if not force:
        _refuse_losing_default(ctx, new)
    return await ask(ctx, ReconfigRequest(new, force, max_time_ms)) | _warning(config, new)


def _with_feature_version(given: RawDocument, new: ReplSetConfig, config: ReplSetConfig) -> ReplSetConfig:
    """Keep the version that the set has, also where `given` was written without it: what the set holds needs it."""
    if FIELD in given and new.feature_version != config.feature_version:
        raise ReplError(
            f"{FIELD} is {config.feature_version}: only setFeatureCompatibilityVersion changes it",
            code=ErrorCode.INVALID_CONFIG,
        )
    return replace(new, feature_version=config.feature_version)


def _refuse_losing_default(ctx: CommandContext, new: ReplSetConfig) -> None:
    """Refuse (103) a configuration that cannot meet the default write concern that is stored, a mode or tags."""
    default = stored_default(ctx.member.store)
    if default is None or isinstance(default.w, int):
        return
    refusal = unsatisfiable(new, default)
    if refusal is not None:
        raise ReplError(
            f"the set's default write concern could not be met: {refusal.reason}; run setDefaultRWConcern first",
            code=ErrorCode.NEW_CONFIG_INCOMPATIBLE,
        )


def _warning(old: ReplSetConfig, new: ReplSetConfig) -> dict[str, object]:
    """Return the field of a reply that warns: fewer members may fail from now on. MongoDB allows such a change."""
    warning = reconfig_warning(old, new)
    return {"warning": warning} if warning else {}


def _config_in_force(ctx: CommandContext) -> ReplSetConfig:
    config = ctx.member.node.config
    if config is None:
        raise NotYetInitializedError("no replset config has been received")
    return config


async def add_member(ctx: CommandContext) -> Reply:
    """Add one member, with the fields of MEMBER."""
    given = fields.decoded(ctx.body, ctx.name, ctx.name)
    for name in given:
        if name not in MEMBER and name != "_id":
            raise fields.unknown_field(ctx.name, name)
    config = primary_config(ctx)
    document = config.document()
    rows = [member.document() for member in config.members]
    row = {"_id": next_member_id(member.id for member in config.members), **given}
    return await change_config(ctx, config, {**document, "members": [*rows, row]})


async def remove_member(ctx: CommandContext) -> Reply:
    """Take the member with this `host` out of the set."""
    if ctx.body.type_of(ctx.name) == 3:
        host = fields.text(fields.document(ctx.body, ctx.name, ctx.name) or ctx.body, "host", ctx.name)
    else:
        host = fields.text(ctx.body, ctx.name, ctx.name)
    config = primary_config(ctx)
    leaving = config.member_at(parse_host(host))
    if leaving is None:
        raise NodeNotFoundError(f"{host} is no member of the set")
    rows = [member.document() for member in config.members if member.id != leaving.id]
    return await change_config(ctx, config, {**config.document(), "members": rows})


def primary_config(ctx: CommandContext) -> ReplSetConfig:
    """Return the configuration that a change is made of. 10107 on any other member than the primary."""
    config = _config_in_force(ctx)
    if not ctx.member.node.writable:
        raise NotWritablePrimaryError()
    return config


def refuse_unknown_fields(new: ReplSetConfig, old: ReplSetConfig) -> None:
    """Refuse (2) fields that this release does not know and that `old` does not have, in what a client gives.

    Those of `old` were set by a newer release. Who reads the configuration, changes it and gives it back has them too.
    """
    pairs = [("", new.others, old.others)]
    for index, member in enumerate(new.members):
        before = old.member(member.id)
        pairs.append((f"members.{index}.", member.others, {} if before is None else before.others))
    before_rules = old.settings.durability_levels
    for ns, rule in new.settings.durability_levels.items():
        kept = before_rules[ns].others if ns in before_rules else {}
        pairs.append((f"settings.durabilityLevels.{ns}.", rule.others, kept))
    for place, given, known in pairs:
        for name in given:
            if name not in known:
                raise BadValueError(f"unknown field {place}{name}")


async def change_config(ctx: CommandContext, config: ReplSetConfig, document: dict[str, object]) -> Reply:
    """Install `document` as the next version. Where it would change the implicit default write concern, majority is
    stored as the set's own default first (map C16, D7), and the reply says so. Otherwise adding an arbiter would
    lower it from majority to {w: 1}, and writes acknowledged by default could be rolled back.
    """
    document["version"] = config.version + 1
    document.pop("term", None)
    new = ReplSetConfig.parse(document, keep=True)
    refuse_unknown_fields(new, config)
    _refuse_losing_default(ctx, new)
    info = ""
    if implicit_default(new).w != implicit_default(config).w and stored_default(ctx.member.store) is None:
        _, failure = await store_default(ctx, WriteConcern(MAJORITY))
        if failure is not None:
            raise ReplError(
                f"the default write concern could not be stored: {failure['errmsg']}",
                code=ErrorCode.WRITE_CONCERN_TIMEOUT,
            )
        info = kept_default(config, new)
    max_time_ms = fields.whole(ctx.body, "maxTimeMS", ctx.name, RECONFIG_MS, least=0)
    reply = await ask(ctx, ReconfigRequest(new, False, max_time_ms))
    parts = [text for text in (str(reply.get("info", "")), info) if text]
    return ({"info": "; ".join(parts)} if parts else {}) | _warning(config, new)


async def step_down(ctx: CommandContext, given: StepDown) -> Reply:
    if not given.seconds:
        given = replace(given, seconds=StepDown().seconds)
    return await ask(ctx, StepDownRequest(given.seconds * 1000, given.catch_up_s() * 1000, given.force, given.to))


async def abort_catch_up(ctx: CommandContext) -> Reply:
    """Let a new primary take writes now, without the entries that it still fetches; they are rolled back."""
    return await ask(ctx, AbortCatchUpRequest())


async def sync_from(ctx: CommandContext, given: SyncFrom) -> Reply:
    target = given.host
    before = ctx.member.node.sync_source
    warning = (await ask(ctx, SyncFromRequest(target))).get("info")
    reply: dict[str, object] = {"syncFromRequested": str(target)}
    if warning:
        reply["warning"] = warning
    if before is not None:
        reply["prevSyncTarget"] = str(before)
    return reply


async def resize_oplog(ctx: CommandContext, given: ResizeOplog) -> Reply:
    limits = OplogLimits(given.size, given.min_retention_hours)
    if ctx.member.store.last_applied == OPTIME_NULL:
        raise ReplError("this member has no oplog", code=ErrorCode.NAMESPACE_NOT_FOUND)
    if limits == (None, None):
        raise BadValueError(f"{ctx.name} needs size, minRetentionHours or both")
    member = ctx.member
    await member[MemberContext].workers.run(lambda: member[MemberFile].save_oplog_limits(limits))
    member.store.options = member[MemberFiles].with_limits(member.store.options)
    return {}


async def test_cut(ctx: CommandContext) -> Reply:
    """For tests: drop member traffic with these hosts, or send it late; clients stay; no hosts: heal."""
    hosts: list[HostPort] = []
    for index, host in enumerate(fields.values(ctx.body, "hosts", ctx.name)):
        if not isinstance(host, str):
            raise fields.wrong_type(ctx.name, f"hosts.{index}", None, "string")
        hosts.append(parse_host(host, f"hosts.{index}"))
    direction = fields.text(ctx.body, "direction", ctx.name, "both")
    if direction not in DIRECTIONS:
        raise BadValueError(f"direction must be both, in or out, not {direction!r:.40}")
    delay_ms = fields.whole(ctx.body, "delayMillis", ctx.name, 0)
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise BadValueError(f"delayMillis must be from 0 to {MAX_DELAY_MS}, not {delay_ms}")
    if delay_ms:
        ctx.member[Transport].delay(hosts, Millis(delay_ms))
    else:
        ctx.member[Transport].cut(hosts, DIRECTIONS[direction])
    return {}


async def test_clock(ctx: CommandContext) -> Reply:
    """For tests: this member's wall clock is so far ahead of the machine's from now on; 0 sets it right."""
    ahead_ms = fields.whole(ctx.body, "aheadMillis", ctx.name, 0)
    if abs(ahead_ms) > MAX_AHEAD_MS:
        raise BadValueError(f"aheadMillis must be from -{MAX_AHEAD_MS} to {MAX_AHEAD_MS}, not {ahead_ms}")
    ctx.member.clock.set_wall_ahead(ahead_ms)
    return {}


async def append_oplog_note(ctx: CommandContext) -> Reply:
    """Write a no-op entry with `data` into the oplog; with `maxClusterTime` only if the newest entry is older."""
    data = fields.document(ctx.body, "data", ctx.name)
    if data is None:
        raise fields.missing(ctx.name, "data")
    note = data.decode()
    if note.get("msg") == EXPIRED:
        raise BadValueError(f"a note with the msg {EXPIRED!r} is the primary's own")
    at_least = ctx.body.get("maxClusterTime")
    if at_least is None:
        _, reply = await write_and_wait(ctx, lambda group: do_noop(group, note))
        return reply
    if not isinstance(at_least, Timestamp):
        raise fields.wrong_type(ctx.name, "maxClusterTime", ctx.body.type_of("maxClusterTime"), "timestamp")
    ts = pack_ts(at_least.time, at_least.inc)
    if not may_write_at(ctx.member, ts):
        raise beyond_cluster_time("maxClusterTime")
    _, reply = await write_and_wait(ctx, partial(append_at_least, after=ts, note=note))
    return reply


def _asking_core(cls: type[T], request: Callable[[T], RequestBody]) -> Command:
    """The row of an operation that is a request to the core."""

    async def run(ctx: CommandContext, given: T) -> Reply:
        return await ask(ctx, request(given))

    return declared(cls, run)


COMMANDS: tuple[Command, ...] = (
    Command("replSetInitiate", initiate, admin_only=True, needs=Action.CONFIGURE_SET),
    Command("replSetReconfig", reconfig, frozenset({"force"}), admin_only=True, needs=Action.CONFIGURE_SET),
    Command("replSetAddMember", add_member, admin_only=True, needs=Action.CONFIGURE_SET),
    Command("replSetRemoveMember", remove_member, admin_only=True, needs=Action.CONFIGURE_SET),
    declared(StepDown, step_down),
    Command("replSetAbortPrimaryCatchUp", abort_catch_up, admin_only=True, needs=Action.CHANGE_STATE),
    _asking_core(Freeze, lambda given: FreezeRequest(given.seconds * 1000)),
    declared(ResizeOplog, resize_oplog),
    declared(SyncFrom, sync_from),
    _asking_core(Maintenance, lambda given: MaintenanceRequest(given.on)),
    _asking_core(Resync, lambda given: ResyncRequest(given.force)),
    Command(
        "replSetTestCut",
        test_cut,
        frozenset({"hosts", "direction", "delayMillis"}),
        admin_only=True,
        test_only=True,
        needs=Action.INTERNAL,
    ),
    Command(
        "replSetTestClock",
        test_clock,
        frozenset({"aheadMillis"}),
        admin_only=True,
        test_only=True,
        needs=Action.INTERNAL,
    ),
    Command(
        "appendOplogNote",
        append_oplog_note,
        frozenset({"data", "maxClusterTime"}),
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
        needs=Action.APPEND_NOTE,
    ),
)
