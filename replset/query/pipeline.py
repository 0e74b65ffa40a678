"""Compiles aggregation pipelines: a chain of stages, each of which takes one document after the other.

A stage gives the documents that come of one that it takes (`take`), and at the end those that it kept until then
(`end`). The caller feeds the chain, so it decides what runs on the event loop and what in the thread. A new stage is a
class here and a line in STAGES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from replset.bson import Decimal128
from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError, TypeMismatchError, UnknownFieldError
from replset.query.errors import not_built, show
from replset.query.group import MAX_BYTES, Group, compile_group
from replset.query.match import compile_filter
from replset.query.order import is_number
from replset.query.paths import field_path
from replset.query.pipeline_names import NOT_BUILT_STAGES
from replset.query.projection import compile_projection
from replset.query.row import Row
from replset.query.sort import compile_sort, sort_by_key

MAX_STAGES: Final = 1000


class Stage:
    """One stage. source: it makes documents of its own, so it must be the first."""

    is_source: ClassVar[bool] = False

    @property
    def memory_bytes(self) -> int:
        """What the stage keeps until the end."""
        return 0

    @property
    def only_counts(self) -> bool:
        """Whether the documents do not matter, only how many there are. Then `take_count` takes them all at once."""
        return False

    def take_count(self, count: int) -> None:
        """Take so many documents."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no more documents."""
        return False

    def take(self, row: Row) -> Iterable[Row]:
        """Return the documents that come of this one at once."""
        return (row,)

    def end(self) -> Iterable[Row]:
        """Return the documents that were kept until now. There are no more to take."""
        return ()


class MatchStage(Stage):
    """Passes on the documents that match."""

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("the match filter must be an expression in an object", code=ErrorCode.MATCH_NO_OBJECT)
        self.filter = dict(spec)
        self._matcher = compile_filter(spec)

    def take(self, row: Row) -> Iterable[Row]:
        return (row,) if self._matcher.matches(row.document) else ()


class ProjectStage(Stage):
    """Shows or hides fields by their names. Expressions are not built."""

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("$project specification must be an object", code=ErrorCode.PROJECT_NO_OBJECT)
        if not spec:
            raise ReplError("projection specification must have at least one field", code=ErrorCode.PROJECT_EMPTY)
        _refuse_operators(spec)
        self.spec = dict(spec)
        self._projection = compile_projection(spec)

    def take(self, row: Row) -> Iterable[Row]:
        return (row,) if self._projection is None else (Row(document=self._projection(row.document)),)


def _refuse_operators(spec: Mapping[str, object]) -> None:
    """Refuse what find has in a projection and an aggregation has not: there $slice is an expression."""
    for name, value in spec.items():
        if name.startswith("$"):
            raise not_built(f"the expression {name:.80}")
        if isinstance(value, Mapping):
            _refuse_operators(value)


class SkipStage(Stage):
    """Passes over the first documents."""

    def __init__(self, spec: object) -> None:
        self.count = _whole("$skip", spec, ErrorCode.SKIP_NO_COUNT)
        self._left = self.count

    def take(self, row: Row) -> Iterable[Row]:
        if self._left:
            self._left -= 1
            return ()
        return (row,)


class LimitStage(Stage):
    """Passes on only the first documents."""

    def __init__(self, spec: object) -> None:
        self.count = _whole("$limit", spec, ErrorCode.LIMIT_NO_COUNT)
        if self.count == 0:
            raise ReplError("the limit must be positive", code=ErrorCode.LIMIT_ZERO)
        self._left = self.count

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def take(self, row: Row) -> Iterable[Row]:
        if self._left == 0:
            return ()
        self._left -= 1
        return (row,)


def _whole(name: str, value: Any, code: ErrorCode) -> int:
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


class SortStage(Stage):
    """Sorts what it takes. 292 over 100 MiB."""

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("the $sort key specification must be an object", code=ErrorCode.SORT_NO_OBJECT)
        if not spec:
            raise ReplError("$sort stage must have at least one sort key", code=ErrorCode.SORT_EMPTY)
        for name in spec:
            field_path(name)  # there is no $natural here
        self.spec = dict(spec)
        self._sort = compile_sort(spec)
        self._rows: list[tuple[bytes, Row]] = []
        self._bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self._bytes

    def take(self, row: Row) -> Iterable[Row]:
        key = self._sort(row.document)
        self._rows.append((key, Row(row.raw)))
        self._bytes += len(key) + len(row.raw)
        if self._bytes > MAX_BYTES:
            raise ReplError(
                f"Sort exceeded memory limit of {MAX_BYTES} bytes, but did not opt in to external sorting.",
                code=ErrorCode.SORT_EXCEEDED_MEMORY_LIMIT,
            )
        return ()

    def end(self) -> Iterable[Row]:
        rows, self._rows = self._rows, []
        return sort_by_key(rows)


class GroupStage(Stage):
    """See group.py."""

    def __init__(self, spec: object) -> None:
        self._group: Group = compile_group(spec)

    @property
    def memory_bytes(self) -> int:
        return self._group.memory_bytes

    @property
    def only_counts(self) -> bool:
        return self._group.only_counts

    def take_count(self, count: int) -> None:
        if count:
            self._group.add(Row(document={}), count)

    def take(self, row: Row) -> Iterable[Row]:
        self._group.add(row)
        return ()

    def end(self) -> Iterable[Row]:
        return self._group.rows()


class CountStage(Stage):
    """Counts what it takes. As in MongoDB there is no document for none."""

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, str):
            raise ReplError("the count field must be a non-empty string", code=ErrorCode.COUNT_NO_STRING)
        for code, fault, is_bad in (
            (ErrorCode.COUNT_EMPTY, "must be a non-empty string", not spec),
            (ErrorCode.COUNT_DOLLAR, "cannot be a $-prefixed path", spec.startswith("$")),
            (ErrorCode.COUNT_NUL, "cannot contain a null byte", "\0" in spec),
            (ErrorCode.COUNT_DOT, "cannot contain '.'", "." in spec),
        ):
            if is_bad:
                raise ReplError(f"the count field {fault}", code=code)
        self._name = spec
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


class CollStatsStage(Stage):
    """Makes one document about the collection; `count` and `storageStats` are built. The caller makes the document.

    scale: of storageStats, 0 without them.
    """

    is_source = True
    _PARTS: ClassVar = frozenset({"count", "latencyStats", "storageStats", "queryExecStats", "operationStats"})

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, Mapping):
            raise TypeMismatchError("$collStats must take a nested object")
        for name, value in spec.items():
            if name not in self._PARTS:
                raise UnknownFieldError(f"BSON field '$collStats.{name:.80}' is an unknown field.")
            if not isinstance(value, Mapping):
                raise TypeMismatchError(f"$collStats.{name} must be an object")
            if name not in ("count", "storageStats"):
                raise not_built(f"$collStats.{name}")
        self.has_count = "count" in spec
        storage = spec.get("storageStats")
        self.scale = 0 if storage is None else _scale(storage.get("scale", 1))


def _scale(value: Any) -> int:
    if not is_number(value) or (type(value) is not Decimal128 and not value >= 1):
        raise BadValueError("scale has to be a number >= 1")
    return _whole("$collStats", value, ErrorCode.BAD_VALUE) or 1


class CurrentOpStage(Stage):
    """Makes a document for each operation that runs. The caller makes the documents."""

    is_source = True
    _OPTIONS: ClassVar = frozenset(
        {"allUsers", "idleConnections", "idleCursors", "idleSessions", "localOps", "truncateOps", "backtrace"}
    )

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, Mapping):
            raise FailedToParseError("$currentOp options must be specified in an object")
        for name, value in spec.items():
            if name not in self._OPTIONS:
                raise FailedToParseError(f"Unrecognized option '{name:.80}' in $currentOp stage.")
            if type(value) is not bool:
                raise FailedToParseError(f"The '{name}' parameter of the $currentOp stage must be a boolean value")


STAGES: dict[str, Callable[[object], Stage]] = {
    "$collStats": CollStatsStage,
    "$count": CountStage,
    "$currentOp": CurrentOpStage,
    "$group": GroupStage,
    "$limit": LimitStage,
    "$match": MatchStage,
    "$project": ProjectStage,
    "$skip": SkipStage,
    "$sort": SortStage,
}


def compile_pipeline(pipeline: Sequence[object]) -> list[Stage]:
    """Return the stages. 40324 for an unknown one, 238 for one that is not built, 40602 for a source that is not first.

    Raises what the stages raise, too.
    """
    if len(pipeline) > MAX_STAGES:
        raise ReplError(f"Pipeline length must be no longer than {MAX_STAGES} stages", code=ErrorCode.PIPELINE_TOO_LONG)
    stages: list[Stage] = []
    for element in pipeline:
        name, spec = stage_of(element)
        if name in NOT_BUILT_STAGES:
            raise not_built(f"the stage {name}")
        if name not in STAGES:
            raise ReplError(
                f"Unrecognized pipeline stage name: '{name:.80}'", code=ErrorCode.UNRECOGNIZED_PIPELINE_STAGE
            )
        stage = STAGES[name](spec)
        if stage.is_source and stages:
            raise ReplError(
                f"{name} is only valid as the first stage in a pipeline", code=ErrorCode.STAGE_MUST_BE_FIRST
            )
        stages.append(stage)
    return stages


def stage_of(element: object) -> tuple[str, object]:
    """Return the name and the argument of an element of a pipeline."""
    if not isinstance(element, Mapping):
        raise TypeMismatchError("Each element of the 'pipeline' array must be an object")
    if len(element) != 1:
        raise ReplError(
            "A pipeline stage specification object must contain exactly one field.",
            code=ErrorCode.STAGE_NOT_ONE_FIELD,
        )
    ((name, spec),) = element.items()
    return name, spec


class Chain:
    """Stages one behind the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages

    @property
    def memory_bytes(self) -> int:
        return sum(stage.memory_bytes for stage in self.stages)

    @property
    def is_full(self) -> bool:
        """Whether no more document changes the result."""
        return any(stage.is_full for stage in self.stages)

    def take(self, raw: bytes) -> list[bytes] | None:
        """Feed one document. Return what comes out at the other end, None for nothing."""
        return [row.raw for row in self._pass([Row(raw)], 0)] or None

    def end(self) -> list[bytes]:
        """Return what the stages kept until now."""
        found: list[Row] = []
        for number, stage in enumerate(self.stages):
            found += self._pass(stage.end(), number + 1)
        return [row.raw for row in found]

    def _pass(self, rows: Iterable[Row], first: int) -> Iterable[Row]:
        for stage in self.stages[first:]:
            rows = [result for row in rows for result in stage.take(row)]
        return rows
