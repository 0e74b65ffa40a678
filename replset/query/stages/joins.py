"""Stages that read other collections: $lookup, $graphLookup and $unionWith. Their arguments, and the pure part of each.

features/aggregation/run_joins.py reads the collections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from replset.bson import Regex, Undefined, decode
from replset.errors import FailedToParseError
from replset.query.collation import key_by
from replset.query.errors import check_fields
from replset.query.expressions import Expression, fault
from replset.query.expressions.logic import variable_name
from replset.query.match import compile_filter
from replset.query.order import MISSING, is_number
from replset.query.paths import field_path, split_path, values_at
from replset.query.stages.stage import ReadingStage, Stage, StageScope
from replset.query.stages.unwind import UnwindStage
from replset.query.time_limit import check_time

Document = dict[str, Any]
_LOOKUP_TEXTS: Final = frozenset({"as", "localField", "foreignField"})
_GRAPH_TEXTS: Final = frozenset({"from", "as", "connectFromField", "connectToField", "depthField"})
RANDOM: Final = frozenset({"$sample", "$rand", "$sampleRate"})


class JoinStage(ReadingStage):
    """Adds to each document an array with documents of another collection.

    source: that collection; empty: the pipeline begins with documents of its own. name: of the array. unwind: the stage
    behind it that takes this array apart; then each document comes by itself, and no array is made.
    """

    source: str
    name: tuple[str, ...]
    unwind: UnwindStage | None = None

    def keeps(self, names: frozenset[str]) -> bool:
        return self.name[0] not in names and (self.unwind is None or self.unwind.keeps(names))

    def unwound_by(self, stage: UnwindStage) -> bool:
        """Take over the $unwind behind it, if it is of this array. Return whether it is."""
        if self.unwind is not None or stage.path != self.name:
            return False
        self.unwind = stage
        ((name, spec),), (unwinding,) = self.shown.items(), stage.shown.values()
        self.shown = {name: {**spec, "unwinding": unwinding}}
        return True


class LookupStage(JoinStage):
    """Adds to each document an array with those of another collection that belong to it.

    stages: of the pipeline, None without one. is_constant: the array depends on `localField` and `let` alone.
    """

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise FailedToParseError("the $lookup specification must be an Object")
        for name, value in spec.items():
            if name not in _LOOKUP_TEXTS and name not in ("from", "let", "pipeline"):
                raise FailedToParseError(f"unknown argument to $lookup: {name:.80}")
            if name in _LOOKUP_TEXTS and not isinstance(value, str):
                raise FailedToParseError(f"$lookup argument '{name}' must be a string")
        self.source = _source(spec, "$lookup", "from")
        if not spec.get("as"):
            raise FailedToParseError("must specify 'as' field for a $lookup")
        self.name = field_path(spec["as"])
        local, self.foreign = spec.get("localField", ""), spec.get("foreignField", "")
        _check_fields_and_pipeline(spec, bool(local), bool(self.foreign))
        self.local = field_path(local) if local else None
        if self.foreign:
            field_path(self.foreign)
        self.let = _let(spec.get("let", {}), scope)
        self._fold = scope.fold
        self.stages: list[Stage] | None = None
        self.is_constant = True
        if "pipeline" in spec:
            self.stages = scope.pipeline(spec["pipeline"], "$lookup", self.let)
            self.is_constant = not names_any(spec["pipeline"], RANDOM)

    def question(self, document: Document) -> tuple[list[object] | None, Document]:
        """Return the values to look for in `foreignField` (None: all documents belong), and those of `let`."""
        values: list[object] | None = None
        if self.local is not None:
            values = list(values_on(document, self.local)) or [None]
        variables = self.run.variables
        found = {name: value.evaluate(document, variables) for name, value in self.let.items()}
        return values, found

    def filter_of(self, values: list[object]) -> Document:
        """Return the filter that finds the documents with one of these values."""
        return equals_any(self.foreign, values)

    def distribute(self, questions: Mapping[bytes, list[object]], found: list[bytes]) -> dict[bytes, list[bytes]]:
        """Return what belongs to each of several questions, of the documents that belong to any of them.

        The values of a document only say which questions it may belong to. Then the filter decides, as in a read.
        """
        documents = [decode(raw) for raw in found]
        key_of = key_by(self._fold)
        by_value: dict[bytes, list[int]] = {}
        for number, document in enumerate(documents):
            check_time()
            for key in {key_of(_or_null(value)) for value, _ in values_at(document, split_path(self.foreign))}:
                by_value.setdefault(key, []).append(number)
        belongs = {}
        for question, values in questions.items():
            check_time()
            matches = compile_filter(self.filter_of(values), fold=self._fold).matches
            likely = sorted({number for value in values for number in by_value.get(key_of(_or_null(value)), ())})
            belongs[question] = [found[number] for number in likely if matches(documents[number])]
        return belongs


def _check_fields_and_pipeline(spec: Mapping[str, Any], has_local: bool, has_foreign: bool) -> None:
    if has_local != has_foreign:
        raise FailedToParseError("$lookup requires both or neither of 'localField' and 'foreignField' to be specified")
    if "pipeline" in spec:
        return
    if not has_local:
        raise FailedToParseError(
            "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified"
        )
    if "let" in spec:
        raise FailedToParseError("$lookup with a 'let' argument must also specify 'pipeline'")


class UnionWithStage(ReadingStage):
    """Adds the documents of another collection behind its own. source: as in JoinStage. stages: of its pipeline."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        if isinstance(spec, str):
            spec = {"coll": spec}
        if not isinstance(spec, Mapping):
            raise FailedToParseError("the $unionWith stage specification must be an object or string")
        check_fields(spec, ("coll", "pipeline"), "$unionWith")
        self.source = _source(spec, "$unionWith", "coll")
        self.stages = scope.pipeline(spec["pipeline"], "$unionWith") if "pipeline" in spec else []


class GraphLookupStage(JoinStage):
    """Adds to each document those that can be reached from it, link after link, in another collection."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise FailedToParseError("the $graphLookup stage specification must be an object")
        for name, value in spec.items():
            if name not in _GRAPH_TEXTS and name not in ("startWith", "maxDepth", "restrictSearchWithMatch"):
                raise fault(40104, f"Unknown argument to $graphLookup: {name:.80}")
            if name in _GRAPH_TEXTS and not isinstance(value, str):
                raise fault(40103, f"expected string as argument for {name}")
        if "startWith" not in spec or not all(spec.get(name) for name in _GRAPH_TEXTS - {"depthField"}):
            raise fault(
                40105,
                "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be"
                " specified.",
            )
        self.source = spec["from"]
        self.name = field_path(spec["as"])
        self.start_with = scope.expression(spec["startWith"])
        self.connect_from = field_path(spec["connectFromField"])
        self.connect_to: str = spec["connectToField"]
        field_path(self.connect_to)
        self.depth_field = field_path(spec["depthField"]) if "depthField" in spec else None
        self.max_depth = _max_depth(spec["maxDepth"]) if "maxDepth" in spec else None
        self.restrict = spec.get("restrictSearchWithMatch", {})
        if not isinstance(self.restrict, Mapping):
            raise fault(40185, "restrictSearchWithMatch must be an object")
        compile_filter(self.restrict, fold=scope.fold)

    def first_values(self, document: Document) -> list[object]:
        """Return the values that the search begins with."""
        found = self.start_with.evaluate(document, self.run.variables)
        return found if type(found) is list else [None if found is MISSING else found]

    def filter_of(self, values: list[object]) -> Document:
        """Return the filter of the next step of the search."""
        reached = equals_any(self.connect_to, values)
        return {"$and": [reached, dict(self.restrict)]} if self.restrict else reached


def _source(spec: Mapping[str, Any], stage: str, name: str) -> str:
    source = spec.get(name)
    if source is None:
        pipeline = spec.get("pipeline")
        first = pipeline[0] if type(pipeline) is list and pipeline else None
        if not isinstance(first, Mapping) or "$documents" not in first:
            raise FailedToParseError(
                f"{stage} stage without explicit collection must have a pipeline with $documents as first stage"
            )
        return ""
    if not isinstance(source, str):
        raise FailedToParseError(f"{stage} '{name}' field must be a string")
    return source


def _let(spec: object, scope: StageScope) -> dict[str, Expression]:
    if not isinstance(spec, Mapping):
        raise FailedToParseError("$lookup argument 'let' must be an object")
    return {variable_name(name, "$lookup"): scope.expression(value) for name, value in spec.items()}


def _max_depth(value: Any) -> int:
    if not is_number(value):
        raise fault(40100, "maxDepth must be numeric")
    number = float(str(value))
    if not number >= 0:
        raise fault(40101, "maxDepth requires a nonnegative argument")
    if not number.is_integer():
        raise fault(40102, "maxDepth could not be represented as a long long")
    return int(number)


def names_any(value: object, names: frozenset[str]) -> bool:
    """Whether a document somewhere in the value has a field of one of these names."""
    if isinstance(value, Mapping):
        return not names.isdisjoint(value) or any(names_any(inner, names) for inner in value.values())
    return isinstance(value, list) and any(names_any(inner, names) for inner in value)


def values_on(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Give the values at a path, the items of arrays on the way and at its end one by one."""
    if not path:
        if type(value) is list:
            yield from value
        else:
            yield value
    elif type(value) is list:
        for number, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from values_on(item, path)
            if path[0] == str(number):
                yield from values_on(item, path[1:])
    elif isinstance(value, Mapping) and path[0] in value:
        yield from values_on(value[path[0]], path[1:])


def _or_null(value: object) -> object:
    """Return null for what equals it: what is missing, and undefined."""
    return None if value is MISSING or isinstance(value, Undefined) else value


def equals_any(path: str, values: list[object]) -> Document:
    """Return the filter of documents that have one of the values at the path."""
    if any(isinstance(value, Regex) for value in values):
        return {"$or": [{path: {"$eq": value}} for value in values]}
    return {path: {"$in": values}} if len(values) > 1 else {path: {"$eq": values[0]}}
