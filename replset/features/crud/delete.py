"""delete: each statement finds its documents inside the group and removes one or all of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import FailedToParseError
from replset.features.crud.filters import filter_of
from replset.features.crud.find_by_id import only_key
from replset.features.crud.hint import hint_of
from replset.features.crud.let import variables_of
from replset.features.crud.retryable import refuse_retryable
from replset.features.crud.search_batch import Match, Search, SearchingBatch, SearchStatement
from replset.features.crud.write_batch import parse_in_slices, read_statements, run_batch
from replset.operations import fields
from replset.operations.collations import default_fold
from replset.operations.command import Command, CommandContext, Counters, PreparedWork, UnusualError, Where
from replset.operations.evaluation import weight_of
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.query.collation import Fold
from replset.replication.write_ops import WriteGroup, do_delete
from replset.storage.catalog import Collection

_FIELDS = frozenset({"q", "limit", "hint", "collation"})


def parse_delete(document: RawDocument, place: str, default: Fold | None) -> SearchStatement:
    """Raises for fields that are unknown, missing, of the wrong type or not built. default: of the collection."""
    fields.check_fields(document, _FIELDS, place)
    for name in ("q", "limit"):
        if name not in document:
            raise fields.missing(place, name)
    fold = fields.collation(document, place, default)
    limit = fields.whole(document, "limit", place)
    if limit not in (0, 1):
        raise FailedToParseError(f"The limit field in delete objects must be 0 or 1. Got {limit}")
    query = fields.decoded(document, "q", place)
    weight = weight_of(len(document.raw), query)
    return SearchStatement(query, limit == 0, hint_of(document, place), weight, fold=fold)


class DeleteBatch(SearchingBatch):
    """The statements of one delete command."""

    def begin(self) -> Search:
        statement = self.statements[self.index]
        if statement.multi:
            refuse_retryable(self.retry, "limit=0")
        return Search(filter_of(statement.query, self.variables, statement.fold), statement.hint)

    def evaluate(self, search: Search, raw: bytes) -> Match | None:
        return Match() if search.filter.matches_raw(raw) else None

    def proceed(self, group: WriteGroup, search: Search) -> None:
        coll = group.txn.catalog.by_ns.get(self.ns)
        if coll is None:
            search.is_done = True
            return
        removed = 0
        for key, raw, _ in self.matches(group.txn, coll, search):
            do_delete(group, coll, key, raw)
            removed += 1
            if not self.multi:
                search.is_done = True
                break
        self.n += removed

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (("n", self.n),)


async def delete(ctx: CommandContext) -> Reply:
    """Remove the first document that matches, or all."""
    documents = await read_statements(ctx, "deletes")
    parse = partial(parse_delete, place="delete.deletes", default=default_fold(ctx))
    statements = await parse_in_slices(ctx, documents, parse)
    return await run_batch(DeleteBatch(ctx, statements, variables=await variables_of(ctx)))


_WHOLE: Final = (0x10, 0x12)
_DELETE_FIELDS: Final = frozenset({b"q", b"limit"})


def delete_work(statement: bytes, _member: Kernel) -> PreparedWork | None:
    """Return the delete of one document that is found by its `_id`; None: it is another kind of statement."""
    fields = RawDocument(statement)
    key = only_key(fields.get_raw("q") or b"")
    if key is None or not fields.has_only(_DELETE_FIELDS) or fields.type_of("limit") not in _WHOLE:
        return None
    if fields.get("limit") != 1:
        return None

    def work(group: WriteGroup, coll: Collection) -> Counters:
        raw = group.txn.get(coll, key) if coll.is_plain else None
        if raw is None:
            raise UnusualError
        RawDocument(raw)  # InvalidBSONError: a disk has changed it
        do_delete(group, coll, key, raw)
        return (("n", 1),)

    return work


COMMANDS: tuple[Command, ...] = (
    Command(
        "delete",
        delete,
        frozenset({"deletes", "ordered", "let", "bypassDocumentValidation"}),
        where=Where.PRIMARY,
        write_concern=True,
        retryable=True,
        prepared=delete_work,
        needs=Action.REMOVE,
    ),
)
