"""delete: each statement finds its documents inside the group and removes one or all of them."""

from __future__ import annotations

from dataclasses import dataclass

from replset.bson import RawDocument, decode
from replset.commands import fields
from replset.commands.command import Command, CommandContext, Where
from replset.commands.ports import Reply, Writing
from replset.commands.write_batch import Search, SearchingBatch, check_options, in_slices, run_batch, sub_documents
from replset.errors import FailedToParseError, UnknownFieldError
from replset.query.regex import turn_is_over
from replset.replication.write_ops import do_delete

_FIELDS = frozenset({"q", "limit", "hint", "collation"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One element of `deletes`; the filter is not yet compiled."""

    query: dict[str, object]
    multi: bool


def parse_statement(document: RawDocument, place: str) -> Statement:
    """Raises for fields that are unknown, missing, of the wrong type or not built."""
    fields.check_fields(document, _FIELDS, place)
    for name in ("q", "limit"):
        if name not in document:
            raise fields.missing(place, name)
    if fields.given(document, "collation"):
        raise UnknownFieldError(f"{place}.collation is not built yet")
    limit = fields.whole(document, "limit", place)
    if limit not in (0, 1):
        raise FailedToParseError(f"The limit field in delete objects must be 0 or 1. Got {limit}")
    return Statement(fields.decoded(document, "q", place), limit == 0)


class DeleteBatch(SearchingBatch):
    __slots__ = ("statements",)

    def __init__(self, ctx: CommandContext, statements: list[Statement]) -> None:
        super().__init__(ctx, len(statements))
        self.statements = statements

    def begin(self) -> Search:
        return Search(self.statements[self.index].query)

    def go_on(self, writing: Writing, search: Search, budget: int) -> tuple[int, bool]:
        multi, matcher = self.statements[self.index].multi, search.matcher
        coll = writing.txn.catalog.by_ns.get(self.ns)
        if coll is None:
            return 0, True
        seen = removed = 0
        is_done = True
        for key, raw in search.candidates(writing.txn, coll):
            seen += 1
            if matcher is None or matcher.matches(decode(raw)):
                do_delete(writing, coll, key, raw)
                removed += 1
                if not multi:
                    break
            if seen >= budget or turn_is_over():
                is_done = False
                break
        self.n += removed
        return seen, is_done

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (("n", self.n),)


async def delete(ctx: CommandContext) -> Reply:
    """Remove the first document that matches, or all."""
    check_options(ctx, ("let",))
    documents = sub_documents(ctx, "deletes")
    statements = await in_slices(ctx, documents, lambda document: parse_statement(document, "delete.deletes"))
    return await run_batch(DeleteBatch(ctx, statements))


COMMANDS: tuple[Command, ...] = (
    Command("delete", delete, frozenset({"deletes", "ordered", "let"}), where=Where.PRIMARY, write_concern=True),
)
