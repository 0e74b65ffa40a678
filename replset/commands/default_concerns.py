"""getDefaultRWConcern and setDefaultRWConcern: the set's own default write concern, a replicated document (map W6)."""

from __future__ import annotations

from collections.abc import Mapping

from replset.bson import DateTime, RawDocument, encode
from replset.commands import fields
from replset.commands.command import Command, CommandContext, Where
from replset.commands.ports import Reply
from replset.commands.write_batch import write_times
from replset.commands.write_concern import (
    DEFAULTS_ID,
    DEFAULTS_KEY,
    SETTINGS_NS,
    default_concern,
    parse_write_concern,
    stored_default,
    wait_for,
)
from replset.core.write_concern import MAJORITY, WriteConcern, unsatisfiable
from replset.errors import BadValueError, IllegalOperationError, ReplError, UnknownFieldError
from replset.ids import OpTime
from replset.optime import optime_document
from replset.replication.write_ops import WriteGroup, do_create, do_insert, do_update


async def get_default(ctx: CommandContext) -> Reply:
    """The default read and write concern, and whether they were set or follow from the configuration."""
    return _describe(ctx)


def _describe(ctx: CommandContext) -> dict[str, object]:
    store = ctx.member.store
    concern = default_concern(store, ctx.member.node.config)
    stored = stored_default(store) is not None
    shown: dict[str, object] = {"w": concern.w, "wtimeout": concern.wtimeout_ms}
    if concern.j is not None:
        shown["j"] = concern.j
    reply: dict[str, object] = {
        "defaultReadConcern": {"level": "local"},
        "defaultWriteConcern": shown,
        "defaultWriteConcernSource": "global" if stored else "implicit",
        "defaultReadConcernSource": "implicit",
    }
    coll = store.collection(SETTINGS_NS)
    raw = None if coll is None else store.get(coll, DEFAULTS_KEY)
    if raw is not None:
        document = RawDocument(raw)
        reply["updateOpTime"] = document.get("updateOpTime")
        reply["updateWallClockTime"] = document.get("updateWallClockTime")
    reply["localUpdateWallClockTime"] = DateTime(ctx.member.clock.wall_ms())
    return reply


async def set_default(ctx: CommandContext) -> Reply:
    """Store the set's default write concern. Once set it can be changed, but not be unset."""
    body = ctx.body
    read = fields.document(body, "defaultReadConcern", ctx.name)
    write = fields.document(body, "defaultWriteConcern", ctx.name)
    if read is None and write is None:
        raise BadValueError("setDefaultRWConcern needs defaultReadConcern or defaultWriteConcern")
    if read is not None and read.get("level") in ("linearizable", "snapshot"):
        raise BadValueError(f"level '{read.get('level')}' is not suitable for the default read concern")
    if read is not None and read.decode() not in ({}, {"level": "local"}):
        raise UnknownFieldError("defaultReadConcern other than {level: 'local'} is not built yet")
    if write is None:
        return _describe(ctx)
    w, j, wtimeout_ms = parse_write_concern(write.raw)
    if w is None:
        raise IllegalOperationError("the default write concern cannot be unset; it needs a w")
    if w == 0:
        raise BadValueError("w: 0 cannot be the default write concern")
    concern = WriteConcern(w, j, wtimeout_ms)
    config = ctx.member.node.config
    refusal = None if config is None else unsatisfiable(config, concern)
    if refusal is not None:
        raise ReplError(refusal.reason, code=refusal.code)
    stored: dict[str, object] = {"w": w, "wtimeout": wtimeout_ms}
    if j is not None:
        stored["j"] = j
    optime, failure = await store_default(ctx, stored)
    reply = _describe(ctx)
    if failure is not None:
        reply["writeConcernError"] = failure
    return reply | write_times(optime, optime.term)


async def store_default(ctx: CommandContext, concern: Mapping[str, object]) -> tuple[OpTime, dict[str, object] | None]:
    """Write the default and wait until a majority holds it; (optime, writeConcernError or None)."""

    def write(group: WriteGroup) -> OpTime:
        coll = group.txn.catalog.by_ns.get(SETTINGS_NS) or do_create(group, SETTINGS_NS)
        document: dict[str, object] = {
            "_id": DEFAULTS_ID,
            "defaultWriteConcern": dict(concern),
            "updateOpTime": optime_document(group.next_optime()),
            "updateWallClockTime": DateTime(group.wall_ms),
        }
        before = group.txn.get(coll, DEFAULTS_KEY)
        after = encode(document)
        if before is None:
            do_insert(group, coll, DEFAULTS_KEY, after)
        else:
            do_update(group, coll, DEFAULTS_KEY, before, after, after)
        return group.txn.last

    optime = await ctx.member.write(write)
    return optime, await wait_for(ctx, optime, WriteConcern(MAJORITY, provenance="internalWriteDefault"))


COMMANDS: tuple[Command, ...] = (
    Command("getDefaultRWConcern", get_default, frozenset({"inMemory"}), admin_only=True),
    Command(
        "setDefaultRWConcern",
        set_default,
        frozenset({"defaultReadConcern", "defaultWriteConcern"}),
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
    ),
)
