"""currentOp, killOp and top."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.bson import DateTime, Int64, InvalidBSONError, RawDocument
from replset.ids import Millis
from replset.operations import fields
from replset.operations.audit_trail import without_secrets
from replset.operations.authorization import authorize
from replset.operations.command import Command, CommandContext
from replset.operations.current_operations import KINDS, SHOWN_BYTES, WRITES, OperationTable, Running
from replset.operations.evaluation import read_statement, run_in_thread
from replset.operations.replies import LargeReply
from replset.operations.request import Reply
from replset.query.match import compile_filter

_OPS = {"find": "query", "getMore": "getmore", "insert": "insert", "update": "update", "delete": "remove"}
_OPTIONS = frozenset({"$all", "$ownOps", "$truncateOps", "$db", "$clusterTime", "$readPreference", "lsid", "comment"})


def describe(operation: Running, now: Millis) -> dict[str, object]:
    """A row of currentOp."""
    ctx = operation.ctx
    connection, body, name = ctx.connection, ctx.body, ctx.command.name
    ran_ms = now - operation.began
    field = "collection" if name == "getMore" else ctx.name
    collection = body.get(field) if body.type_of(field) == 2 else "$cmd"
    row: dict[str, object] = {
        "type": "op",
        "host": str(ctx.member.host),
        "desc": f"conn{connection.id}",
        "connectionId": connection.id,
        "client": connection.peer,
        "appName": connection.app_name,
        "active": True,
        "currentOpTime": DateTime(ctx.member.clock.wall_ms()),
        "opid": operation.id,
        "secs_running": Int64(ran_ms // 1000),
        "microsecs_running": Int64(ran_ms * 1000),
        "op": _OPS.get(name, "command"),
        "ns": f"{ctx.database}.{collection}",
        "command": _shown(body),
        "killPending": operation.is_killed,
        "numYields": 0,
        "waitingForLock": False,
        "locks": {},
        "lockStats": {},
    }
    if connection.metadata is not None:
        row["clientMetadata"] = connection.metadata.decode()
    if body.type_of("lsid") == 3:
        row["lsid"] = body.get("lsid")
    if ctx.opened_by is not None:
        row["cursor"] = {"originatingCommand": _shown(ctx.opened_by)}
    return row


def _shown(command: RawDocument) -> dict[str, object]:
    """The command; if it is large or malformed, only its name."""
    try:
        if len(command.raw) <= SHOWN_BYTES:
            return without_secrets(command)
    except InvalidBSONError:
        pass
    return {str(command.first_key): 1, "$truncated": f"{len(command.raw)} bytes"}


async def current_operations(
    ctx: CommandContext, query: dict[str, object], *, only_own: bool = False
) -> list[dict[str, object]]:
    """What runs now and matches, the caller's own command included; with `$ownOps` that of this client alone."""
    now = ctx.member.clock.now()
    own = only_own or fields.boolean(ctx.body, "$ownOps", ctx.name)
    if not own:
        authorize(ctx.member, ctx.sender, Action.IN_PROGRESS, "admin", ctx.name)
    operations = [op for op in ctx.member[OperationTable].running.values() if not own or is_of_caller(op, ctx)]

    def work() -> list[dict[str, object]]:
        matcher = compile_filter(query)
        rows = [describe(operation, now) for operation in operations]
        return [row for row in rows if matcher.matches(row)]

    return await run_in_thread(ctx.member, work)


def is_of_caller(operation: Running, ctx: CommandContext) -> bool:
    """Whether the operation is of the caller's user; without logins, of the same client."""
    mine, theirs = ctx.sender, operation.ctx.sender
    if mine.login is None:
        return theirs.owner == mine.owner
    return theirs.login is not None and str(theirs.login) == str(mine.login)


async def current_op(ctx: CommandContext) -> Reply:
    """What runs now; all other fields of the command are a filter on it."""
    body = ctx.body

    def read() -> dict[str, object]:
        return {name: value for name, value in body.items() if name not in _OPTIONS and name != ctx.name}

    query = await read_statement(ctx.member, body, read)
    return LargeReply({"inprog": await current_operations(ctx, query)})


async def kill_op(ctx: CommandContext) -> Reply:
    """End the command with this opid. It is answered 11601 when it next waits."""
    if "op" not in ctx.body:
        raise fields.missing(ctx.name, "op")
    opid = fields.whole(ctx.body, "op", ctx.name)
    operation = ctx.member[OperationTable].running.get(opid)
    if operation is None or not is_of_caller(operation, ctx):
        authorize(ctx.member, ctx.sender, Action.KILL_OP, "admin", ctx.name)
    ctx.member[OperationTable].kill(opid)
    return {"info": "attempting to kill op"}


async def top(ctx: CommandContext) -> Reply:
    """How often, and for how long, each collection was used since the start. `time` is in microseconds."""
    collections = {coll.ns for coll in ctx.member.store.collections()}
    totals: dict[str, dict[str, dict[str, Int64]]] = {ns: _no_use() for ns in sorted(collections)}
    for (database, collection, name), (times, ran_ms) in sorted(ctx.member[OperationTable].used.items()):
        uses = totals.get(f"{database}.{collection}")
        if uses is not None:
            for kind in ("total", "writeLock" if name in WRITES else "readLock", KINDS[name]):
                use = uses[kind]
                uses[kind] = {"time": Int64(use["time"] + ran_ms * 1000), "count": Int64(use["count"] + times)}
    return {"totals": {"note": "all times in microseconds", **totals}}


def _no_use() -> dict[str, dict[str, Int64]]:
    kinds = ("total", "readLock", "writeLock", "queries", "getmore", "insert", "update", "remove", "commands")
    return {kind: {"time": Int64(0), "count": Int64(0)} for kind in kinds}


COMMANDS: tuple[Command, ...] = (
    Command("currentOp", current_op, None, admin_only=True, needs=Action.LOGIN),
    Command("killOp", kill_op, frozenset({"op"}), admin_only=True, needs=Action.LOGIN),
    Command("top", top, admin_only=True, needs=Action.TOP),
)
