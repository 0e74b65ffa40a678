"""$setWindowFields computes fields from the documents around each document, and $fill is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from replset.errors import ErrorCode, FailedToParseError, ReplError, TypeMismatchError
from replset.query.alike import FieldsReader
from replset.query.collation import key_by
from replset.query.errors import check_fields, show
from replset.query.expressions import Expression, fault, top_fields
from replset.query.order import MISSING, type_name
from replset.query.paths import field_path
from replset.query.row import Row
from replset.query.sort import Sort, compile_sort
from replset.query.sorter import MAX_BYTES, Sorter
from replset.query.stages.basic import SortingStage
from replset.query.stages.projections import AddFieldsStage
from replset.query.stages.stage import TURN, Run, Stage, StageScope
from replset.query.stages.unwind import with_value
from replset.query.stages.window_functions import Compute, Documents, Order, Partition, compile_function, paths_read

_TOGETHER: Final = 32
"""Documents that are decoded at once: they are not freed before the last of them."""
_FIELDS: Final = frozenset({"partitionBy", "sortBy", "output"})


class WindowStage(SortingStage):
    """Sorts the documents by partition, and computes the fields of one partition after the other."""

    def __init__(
        self,
        partition_by: Expression,
        sort: Sort | None,
        order: Order,
        output: Mapping[tuple[str, ...], Compute],
        reads: frozenset[str] | None,
        key_of: Callable[[Any], bytes],
    ) -> None:
        """key_of: gives the key of a partition."""
        self._key_of = key_of
        self.partition_by = partition_by
        self.sort = sort
        self.order = order
        self.output = output
        self.reads = reads

    def start(self, run: Run) -> None:
        self.run = run
        self._sorter = Sorter(run.spill, "$setWindowFields")
        self._fields: Mapping[bytes, str] | None = None
        self._partition_value = self.partition_by.quickly

    def take(self, row: Row) -> Iterable[Row]:
        self._fields = row.fields
        document = row.document
        key = self._partition_of(document)
        self._sorter.add(key if self.sort is None else key + self.sort(document), row.raw)
        return ()

    def _partition_of(self, document: Mapping[str, Any]) -> bytes:
        value = self._partition_value(document, self.run.variables)
        if type(value) is list:
            raise TypeMismatchError("An expression used to partition cannot evaluate to value of type array")
        return self._key_of(None if value is MISSING else value)

    def end(self) -> Iterator[Row | None]:
        reader = FieldsReader(self._fields)
        partition = b""
        rows = Documents(reader)
        size = 0
        for number, (key, raw, document) in enumerate(self._decoded(reader)):
            # No key is a prefix of another one, so this is the partition of the document before.
            if not rows or not key.startswith(partition):
                if rows:
                    yield from self._rows_of(rows)
                rows, size = Documents(reader), 0
                partition = self._partition_of(document)
            rows.add(raw, document)
            size += len(raw)
            if size > MAX_BYTES:
                raise fault(5414201, f"one partition of $setWindowFields is over the limit of {MAX_BYTES} bytes")
            if not number % TURN:
                yield None
        if rows:
            yield from self._rows_of(rows)

    def _decoded(self, reader: FieldsReader) -> Iterator[tuple[bytes, bytes, dict[str, Any]]]:
        """Yield key, bytes and content of each document, in order."""
        pairs = self._sorter.pairs()
        while some := list(islice(pairs, _TOGETHER)):
            for (key, raw), document in zip(some, reader.documents([raw for _, raw in some]), strict=True):
                yield key, raw, document

    def _rows_of(self, rows: Documents) -> Iterator[Row | None]:
        partition = Partition(rows, self.order, self.sort, self.run.variables)
        values = [compute(partition) for compute in self.output.values()]
        for number in range(len(rows)):
            found = rows[number]
            for path, of in zip(self.output, values, strict=True):
                value = next(of)
                found = with_value(found, path, value)
            yield Row(document=found)


def compile_window(spec: object, scope: StageScope) -> Stage:
    """Return the stage of `{partitionBy, sortBy, output}`."""
    if not isinstance(spec, Mapping):
        raise FailedToParseError(f"the $setWindowFields stage specification must be an object, found {type_name(spec)}")
    check_fields(spec, _FIELDS, "$setWindowFields")
    if "output" not in spec:
        raise ReplError(
            "BSON field '$setWindowFields.output' is missing but a required field", code=ErrorCode.MISSING_FIELD
        )
    if not isinstance(spec["output"], Mapping):
        raise TypeMismatchError("BSON field '$setWindowFields.output' must be an object")
    sort_by = spec.get("sortBy") or {}
    if not isinstance(sort_by, Mapping):
        raise TypeMismatchError("BSON field '$setWindowFields.sortBy' must be an object")
    sort = compile_sort(sort_by, scope.fold) if sort_by else None
    order: Order = () if sort is None else sort.fields
    output = {}
    for name, value in spec["output"].items():
        if not isinstance(value, Mapping):
            raise FailedToParseError(f"The field '{name:.80}' must be an object")
        output[field_path(name)] = compile_function(value, order, scope)
    partition_by = scope.expression(spec.get("partitionBy"))
    paths = partition_by.paths.union(spec["output"], sort_by)
    reads = top_fields(paths.union(*[paths_read(value, scope) for value in spec["output"].values()]))
    return WindowStage(partition_by, sort, order, output, reads, key_by(scope.fold))


def compile_fill(spec: object, scope: StageScope) -> list[Stage]:
    """Return the stages of `{partitionBy or partitionByFields, sortBy, output}`: a window stage, and $addFields."""
    if not isinstance(spec, Mapping):
        raise FailedToParseError(f"Argument to $fill stage must be an object, but found type: {type_name(spec)}")
    check_fields(spec, _FIELDS | {"partitionByFields"}, "$fill")
    if not isinstance(spec.get("output"), Mapping) or not spec["output"]:
        raise fault(6050203, "$fill needs the object 'output' with at least one field")
    if "partitionBy" in spec and "partitionByFields" in spec:
        raise fault(6050204, "Only one of partitionBy and partitionByFields can be specified")
    partition_by = spec.get("partitionBy")
    if "partitionByFields" in spec:
        names = spec["partitionByFields"]
        if type(names) is not list or not all(type(name) is str for name in names):
            raise TypeMismatchError("BSON field '$fill.partitionByFields' must be an array of strings")
        for name in names:
            field_path(name)
        partition_by = {f"f{number}": f"${name}" for number, name in enumerate(names)}
    methods: dict[str, object] = {}
    values: dict[str, object] = {}
    for name, how in spec["output"].items():
        if not isinstance(how, Mapping) or not how:
            raise fault(6050200, "Each fill output specification must be an object with exactly one field")
        if "value" in how and "method" in how:
            raise fault(6050201, "Each fill output specification must have one of 'method' or 'value', not both")
        check_fields(how, ("value", "method"), "$fill.output")
        if "value" in how:
            values[name] = {"$ifNull": [f"${name}", how["value"]]}
        elif how["method"] not in ("linear", "locf"):
            raise fault(6050202, f"Method must be either locf or linear: {show(how['method'])}")
        else:
            methods[name] = {"$linearFill" if how["method"] == "linear" else "$locf": f"${name}"}
    stages: list[Stage] = []
    if methods:
        window = {"partitionBy": partition_by, "sortBy": spec.get("sortBy", {}), "output": methods}
        stages.append(compile_window(window, scope))
    if values:
        stages.append(AddFieldsStage(values, scope))
    return stages
