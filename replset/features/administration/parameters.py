"""getParameter and setParameter: what a server says about itself, and the few things that can be set while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from replset.auth.roles import Action
from replset.auth.scram import MECHANISM
from replset.auth.users import AUTH_SCHEMA
from replset.bson import RawDocument
from replset.errors import IllegalOperationError, InvalidOptionsError, NotBuiltError, TypeMismatchError
from replset.operations import fields
from replset.operations.command import GENERIC_FIELDS, Command, CommandContext
from replset.operations.request import Reply
from replset.operations.transactions import TransactionTable

_log = logging.getLogger("replset")
MOST_VERBOSE = 5


@dataclass(frozen=True, slots=True)
class Parameter:
    """set: None for what cannot be set while the member runs."""

    get: Callable[[CommandContext], object]
    set: Callable[[CommandContext, str], None] | None = None


def _log_level(_ctx: CommandContext) -> int:
    return int(_log.getEffectiveLevel() <= logging.DEBUG)


def _set_log_level(ctx: CommandContext, name: str) -> None:
    _set_verbosity(fields.whole(ctx.body, name, ctx.name, least=0, most=MOST_VERBOSE))


def _set_verbosity(level: int) -> None:
    """There is one level of detail more than usual; MongoDB has five."""
    _log.setLevel(logging.DEBUG if level else logging.INFO)


def _set_component_verbosity(ctx: CommandContext, name: str) -> None:
    document = fields.document(ctx.body, name, ctx.name) or RawDocument(b"\x05\0\0\0\0")
    for component in document.keys():  # noqa: SIM118 - a RawDocument is no mapping
        if component != "verbosity":
            raise NotBuiltError(f"{name}.{component:.80}: the log has one level for all components")
    if "verbosity" in document:
        _set_verbosity(fields.whole(document, "verbosity", name, most=MOST_VERBOSE))


def _set_lifetime(ctx: CommandContext, name: str) -> None:
    ctx.member[TransactionTable].lifetime_s = fields.whole(ctx.body, name, ctx.name, least=1, most=(1 << 31) - 1)


def _fixed(value: object) -> Parameter:
    return Parameter(lambda _ctx: value)


PARAMETERS: dict[str, Parameter] = {
    "acceptApiVersion2": _fixed(False),
    "authSchemaVersion": _fixed(AUTH_SCHEMA),
    "authenticationMechanisms": _fixed([MECHANISM]),
    "enableTestCommands": Parameter(lambda ctx: ctx.member.test_commands),
    "featureCompatibilityVersion": Parameter(lambda ctx: {"version": str(ctx.member.node.feature_version)}),
    "logComponentVerbosity": Parameter(lambda ctx: {"verbosity": _log_level(ctx)}, _set_component_verbosity),
    "logLevel": Parameter(_log_level, _set_log_level),
    "quiet": _fixed(False),
    "requireApiVersion": _fixed(False),
    "transactionLifetimeLimitSeconds": Parameter(
        lambda ctx: int(ctx.member[TransactionTable].lifetime_s), _set_lifetime
    ),
}


async def get_parameter(ctx: CommandContext) -> Reply:
    """`*` or `{allParameters: true}` gives all; otherwise each field of the command that names one. 72 when none does.

    `{showDetails: true}` says of each whether it can be set while the member runs.
    """
    body, name = ctx.body, ctx.name
    options = fields.document(body, name, name) if body.type_of(name) == 3 else None
    details = options is not None and fields.boolean(options, "showDetails", name)
    is_all = body.get(name) == "*" if options is None else fields.boolean(options, "allParameters", name)
    named = PARAMETERS.keys() if is_all else [field for field in body.keys() if field in PARAMETERS]  # noqa: SIM118
    if not named:
        raise InvalidOptionsError("no option found to get")
    return {field: _shown(ctx, PARAMETERS[field], details) for field in named}


def _shown(ctx: CommandContext, parameter: Parameter, details: bool) -> object:
    value = parameter.get(ctx)
    if not details:
        return value
    return {"value": value, "settableAtRuntime": parameter.set is not None, "settableAtStartup": False}


async def set_parameter(ctx: CommandContext) -> Reply:
    """Set what can be set while the member runs; `was`: the first one's old value. It lasts until the member stops."""
    given = [name for name in ctx.body.keys() if name != ctx.name and name not in GENERIC_FIELDS]  # noqa: SIM118
    if not given:
        raise InvalidOptionsError("no option found to set, use help:true to see options")
    for name in given:
        if name not in PARAMETERS:
            raise InvalidOptionsError(
                f"attempted to set unrecognized parameter [{name:.80}], use help:true to see options"
            )
        if PARAMETERS[name].set is None:
            raise IllegalOperationError(f"not allowed to change [{name}] at runtime")
    was = PARAMETERS[given[0]].get(ctx)
    for name in given:
        change = PARAMETERS[name].set
        if change is not None:
            change(ctx, name)
    return {"was": was}


async def profile(ctx: CommandContext) -> Reply:
    """That nothing is profiled. Any level but -1 (which asks) and 0 is not built (238)."""
    if ctx.body.type_of(ctx.name) not in (1, 16, 18, 19):
        raise TypeMismatchError("profile must be a number")
    if fields.whole(ctx.body, ctx.name, ctx.name) not in (-1, 0):
        raise NotBuiltError("profiling is not built yet")
    return {"was": 0, "slowms": 100, "sampleRate": 1.0}


COMMANDS: tuple[Command, ...] = (
    Command("getParameter", get_parameter, None, admin_only=True, needs=Action.GET_PARAMETER),
    Command("setParameter", set_parameter, None, admin_only=True, needs=Action.SET_PARAMETER),
    Command("profile", profile, frozenset({"slowms", "sampleRate", "filter"}), needs=Action.PROFILE),
)
