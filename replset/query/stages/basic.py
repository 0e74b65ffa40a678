"""The stages that filter, order, cut and count documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replset.bson import Decimal128
from replset.errors import ErrorCode, ReplError
from replset.query.errors import show
from replset.query.expressions import fault, top_fields
from replset.query.match import compile_filter
from replset.query.order import is_number
from replset.query.paths import field_path
from replset.query.row import Row
from replset.query.sort import compile_sort
from replset.query.sorter import Sorter
from replset.query.stages.stage import ChainStage, Run, StageScope


class MatchStage(ChainStage):
    """Passes on the documents that match."""

    is_simple = True

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("the match filter must be an expression in an object", code=ErrorCode.MATCH_NO_OBJECT)
        self.filter = dict(spec)
        self.shown = {"$match": self.filter}
        self._variables: dict[str, Any] = {}
        self._matcher = compile_filter(spec, self._variables, scope.names, scope.fold)
        self.reads = self._matcher.fields

    def start(self, run: Run) -> None:
        super().start(run)
        self._variables.clear()
        self._variables.update(run.variables)

    def take(self, row: Row) -> Iterable[Row]:
        return (row,) if self._matcher.matches(row.document) else ()


class SkipStage(ChainStage):
    """Passes over the first documents."""

    is_simple = True
    reads = frozenset()

    def __init__(self, spec: object, _scope: StageScope) -> None:
        self.count = whole("$skip", spec, ErrorCode.SKIP_NO_COUNT)

    def start(self, run: Run) -> None:
        self._left = self.count

    def take(self, row: Row) -> Iterable[Row]:
        if self._left:
            self._left -= 1
            return ()
        return (row,)


class LimitStage(ChainStage):
    """Passes on only the first documents."""

    is_simple = True
    reads = frozenset()

    def __init__(self, spec: object, _scope: StageScope) -> None:
        self.count = whole("$limit", spec, ErrorCode.LIMIT_NO_COUNT)
        if self.count == 0:
            raise ReplError("the limit must be positive", code=ErrorCode.LIMIT_ZERO)

    def start(self, run: Run) -> None:
        self._left = self.count

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def take(self, row: Row) -> Iterable[Row]:
        self._left -= 1
        return (row,) if self._left else [row]


def whole(name: str, value: Any, code: ErrorCode) -> int:
    """Return the argument of $skip or $limit, a whole number of any type."""
    if not is_number(value):
        reason = f"Expected a number in: {name}: {show(value)}"
    else:
        number = value.to_decimal() if type(value) is Decimal128 else value
        if number != number or number in (float("inf"), float("-inf")) or number != int(number):
            reason = f"Expected an integer: {name}: {show(value)}"
        elif number < 0:
            reason = f"Expected a non-negative number in: {name}: {show(value)}"
        elif number >= 1 << 63:
            reason = f"Cannot represent as a 64-bit integer: {name}: {show(value)}"
        else:
            return int(number)
    raise ReplError(f"invalid argument to {name} stage: {reason}", code=code)


class SortingStage(ChainStage):
    """Keeps what it takes in a sorter, of which `start` makes a new one."""

    keeps_all = True
    _sorter: Sorter

    @property
    def memory_bytes(self) -> int:
        return self._sorter.memory_bytes

    @property
    def used_disk(self) -> bool:
        return self._sorter.spilled_runs > 0

    def end(self) -> Iterable[Row | None]:
        return map(Row, self._sorter.rows())

    def close(self) -> None:
        self._sorter.close()


class SortStage(SortingStage):
    """Sorts what it takes. limit: how many documents the stages behind it want, 0 for all."""

    is_simple = True

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("the $sort key specification must be an object", code=ErrorCode.SORT_NO_OBJECT)
        if not spec:
            raise ReplError("$sort stage must have at least one sort key", code=ErrorCode.SORT_EMPTY)
        for name in spec:
            field_path(name)  # there is no $natural here
        self.spec = dict(spec)
        self.shown = {"$sort": self.spec}
        self.limit = 0
        self._sort = compile_sort(spec, scope.fold)
        self.reads = top_fields(spec)

    def keeps(self, names: frozenset[str]) -> bool:
        return True

    def start(self, run: Run) -> None:
        self._sorter = Sorter(run.spill, "Sort", self.limit)

    def take(self, row: Row) -> Iterable[Row]:
        key = self._sort(row.document)
        if not self._sorter.is_beyond(key):
            self._sorter.add(key, row.raw)
        return ()


class SampleStage(SortingStage):
    """Passes on some documents, in random order."""

    is_simple = True
    reads = frozenset()

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise fault(28745, "the $sample stage specification must be an object")
        size: Any = None
        for name, value in spec.items():
            if name != "size":
                raise fault(28748, f"unrecognized option to $sample: {name:.80}")
            size = value
        if size is None:
            raise fault(28749, "$sample stage must specify a size")
        if not is_number(size):
            raise fault(28746, "size argument to $sample must be a number")
        number = size.to_decimal() if type(size) is Decimal128 else size
        if not 1 <= number < 1 << 63:
            raise fault(28747, "size argument to $sample must be a positive integer")
        self.size = int(number)

    def start(self, run: Run) -> None:
        self._rng = run.rng
        self._sorter = Sorter(run.spill, "$sample", self.size)

    def take(self, row: Row) -> Iterable[Row]:
        self._sorter.add(self._rng.getrandbits(64).to_bytes(8, "big"), row.raw)
        return ()


class CountStage(ChainStage):
    """Counts what it takes. As in MongoDB there is no document for none."""

    is_simple = makes_anew = True
    reads = frozenset()

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, str):
            raise ReplError("the count field must be a non-empty string", code=ErrorCode.COUNT_NO_STRING)
        for code, reason, is_bad in (
            (ErrorCode.COUNT_EMPTY, "must be a non-empty string", not spec),
            (ErrorCode.COUNT_DOLLAR, "cannot be a $-prefixed path", spec.startswith("$")),
            (ErrorCode.COUNT_NUL, "cannot contain a null byte", "\0" in spec),
            (ErrorCode.COUNT_DOT, "cannot contain '.'", "." in spec),
        ):
            if is_bad:
                raise ReplError(f"the count field {reason}", code=code)
        self._name = spec

    def start(self, run: Run) -> None:
        self._count = 0

    @property
    def only_counts(self) -> bool:
        return True

    def take_count(self, count: int) -> None:
        self._count += count

    def take(self, row: Row) -> Iterable[Row]:
        self._count += 1
        return ()

    def end(self) -> Iterable[Row]:
        return [Row(document={self._name: self._count})] if self._count else ()
