"""Chooses how the documents of a filter are found: by their `_id`, through an index, or by looking at all of them.

The rule is fixed, without statistics. An `_id` that the filter names comes first. Of the indexes that hold every match
the one with the most fields in front that must equal something is taken; then one with a range behind them; then one
that gives the order of the sort. If there is none, an `$or` whose branches all have an index is read branch by branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from replset.errors import ErrorCode, ReplError
from replset.features.crud.filters import Filter
from replset.features.crud.hint import Hint, Limits, bad_hint
from replset.query.bounds import (
    EVERYTHING,
    FULL,
    Cut,
    FilterBounds,
    Intervals,
    PathBounds,
    bounds_of,
    contains,
    intersect,
)
from replset.query.collation import Fold
from replset.query.order import identical
from replset.query.sort import Sort
from replset.storage.catalog import Collection
from replset.storage.indexes import ID_INDEX, TO_THE_END, Index

MAX_RANGES = 10_000
"""Ranges that the values of several fields make together. Beyond it the bounds of the later fields are left out."""
Fields = tuple[tuple[str, int], ...]
"""Paths and their directions."""


class Range(NamedTuple):
    """low <= keystring < high."""

    low: bytes
    high: bytes


@dataclass(frozen=True, slots=True)
class ByKeys:
    """The documents with these keys, in this order."""

    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Natural:
    """All documents in the order of the inserts."""

    backwards: bool = False


@dataclass(frozen=True, slots=True)
class ById:
    """Documents in the order of their `_id`."""

    ranges: tuple[Range, ...]
    bounds: Intervals
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class ByIndex:
    """Documents in the order of an index. bounds: of each field. is_exact: every entry in them belongs to a match."""

    index: Index
    ranges: tuple[Range, ...]
    bounds: tuple[Intervals, ...]
    backwards: bool = False
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class AnyOf:
    """What one of the parts finds."""

    parts: tuple[ById | ByIndex, ...]


Plan: TypeAlias = ByKeys | Natural | ById | ByIndex | AnyOf


class Chosen(NamedTuple):
    """is_sorted: the documents come in the order that the sort asks for."""

    plan: Plan
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class _Use:
    """One index, None for that on `_id`, and what the filter and the sort get of it."""

    index: Index | None
    bounds: tuple[Intervals, ...]
    equalities: int
    has_range: bool
    direction: int
    is_exact: bool

    @property
    def rank(self) -> tuple[int, bool, bool]:
        return self.equalities, self.has_range, self.direction != 0

    def plan(self) -> ById | ByIndex:
        fields = ID_FIELDS if self.index is None else self.index.fields
        ranges = ranges_of(fields, self.bounds)
        if self.index is None:
            return ById(ranges, self.bounds[0], self.direction < 0)
        return ByIndex(self.index, ranges, self.bounds, self.direction < 0, self.is_exact)


ID_FIELDS: Fields = (("_id", 1),)


def choose_plan(
    coll: Collection,
    found: Filter,
    sort: Sort | None = None,
    hint: Hint | None = None,
    *,
    in_transaction: bool = False,
) -> Chosen:
    """BadValueError for a hint on an index that is not there.

    in_transaction: its own documents may have arrays that the indexes know nothing of.
    """
    if sort is not None and sort.fold != found.fold:
        return Chosen(choose_plan(coll, found, None, hint, in_transaction=in_transaction).plan, False)
    if in_transaction and coll.indexes:
        coll = replace(coll, indexes=tuple(replace(index, multikey_fields=-1) for index in coll.indexes))
    if hint is not None and hint.limits is not None:
        return _between(coll, found, hint, hint.limits, sort)
    keys = found.keys
    natural = natural_direction(sort, hint)
    if natural:
        return Chosen(Natural(natural < 0), sort is None or bool(sort.natural))
    hinted = None if hint is None else _hinted(coll, hint, found.fold)
    if keys is not None and (hinted is None or hinted[0] is None):
        is_reverse = sort is not None and sort.fields == (("_id", -1),)
        return Chosen(ByKeys(keys[:: -1 if is_reverse else 1]), sort is None or is_reverse or sort.fields == ID_FIELDS)
    order = () if sort is None else sort.fields
    if not coll.indexes and not order and hint is None and found.query.keys().isdisjoint(("_id", "$expr")):
        return Chosen(Natural(), True)
    bounds = found.bounds
    if hinted is not None:
        use = _use(hinted[0], bounds, order)
        return Chosen(use.plan(), sort is None or use.direction != 0)
    uses = [_use(index, bounds, order) for index in _usable(coll, bounds)]
    best = max(uses, key=lambda use: use.rank)
    if best.equalities or best.has_range:
        return Chosen(best.plan(), sort is None or best.direction != 0)
    union = _union(coll, bounds)
    if union is not None:
        return Chosen(union, sort is None)
    if sort is not None and best.direction:
        return Chosen(best.plan(), True)
    return Chosen(Natural(), sort is None)


def index_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the indexes that a plan uses."""
    match plan:
        case Natural():
            return ()
        case ByKeys() | ById():
            return (ID_INDEX,)
        case ByIndex(index=index):
            return (index.name,)
        case AnyOf(parts=parts):
            return tuple(name for part in parts for name in index_names(part))


def natural_direction(sort: Sort | None, hint: Hint | None) -> int:
    """1 or -1 when the sort or the hint asks for natural order, else 0."""
    if sort is not None and sort.natural:
        return sort.natural
    return 0 if hint is None else hint.natural


def _hinted(coll: Collection, hint: Hint, fold: Fold | None) -> tuple[Index | None]:
    if hint.name == ID_INDEX or (hint.key is not None and identical_keys(hint.key, {"_id": 1})):
        return (None if fold is None or fold != coll.fold else coll.id_index,)
    found = [
        index
        for index in coll.indexes
        if index.ready
        and not index.hidden
        and (hint.name == index.name or (hint.key is not None and identical_keys(hint.key, index.key_pattern)))
    ]
    if not found:
        raise bad_hint()
    return (next((index for index in found if index.fold == fold), found[0]),)


def _between(coll: Collection, found: Filter, hint: Hint, limits: Limits, sort: Sort | None) -> Chosen:
    """What the hinted index has between the limits, which have the filter's collation, whatever the filter says of its
    fields.

    ReplError: 51173 without an index, 291 for natural order, 51174 and 51175 for limits that the index cannot have.
    """
    if natural_direction(sort, hint):
        raise ReplError("min and max are incompatible with $natural", code=ErrorCode.NO_QUERY_EXECUTION_PLANS)
    if hint.name is None and hint.key is None:
        raise ReplError(
            "When using min()/max() a hint of which index to use must be provided", code=ErrorCode.MIN_MAX_NEEDS_HINT
        )
    (index,) = _hinted(coll, hint, found.fold)
    is_of_filter = found.fold == (None if index is None else index.fold)
    if not is_of_filter and any(cut.is_collated for cuts in limits for cut in cuts.values()):
        raise _other_limits()
    fields = ID_FIELDS if index is None else index.fields
    low, high = (_place_of(fields, cuts) for cuts in limits)
    if limits.low and limits.high and low >= high:
        raise ReplError(
            "The value provided for min() does not come before the value provided for max()",
            code=ErrorCode.MIN_NOT_BEFORE_MAX,
        )
    part = Range(low, high if limits.high else TO_THE_END)
    whole: list[Intervals] = [FULL] * len(fields)
    is_multikey = index is not None and index.multikey  # a document comes at the first of its keys between the limits
    direction = 0 if sort is None or is_multikey or not is_of_filter else _direction(fields, 0, whole, sort.fields)
    is_sorted = sort is None or direction != 0
    if index is None:
        return Chosen(ById((part,), FULL, direction < 0), is_sorted)
    return Chosen(ByIndex(index, (part,), tuple(whole), direction < 0), is_sorted)


def _place_of(fields: Fields, cuts: dict[str, Cut]) -> bytes:
    if cuts and list(cuts) != [path for path, _ in fields]:
        raise _other_limits()
    ways = [way for _, way in fields]
    return b"".join((cut if way > 0 else cut.reverse).prefix for cut, way in zip(cuts.values(), ways, strict=False))


def _other_limits() -> ReplError:
    return ReplError("The index chosen is not compatible with min/max", code=ErrorCode.MIN_MAX_OF_ANOTHER_INDEX)


def identical_keys(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two key patterns are the same; 1 and 1.0 are."""
    return list(one) == list(other) and all(
        identical(a, b) or (isinstance(a, int | float) and isinstance(b, int | float) and a == b)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def _usable(coll: Collection, bounds: FilterBounds) -> Iterable[Index | None]:
    """The indexes that hold every document that matches."""
    yield None
    for index in coll.indexes:
        if index.ready and not index.hidden and _covers(index, bounds):
            yield index


def _covers(index: Index, bounds: FilterBounds) -> bool:
    conditions = bounds.conditions
    if index.sparse and not any(one.has_value for one in conditions for path, _ in index.fields if one.path == path):
        return False
    if index.partial_filter is None:
        return True
    needed = bounds_of(index.partial_filter.filter, fold=index.fold)
    if not needed.is_whole or needed.alternatives:
        return False
    is_same = index.fold == bounds.fold
    return all(any(_implies(one, need, is_same) for one in conditions) for need in needed.conditions)


def _implies(one: PathBounds, need: PathBounds, is_same: bool) -> bool:
    """need: of a partial index. is_same: it has the collation of the filter."""
    if one.path != need.path or one.is_whole_value:
        return False
    if need.intervals == FULL:
        return one.has_value and need.has_value
    if not is_same and (one.is_collated or need.is_collated):
        return False
    return need.is_exact and (need.has_value or one.is_exact) and contains(need.intervals, one.intervals)


def _use(index: Index | None, bounds: FilterBounds, order: Fields) -> _Use:
    fields = ID_FIELDS if index is None else index.fields
    multikey = 0 if index is None else index.multikey_fields
    fold = None if index is None else index.fold
    if fold is not bounds.fold and fold != bounds.fold:
        bounds, order = bounds.without_collated(), ()
    used: list[Intervals] = []
    for number, (path, _) in enumerate(fields):
        is_multikey = bool(multikey >> number & 1)
        conditions = [
            one.intervals
            for one in bounds.conditions
            if one.path == path and one.intervals != FULL and not (is_multikey and one.is_whole_value)
        ]
        if is_multikey:
            used.append(_narrowest(conditions) if not _shares_array(fields, multikey, number, used) else FULL)
        else:
            intervals = FULL
            for one in conditions:
                intervals = intersect(intervals, one)
            used.append(intervals)
    equalities = 0
    while equalities < len(used) and _is_equality(used[equalities]):
        equalities += 1
    has_range = equalities < len(used) and used[equalities] != FULL
    told = {path for path, _ in fields[: equalities + has_range]}
    is_exact = bounds.is_exact and not multikey and all(one.path in told for one in bounds.conditions)
    is_exact = is_exact and _has_all_ranges(used[: equalities + has_range])
    if index is not None and index.sparse:
        is_exact = is_exact and bool(bounds.conditions)
    return _Use(index, tuple(used), equalities, has_range, _direction(fields, multikey, used, order), is_exact)


def _has_all_ranges(bounds: list[Intervals]) -> bool:
    """Whether `ranges_of` leaves none of these bounds out: they are not too many."""
    prefixes = 1
    for intervals in bounds:
        if prefixes > 1 and prefixes * len(intervals) > MAX_RANGES:
            return False
        prefixes *= len(intervals)
    return True


def _is_equality(intervals: Intervals) -> bool:
    return all(one.is_point for one in intervals)


def _narrowest(conditions: list[Intervals]) -> Intervals:
    """Return one of the conditions. Each item of an array can meet another one, so only one of them counts."""
    return min(conditions, key=lambda one: (not _is_equality(one), len(one)), default=FULL)


def _shares_array(fields: Fields, multikey: int, number: int, used: list[Intervals]) -> bool:
    """Whether a field with bounds before this one may go through the same array: the items can differ."""
    top = fields[number][0].partition(".")[0]
    return any(
        multikey >> before & 1 and used[before] != FULL and fields[before][0].partition(".")[0] == top
        for before in range(number)
    )


def _direction(fields: Fields, multikey: int, used: list[Intervals], order: Fields) -> int:
    """1 or -1: the way in which the index gives the order, 0 if it does not.

    Fields that must equal one value may stand in between. An array counts with its first item in the order, so its
    field must have no bounds.
    """
    found, at = 0, 0
    for number, (path, direction) in enumerate(fields):
        if at == len(order):
            break
        is_multikey = bool(multikey >> number & 1)
        is_constant = len(used[number]) == 1 and used[number][0].is_point
        if path == order[at][0]:
            if is_multikey and (used[number] != FULL or _shares_array(fields, multikey, number, used)):
                return 0
            way = direction * order[at][1]
            if not (is_constant and not is_multikey):
                if found not in (0, way):
                    return 0
                found = way
            at += 1
        elif not is_constant:
            return 0
    return (found or 1) if order and at == len(order) else 0


def ranges_of(fields: Fields, bounds: tuple[Intervals, ...]) -> tuple[Range, ...]:
    """The ranges of keystrings, in order: the values of the leading equalities, then one range."""
    prefixes = [b""]
    for (_, direction), intervals in zip(fields, bounds, strict=True):
        if len(intervals) == 1 and intervals[0] == EVERYTHING:
            break
        if len(prefixes) > 1 and len(prefixes) * len(intervals) > MAX_RANGES:
            break
        ordered = intervals if direction > 0 else tuple(one.reverse for one in reversed(intervals))
        if not _is_equality(ordered):
            return tuple(
                Range(prefix + one.low.place, prefix + one.high.place) for prefix in prefixes for one in ordered
            )
        prefixes = [prefix + one.low.prefix for prefix in prefixes for one in ordered]
    return tuple(Range(prefix, prefix + TO_THE_END) for prefix in prefixes)


def _union(coll: Collection, bounds: FilterBounds) -> AnyOf | None:
    for branches in bounds.alternatives:
        parts: list[ById | ByIndex] = []
        for branch in branches:
            together = FilterBounds(
                [*bounds.conditions, *branch.conditions], branch.alternatives, is_whole=False, fold=bounds.fold
            )
            best = max((_use(index, together, ()) for index in _usable(coll, together)), key=lambda use: use.rank)
            if not best.equalities and not best.has_range:
                break
            parts.append(best.plan())
        else:
            return AnyOf(tuple(parts))
    return None
