"""update: each statement finds its documents inside the group, changes them, or inserts one (upsert)."""

from __future__ import annotations

from dataclasses import dataclass

from replset.bson import MAX_BSON_SIZE, DateTime, RawDocument, Timestamp, decode, encode, encode_key
from replset.commands import fields
from replset.commands.command import Command, CommandContext, Where
from replset.commands.insert import check_id_document, duplicate_key, new_id
from replset.commands.ports import Reply, Writing
from replset.commands.replies import timestamp
from replset.commands.write_batch import Search, SearchingBatch, check_options, in_slices, run_batch, sub_documents
from replset.errors import BadValueError, FailedToParseError, UnknownFieldError
from replset.query.regex import turn_is_over
from replset.query.update import Update, check_id, compile_update
from replset.query.upsert import upsert_base
from replset.replication.write_ops import do_insert, do_update
from replset.storage.catalog import Collection

RESULT_TOO_LARGE = 17419
_FIELDS = frozenset({"q", "u", "upsert", "multi", "arrayFilters", "hint", "collation", "c", "sort"})
_NOT_BUILT = ("collation", "c", "sort")


@dataclass(frozen=True, slots=True)
class Statement:
    """One element of `updates`: its fields are checked, filter and update not yet compiled."""

    query: dict[str, object]
    change: object
    upsert: bool
    multi: bool
    array_filters: list[object]


def parse_statement(document: RawDocument, place: str) -> Statement:
    """Raises for fields that are unknown, missing, of the wrong type or not built."""
    fields.check_fields(document, _FIELDS, place)
    if "q" not in document:
        raise fields.missing(place, "q")
    if "u" not in document:
        raise fields.missing(place, "u")
    for name in _NOT_BUILT:
        if fields.given(document, name):
            raise UnknownFieldError(f"{place}.{name} is not built yet")
    return Statement(
        fields.decoded(document, "q", place),
        document.get("u"),
        fields.boolean(document, "upsert", place),
        fields.boolean(document, "multi", place),
        [] if fields.is_absent(document, "arrayFilters") else fields.values(document, "arrayFilters", place),
    )


def sized(document: dict[str, object]) -> bytes:
    """The bytes of the document that an update makes; 17419 when they are too many."""
    raw = encode(document)
    if len(raw) > MAX_BSON_SIZE:
        raise BadValueError(f"Resulting document after update is larger than {MAX_BSON_SIZE}", code=RESULT_TOO_LARGE)
    return raw


class UpdateBatch(SearchingBatch):
    __slots__ = ("modified", "statements", "update", "upserted")

    def __init__(self, ctx: CommandContext, statements: list[Statement]) -> None:
        super().__init__(ctx, len(statements))
        self.statements = statements
        self.modified = 0
        self.upserted: list[dict[str, object]] = []
        self.update: Update | None = None

    def begin(self) -> Search:
        statement = self.statements[self.index]
        search = Search(statement.query)
        self.update = compile_update(statement.change, array_filters=statement.array_filters)
        if statement.multi and self.update.is_replacement:
            raise FailedToParseError("multi update is not supported for replacement-style update")
        return search

    def go_on(self, writing: Writing, search: Search, budget: int) -> tuple[int, bool]:
        statement, update = self.statements[self.index], self.update
        if update is None:
            raise BadValueError("the statement was not compiled")
        now, stamp = DateTime(writing.wall_ms), timestamp(writing.next_optime().ts)
        txn, matcher = writing.txn, search.matcher
        coll = txn.catalog.by_ns.get(self.ns)
        seen = matched = modified = 0
        is_done = True
        for key, raw in () if coll is None else search.candidates(txn, coll):
            seen += 1
            before = decode(raw)
            if matcher is None or matcher.matches(before):
                matched += 1
                after = update.apply(before, now=now, timestamp=stamp, matcher=matcher)
                if after is not before and coll is not None:
                    modified += do_update(writing, coll, key, raw, before, sized(after), after) is not None
                if not statement.multi:
                    break
            if seen >= budget or turn_is_over():
                is_done = False
                break
        self.matched = self.matched or matched > 0
        if is_done and statement.upsert and not self.matched:
            self._insert(writing, coll, statement, update, now, stamp)
        self.n += matched
        self.modified += modified
        return seen, is_done

    def _insert(
        self,
        writing: Writing,
        coll: Collection | None,
        statement: Statement,
        update: Update,
        now: DateTime,
        stamp: Timestamp,
    ) -> None:
        base = upsert_base(statement.query)
        made = update.apply(base, now=now, timestamp=stamp, is_insert=True)
        if "_id" not in made:
            made = {"_id": new_id(self.ctx.member), **made}
        value = made["_id"]
        check_id(value)
        check_id_document(value)
        raw = sized(made)
        if do_insert(writing, coll or self.collection(writing), encode_key(value), raw) is None:
            raise duplicate_key(self.ns, value)
        self.upserted.append({"index": self.index, "_id": value})
        self.n += 1

    def end(self) -> None:
        super().end()
        self.update = None

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (("n", self.n), ("nModified", self.modified))

    def extra(self) -> dict[str, object]:
        return {"upserted": self.upserted} if self.upserted else {}


async def update(ctx: CommandContext) -> Reply:
    """Change or replace documents; with upsert insert one where none matches."""
    check_options(ctx, ("let",))
    documents = sub_documents(ctx, "updates")
    statements = await in_slices(ctx, documents, lambda document: parse_statement(document, "update.updates"))
    return await run_batch(UpdateBatch(ctx, statements))


COMMANDS: tuple[Command, ...] = (
    Command(
        "update",
        update,
        frozenset({"updates", "ordered", "bypassDocumentValidation", "let"}),
        where=Where.PRIMARY,
        write_concern=True,
    ),
)
