"""A feature's own write, which no client's write concern decides about: it is done once a majority has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replset.core.quorum import MAJORITY, WriteConcern
from replset.errors import ReplError
from replset.ids import OpTime
from replset.operations.command import CommandContext
from replset.operations.write_concern import wait_for_write_concern
from replset.replication.write_ops import WriteGroup

T = TypeVar("T")
CONCERN = WriteConcern(MAJORITY, wtimeout_ms=30_000, provenance="internalWriteDefault")


async def write_to_majority(
    ctx: CommandContext, operation: Callable[[WriteGroup], T], otherwise: str
) -> tuple[T, OpTime]:
    """Return its result and the newest optime of its group. ReplError: no majority has it, which `otherwise` says."""
    found, optime = await ctx.member.write(lambda group: (operation(group), group.txn.last))
    failure = await wait_for_write_concern(ctx, optime, CONCERN)
    if failure is not None:
        raise ReplError(f"{otherwise}: {failure['errmsg']}", code=int(str(failure["code"])))
    return found, optime
