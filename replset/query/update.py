"""Compiles updates (operators, replacements, pipelines), which are then applied to one document after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replset.bson import DateTime, Regex, Timestamp, Undefined, encode_key
from replset.errors import ErrorCode, InvalidOptionsError, ReplError
from replset.ids import invariant
from replset.query import update_arrays, update_operators
from replset.query.collation import Fold
from replset.query.conditions import are_for_values, condition_on, is_field, is_operators
from replset.query.diff import targets_of
from replset.query.errors import (
    BadValueError,
    ConflictingUpdateOperatorsError,
    DollarPrefixedFieldNameError,
    FailedToParseError,
    ImmutableFieldError,
    TypeMismatchError,
    show,
)
from replset.query.match import NO_VARIABLES, Matcher, compile_filter
from replset.query.order import MISSING, Predicate, type_name
from replset.query.pipeline import compile_pipeline, stage_of
from replset.query.row import Row
from replset.query.stages.stage import Chain, Run, StageScope
from replset.query.time_limit import check_time, count_part
from replset.query.update_operators import UpdateOperation
from replset.query.update_paths import (
    ALL_ITEMS,
    POSITIONAL,
    PathTree,
    PathUpdate,
    UpdateContext,
    is_dynamic,
    path_order,
    static_value,
    update_path,
)

Document = dict[str, object]

OPERATORS: dict[str, Callable[[str, object], UpdateOperation]] = {
    "$set": update_operators.set_value,
    "$unset": update_operators.unset,
    "$inc": update_operators.increment,
    "$mul": update_operators.multiply_by,
    "$currentDate": update_operators.current_date,
    "$setOnInsert": update_operators.set_on_insert,
    "$bit": update_operators.bitwise,
    "$pop": update_arrays.pop,
}
COMPARING: dict[str, Callable[[str, object, Fold | None], UpdateOperation]] = {
    "$min": update_operators.minimum,
    "$max": update_operators.maximum,
    "$push": update_arrays.push,
    "$addToSet": update_arrays.add_to_set,
    "$pull": update_arrays.pull,
    "$pullAll": update_arrays.pull_all,
}
"""Those that compare values, by the fold of a collation if there is one."""
_UPDATE_STAGES: Final = frozenset({"$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith"})
_EMPTY = Timestamp(0, 0)
_FILTER_NAME = re.compile(r"[a-z][a-zA-Z0-9]*")
_REMOVAL = UpdateOperation(lambda old, context: MISSING, creates=False)


@dataclass(frozen=True, slots=True)
class _Step:
    """One operator on one path. With `source` it is a $rename, and `parts` is the new path."""

    parts: tuple[str, ...]
    operation: UpdateOperation
    source: tuple[str, ...] | None = None


class Update:
    """A compiled update. is_replacement: it is a whole document. needs_position: it holds the positional `$`."""

    def __init__(
        self,
        steps: Sequence[_Step],
        replacement: Document | None,
        filters: Mapping[str, Predicate],
        fills_timestamps: bool = False,
        pipeline: Chain | None = None,
    ) -> None:
        self._steps = sorted(steps, key=lambda step: [path_order(part) for part in step.parts])
        self._replacement = replacement
        self._filters = filters
        self._fills_timestamps = fills_timestamps
        self._pipeline = pipeline
        self.is_replacement = replacement is not None
        self.needs_position = any(POSITIONAL in step.parts for step in steps)
        self.targets = targets_of(parts for step in steps for parts in (step.parts, step.source) if parts is not None)

    def apply(
        self,
        doc: Document,
        *,
        now: DateTime,
        timestamp: Timestamp,
        is_insert: bool = False,
        matcher: Matcher | None = None,
    ) -> Document:
        """Return the document after the update. `doc` is not changed, and is returned itself when nothing changes.

        doc: the stored document, or upsert_base() with is_insert; then the caller adds a missing `_id` in front.
        now, timestamp: for $currentDate. matcher: the compiled filter, which finds the position for `$`.
        Raises ImmutableField (66) when `_id` would change, PathNotViable (28), TypeMismatch (14), BadValue (2).
        """
        if self._replacement is not None:
            result = _apply_replacement(doc, self._replacement, timestamp if self._fills_timestamps else _EMPTY)
        elif self._pipeline is not None:
            result = _apply_pipeline(doc, self._pipeline)
        else:
            result = self._apply_operators(doc, UpdateContext(now, timestamp, doc.get("_id")), is_insert, matcher)
        return keep_id(doc, result, is_insert, self.is_replacement or self._pipeline is not None)

    def _apply_operators(
        self, doc: Document, context: UpdateContext, is_insert: bool, matcher: Matcher | None
    ) -> Document:
        position: int | None = None
        if self.needs_position:
            position = None if matcher is None or is_insert else matcher.position(doc)
            if position is None:
                raise BadValueError("The positional operator did not find the match needed from the query.")
        result = doc
        for step in self._steps:
            check_time()  # a step copies the documents on its path
            if step.operation.only_on_insert and not is_insert:
                continue
            if step.source is not None:
                result = _apply_rename(result, step, context)
                continue
            parts = step.parts
            if position is not None and POSITIONAL in parts:
                parts = tuple(str(position) if part == POSITIONAL else part for part in parts)
            place = PathUpdate(parts, step.operation.change, step.operation.creates, context, self._filters)
            result = place.apply(result)
        return result


def compile_update(
    update: object,
    *,
    array_filters: Sequence[object] | None = None,
    fills_timestamps: bool = False,
    variables: Mapping[str, Any] = NO_VARIABLES,
    fold: Fold | None = None,
) -> Update:
    """Return the update of a document: operators when its first name begins with a dollar, else a replacement.

    An array is a pipeline. variables: of its expressions. fold: of the collation by which it compares values.
    fills_timestamps: empty timestamps in the top level of a replacement become the present time, as in MongoDB.
    Raises FailedToParse (9) for unknown modifiers, ConflictingUpdateOperators (40), 52 and 56 for names, BadValue and
    TypeMismatch for operands, InvalidOptions (72) for a stage that no update has.
    """
    if type(update) is list:
        if array_filters:
            raise FailedToParseError("arrayFilters may not be specified for pipeline-style updates")
        return Update([], None, {}, pipeline=_compile_stages(update, variables, fold))
    if not isinstance(update, Mapping):
        raise FailedToParseError("Update argument must be either an object or an array")
    if not next(iter(update), "").startswith("$"):
        if array_filters:
            raise FailedToParseError("arrayFilters may not be specified for replacement-style updates")
        return Update([], _check_replacement(update), {}, fills_timestamps)
    filters = _array_filters(array_filters or (), fold)
    steps = list(_steps(update, fold))
    used = {part[2:-1] for step in steps for part in step.parts if is_dynamic(part) and part not in ("$", ALL_ITEMS)}
    for name in filters:
        if name not in used:
            raise FailedToParseError(
                f"The array filter for identifier '{name}' was not used in the update {show(update)}"
            )
    for step in steps:
        for part in step.parts:
            if is_dynamic(part) and part not in (POSITIONAL, ALL_ITEMS) and part[2:-1] not in filters:
                raise BadValueError(
                    f"No array filter found for identifier '{part[2:-1]}' in path '{'.'.join(step.parts)}'"
                )
    return Update(steps, None, filters)


def _compile_stages(update: list[object], variables: Mapping[str, Any], fold: Fold | None) -> Chain:
    stages = compile_pipeline(update, StageScope(compile_pipeline, frozenset(variables), fold=fold))
    for element in update:
        name, _ = stage_of(element)
        if name not in _UPDATE_STAGES:
            raise InvalidOptionsError(f"{name:.80} is not allowed to be used within an update")
    return Chain(stages, Run(variables))


def _apply_pipeline(doc: Document, pipeline: Chain) -> Document:
    """Return what the stages make of the document, with its `_id` in front if they leave it out."""
    found = [row.document for row in pipeline.take(Row(document=doc)) if row is not None]
    invariant(len(found) == 1, "each stage of an update makes one document of one")
    result: Document = found[0]
    return result if "_id" in result or "_id" not in doc else {"_id": doc["_id"], **result}


def _steps(update: Mapping[str, object], fold: Fold | None) -> Iterator[_Step]:
    tree = PathTree()
    for name, fields in update.items():
        if name != "$rename" and name not in OPERATORS and name not in COMPARING:
            raise FailedToParseError(
                f"Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as "
                "an array"
            )
        if not isinstance(fields, Mapping):
            raise FailedToParseError(
                f"Modifiers operate on fields but we found type {type_name(fields)} instead. For example: "
                f"{{$mod: {{<field>: ...}}}} not {{{name}: {show(fields)}}}"
            )
        for path, operand in fields.items():
            count_part()
            if name == "$rename":
                step = _rename_step(path, operand)
                tree.add(step.source or ())
            else:
                parts = update_path(path)
                made = COMPARING[name](path, operand, fold) if name in COMPARING else OPERATORS[name](path, operand)
                step = _Step(parts, made)
            tree.add(step.parts)
            yield step


def _rename_step(path: str, target: object) -> _Step:
    if not isinstance(target, str):
        raise BadValueError(f"The 'to' field for $rename must be a string: {path}: {show(target)}")
    source, parts = update_path(path), update_path(target)
    if source == parts:
        raise BadValueError(f'The source and target field for $rename must differ: {path}: "{target}"')
    for role, names, shown in (("source", source, path), ("destination", parts, target)):
        if any(is_dynamic(name) for name in names):
            raise BadValueError(f"The {role} field for $rename may not be dynamic: {shown}")
    return _Step(parts, UpdateOperation(lambda old, context: old), source)


def _apply_rename(doc: Document, step: _Step, context: UpdateContext) -> Document:
    source = step.source or ()
    value = static_value(doc, source, "source")
    if value is MISSING:
        return doc
    static_value(doc, step.parts, "destination")
    removed = PathUpdate(source, _REMOVAL.change, False, context).apply(doc)
    return PathUpdate(step.parts, lambda old, context: value, True, context).apply(removed)


def _check_replacement(update: Mapping[str, object]) -> Document:
    for name in update:
        if name.startswith("$"):
            raise DollarPrefixedFieldNameError(
                f"The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's "
                "replacement document. Consider using an aggregation pipeline with $replaceWith."
            )
    return dict(update)


def _apply_replacement(doc: Document, replacement: Document, timestamp: Timestamp) -> Document:
    """Return the replacement with an `_id` in front, its own or that of `doc`. timestamp: replaces empty ones."""
    doc_id = replacement.get("_id", doc.get("_id", MISSING))
    rest = {
        name: timestamp if type(value) is Timestamp and value == _EMPTY else value
        for name, value in replacement.items()
        if name != "_id"
    }
    return rest if doc_id is MISSING else {"_id": doc_id, **rest}


def keep_id(doc: Document, result: Document, is_insert: bool, is_replacement: bool) -> Document:
    """Return the result with the `_id` of `doc`, which may not change. On insert a known `_id` moves to the front."""
    old, new = doc.get("_id", MISSING), result.get("_id", MISSING)
    if old is not MISSING and new is not old:
        if new is MISSING or encode_key(new) != encode_key(old):
            raise ImmutableFieldError(
                "After applying the update, the (immutable) field '_id' was found to have been altered to "
                f"_id: {show(new)}"
                if is_replacement
                else "Performing an update on the path '_id' would modify the immutable field '_id'"
            )
        result = {**result, "_id": old}  # 1 and 1.0 are the same _id; the stored one stays
    if is_insert and new is not MISSING:
        check_id(new)
        if next(iter(result)) != "_id":
            result = {"_id": new, **result}
    return result


def check_id(value: object) -> None:
    """Raise InvalidIdField (53) for an `_id` that no document may have: an array, a regular expression, undefined."""
    if type(value) in (list, Regex, Undefined):
        raise ReplError(f"The '_id' value cannot be of type {type_name(value)}", code=ErrorCode.INVALID_ID_FIELD)


def _array_filters(array_filters: Sequence[object], fold: Fold | None) -> dict[str, Predicate]:
    """Return the test of each `$[name]` for the items of an array, by name."""
    filters: dict[str, Predicate] = {}
    for query in array_filters:
        if not isinstance(query, Mapping):
            raise TypeMismatchError(f"an array filter must be an object, not {type_name(query)}")
        names = list(dict.fromkeys(_filter_names(query)))
        if not names:
            raise FailedToParseError("Cannot use an expression without a top-level field name in arrayFilters")
        if len(names) > 1:
            raise FailedToParseError(
                "Error parsing array filter :: caused by :: Expected a single top-level field name, found "
                f"'{names[0]}' and '{names[1]}'"
            )
        (name,) = names
        if not _FILTER_NAME.fullmatch(name):
            raise BadValueError(
                "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string "
                f"beginning with a lowercase letter, found '{name}'"
            )
        if name in filters:
            raise FailedToParseError(f"Found multiple array filters with the same top-level field name {name}")
        filters[name] = _item_test(compile_filter(query, fold=fold), name)
    return filters


def _item_test(matcher: Matcher, name: str) -> Predicate:
    return lambda item: matcher.matches({name: item})


def _filter_names(query: Mapping[str, object]) -> Iterator[str]:
    for name, value in query.items():
        if name in ("$and", "$or", "$nor") and type(value) is list:
            for branch in value:
                if isinstance(branch, Mapping):
                    yield from _filter_names(branch)
        elif not name.startswith("$"):
            yield name.split(".", 1)[0]


def upsert_base(query: Mapping[str, object]) -> dict[str, object]:
    """Return the document that an upsert's update is applied to when nothing matched.

    query: a filter that compile_filter accepted. Raises 54 when it requires two values for one path, 111 when it names
    only a part of `_id`.
    """
    base: dict[str, object] = {}
    tree = PathTree()
    for path, value in _equalities(query):
        if path.startswith("_id."):
            raise ReplError(
                f"field at '_id' must be exactly specified, field at sub-path '{path}'found",
                code=ErrorCode.NOT_EXACT_VALUE_FIELD,
            )
        parts = tuple(path.split("."))
        try:
            tree.add(parts)
        except ConflictingUpdateOperatorsError:
            raise ReplError(
                f"cannot infer query fields to set, path '{path}' is matched twice",
                code=ErrorCode.NOT_SINGLE_VALUE_FIELD,
            ) from None
        holder: dict[str, Any] = base
        for part in parts[:-1]:
            holder = holder.setdefault(part, {})
        holder[parts[-1]] = value
    return base


def _equalities(query: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in query.items():
        if type(value) is list and (name == "$and" or (name == "$or" and len(value) == 1)):
            for branch in value:
                yield from _equalities(branch)
        elif is_field(name):
            yield from _equality(name, condition_on(name, value))


def _equality(name: str, condition: object) -> Iterator[tuple[str, object]]:
    if not is_operators(condition):
        if type(condition) is not Regex:
            yield name, condition
    elif "$eq" in condition:
        yield name, condition["$eq"]
    else:
        every = condition.get("$all")
        if isinstance(every, list) and len(every) == 1 and type(every[0]) is not Regex:
            (only,) = every
            if not (isinstance(only, Mapping) and are_for_values(only)):
                yield name, only
