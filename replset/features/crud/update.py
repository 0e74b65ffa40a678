"""update: each statement finds its documents inside the group, changes them, or inserts one (upsert)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from replset.auth.roles import Action
from replset.bson import MAX_BSON_SIZE, DateTime, RawDocument, Timestamp, decode, encode, encode_key
from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError
from replset.features.crud.filters import filter_of
from replset.features.crud.find_by_id import only_key
from replset.features.crud.hint import hint_of
from replset.features.crud.insert import KEEP_TIMESTAMPS, check_id_document, duplicate_key
from replset.features.crud.let import variables_of, with_constants
from replset.features.crud.retryable import Executed, refuse_retryable
from replset.features.crud.search_batch import Match, ReturnedDocument, Search, SearchingBatch, SearchStatement
from replset.features.crud.validators import Validator
from replset.features.crud.write_batch import parse_in_slices, read_statements, run_batch
from replset.operations import fields
from replset.operations.collations import default_fold
from replset.operations.command import Command, CommandContext, Counters, PreparedWork, UnusualError, Where
from replset.operations.evaluation import UNBOUNDED, is_small, weight_of
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.optime import timestamp
from replset.query.collation import Fold
from replset.query.expressions import fault
from replset.query.match import NO_VARIABLES
from replset.query.repeated import with_repeated_names
from replset.query.update import Update, check_id, compile_update, upsert_base
from replset.replication.write_ops import WriteGroup, do_insert, do_update, update_object
from replset.storage.catalog import Collection

_FIELDS = frozenset({"q", "u", "upsert", "multi", "arrayFilters", "hint", "collation", "c"})
_FAR_INDEX = re.compile(r"\.\d{3,}")


@dataclass(frozen=True, slots=True)
class UpdateStatement(SearchStatement):
    """One element of `updates`: its fields are checked, filter and update not yet compiled."""

    change: object
    upsert: bool
    array_filters: list[object]
    constants: dict[str, object]


def parse_update(document: RawDocument, place: str, default: Fold | None) -> UpdateStatement:
    """Raises for fields that are unknown, missing, of the wrong type or not built. default: of the collection."""
    fields.check_fields(document, _FIELDS, place)
    if "q" not in document:
        raise fields.missing(place, "q")
    if "u" not in document:
        raise fields.missing(place, "u")
    fold = fields.collation(document, place, default)
    query, change = fields.decoded(document, "q", place), document.get("u")
    filters = [] if fields.is_absent(document, "arrayFilters") else fields.values(document, "arrayFilters", place)
    weight = UNBOUNDED if may_grow(change) else weight_of(len(document.raw), query, change, filters)
    upsert, multi = fields.boolean(document, "upsert", place), fields.boolean(document, "multi", place)
    constants = fields.decoded(document, "c", place)
    if constants and type(change) is not list:
        raise fault(51198, "Constant values may only be specified for pipeline updates")
    hint = hint_of(document, place)
    return UpdateStatement(query, multi, hint, weight, change, upsert, filters, constants, fold=fold)


def may_grow(change: object) -> bool:
    """Whether an update of a small size may make a large document of a small one.

    A large index in a path lengthens an array by many items. Each stage of a pipeline may double what the one before
    made.
    """
    if type(change) is list:
        return len(change) > 1
    if not isinstance(change, dict):
        return False
    paths = [
        (path, target) for fields in change.values() if isinstance(fields, dict) for path, target in fields.items()
    ]
    return any(_FAR_INDEX.search(path) for pair in paths for path in pair if isinstance(path, str))


def encode_result(document: dict[str, object]) -> bytes:
    """The bytes of the document that an update makes; 17419 when they are too many."""
    raw = encode(document)
    if len(raw) > MAX_BSON_SIZE:
        raise BadValueError(
            f"Resulting document after update is larger than {MAX_BSON_SIZE}", code=ErrorCode.UPDATE_RESULT_TOO_LARGE
        )
    return raw


class UpdateBatch(SearchingBatch):
    """The statements of one update command."""

    statements: Sequence[UpdateStatement]

    def __init__(
        self,
        ctx: CommandContext,
        statements: Sequence[UpdateStatement],
        returned: ReturnedDocument | None = None,
        ns: str | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        super().__init__(ctx, statements, returned, ns, variables)
        self.modified = 0
        self.fills_timestamps = not fields.boolean(ctx.body, KEEP_TIMESTAMPS, ctx.name)
        self.upserted: list[dict[str, object]] = []
        self.update: Update | None = None
        self.made: tuple[object, bytes, bytes] | None = None
        """What an upsert inserts, if it was made in the thread."""
        self.now, self.stamp = DateTime(0), Timestamp(0, 0)
        self.validator: Validator | None = None

    @property
    def weight(self) -> int:
        return super().weight + (0 if self.validator is None else self.validator.weight)

    def begin(self) -> Search:
        statement = self.statements[self.index]
        if statement.multi:
            refuse_retryable(self.retry, "multi=true")
        search = Search(filter_of(statement.query, self.variables, statement.fold), statement.hint)
        self.update = compile_update(
            statement.change,
            array_filters=statement.array_filters,
            fills_timestamps=self.fills_timestamps,
            variables=with_constants(statement.constants, self.variables),
            fold=statement.fold,
        )
        if statement.multi and self.update.is_replacement:
            raise FailedToParseError("multi update is not supported for replacement-style update")
        return search

    def evaluate(self, search: Search, raw: bytes) -> Match | None:
        before = decode(raw)
        if not search.filter.matches(before):
            return None
        before = with_repeated_names(before, raw)
        update = self._compiled()
        after = update.apply(before, now=self.now, timestamp=self.stamp, matcher=search.filter.matcher)
        if after is before:
            return Match()
        after_bytes = encode_result(after)
        o = update_object(before, after, after_bytes, is_replacement=update.is_replacement, targets=update.targets)
        if o is None:
            return Match()
        if self.validator is not None:
            self.validator.check(after, before)
        return Match(after_bytes, o)

    def _compiled(self) -> Update:
        if self.update is None:
            raise BadValueError("the statement was not compiled")
        return self.update

    def proceed(self, group: WriteGroup, search: Search) -> None:
        statement = self.statements[self.index]
        self.now, self.stamp = DateTime(group.wall_ms), timestamp(group.next_optime().ts)
        coll = group.txn.catalog.by_ns.get(self.ns)
        validator = self.validator_of(coll)
        if validator != self.validator:  # what was evaluated in the thread was so by another validator
            self.validator, self.made, search.evaluated = validator, None, {}
        matched = modified = 0
        if coll is None:
            search.is_done = True
        else:
            for key, raw, match in self.matches(group.txn, coll, search):
                matched += 1
                if match.o:
                    do_update(group, coll, key, raw, match.after, match.o)
                    modified += 1
                if not self.multi:
                    search.is_done = True
                    break
        self.matched = self.matched or matched > 0
        if search.is_done and statement.upsert and not self.matched:
            if self.made is None and not is_small(self.weight, 1):
                self.thread_work = self._make_in_thread
            else:
                self._insert(group, coll)
        self.n += matched
        self.modified += modified

    def _make_in_thread(self) -> None:
        try:
            self.made = self._make()
        except ReplError as error:
            self.refusal = error

    def _make(self) -> tuple[object, bytes, bytes]:
        """(_id, key, document) of what an upsert inserts."""
        base = upsert_base(self.statements[self.index].query)
        made = self._compiled().apply(base, now=self.now, timestamp=self.stamp, is_insert=True)
        if "_id" not in made:
            made = {"_id": self.ctx.member.new_id(), **made}
        value = made["_id"]
        check_id(value)
        check_id_document(value)
        raw = encode_result(made)
        if self.validator is not None:
            self.validator.check(made)
        if self.returned is not None and self.returned.is_new:
            self.returned.value = self.returned.shown(raw)
        return value, encode_key(value), raw

    def _insert(self, group: WriteGroup, coll: Collection | None) -> None:
        value, key, raw = self.made or self._make()
        if do_insert(group, coll or self.collection(group), key, raw) is None:
            raise duplicate_key(group.txn.catalog.by_ns[self.ns], value)
        self.upserted.append({"index": self.index, "_id": value})
        self.n += 1

    def end(self) -> None:
        super().end()
        self.update = self.made = None

    def count_changed(self, number: int) -> None:
        super().count_changed(number)
        self.modified += number
        self.matched = self.matched or number > 0

    def answer(self, executed: Executed) -> None:
        super().answer(executed)
        if executed.op == "i":
            self.upserted.append({"index": self.index, "_id": executed.inserted_id})
        else:
            self.modified += 1

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (("n", self.n), ("nModified", self.modified))

    def extra(self) -> dict[str, object]:
        upserted: dict[str, object] = {"upserted": list(self.upserted)} if self.upserted else {}
        return upserted | super().extra()


async def update(ctx: CommandContext) -> Reply:
    """Change or replace documents; with upsert insert one where none matches."""
    documents = await read_statements(ctx, "updates")
    parse = partial(parse_update, place="update.updates", default=default_fold(ctx))
    statements = await parse_in_slices(ctx, documents, parse)
    return await run_batch(UpdateBatch(ctx, statements, variables=await variables_of(ctx)))


_MODIFIED: Final = (("n", 1), ("nModified", 1))
_NOT_MODIFIED: Final = (("n", 1), ("nModified", 0))
_UPDATE_FIELDS: Final = frozenset({b"q", b"u", b"upsert", b"multi"})


def _is_false(fields: RawDocument, name: str) -> bool:
    """Whether the field is absent or false."""
    kind = fields.type_of(name)
    return kind is None or (kind == 0x08 and not fields.get(name))


def update_work(statement: bytes, _member: Kernel) -> PreparedWork | None:
    """Return an update of one document that is found by its `_id`; None: it is another kind of statement."""
    fields = RawDocument(statement)
    if not fields.has_only(_UPDATE_FIELDS) or not (_is_false(fields, "upsert") and _is_false(fields, "multi")):
        return None
    key, change = only_key(fields.get_raw("q") or b""), fields.get("u")
    if key is None or fields.type_of("u") != 0x03 or may_grow(change):
        return None
    weight, changed = weight_of(len(statement), change), compile_update(change, fills_timestamps=True)
    if changed.needs_position:
        return None

    def work(group: WriteGroup, coll: Collection) -> Counters:
        raw = group.txn.get(coll, key) if coll.is_plain else None
        if raw is None or not is_small(weight, len(raw)):
            raise UnusualError
        if group.held:
            group.held.check(coll.uuid, key)  # also for what it does not change
        before = with_repeated_names(decode(raw), raw)
        now, stamp = DateTime(group.wall_ms), timestamp(group.next_optime().ts)
        after = changed.apply(before, now=now, timestamp=stamp)
        if after is before:
            return _NOT_MODIFIED
        after_raw = encode_result(after)
        o = update_object(before, after, after_raw, is_replacement=changed.is_replacement, targets=changed.targets)
        if o is None:
            return _NOT_MODIFIED
        do_update(group, coll, key, raw, after_raw, o)
        return _MODIFIED

    return work


COMMANDS: tuple[Command, ...] = (
    Command(
        "update",
        update,
        frozenset({"updates", "ordered", "let", "bypassDocumentValidation", KEEP_TIMESTAMPS}),
        where=Where.PRIMARY,
        write_concern=True,
        retryable=True,
        prepared=update_work,
        needs=Action.UPDATE,
    ),
)
