"""The reply of commands that list what there is: a cursor whose first batch holds all rows."""

from __future__ import annotations

from replset.bson import Int64
from replset.commands import fields
from replset.commands.command import CommandContext
from replset.commands.ports import Reply


def list_reply(ctx: CommandContext, ns: str, documents: list[dict[str, object]]) -> Reply:
    """Return the reply with all rows in the first batch, since these lists are short.

    The fields of `cursor` have the order that MongoDB's lists have; `find` has another one.
    """
    cursor = fields.document(ctx.body, "cursor", ctx.name)
    if cursor is not None:
        fields.check_fields(cursor, frozenset({"batchSize"}), f"{ctx.name}.cursor")
        fields.whole(cursor, "batchSize", ctx.name, least=0)
    return {"cursor": {"id": Int64(0), "ns": ns, "firstBatch": documents}}
