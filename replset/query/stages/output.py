"""$out and $merge: their arguments, and what a $merge makes of a document that is there.

`features/aggregation` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, get_args

from replset.bson import decode, encode
from replset.errors import (
    BadValueError,
    ErrorCode,
    InvalidOptionsError,
    ReplError,
    TypeMismatchError,
)
from replset.query.errors import check_fields, not_built
from replset.query.expressions import Expression, fault
from replset.query.order import MISSING
from replset.query.paths import field_path
from replset.query.stages.stage import Chain, ReadingStage, Run, Stage, StageScope

Document = dict[str, Any]
Matched: TypeAlias = Literal["replace", "keepExisting", "merge", "fail", "pipeline"]
NotMatched: TypeAlias = Literal["insert", "discard", "fail"]
_ONLY_INSERT: Final = frozenset({"keepExisting", "fail"})
"""What whenMatched may be together with whenNotMatched: insert alone."""
_IN_UPDATES: Final = frozenset({"$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith"})


class OutStage(ReadingStage):
    """Replaces a collection by the documents that come. database: empty for that of the command."""

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if isinstance(spec, Mapping) and "timeseries" in spec:
            raise not_built("$out to a time-series collection")
        if not isinstance(spec, str | Mapping):
            raise fault(16990, "$out only supports a string or object argument")
        self.database, self.collection = _target(spec, "$out")


class MergeStage(ReadingStage):
    """Writes the documents that come into a collection, among those that are there.

    on: the fields by which they are found there. let: variables of the pipeline. stages: of a pipeline for those that
    are found.
    """

    def __init__(self, spec: object, scope: StageScope) -> None:
        if isinstance(spec, str):
            spec = {"into": spec}
        if not isinstance(spec, Mapping):
            raise fault(51182, "$merge only supports a string or object argument")
        check_fields(spec, ("into", "on", "let", "whenMatched", "whenNotMatched"), "$merge")
        if "into" not in spec:
            raise ReplError("BSON field '$merge.into' is missing but a required field", code=ErrorCode.MISSING_FIELD)
        if not isinstance(spec["into"], str | Mapping):
            raise fault(51178, "$merge 'into' field must be either a string or an object")
        self.database, self.collection = _target(spec["into"], "$merge")
        self.on = _on_fields(spec.get("on", "_id"))
        self.when_matched, self.stages = _when_matched(spec, scope)
        self.when_not_matched: NotMatched = _one_of(spec, "whenNotMatched", "insert", get_args(NotMatched))
        if self.when_matched in _ONLY_INSERT and self.when_not_matched != "insert":
            raise fault(
                51189,
                f"Combination of $merge modes 'whenMatched: {self.when_matched}' and 'whenNotMatched:"
                f" {self.when_not_matched}' is not supported",
            )
        self.let = self._let_of(spec.get("let"), scope)

    def _let_of(self, spec: object, scope: StageScope) -> dict[str, Expression]:
        if spec is None:
            return {}
        if self.when_matched != "pipeline":
            raise fault(51199, f"Cannot use 'let' variables with 'whenMatched: {self.when_matched}' mode")
        if not isinstance(spec, Mapping):
            raise TypeMismatchError("BSON field '$merge.let' must be an object")
        if spec.get("new", "$$ROOT") != "$$ROOT":
            raise fault(51273, "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'")
        return {name: scope.expression(value) for name, value in spec.items()}

    def key_of(self, document: Document) -> list[object]:
        """Return the values of the fields `on`. 51132 and 51185 for one that is missing or an array."""
        values = []
        for path in self.on:
            value: Any = document
            for name in path.split("."):
                value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
            if value is MISSING or value is None:
                raise fault(
                    51132, f"$merge write error: 'on' field '{path:.80}' cannot be missing, null, undefined or an array"
                )
            if isinstance(value, list):
                raise fault(51185, f"$merge write error: 'on' field '{path:.80}' is an array")
            values.append(value)
        return values

    def variables_of(self, new: Document) -> Document:
        """Return the variables of the pipeline for a document that comes."""
        values = {name: value.evaluate(new, self.run.variables) for name, value in self.let.items()}
        return {**self.run.variables, "new": new, **values}

    def merged(self, old: Document, new: Document, variables: Document) -> Document:
        """Return what becomes of the document that is there; itself if nothing does."""
        match self.when_matched:
            case "replace":
                return new
            case "merge":
                return {**old, **new}
            case "pipeline":
                chain = Chain(self.stages, Run(variables, rng=self.run.rng))
                found = next(raw for raw in chain.feed([encode(old)]) if raw is not None)
                return decode(found)
            case _:
                return old


def _target(spec: str | Mapping[str, Any], stage: str) -> tuple[str, str]:
    if isinstance(spec, str):
        return "", spec
    check_fields(spec, ("db", "coll"), stage)
    for name, value in spec.items():
        if not isinstance(value, str):
            raise TypeMismatchError(f"BSON field '{stage}.{name}' is the wrong type, expected type 'string'")
    if "coll" not in spec:
        raise ReplError(f"BSON field '{stage}.coll' is missing but a required field", code=ErrorCode.MISSING_FIELD)
    return spec.get("db", ""), spec["coll"]


def _on_fields(spec: object) -> tuple[str, ...]:
    if not isinstance(spec, str | list):
        raise fault(51186, "$merge 'on' field must be either a string or an array of strings")
    paths = [spec] if isinstance(spec, str) else spec
    if not paths:
        raise fault(51187, "If explicitly specifying $merge 'on', must include at least one field")
    for path in paths:
        if not isinstance(path, str):
            raise fault(51134, "$merge 'on' array elements must be strings")
        field_path(path)
    if len(set(paths)) < len(paths):
        raise fault(31465, "Found a duplicate field in $merge 'on'")
    return tuple(paths)


def _when_matched(spec: Mapping[str, Any], scope: StageScope) -> tuple[Matched, list[Stage]]:
    mode = spec.get("whenMatched", "merge")
    if not isinstance(mode, list):
        if not isinstance(mode, str):
            raise fault(51191, "$merge 'whenMatched' field must be either a string or an array")
        return _one_of(spec, "whenMatched", "merge", get_args(Matched)[:-1]), []
    for element in mode:
        for name in element if isinstance(element, Mapping) else ():
            if name not in _IN_UPDATES:
                raise InvalidOptionsError(f"{name:.80} is not allowed to be used within an update")
    let = spec.get("let")
    # It is an update of the target, which MongoDB sends without the collation of the aggregation.
    scope = replace(scope, fold=None)
    return "pipeline", scope.pipeline(mode, "$merge", {"new", *(let if isinstance(let, Mapping) else ())})


def _one_of(spec: Mapping[str, Any], name: str, default: str, values: tuple[str, ...]) -> Any:
    value = spec.get(name, default)
    if value not in values:
        raise BadValueError(f"Enumeration value '{value!s:.80}' for field '$merge.{name}' is not a valid value.")
    return value
