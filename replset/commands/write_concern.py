"""The write concern of a command: reading it, the set's default, waiting for it, and what the reply says (map A8)."""

from __future__ import annotations

import math
from functools import lru_cache

from replset.bson import RawDocument, encode_key
from replset.commands.command import CommandContext
from replset.commands.fields import TYPE_NAMES, wrong_type
from replset.commands.ports import WriteConcernFailure
from replset.config import ReplSetConfig
from replset.core.write_concern import MAJORITY, WriteConcern, implicit_default, unsatisfiable
from replset.errors import (
    FailedToParseError,
    NotYetInitializedError,
    PrimarySteppedDownError,
    ReplError,
    ShutdownInProgressError,
    code_name,
    cut_message,
)
from replset.ids import OpTime
from replset.optime import optime_document
from replset.storage.store import Store

MAX_W = 50
SETTINGS_NS = "config.settings"
DEFAULTS_ID = "ReadWriteConcernDefaults"
DEFAULTS_KEY = encode_key(DEFAULTS_ID)
_FIELDS = frozenset({"w", "j", "fsync", "wtimeout", "provenance"})


@lru_cache(maxsize=256)
def parse_write_concern(raw: bytes) -> tuple[int | str | None, bool | None, int]:
    """(w or None, j or None, wtimeout in ms) of a write concern document; FailedToParseError (9)."""
    document = RawDocument(raw).decode()
    for name in document:
        if name not in _FIELDS:
            raise FailedToParseError(f"unrecognized write concern field: {name}")
    w = document.get("w")
    if isinstance(w, float) and w.is_integer():
        w = int(w)
    if isinstance(w, bool) or not (w is None or isinstance(w, int | str)):
        raise FailedToParseError("w has to be a number, string, or object; tags are not built")
    if isinstance(w, int) and not 0 <= w <= MAX_W:
        raise FailedToParseError(f"w has to be a non-negative number and not greater than {MAX_W}; found: {int(w)}")
    if w == "":
        raise FailedToParseError("w must not be an empty string")
    flags: dict[str, bool | None] = {}
    for name in ("j", "fsync"):
        value = document.get(name)
        if value is not None and not isinstance(value, bool | int | float):
            raise FailedToParseError(f"{name} must be numeric or a boolean value")
        flags[name] = None if value is None else bool(value)
    if flags["j"] and flags["fsync"]:
        raise FailedToParseError("fsync and j options cannot be used together")
    wtimeout = document.get("wtimeout", 0)
    if isinstance(wtimeout, bool) or not isinstance(wtimeout, int | float):
        raise FailedToParseError("wtimeout must be a number")
    if isinstance(wtimeout, float) and not math.isfinite(wtimeout):
        raise FailedToParseError("wtimeout must be a finite number")
    wtimeout_ms = max(0, min(int(wtimeout), (1 << 31) - 1))
    return (int(w) if isinstance(w, int) else w), flags["j"] or flags["fsync"], wtimeout_ms


def stored_default(store: Store) -> WriteConcern | None:
    """The default that setDefaultRWConcern stored, None when there is none."""
    settings = store.collection(SETTINGS_NS)
    raw = None if settings is None else store.get(settings, DEFAULTS_KEY)
    concern = None if raw is None else RawDocument(raw).get_raw("defaultWriteConcern")
    if concern is None:
        return None
    w, j, wtimeout_ms = parse_write_concern(concern)
    return WriteConcern(MAJORITY if w is None else w, j, wtimeout_ms, "customDefault")


def default_is_set(store: Store) -> bool:
    """Whether a reconfig may change the implicit default (map C16): a default of the set's own is stored."""
    return stored_default(store) is not None


def default_concern(store: Store, config: ReplSetConfig | None) -> WriteConcern:
    """What counts when the client says nothing."""
    if config is None:
        raise NotYetInitializedError("no replset config has been received")
    return stored_default(store) or implicit_default(config)


def concern_of(ctx: CommandContext) -> WriteConcern:
    """The write concern of this command. Over HTTP one that can never be met is refused here, before anything else."""
    member = ctx.member
    config = member.node.config
    raw = ctx.body.get_raw("writeConcern")
    if raw is None:
        kind = ctx.body.type_of("writeConcern")
        if kind not in (None, 10):
            raise wrong_type(ctx.name, "writeConcern", kind, "object")
        concern = default_concern(member.store, config)
    elif ctx.body.type_of("writeConcern") != 3:
        raise wrong_type(ctx.name, "writeConcern", 4, TYPE_NAMES[3])
    else:
        w, j, wtimeout_ms = parse_write_concern(raw)
        if w is None:
            w = default_concern(member.store, config).w
        concern = WriteConcern(w, j, wtimeout_ms)
    if ctx.request.source == "http" and config is not None:
        refusal = unsatisfiable(config, concern)
        if refusal is not None:
            raise ReplError(refusal.reason, code=refusal.code)
    return concern


async def wait_for(ctx: CommandContext, optime: OpTime, concern: WriteConcern) -> dict[str, object] | None:
    """Wait until the entry at `optime` meets `concern`; the reply's writeConcernError when it does not."""
    if (concern.w == 1 and not concern.j) or concern.w == 0:
        return None
    try:
        failure = await ctx.member.wait_for_write_concern(optime, concern, ctx.deadline)
    except (PrimarySteppedDownError, ShutdownInProgressError) as error:
        failure = WriteConcernFailure(error.code, error.message)
    return None if failure is None else error_document(failure, concern)


def error_document(failure: WriteConcernFailure, concern: WriteConcern) -> dict[str, object]:
    """writeConcernError as drivers read it (map W3)."""
    info: dict[str, object] = {"wtimeout": True} if failure.timed_out else {}
    info["writeConcern"] = concern.document()
    if failure.progress:
        info["progress"] = [
            {name: optime_document(value) if isinstance(value, OpTime) else value for name, value in row.items()}
            for row in failure.progress
        ]
    return {
        "code": failure.code,
        "codeName": code_name(failure.code),
        "errmsg": cut_message(failure.message),
        "errInfo": info,
    }
