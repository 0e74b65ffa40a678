"""The stages that make one document of each: $project, $addFields, $unset, $replaceRoot and $redact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from replset.errors import ErrorCode, ReplError
from replset.query.errors import check_fields, show
from replset.query.expressions import Expression, compile_expression, fault, top_fields
from replset.query.match import NO_VARIABLES
from replset.query.order import MISSING, is_number, is_true, type_name
from replset.query.projection import Projection, compile_added_fields, compile_projection, is_computed
from replset.query.row import Row
from replset.query.stages.stage import ChainStage, Run, Stage, StageScope
from replset.query.time_limit import check_time


class FieldsStage(ChainStage):
    """Makes one document of each by a projection."""

    is_simple = is_growing = True

    def __init__(self, projection: Projection | None, changed: Iterable[str], *, is_inclusion: bool = False) -> None:
        """changed: the top-level fields that it changes; with is_inclusion those that it leaves alone."""
        self._projection = projection
        self._names = frozenset(changed)
        self._is_inclusion = is_inclusion
        self._variables: Mapping[str, Any] = NO_VARIABLES

    def keeps(self, names: frozenset[str]) -> bool:
        return names <= self._names if self._is_inclusion else not names & self._names

    def start(self, run: Run) -> None:
        self._variables = run.variables

    def take(self, row: Row) -> Iterable[Row]:
        if self._projection is None:
            return (row,)
        return (Row(None, self._projection.make(row.document, self._variables)),)


class ProjectStage(FieldsStage):
    """Shows or hides fields by their names, and computes others. is_plain: it computes none."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise ReplError("$project specification must be an object", code=ErrorCode.PROJECT_NO_OBJECT)
        if not spec:
            raise ReplError("projection specification must have at least one field", code=ErrorCode.PROJECT_EMPTY)
        self.spec = dict(spec)
        self.is_plain = not is_computed(spec)
        projection = compile_projection(spec, scope.names, is_find=False, fold=scope.fold)
        hidden = [name for name, value in spec.items() if _is_flag(value) and not is_true(value)]
        if len(hidden) == len(spec):
            super().__init__(projection, (name.partition(".")[0] for name in hidden))
        else:
            shown = {name for name, value in spec.items() if _is_flag(value) and is_true(value) and "." not in name}
            names_id = any(name.partition(".")[0] == "_id" for name in spec)
            super().__init__(projection, shown if names_id else shown | {"_id"}, is_inclusion=True)
            self.reads = None if projection is None else projection.fields
            self.makes_anew = True


def _is_flag(value: object) -> bool:
    return is_number(value) or type(value) is bool


class AddFieldsStage(FieldsStage):
    """Adds computed fields."""

    def __init__(self, spec: object, scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise fault(40272, f"$addFields specification stage must be an object, got {type_name(spec)}")
        self.shown = {"$addFields": dict(spec)}
        projection, paths = compile_added_fields(spec, scope.names, scope.fold)
        super().__init__(projection, (name.partition(".")[0] for name in spec))
        self.reads = top_fields({*paths, *spec})


class UnsetStage(FieldsStage):
    """Removes fields."""

    reads = frozenset()

    def __init__(self, spec: object, _scope: StageScope) -> None:
        names = [spec] if type(spec) is str else spec
        if type(names) is not list:
            raise fault(31002, "$unset specification must be a string or an array")
        if not names:
            raise fault(31119, "$unset specification must be a string or an array with at least one field")
        if not all(type(name) is str for name in names):
            raise fault(31120, "$unset specification must be a string or an array containing only string values")
        projection = compile_projection(dict.fromkeys(names, 0), is_find=False)
        super().__init__(projection, (name.partition(".")[0] for name in names))


class ReplaceRootStage(ChainStage):
    """Puts the value of an expression in the place of the document."""

    is_simple = is_growing = makes_anew = True

    def __init__(self, expression: object, what: str, scope: StageScope) -> None:
        self._expression = scope.expression(expression)
        self.reads = top_fields(self._expression.paths)
        self._what = what

    def start(self, run: Run) -> None:
        self._variables = run.variables

    def take(self, row: Row) -> Iterable[Row]:
        value = self._expression.evaluate(row.document, self._variables)
        if not isinstance(value, Mapping):
            text = "MISSING" if value is MISSING else show(value)
            kind = "missing" if value is MISSING else type_name(value)
            raise fault(
                40228,
                f"{self._what} must evaluate to an object, but resulting value was: {text}. Type of resulting value:"
                f" '{kind}'.",
            )
        return (Row(document=value if type(value) is dict else dict(value)),)


def compile_replace_root(spec: object, scope: StageScope) -> Stage:
    """Return the stage of `{newRoot: expression}`."""
    if not isinstance(spec, Mapping):
        raise fault(40229, f"expected an object as specification for $replaceRoot stage, got {type_name(spec)}")
    check_fields(spec, ("newRoot",), "$replaceRoot")
    if "newRoot" not in spec:
        raise ReplError(
            "BSON field '$replaceRoot.newRoot' is missing but a required field", code=ErrorCode.MISSING_FIELD
        )
    return ReplaceRootStage(spec["newRoot"], "'newRoot' expression ", scope)


def compile_replace_with(spec: object, scope: StageScope) -> Stage:
    return ReplaceRootStage(spec, "'replacement document' ", scope)


class RedactStage(ChainStage):
    """Keeps, prunes or looks into each document within a document, as an expression says for it."""

    is_simple = True
    _DECISIONS: ClassVar[Mapping[str, str]] = {"KEEP": "keep", "PRUNE": "prune", "DESCEND": "descend"}

    def __init__(self, spec: object, scope: StageScope) -> None:
        names = scope.names | self._DECISIONS.keys() | {"CURRENT"}
        self._expression: Final[Expression] = compile_expression(spec, names, scope.fold)

    def start(self, run: Run) -> None:
        self._variables = {**run.variables, **self._DECISIONS}

    def take(self, row: Row) -> Iterable[Row]:
        found = self._document(row.document, row.document)
        return () if found is None else (Row(document=found),)

    def _document(self, document: dict[str, Any], root: dict[str, Any]) -> dict[str, Any] | None:
        self._variables["CURRENT"] = document
        decision = self._expression.evaluate(root, self._variables)
        if decision == "keep":
            return document
        if decision == "prune":
            return None
        if decision != "descend":
            raise fault(
                17053,
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and"
                f" $$PRUNE, but returned {'nothing' if decision is MISSING else show(decision)}",
            )
        found = {name: self._value(value, root) for name, value in document.items()}
        return {name: value for name, value in found.items() if value is not MISSING}

    def _value(self, value: Any, root: dict[str, Any]) -> Any:
        check_time()
        if type(value) is dict:
            found = self._document(value, root)
            return MISSING if found is None else found
        if type(value) is list:
            items = [self._value(item, root) for item in value]
            return [item for item in items if item is not MISSING]
        return value
