"""Commands about the process: ping, buildInfo, hostInfo, getLog and their kind."""

from __future__ import annotations

import logging
import os
import platform
from importlib.metadata import version

from replset.auth.roles import Action
from replset.bson import MAX_BSON_SIZE, DateTime, Int64
from replset.ejson import to_ejson
from replset.errors import BadValueError, NamespaceNotFoundError, NotBuiltError
from replset.member.net.credentials import Credentials
from replset.member.options import MemberOptions
from replset.member.process.machine import RecentLog
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where
from replset.operations.dispatcher import Dispatcher
from replset.operations.namespaces import collection_field, namespace
from replset.operations.request import Reply
from replset.release import commit

log = logging.getLogger("replset.commands")

SERVER_VERSION = "7.0.14"
VERSION_ARRAY = [7, 0, 14, 0]
MAX_WIRE_VERSION = 21
LOOK_MS = 20
LOGS = ("global", "startupWarnings")


async def ping(ctx: CommandContext) -> Reply:
    return {}


async def build_info(ctx: CommandContext) -> Reply:
    """The MongoDB version whose behaviour is offered, so that drivers choose right, and our own beside it."""
    return {
        "version": SERVER_VERSION,
        "versionArray": list(VERSION_ARRAY),
        "gitVersion": commit() or "none",
        "modules": [],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "openssl": {"running": "disabled"},
        "buildEnvironment": {"target_arch": platform.machine(), "target_os": platform.system().lower()},
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": MAX_BSON_SIZE,
        "storageEngines": ["sqlite"],
        "replset": {"version": version("replset"), "python": platform.python_version()},
    }


async def whats_my_uri(ctx: CommandContext) -> Reply:
    return {"you": ctx.connection.peer}


async def rotate_certificates(ctx: CommandContext) -> Reply:
    """Read the certificates and the key file again, as SIGHUP does, for connections from now on."""
    message = fields.text(ctx.body, "message", ctx.name, "")
    if not await ctx.member.workers.run(ctx.member[Credentials].reload):
        raise BadValueError("this member has neither certificates (--tls-cert) nor a key file")
    log.info("rotateCertificates: key file and certificates are read again. %.200s", message)
    return {}


async def get_cmd_line_opts(ctx: CommandContext) -> Reply:
    options = ctx.member[MemberOptions]
    parsed: dict[str, object] = {
        "net": {"bindIp": options.bind_ip, "port": options.port},
        "replication": {"replSet": options.repl_set},
        "storage": {"dbPath": str(options.dbpath)},
    }
    if options.auth:
        parsed["security"] = {"authorization": "enabled"}
    if options.enable_test_commands:
        parsed["setParameter"] = {"enableTestCommands": "1"}
    argv = ["replset", "start", "--replSet", options.repl_set, "--dbpath", str(options.dbpath)]
    return {"argv": [*argv, "--port", str(options.port)], "parsed": parsed}


async def get_log(ctx: CommandContext) -> Reply:
    """The newest lines of the log; or what is doubtful about the start, which mongosh shows to who connects."""
    name = ctx.body.get(ctx.name)
    if name == "*":
        return {"names": list(LOGS)}
    if not isinstance(name, str):
        raise fields.wrong_type(ctx.name, ctx.name, ctx.body.type_of(ctx.name), "string")
    if name not in LOGS:
        raise BadValueError(f"No log named '{name:.80}'")
    if name == "startupWarnings":
        lines = _warning_lines(ctx)
        return {"totalLinesWritten": len(lines), "log": lines}
    log = ctx.member[RecentLog]
    return {"totalLinesWritten": Int64(log.total), "log": list(log.lines.copy())}


def _warning_lines(ctx: CommandContext) -> list[str]:
    """Return them as lines of MongoDB's log, which are JSON."""
    begun = DateTime(ctx.member.clock.wall_ms() - (ctx.member.clock.now() - ctx.member.started_at))
    head: dict[str, object] = {"t": begun, "s": "W", "c": "CONTROL", "id": 1, "ctx": "initandlisten"}
    return [to_ejson({**head, "msg": warning}) for warning in ctx.member.warnings]


async def host_info(ctx: CommandContext) -> Reply:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return {
        "system": {
            "currentTime": DateTime(ctx.member.clock.wall_ms()),
            "hostname": ctx.member.host.rpartition(":")[0],
            "cpuArch": platform.machine(),
            "cpuAddrSize": 64,
            "numCores": os.cpu_count() or 1,
            "numCoresAvailableToProcess": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1,
            "memSizeMB": Int64(memory),
            "memLimitMB": Int64(memory),
        },
        "os": {"type": platform.system(), "name": platform.system(), "version": platform.release()},
        "extra": {},
    }


async def fsync(ctx: CommandContext) -> Reply:
    """Wait until all that is written here now is on disk, which each member sees to all the time. lock: 238."""
    if fields.boolean(ctx.body, "lock", ctx.name):
        raise NotBuiltError("fsync with lock is not built: `replset backup` copies a member that goes on")
    member = ctx.member
    wanted = member.store.last_applied
    while member.node.position.last_durable < wanted <= member.store.last_applied:
        await member.wait_for_change(LOOK_MS)
        ctx.check_deadline()
    return {"numFiles": 1}


async def compact(ctx: CommandContext) -> Reply:
    """Free nothing: the pages of what is deleted are filled again. 26: no such collection."""
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    if ctx.member.store.collection(ns) is None:
        raise NamespaceNotFoundError(f"collection does not exist: {ns}")
    return {"bytesFreed": Int64(0)}


async def plan_cache_clear(ctx: CommandContext) -> Reply:
    """Forget nothing: each command chooses its plan anew."""
    namespace(ctx.database, collection_field(ctx.body, ctx.name))
    return {}


async def list_commands(ctx: CommandContext) -> Reply:
    """All commands, each with the first line of its description."""
    commands = {command.name: command for command in ctx.member[Dispatcher].commands.values()}
    return {
        "commands": {
            name: {
                "help": (command.run.__doc__ or "").partition("\n")[0],
                "adminOnly": command.admin_only,
                "where": command.where.value,
            }
            for name, command in sorted(commands.items())
        }
    }


COMMANDS: tuple[Command, ...] = (
    Command("listCommands", list_commands, needs=Action.LOGIN),
    Command("ping", ping, needs=Action.OPEN),
    *(
        Command(name, ping, test_only=True, needs=Action.OPEN)
        for name in ("testDeprecation", "testVersion2", "testVersions1And2")
    ),
    Command("buildInfo", build_info, aliases=("buildinfo",), needs=Action.OPEN),
    Command("whatsmyuri", whats_my_uri, needs=Action.OPEN),
    Command(
        "rotateCertificates",
        rotate_certificates,
        frozenset({"message"}),
        admin_only=True,
        needs=Action.ROTATE_CERTIFICATES,
    ),
    Command("getCmdLineOpts", get_cmd_line_opts, admin_only=True, needs=Action.GET_OPTIONS),
    Command("getLog", get_log, admin_only=True, needs=Action.GET_LOG),
    Command("hostInfo", host_info, admin_only=True, needs=Action.HOST_INFO),
    Command("fsync", fsync, frozenset({"lock"}), admin_only=True, needs=Action.SET_PARAMETER),
    Command("compact", compact, frozenset({"force"}), where=Where.READABLE, needs=Action.COLL_MOD),
    Command(
        "planCacheClear",
        plan_cache_clear,
        frozenset({"query", "projection", "sort", "collation"}),
        where=Where.READABLE,
        needs=Action.FIND,
    ),
)
