"""Finds which values the documents that match a filter can have: for each path the intervals of their keys.

An index on the path then has to be read within these intervals only. They may hold too much, never too little: the
filter is always applied again. A condition without bounds (`$ne`, `$size`, …) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from replset.bson import Regex, Undefined, encode_key
from replset.query.collation import Fold, hexed
from replset.query.conditions import are_for_values, condition_on, is_field, is_operators
from replset.query.errors import shell_text
from replset.query.order import MISSING, is_true
from replset.query.paths import array_index

MOST_VALUES: Final = 100_000
"""Of a list for which each value has bounds of its own, which take some 500 bytes; a longer one has those of all."""
_COMPLEMENT: Final = bytes(range(255, -1, -1))
_LITERAL = re.compile(r"(?:[^\\^$.|?*+()\[\]{}]|\\[^\w\s])+")
_NUMBERS = range(31, 34)


class Text(str):
    """A value that only explain needs, as it is shown."""


class Cut(NamedTuple):
    """A place between keys: before all that begin with `prefix`, or behind them. value: for explain."""

    prefix: bytes
    is_behind: bool
    value: object

    @property
    def place(self) -> bytes:
        """Comparable bytes: the first that do not begin with the prefix, or the prefix. No key begins with ff."""
        if not self.is_behind:
            return self.prefix
        begin = self.prefix.rstrip(b"\xff")
        return begin[:-1] + bytes((begin[-1] + 1,))

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, Text) else shell_text(self.value)

    @property
    def is_collated(self) -> bool:
        """Return whether it is a place among strings, documents or arrays."""
        return self.prefix[0] in _COLLATED

    @property
    def reverse(self) -> Cut:
        """Return the same place among complemented keys, which have the opposite order."""
        return Cut(self.prefix.translate(_COMPLEMENT), not self.is_behind, self.value)


class Interval(NamedTuple):
    """The keys between two cuts."""

    low: Cut
    high: Cut

    @property
    def is_point(self) -> bool:
        """Whether it holds one key alone."""
        return self.low.prefix == self.high.prefix and not self.low.is_behind and self.high.is_behind

    @property
    def reverse(self) -> Interval:
        return Interval(self.high.reverse, self.low.reverse)

    @property
    def text(self) -> str:
        """Return the text of MongoDB's explain."""
        begin, end = "(" if self.low.is_behind else "[", "]" if self.high.is_behind else ")"
        return f"{begin}{self.low.text}, {self.high.text}{end}"

    @property
    def text_backwards(self) -> str:
        """Return the `text` of a scan from the end to the beginning."""
        begin, end = "[" if self.high.is_behind else "(", ")" if self.low.is_behind else "]"
        return f"{begin}{self.high.text}, {self.low.text}{end}"


Intervals = tuple[Interval, ...]
"""Intervals in order, of which none touches another one."""
EVERYTHING: Final = Interval(Cut(b"\x0a", False, Text("MinKey")), Cut(b"\xf0", True, Text("MaxKey")))
FULL: Final[Intervals] = (EVERYTHING,)
NULL_KEY: Final = encode_key(None)
_FOLDED: Final[tuple[Any, ...]] = ("", {}, [])
_COLLATED: Final = frozenset(encode_key(value)[0] for value in _FOLDED)
"""The types of values that a collation changes."""
_NO_VARIABLES: Final[Mapping[str, Any]] = {}
_FLIPPED: Final = {"$eq": "$eq", "$gt": "$lt", "$gte": "$lte", "$lt": "$gt", "$lte": "$gte"}


@dataclass(frozen=True, slots=True)
class PathBounds:
    """One condition on a path: one of the document's keys lies in `intervals`.

    is_exact: and every document without arrays that has such a key meets the condition. has_value: the path exists.
    is_whole_value: the condition compares an array as a whole, not its items, which have the keys. So it says nothing
    about a field that is an array in some document.
    """

    path: str
    intervals: Intervals
    is_exact: bool
    has_value: bool
    is_whole_value: bool = False

    @property
    def is_collated(self) -> bool:
        """Whether it compares values that another collation folds otherwise."""
        return any(one.low.is_collated or one.high.is_collated for one in self.intervals)


@dataclass(slots=True)
class FilterBounds:
    """All of `conditions` hold, and of each of `alternatives` one. is_whole: they are the whole filter.

    fold: of the collation of the filter. The bounds are those of an index that has the same.
    """

    conditions: list[PathBounds] = field(default_factory=list)
    alternatives: list[list[FilterBounds]] = field(default_factory=list)
    is_whole: bool = True
    fold: Fold | None = None

    @property
    def is_exact(self) -> bool:
        """Whether a document without arrays that has keys in all intervals matches."""
        return self.is_whole and not self.alternatives and all(one.is_exact for one in self.conditions)

    def without_collated(self) -> FilterBounds:
        """Return what holds for an index of another collation: what compares no strings, documents or arrays."""
        kept = [one for one in self.conditions if not one.is_collated]
        return FilterBounds(kept, self.alternatives, self.is_whole and len(kept) == len(self.conditions), self.fold)


def bounds_of(
    query: Mapping[str, Any], variables: Mapping[str, Any] = _NO_VARIABLES, fold: Fold | None = None
) -> FilterBounds:
    """`query` is a filter that compiles. variables: those of its expressions. fold: of its collation."""
    found = FilterBounds(fold=fold)
    _collect(query, "", found, variables)
    return found


def _collect(
    query: Mapping[str, Any], prefix: str, found: FilterBounds, variables: Mapping[str, Any] = _NO_VARIABLES
) -> None:
    for name, value in query.items():
        if name == "$and" or (name == "$or" and len(value) == 1):
            for branch in value:
                _collect(branch, prefix, found, variables)
        elif name == "$or" and not prefix:
            found.alternatives.append([bounds_of(branch, variables, found.fold) for branch in value])
        elif name == "$expr":
            found.is_whole = False
            _collect_expression(value, found, variables)
        elif is_field(name):
            _collect_path(prefix + name, condition_on(name, value), found)
        else:
            found.is_whole = found.is_whole and name == "$comment"


def _collect_path(path: str, value: Any, found: FilterBounds) -> None:
    fold = found.fold
    if any(array_index(part) is not None for part in path.split(".")):
        found.is_whole = False  # a number names a field or an item of an array
        return
    if not is_operators(value):
        found.conditions.append(_bounds(path, *_equal(value, fold)))
        return
    operators: Mapping[str, Any] = value
    for name, operand in operators.items():
        match name:
            case "$eq":
                found.conditions.append(_bounds(path, *_equal_to(operand, fold)))
            case "$in" if len(operand) > MOST_VALUES:
                found.conditions.append(_bounds(path, [_around(operand, fold)], False))
            case "$in":
                parts = [_equal(one, fold) for one in operand]
                found.conditions.append(
                    _bounds(path, [one for part, _ in parts for one in part], all(exact for _, exact in parts))
                )
            case "$gt" | "$gte" | "$lt" | "$lte":
                found.conditions.append(_bounds(path, *_compared(name, operand, fold)))
            case "$regex":
                pattern, options = (operand.pattern, operand.options) if type(operand) is Regex else (operand, "")
                options = operators.get("$options", options)
                found.conditions.append(_bounds(path, _matched(pattern, options, fold), False))
            case "$exists":
                wanted = is_true(operand)
                intervals = FULL if wanted else (point(None),)
                found.conditions.append(PathBounds(path, intervals, is_exact=False, has_value=wanted))
            case "$all" if operand:
                for one in operand:
                    if isinstance(one, Mapping) and "$elemMatch" in one:
                        _collect_items(path, one["$elemMatch"], found)
                    else:
                        found.conditions.append(_bounds(path, *_equal(one, fold)))
                found.is_whole = False
            case "$elemMatch":
                _collect_items(path, operand, found)
            case "$options" | "$comment":
                pass
            case _:
                found.is_whole = False


def _collect_items(path: str, operand: Any, found: FilterBounds) -> None:
    """$elemMatch: one item meets all conditions, so its own key lies in all their intervals."""
    found.is_whole = False
    inner = FilterBounds(fold=found.fold)
    if not are_for_values(operand):
        _collect(operand, f"{path}.", inner)
        found.conditions += [replace(one, is_exact=False) for one in inner.conditions]
        return
    _collect_path(path, {name: one for name, one in operand.items() if name not in ("$elemMatch", "$exists")}, inner)
    if inner.conditions:
        intervals = inner.conditions[0].intervals
        for condition in inner.conditions[1:]:
            intervals = intersect(intervals, condition.intervals)
        found.conditions.append(_bounds(path, intervals, False))


def _collect_expression(expression: Any, found: FilterBounds, variables: Mapping[str, Any]) -> None:
    """An expression: comparisons of a field with a constant or a variable, alone or in $and."""
    if not isinstance(expression, Mapping) or len(expression) != 1:
        return
    ((name, operands),) = expression.items()
    if name == "$and" and type(operands) is list:
        for one in operands:
            _collect_expression(one, found, variables)
    elif name in _FLIPPED and type(operands) is list and len(operands) == 2:
        for operator, path, operand in ((name, *operands), (_FLIPPED[name], *operands[::-1])):
            value = _value_of(operand, variables)
            if _is_path(path) and value is not MISSING:
                found.conditions += _bounds_of_comparison(operator, path[1:], value, found.fold)


def _around(values: Sequence[object], fold: Fold | None) -> Interval:
    """One interval that has the keys of all these values."""
    low, high, place = EVERYTHING.high, EVERYTHING.low, attrgetter("place")
    for value in values:
        for one in _equal(value, fold)[0]:
            low, high = min(low, one.low, key=place), max(high, one.high, key=place)
    return Interval(low, high)


def _is_path(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith("$") or value.startswith("$$"):
        return False
    return all(array_index(part) is None for part in value[1:].split("."))


def _value_of(operand: Any, variables: Mapping[str, Any]) -> Any:
    """Return the value of an operand that is the same for every document, MISSING for others."""
    if isinstance(operand, str) and operand.startswith("$"):
        return variables.get(operand[2:], MISSING) if operand.startswith("$$") else MISSING
    if isinstance(operand, Mapping):
        return operand["$literal"] if operand.keys() == {"$literal"} else MISSING
    return operand


def _bounds_of_comparison(operator: str, path: str, value: object, fold: Fold | None) -> list[PathBounds]:
    """The order is that of all types. A missing field comes before null, but an index has it as null."""
    if type(value) is list:
        return []
    folded = value if fold is None else fold(value)
    key = encode_key(folded)
    if key < NULL_KEY or (key == NULL_KEY and operator != "$eq"):
        return []
    if operator == "$eq":
        return [_bounds(path, [point(value, fold)], False)]
    cut = Cut(key, operator in ("$gt", "$lte"), _shown(folded, fold))
    interval = Interval(cut, EVERYTHING.high) if operator in ("$gt", "$gte") else Interval(EVERYTHING.low, cut)
    return [replace(_bounds(path, [interval], False), is_whole_value=True)]


def _bounds(path: str, intervals: Iterable[Interval], is_exact: bool) -> PathBounds:
    united = unite(intervals)
    has_value = not any(one.low.place <= NULL_KEY < one.high.place for one in united)
    return PathBounds(path, united, is_exact, has_value)


# --- intervals --------------------------------------------------------------------------------------------------


def unite(intervals: Iterable[Interval]) -> Intervals:
    found: list[Interval] = []
    for one in sorted(intervals, key=lambda interval: interval.low.place):
        if one.low.place >= one.high.place:
            continue
        if found and one.low.place <= found[-1].high.place:
            if one.high.place > found[-1].high.place:
                found[-1] = Interval(found[-1].low, one.high)
            continue
        found.append(one)
    return tuple(found)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    found: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low = max(a[i].low, b[j].low, key=lambda cut: cut.place)
        high = min(a[i].high, b[j].high, key=lambda cut: cut.place)
        if low.place < high.place:
            found.append(Interval(low, high))
        if a[i].high.place < b[j].high.place:
            i += 1
        else:
            j += 1
    return tuple(found)


def contains(outer: Intervals, inner: Intervals) -> bool:
    """Whether all of `inner` lies in `outer`."""
    return all(
        any(wide.low.place <= one.low.place and one.high.place <= wide.high.place for wide in outer) for one in inner
    )


def point(value: object, fold: Fold | None = None) -> Interval:
    """The key of one value, in an index with this collation."""
    if fold is not None:
        value = fold(value)
    key, shown = encode_key(value), _shown(value, fold)
    return Interval(Cut(key, False, shown), Cut(key, True, shown))


def _shown(value: object, fold: Fold | None) -> object:
    """What explain shows of a value, which is folded: as MongoDB, the sort keys of ICU."""
    if fold is None:
        return value
    return Text(f"CollationKey({hexed(value, '0x')})") if isinstance(value, str) else hexed(value, "0x")


def _equal(value: object, fold: Fold | None) -> tuple[list[Interval], bool]:
    """For `{field: value}`, where a regular expression searches."""
    return (_matched(value.pattern, value.options, fold), False) if type(value) is Regex else _equal_to(value, fold)


def _equal_to(value: object, fold: Fold | None = None) -> tuple[list[Interval], bool]:
    if value is None:
        return [point(None), point(Undefined())], True
    if type(value) is list:  # an item, or the whole array, of which only the items have keys
        return [point(value, fold), point(value[0] if value else Undefined(), fold)], False
    return [point(value, fold)], type(value) is not Undefined


def _compared(name: str, operand: object, fold: Fold | None) -> tuple[Iterable[Interval], bool]:
    """Values of the operand's class of types. MinKey and MaxKey compare with all, an array with whole arrays only."""
    if fold is not None:
        operand = fold(operand)
    key = encode_key(operand)
    if key[0] in (EVERYTHING.low.prefix[0], EVERYTHING.high.prefix[0]) or type(operand) is list:
        return FULL, False
    if operand is None:
        return _equal_to(None) if name in ("$gte", "$lte") else ([], True)
    if key[0] in _NUMBERS:
        begin = Cut(encode_key(float("-inf")), False, Text("-inf.0"))
        end = Cut(encode_key(float("inf")), True, Text("inf.0"))
    else:
        begin, end = Cut(key[:1], False, _first_of(operand)), Cut(bytes((key[0] + 1,)), False, _behind(operand))
    shown = _shown(operand, fold)
    match name:
        case "$gt":
            return [Interval(Cut(key, True, shown), end)], True
        case "$gte":
            return [Interval(Cut(key, False, shown), end)], True
        case "$lt":
            return [Interval(begin, Cut(key, False, shown))], True
    return [Interval(begin, Cut(key, True, shown))], True


def _first_of(operand: object) -> Text:
    return Text('""' if isinstance(operand, str) else f"first {type(operand).__name__}")


def _behind(operand: object) -> Text:
    return Text("{}" if isinstance(operand, str) else f"after last {type(operand).__name__}")


def _matched(pattern: str, options: str, fold: Fold | None) -> list[Interval]:
    """Strings with the literal text that an anchored expression begins with, and the same expression as a value.

    With a collation the keys do not begin with the text: an expression compares strings as they are.
    """
    is_literal = fold is None and not set(options) & set("imx") and "|" not in pattern and "(?" not in pattern
    text = _literal_begin(pattern) if is_literal else ""
    same = point(Regex(pattern, options))
    if not text:
        return [Interval(Cut(encode_key("")[:1], False, Text('""')), Cut(encode_key({})[:1], False, Text("{}"))), same]
    key = encode_key(text)[:-1]  # without the end of the string
    return [Interval(Cut(key, False, text), Cut(Cut(key, True, "").place, False, Text(f'"{text}…"'))), same]


def _literal_begin(pattern: str) -> str:
    if not pattern.startswith("^") or not pattern.isprintable():
        return ""
    found = _LITERAL.match(pattern, 1)
    if found is None:
        return ""
    text = found[0]
    if pattern[found.end() : found.end() + 1] in ("*", "?", "+", "{"):  # it repeats the last character, or omits it
        text = text[:-2] if text[-2:-1] == "\\" else text[:-1]
    return text.replace("\\", "") if "\\\\" not in text else ""
