"""Reads the `let` of a command: the variables that its filters, projections and pipelines use."""

from __future__ import annotations

from functools import partial
from typing import Any

from replset.bson import DateTime
from replset.commands import fields
from replset.commands.command import CommandContext
from replset.commands.evaluation import compiled, read_statement, weight_of
from replset.optime import timestamp
from replset.query.variables import let_values


async def variables_of(ctx: CommandContext) -> dict[str, Any]:
    """Return the variables of the command: NOW and CLUSTER_TIME, the same for the whole command, and those of `let`."""
    body, member = ctx.body, ctx.member
    system: dict[str, Any] = {
        "NOW": DateTime(member.clock.wall_ms()),
        "CLUSTER_TIME": timestamp(member.store.last_applied.ts),
    }
    if fields.is_absent(body, "let"):
        return system
    let = await read_statement(member, body, lambda: fields.decoded(body, "let", ctx.name))
    return await compiled(member, weight_of(len(body.raw), let), partial(let_values, let, system))
