"""$group, and the stages that are made of it: $bucket, $bucketAuto and $sortByCount."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

from replset.bson import DateTime, Decimal128, Int64, ObjectId
from replset.errors import ErrorCode, ReplError
from replset.query.collation import Fold, key_by
from replset.query.errors import not_built, show
from replset.query.expressions import (
    Accumulator,
    Expression,
    fault,
    top_fields,
)
from replset.query.expressions.accumulator_states import State, Sum
from replset.query.order import MISSING, is_number, type_name
from replset.query.row import Row
from replset.query.sorter import MAX_BYTES, Place, Sorter, SpillFile, open_spill
from replset.query.stages.basic import SortingStage, SortStage
from replset.query.stages.stage import ChainStage, Run, Stage, StageScope

_GROUP_BYTES: Final = 400
"""What Python takes for a group beside its key and its states."""
_EXACT: Final = frozenset({str, int, Int64, DateTime, ObjectId, type(None)})
"""Types of which two values are equal in Python, and in one dictionary, just when their keys are."""
_EXACT_COLLATED: Final = _EXACT - {str}
_PARTS: Final = 16
_MAX_DEPTH: Final = 8
_TURN: Final = 64
"""Documents that are read from the disk before others may have a turn."""
_FIXED: Final = frozenset({"$sum", "$avg", "$count", "$stdDevPop", "$stdDevSamp"})
"""Accumulators whose states do not grow."""
_BLOCK_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What a $group makes: the key of a document's group, and accumulators by the names of their fields."""

    key: Callable[[dict[str, Any], Mapping[str, Any]], Any]
    names: tuple[str, ...]
    accumulators: tuple[Accumulator, ...]
    growing: tuple[int, ...]
    """The places of accumulators whose states grow."""
    reads: frozenset[str] | None
    """The top-level fields that matter, None for all."""
    find: Callable[[dict[str, Any], Mapping[str, Any]], object] | None = None
    """Gives by what Python finds a document's group, or MISSING; None for a key that takes time or memory to make."""
    fold: Fold | None = None
    """Of the collation by which groups are told apart."""

    def document(self, value: object, states: list[State]) -> dict[str, Any]:
        """Return the group as a document."""
        return {"_id": value, **{name: state.result() for name, state in zip(self.names, states, strict=True)}}


Group = tuple[Any, list[State]]
"""Its value, which is the first that was seen (1 and 1.0 are one group), and its states."""
_Known = tuple[list[State], list[Callable[[Any], None]]]
"""The states of a group, and the `add` of each."""


class Groups:
    """The groups of one run. What does not fit in memory goes to disk in parts, each with the groups of some hashes.

    A part on the disk begins with its half-done groups and goes on with documents. It is grouped when all documents
    were taken, in parts again if it does not fit.
    """

    def __init__(self, spec: GroupSpec, run: Run, depth: int = 0) -> None:
        self._spec = spec
        self._run = run
        self._depth = depth
        self._exact = _EXACT if spec.fold is None else _EXACT_COLLATED
        self._key_of = key_by(spec.fold)
        self._groups: dict[bytes, Group] = {}
        self._by_value: dict[object, _Known] = {}
        """Those whose value needs no key to be found; none while a part is on the disk."""
        self._reads = [one.argument.quickly for one in spec.accumulators]
        self._parts: list[_Part | None] = []
        """The parts on the disk, by number; empty while nothing is there."""
        self._file: SpillFile | None = None
        self.memory_bytes = 0
        self.used_disk = False

    def take(self, row: Row) -> Iterable[Row]:
        """Count the document in its group. Nothing comes of it."""
        document, variables = row.document, self._run.variables
        find, value = self._spec.find, MISSING
        known: object
        if find is not None:
            known = find(document, variables)
        else:
            value, known = self._value_of(document)
        found = self._by_value.get(known)
        if found is None:
            if find is not None:
                value = self._value_of(document)[0]
            found = self._found(row, value, known)
            if found is None:
                return ()
        states, adds = found
        if not (growing := self._spec.growing):
            for read, add in zip(self._reads, adds):  # noqa: B905
                add(read(document, variables))
        else:
            before = sum([states[place].memory_bytes for place in growing])
            for read, add in zip(self._reads, adds, strict=True):
                add(read(document, variables))
            self.memory_bytes += sum([states[place].memory_bytes for place in growing]) - before
        if self.memory_bytes > MAX_BYTES:
            self._spill()
        return ()

    def _value_of(self, document: dict[str, Any]) -> tuple[Any, object]:
        """Return the value of the document's group, and that by which Python finds it; MISSING if only its key does."""
        value = self._spec.key(document, self._run.variables)
        if value is MISSING:
            value = None
        if type(value) in self._exact:
            return value, value
        if type(value) is dict and self._exact.issuperset(map(type, value.values())):
            return value, tuple(value.items())
        return value, MISSING

    def _found(self, row: Row, value: Any, known: object) -> _Known | None:
        """Return the group of this value, a new one perhaps. None: its part is on the disk, with the document now."""
        key = self._key_of(value)
        if self._parts and (part := self._parts[self._number_of(key)]) is not None:
            part.add(b"d" + row.raw)
            return None
        group = self._groups.get(key)
        if group is None:
            group = self._new(value)
            self._add_group(key, group)
        found: _Known = group[1], [state.add for state in group[1]]
        if known is not MISSING and not self._parts:
            self._by_value[known] = found
        return found

    def _new(self, value: Any) -> Group:
        document = value if isinstance(value, Mapping) else {}
        return value, [one.new(document, self._run.variables) for one in self._spec.accumulators]

    def add_count(self, count: int) -> None:
        """Count so many documents of which none matters, with `only_counts`."""
        value = self._spec.key({}, self._run.variables)
        group = self._new(None if value is MISSING else value)
        for accumulator, state in zip(self._spec.accumulators, group[1], strict=True):
            if isinstance(state, Sum):
                state.add(accumulator.argument.value, count)
        self._add_group(self._key_of(group[0]), group)

    def _add_group(self, key: bytes, group: Group) -> None:
        self._groups[key] = group
        self.memory_bytes += 2 * len(key) + _GROUP_BYTES + sum([state.memory_bytes for state in group[1]])

    def _number_of(self, key: bytes) -> int:
        return blake2b(key, digest_size=_MAX_DEPTH).digest()[self._depth] % _PARTS

    def _spill(self) -> None:
        """Write parts to the disk until half of the memory is free."""
        if self._file is None:
            self._file = open_spill(self._run.spill, "$group")
            self.used_disk = True
            self._parts = [None] * _PARTS
        self._by_value = {}
        if self._depth == _MAX_DEPTH - 1:
            raise ReplError(
                f"$group used too much memory for single groups. Memory limit: {MAX_BYTES} bytes",
                code=ErrorCode.EXCEEDED_MEMORY_LIMIT,
            )
        numbers: dict[int, list[bytes]] = {}
        for key in self._groups:
            numbers.setdefault(self._number_of(key), []).append(key)
        for number, keys in numbers.items():
            part = self._parts[number] = _Part(self._file)
            for key in keys:
                group = self._groups.pop(key)
                size = 2 * len(key) + _GROUP_BYTES + sum([state.memory_bytes for state in group[1]])
                self.memory_bytes -= size
                part.add(b"g" + pickle.dumps((key, group), pickle.HIGHEST_PROTOCOL))
            if self.memory_bytes <= MAX_BYTES // 2:
                break

    def rows(self) -> Iterator[Row | None]:
        """Yield the groups as documents, once. None now and then while documents are read from the disk."""
        for value, states in self._groups.values():
            yield Row(document=self._spec.document(value, states))
        self._groups, self._by_value, self.memory_bytes = {}, {}, 0
        for part in self._parts:
            if part is not None:
                yield from self._rows_of(part)
        self.close()

    def _rows_of(self, part: _Part) -> Iterator[Row | None]:
        inner = Groups(self._spec, self._run, self._depth + 1)
        try:
            for number, record in enumerate(part.read()):
                if record[:1] == b"g":
                    key, group = pickle.loads(record[1:])
                    inner._add_group(key, group)
                else:
                    inner.take(Row(record[1:]))
                self.memory_bytes = inner.memory_bytes
                if number % _TURN == 0:
                    yield None
            yield from inner.rows()
        finally:
            inner.close()

    def close(self) -> None:
        self._groups, self._by_value, self._parts, self.memory_bytes = {}, {}, [], 0
        if self._file is not None:
            self._file.close()
            self._file = None


class _Part:
    """One part of the groups on the disk."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._places: list[Place] = []

    def add(self, record: bytes) -> None:
        self._block.append(record)
        self._block_bytes += len(record)
        if self._block_bytes > _BLOCK_BYTES:
            self._places.append(self._file.append(self._block))
            self._block, self._block_bytes = [], 0

    def read(self) -> Iterator[bytes]:
        return chain(chain.from_iterable(map(self._file.read, self._places)), self._block)


class GroupStage(ChainStage):
    """Makes one document of each group."""

    is_simple = is_growing = makes_anew = keeps_all = True

    def __init__(self, spec: GroupSpec, *, counts_alike: bool = False, by: str = "") -> None:
        """by: the top-level field of which the value is the group's, empty for another value."""
        self.by = by
        self.reads = spec.reads
        self._spec = spec
        self._counts_alike = counts_alike

    def start(self, run: Run) -> None:
        self._groups = Groups(self._spec, run)
        self.take = self._groups.take  # type: ignore[method-assign]

    @property
    def memory_bytes(self) -> int:
        return self._groups.memory_bytes

    @property
    def used_disk(self) -> bool:
        return self._groups.used_disk

    @property
    def only_counts(self) -> bool:
        return self._counts_alike

    def take_count(self, count: int) -> None:
        if count:
            self._groups.add_count(count)

    def end(self) -> Iterable[Row | None]:
        return self._groups.rows()

    def close(self) -> None:
        self._groups.close()


def compile_group(spec: object, scope: StageScope) -> Stage:
    """Return the stage of `{_id: expression, name: accumulator}`.

    Raises 15947, 15955 and 17390, and what `_spec_of` raises.
    """
    if not isinstance(spec, Mapping):
        raise ReplError("a group's fields must be specified in an object", code=ErrorCode.GROUP_NO_OBJECT)
    if "_id" not in spec:
        raise ReplError("a group specification must include an _id", code=ErrorCode.GROUP_WITHOUT_ID)
    _check_id(spec["_id"])
    key = scope.expression(spec["_id"])
    output = {name: value for name, value in spec.items() if name != "_id"}
    found = _spec_of(_with_null(spec["_id"], key), key.paths, output, scope)
    found = replace(found, find=_finder(spec["_id"], key, scope))
    counts_alike = key.is_constant and all(_counts_alike(one) for one in found.accumulators)
    value = spec["_id"]
    # Of values that a collation holds equal, the group shows one; a regular expression may match another.
    is_field = type(value) is str and value.startswith("$") and "." not in value and scope.fold is None
    by = value[1:] if is_field else ""
    return GroupStage(found, counts_alike=counts_alike, by="" if by.startswith("$") else by)


def _check_id(value: object) -> None:
    if (
        isinstance(value, Mapping)
        and not next(iter(value), "").startswith("$")
        and any(is_number(one) or type(one) is bool for one in value.values())
    ):
        raise ReplError("$group does not support inclusion-style expressions", code=ErrorCode.GROUP_ID_SHOWS_FIELDS)


def _with_null(value: object, key: Expression) -> Callable[[dict[str, Any], Mapping[str, Any]], Any]:
    """Return the key of a document's group. In an `_id` of one named field, a missing value counts as null there.

    In an `_id` of several named fields, a missing value leaves out its field. Both are as in MongoDB.
    """
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)).startswith("$"):
        return key.quickly
    (name,) = value
    return lambda document, variables: key.evaluate(document, variables) or {name: None}


def _finder(value: object, key: Expression, scope: StageScope) -> Callable[..., object] | None:
    """Return the `find` of a GroupSpec: it gives what `Groups._value_of` does, or the values of a document's fields."""
    exact = _EXACT if scope.fold is None else _EXACT_COLLATED
    if not isinstance(value, Mapping) or next(iter(value), "$").startswith("$"):
        run = key.run

        def find(document: dict[str, Any], variables: Mapping[str, Any]) -> object:
            found = run(document, variables)
            return found if type(found) in exact else None if found is MISSING else MISSING

        return find if key.needs_no_limit else None
    parts = [scope.expression(inner) for inner in value.values()]
    runs = [part.run for part in parts]

    def find_parts(document: dict[str, Any], variables: Mapping[str, Any]) -> object:
        found = tuple([run(document, variables) for run in runs])
        return found if exact.issuperset(map(type, found)) else MISSING

    return find_parts if all([part.needs_no_limit for part in parts]) else None


def _counts_alike(accumulator: Accumulator) -> bool:
    """Whether the accumulator sums a constant whole number."""
    of = accumulator.argument
    return accumulator.make is Sum and of.is_constant and type(of.value) not in (float, Decimal128)


def _spec_of(
    key: Callable[..., Any], paths: frozenset[str], output: Mapping[str, object], scope: StageScope
) -> GroupSpec:
    """paths: that the key reads. Raises 40234, 40235, 40236, 40238 and 15952 for the fields."""
    accumulators = []
    growing = []
    for place, (name, value) in enumerate(output.items()):
        if "." in name:
            raise ReplError(f"The field name '{name:.80}' cannot contain '.'", code=ErrorCode.GROUP_FIELD_DOT)
        if name.startswith("$"):
            raise ReplError(
                f"The field name '{name:.80}' cannot be an operator name", code=ErrorCode.GROUP_FIELD_DOLLAR
            )
        accumulators.append(scope.accumulator(value, name))
        if isinstance(value, Mapping) and next(iter(value)) not in _FIXED:
            growing.append(place)
    reads = top_fields(paths.union(*[one.argument.paths for one in accumulators]))
    return GroupSpec(key, tuple(output), tuple(accumulators), tuple(growing), reads, fold=scope.fold)


def compile_sort_by_count(spec: object, scope: StageScope) -> list[Stage]:
    """Return the stages of $sortByCount."""
    if isinstance(spec, Mapping):
        if not next(iter(spec), "").startswith("$"):
            raise fault(40147, "the sortByCount field must be defined as a $-prefixed path or an expression")
    elif type(spec) is not str:
        raise fault(40149, "the sortByCount field must be specified as a string or as an object")
    elif not spec.startswith("$"):
        raise fault(40148, "the sortByCount field must be defined as a $-prefixed path or an expression")
    group = compile_group({"_id": spec, "count": {"$sum": 1}}, scope)
    return [group, SortStage({"count": -1}, scope)]


_COUNT: Final[Mapping[str, object]] = {"count": {"$sum": 1}}


def compile_bucket(spec: object, scope: StageScope) -> list[Stage]:
    """Return the stages of $bucket: groups by the boundaries around a value."""
    if not isinstance(spec, Mapping):
        raise fault(40201, f"Argument to $bucket stage must be an object, but found type: {type_name(spec)}")
    for name in spec:
        if name not in ("groupBy", "boundaries", "default", "output"):
            raise fault(40197, f"Unrecognized option to $bucket: {name:.80}.")
    if "groupBy" not in spec or "boundaries" not in spec:
        raise fault(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.")
    group_by = _group_by(spec["groupBy"], 40202, "$bucket", scope)
    key_of = key_by(scope.fold)
    values, keys = _boundaries(spec["boundaries"], scope)
    default: object = MISSING
    if "default" in spec:
        expression = scope.expression(spec["default"])
        if not expression.is_constant:
            raise fault(40195, "The $bucket 'default' field must be a constant expression")
        default = expression.value
        if keys[0] <= key_of(default) < keys[-1]:
            raise fault(
                40199,
                "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the"
                " highest boundary.",
            )
    output = spec.get("output", _COUNT)
    if not isinstance(output, Mapping):
        raise fault(40196, f"The $bucket 'output' field must be an object, but found type: {type_name(output)}.")

    def key(document: dict[str, Any], variables: Mapping[str, Any]) -> object:
        value = group_by.evaluate(document, variables)
        place = bisect_right(keys, key_of(None if value is MISSING else value)) - 1
        if 0 <= place < len(keys) - 1 and value is not MISSING:
            return values[place]
        if default is MISSING:
            raise fault(40066, "$switch could not find a matching branch for an input, and no default was specified.")
        return default

    return [GroupStage(_spec_of(key, group_by.paths, output, scope)), SortStage({"_id": 1}, scope)]


def _group_by(value: object, code: int, name: str, scope: StageScope) -> Expression:
    is_path = type(value) is str and value.startswith("$")
    if not is_path and not (isinstance(value, Mapping) and next(iter(value), "").startswith("$")):
        raise fault(
            code, f"The {name} 'groupBy' field must be defined as a $-prefixed path or an expression: {show(value)}"
        )
    return scope.expression(value)


def _boundaries(value: object, scope: StageScope) -> tuple[list[Any], list[bytes]]:
    if type(value) is not list:
        raise fault(40200, f"The $bucket 'boundaries' field must be an array, but found type: {type_name(value)}.")
    values: list[Any] = []
    for one in value:
        expression = scope.expression(one)
        if not expression.is_constant:
            raise fault(40191, "The $bucket 'boundaries' field must be an array of constant values.")
        values.append(expression.value)
    if len(values) < 2:
        raise fault(40192, "The $bucket 'boundaries' field must have at least 2 values.")
    keys = list(map(key_by(scope.fold), values))
    for place in range(1, len(keys)):
        if keys[place][0] != keys[0][0] and not (is_number(values[place]) and is_number(values[0])):
            raise fault(40193, "All values in the 'boundaries' option to $bucket must have the same type.")
        if keys[place - 1] >= keys[place]:
            raise fault(40194, "The 'boundaries' option to $bucket must be sorted in ascending order.")
    return values, keys


class BucketAutoStage(SortingStage):
    """Makes so many groups of neighbouring values, all of about the same size."""

    is_simple = is_growing = True

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise fault(40240, f"The argument to $bucketAuto must be an object, but found type: {type_name(spec)}")
        for name in spec:
            if name not in ("groupBy", "buckets", "output", "granularity"):
                raise fault(40245, f"Unrecognized option to $bucketAuto: {name:.80}.")
        if "groupBy" not in spec or "buckets" not in spec:
            raise fault(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.")
        self._group_by = _group_by(spec["groupBy"], 40239, "$bucketAuto", scope)
        self._key_of = key_by(scope.fold)
        buckets: Any = spec["buckets"]
        if not is_number(buckets):
            raise fault(40241, f"The $bucketAuto 'buckets' field must be a numeric value, but found: {show(buckets)}")
        number = buckets.to_decimal() if type(buckets) is Decimal128 else buckets
        if not -(1 << 31) <= number < 1 << 31 or number != int(number):
            raise fault(40242, "The $bucketAuto 'buckets' field must be representable as a 32-bit integer")
        if number <= 0:
            raise fault(40243, "The $bucketAuto 'buckets' field must be greater than 0")
        self._buckets = int(number)
        output = spec.get("output", _COUNT)
        if not isinstance(output, Mapping):
            raise fault(40244, f"The $bucketAuto 'output' field must be an object, but found: {type_name(output)}.")
        output = output or _COUNT
        if "granularity" in spec:
            raise not_built("the granularity of $bucketAuto")
        self._spec = _spec_of(self._group_by.evaluate, self._group_by.paths, output, scope)
        self.reads = self._spec.reads

    def start(self, run: Run) -> None:
        self._variables = run.variables
        self._sorter = Sorter(run.spill, "$bucketAuto")
        self._count = 0

    def _value(self, row: Row) -> Any:
        value = self._group_by.evaluate(row.document, self._variables)
        return None if value is MISSING else value

    def take(self, row: Row) -> Iterable[Row]:
        self._sorter.add(self._key_of(self._value(row)), row.raw)
        self._count += 1
        return ()

    def end(self) -> Iterable[Row | None]:
        size = max(1, (2 * self._count + self._buckets) // (2 * self._buckets))
        states: list[State] = []
        number = taken = 0
        least: Any = None
        greatest: Any = None
        for raw in self._sorter.rows():
            row = Row(raw)
            value = self._value(row)
            is_same = bool(states) and self._key_of(value) == self._key_of(greatest)
            if states and number < self._buckets and taken >= size and not is_same:
                yield Row(document=self._spec.document({"min": least, "max": value}, states))
                states = []
            if not states:
                states = [one.new({}, self._variables) for one in self._spec.accumulators]
                number, taken, least = number + 1, 0, value
            for accumulator, state in zip(self._spec.accumulators, states, strict=True):
                state.add(accumulator.argument.evaluate(row.document, self._variables))
            taken, greatest = taken + 1, value
            yield None
        if number:
            yield Row(document=self._spec.document({"min": least, "max": greatest}, states))
