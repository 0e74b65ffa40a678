"""$densify adds documents where a field leaves out steps of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from replset.bson import DateTime, encode_key
from replset.errors import FailedToParseError, TypeMismatchError
from replset.query.collation import key_by
from replset.query.errors import check_fields, show
from replset.query.expressions import fault
from replset.query.expressions.dates import UNITS, shifted
from replset.query.expressions.time_zones import ZULU
from replset.query.numbers import add, multiply
from replset.query.order import MISSING, is_null, is_number, type_name
from replset.query.paths import field_path
from replset.query.row import Row
from replset.query.sorter import Sorter
from replset.query.stages.basic import SortingStage
from replset.query.stages.stage import Run, StageScope
from replset.query.stages.unwind import inner_value, with_value

MAX_ADDED: Final = 500_000


class DensifyStage(SortingStage):
    """Sorts the documents by partition and field. Of each partition it adds what is missing."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise FailedToParseError(f"The $densify stage specification must be an object, found {type_name(spec)}")
        check_fields(spec, ("field", "partitionByFields", "range"), "$densify")
        if type(spec.get("field")) is not str:
            raise TypeMismatchError("BSON field '$densify.field' must be a string")
        self._path = field_path(spec["field"])
        names = spec.get("partitionByFields", [])
        if type(names) is not list or not all(type(name) is str for name in names):
            raise TypeMismatchError("BSON field '$densify.partitionByFields' must be an array of strings")
        self._partition = [field_path(name) for name in names]
        self._key_of = key_by(scope.fold)
        if self._path in self._partition:
            raise fault(5733202, "the field to densify cannot be one of partitionByFields")
        self._read_range(spec.get("range"), bool(names))

    def _read_range(self, value: Any, has_partitions: bool) -> None:
        """Set the step and the bounds: (None, None) for "full" and "partition"."""
        if not isinstance(value, Mapping):
            raise TypeMismatchError("BSON field '$densify.range' must be an object")
        check_fields(value, ("step", "bounds", "unit"), "$densify.range")
        step: Any = value.get("step")
        self._step = step
        self._unit: Any = value.get("unit")
        bounds = value.get("bounds")
        if not is_number(self._step) or encode_key(self._step) <= encode_key(0) or self._step != self._step:
            raise fault(5733401, "The step parameter in a range statement must be a strictly positive numeric value")
        if self._unit is not None:
            if self._unit not in UNITS:
                raise FailedToParseError(f"unknown time unit value: {show(self._unit)}")
            if type(self._step) is float and self._step % 1:
                raise fault(6586400, "The step parameter in a range statement must be a whole number with a date unit")
            self._step = int(step)
        self._least: Any = None
        self._limit: Any = None
        self._is_full = bounds == "full"
        if type(bounds) is list:
            if len(bounds) != 2:
                raise fault(5733403, "a bounding array in a range statement must have exactly two elements")
            self._least, self._limit = bounds
            if encode_key(self._least) > encode_key(self._limit):
                raise fault(5733402, "A bounding array must be an ascending array of either two dates or two numbers")
            self._check_bounds(step)
        elif bounds == "partition":
            if not has_partitions:
                raise fault(
                    5733408, "one may not specify the bounds as 'partition' without specifying partitionByFields"
                )
        elif bounds != "full":
            raise fault(
                5946802 if type(bounds) is str else 5733404,
                "the bounds must be 'full', 'partition' or an array of two numbers or two dates",
            )

    def _check_bounds(self, step: Any) -> None:
        """Raise if the bounds are not two numbers of the step's type, or two dates with a unit."""
        least, limit = self._least, self._limit
        if is_number(least):
            if self._unit is not None:
                raise fault(5733409, "Numeric bounds may not have unit parameter")
            if not is_number(limit):
                raise fault(5733406, "A bounding array must contain either both dates or both numeric types")
            if len({type_name(least), type_name(limit), type_name(step)}) > 1:
                raise fault(5876900, "Upper bound, lower bound, and step must all have the same type")
        elif type(least) is not DateTime:
            raise fault(5946800, "Explicit bounds must be numeric or dates")
        elif type(limit) is not DateTime:
            raise fault(5733405, "A bounding array must contain either both dates or both numeric types")
        elif self._unit is None:
            raise fault(5733410, "A bounding array of dates must specify a unit")

    def _check(self, *values: Any) -> None:
        for value in values:
            if self._unit is None and type(value) is DateTime:
                raise fault(6053600, "Encountered a date value in $densify when step does not have a date unit")
            if self._unit is not None and type(value) is not DateTime:
                raise fault(6053600, "Encountered numeric densify value in collection when step has a date unit")
            if self._unit is None and not is_number(value):
                raise fault(5733201, f"Densify field type must be numeric or a date, but was {type_name(value)}")

    def start(self, run: Run) -> None:
        self._sorter = Sorter(run.spill, "$densify")
        self._seen: tuple[bytes, Any, bytes, Any] | None = None
        """Key and value of the least and the greatest that was taken."""
        self._added = 0

    keeps_all = False

    def take(self, row: Row) -> Iterable[Row]:
        value = inner_value(row.document, self._path)
        if is_null(value):
            return (row,)
        self._check(value)
        key = encode_key(value)
        self._sorter.add(self._partition_of(row) + key, row.raw)
        if self._seen is None:
            self._seen = key, value, key, value
        elif key < self._seen[0]:
            self._seen = key, value, *self._seen[2:]
        elif key > self._seen[2]:
            self._seen = *self._seen[:2], key, value
        return ()

    def _partition_of(self, row: Row) -> bytes:
        values = (inner_value(row.document, path) for path in self._partition)
        return b"".join(self._key_of(None if value is MISSING else value) for value in values)

    def end(self) -> Iterator[Row | None]:
        if self._seen is None and not (self._least is not None and not self._partition):
            return
        least, limit = self._least, self._limit
        is_closed = False
        if self._is_full and self._seen is not None:
            least, limit, is_closed = self._seen[1], self._seen[3], True
        partition: bytes | None = None
        grid: _Grid | None = None
        for raw in self._sorter.rows():
            row = Row(raw)
            value = inner_value(row.document, self._path)
            following = self._partition_of(row)
            if following != partition:
                if grid is not None:
                    yield from self._added_rows(grid, None)
                partition = following
                grid = _Grid(value if least is None else least, limit, is_closed, self._after, self._base(row))
            if grid is not None:
                yield from self._added_rows(grid, value)
            yield row
        if grid is None and not self._partition:
            grid = _Grid(least, limit, is_closed, self._after, {})
        if grid is not None:
            yield from self._added_rows(grid, None)

    def _base(self, row: Row) -> dict[str, Any]:
        """Return what a document that is added to the partition has beside the field."""
        base: dict[str, Any] = {}
        for path in self._partition:
            value = inner_value(row.document, path)
            if value is not MISSING:
                base = with_value(base, path, value)
        return base

    def _after(self, value: Any, steps: int) -> Any:
        """Return the value so many steps after another."""
        if self._unit is not None:
            return DateTime(shifted(value.ms, self._unit, steps * self._step, ZULU))
        try:
            return add(value, multiply(self._step, steps))
        except OverflowError:
            raise fault(5733401, f"the range of $densify goes beyond 64 bits: {show(value)}") from None

    def _added_rows(self, grid: _Grid, before: Any) -> Iterator[Row]:
        """Yield documents for the values of the grid in front of one, None for all that are left."""
        for value in grid.values(before):
            self._added += 1
            if self._added > MAX_ADDED:
                raise fault(5897900, f"Generated over {MAX_ADDED} documents in $densify, which is the limit")
            yield Row(document=with_value(grid.base, self._path, value))


class _Grid:
    """The values that a partition should have: from `least` to `limit`, which is one of them if it is closed.

    limit None: only up to the values that there are. base: the fields of the partition.
    """

    def __init__(
        self, least: Any, limit: Any, is_closed: bool, after: Callable[[Any, int], Any], base: dict[str, Any]
    ) -> None:
        self.base = base
        self._least = least
        self._limit = None if limit is None else encode_key(limit)
        self._is_closed = is_closed
        self._after = after
        self._steps = 0

    def values(self, before: Any) -> Iterator[Any]:
        """Yield the values in front of one that there is, and pass over that one. before None: all that are left."""
        end = None if before is None else encode_key(before)
        if end is None and self._limit is None:
            return
        while True:
            value = self._after(self._least, self._steps)
            key = encode_key(value)
            if self._limit is not None and (key > self._limit or (key == self._limit and not self._is_closed)):
                return
            if end is not None and key >= end:
                if key == end:
                    self._steps += 1
                return
            self._steps += 1
            yield value
