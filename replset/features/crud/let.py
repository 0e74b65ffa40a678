"""Reads the `let` of a command: the variables that its filters, projections and pipelines use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from replset.bson import DateTime, RawDocument
from replset.operations import fields
from replset.operations.collations import command_fold
from replset.operations.command import CommandContext
from replset.operations.evaluation import SMALL_STATEMENT, compiled, read_statement, weight_of
from replset.operations.kernel import Kernel
from replset.operations.user_directory import UserDirectory
from replset.optime import timestamp
from replset.query.collation import Fold
from replset.query.expressions import compile_expression, fault
from replset.query.expressions.logic import variable_name


def let_of(body: RawDocument) -> object:
    """Return the `let` of a command, for `weight_of`: a variable may be much larger than its expression.

    None if there is none, or if the size of the command says enough.
    """
    return None if len(body.raw) > SMALL_STATEMENT or "let" not in body else body.get("let")


def let_weight(body: RawDocument) -> int:
    """Return what the variables add to the weight of each statement of a write."""
    raw = body.get_raw("let")
    return 0 if raw is None else weight_of(len(raw), let_of(body))


def system_variables(member: Kernel) -> dict[str, Any]:
    """Return the variables that the member itself gives to expressions, as of now."""
    return {"NOW": DateTime(member.clock.wall_ms()), "CLUSTER_TIME": timestamp(member.store.last_applied.ts)}


async def variables_of(ctx: CommandContext) -> dict[str, Any]:
    """Return the variables of the command: the system's, the same for the whole command, and those of `let`."""
    body, member, login = ctx.body, ctx.member, ctx.sender.login
    user = None if login is None else member[UserDirectory].user_of(login)
    roles = [] if user is None else sorted(user.roles)
    shown = [{"_id": f"{role.database}.{role.name}", **role.document()} for role in roles]
    system = {**system_variables(member), "USER_ROLES": shown}
    if fields.is_absent(body, "let"):
        return system
    let = await read_statement(member, body, lambda: fields.decoded(body, "let", ctx.name))
    fold = command_fold(ctx)
    return await compiled(member, weight_of(len(body.raw), let), partial(let_values, let, system, fold))


def let_values(let: Mapping[str, object], system: Mapping[str, Any], fold: Fold | None = None) -> dict[str, Any]:
    """Return `system` with the value of each variable of `let`, whose expression may use those before it.

    fold: of the command's collation.
    Raises 4890500 for an expression that reads a field, 9 for a name that none can have, and what expressions raise.
    """
    variables = dict(system)
    for name, value in let.items():
        expression = compile_expression(value, variables, fold)
        if expression.paths:
            raise fault(
                4890500,
                f"let.{name:.80} tried to access a field, but expressions of a command's let run before any document is"
                " read",
            )
        variables[variable_name(name, "let")] = expression.evaluate({}, variables)
    return variables


def with_constants(constants: Mapping[str, object], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables and the constants of an update, which are values as they are."""
    return {**variables, **{variable_name(name, "c"): value for name, value in constants.items()}}
