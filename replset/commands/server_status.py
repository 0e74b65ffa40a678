"""serverStatus: counters and state of the process, in MongoDB's form as far as tools look at it."""

from __future__ import annotations

import os

from replset.bson import DateTime, Int64
from replset.commands.command import Command, CommandContext
from replset.commands.diagnostics import SERVER_VERSION
from replset.commands.hello import set_fields
from replset.commands.ports import Reply
from replset.optime import optime_document

COUNTERS = {"insert": "insert", "query": "find", "update": "update", "delete": "delete", "getmore": "getMore"}


async def server_status(ctx: CommandContext) -> Reply:
    """Counters and state of this process; a section that is given as 0 is left out."""
    member, store = ctx.member, ctx.member.store
    uptime_ms = member.clock.now() - member.started_at
    sections: dict[str, object] = {
        "host": str(member.host),
        "version": SERVER_VERSION,
        "process": "replset",
        "pid": Int64(os.getpid()),
        "uptime": float(uptime_ms // 1000),
        "uptimeMillis": Int64(uptime_ms),
        "localTime": DateTime(member.clock.wall_ms()),
        "connections": {"current": member.connection_count},
        "opcounters": _opcounters(ctx),
        "storageEngine": {
            "name": "sqlite",
            "supportsCommittedReads": True,
            "supportsSnapshotReadConcern": False,
            "persistent": True,
            "readOnly": False,
        },
        "repl": {**set_fields(member, legacy=False), "rbid": store.rollback_id},
        "oplog": {"latestOptime": optime_document(store.last_applied), "earliestOptime": optime_document(store.oldest)},
        "metrics": {"cursor": {"open": {"total": Int64(len(ctx.cursors))}}},
    }
    left_out = {name for name in ctx.body.keys() if name in sections and not ctx.body.get(name)}  # noqa: SIM118
    return {name: section for name, section in sections.items() if name not in left_out}


def _opcounters(ctx: CommandContext) -> dict[str, object]:
    counts = ctx.counts
    counters: dict[str, object] = {name: Int64(counts.get(command, 0)) for name, command in COUNTERS.items()}
    counters["command"] = Int64(sum(count for name, count in counts.items() if name not in COUNTERS.values()))
    return counters


COMMANDS: tuple[Command, ...] = (Command("serverStatus", server_status, None),)
