"""The validator of a collection: which documents a write may leave there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from replset.bson import RawDocument, decode
from replset.errors import DocumentValidationError
from replset.features.crud.let import system_variables
from replset.operations.evaluation import UNBOUNDED, weight_of
from replset.operations.kernel import Kernel
from replset.query.collation import Fold
from replset.query.conditions import is_operators
from replset.query.errors import show
from replset.query.expressions import compile_expression
from replset.query.match import compile_filter
from replset.query.order import MISSING
from replset.query.paths import split_path, values_at
from replset.storage.catalog import Collection
from replset.storage.indexes import fold_in

log = logging.getLogger("replset.validators")
Document = dict[str, object]
_SCHEMA_COST = 16
"""A schema takes so much longer to evaluate than a filter of its size."""


class Validator:
    """A compiled validator. variables: of its expressions, as of the newest write. weight: see evaluation.py."""

    def __init__(self, options: RawDocument) -> None:
        """options: of the collection. Raises what compile_filter raises."""
        self._options = options.raw
        raw = options.get_raw("validator") or b""
        self._query = decode(raw)
        self.variables: dict[str, Any] = {}
        self._fold = fold_in(options)
        self._matcher = compile_filter(self._query, self.variables, fold=self._fold)
        self._level = options.get("validationLevel", "strict")
        self._warns = options.get("validationAction") == "warn"
        if "$jsonSchema" in self._query:
            self.weight = UNBOUNDED if b"pattern" in raw else _SCHEMA_COST * len(raw)
        else:
            self.weight = weight_of(len(raw), self._query)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Validator) and self._options == other._options

    def __hash__(self) -> int:
        return hash(self._options)

    def check(self, after: Mapping[str, object], before: Mapping[str, object] | None = None) -> None:
        """Raise DocumentValidationError for a document that may not be stored. before: what an update makes it from."""
        if self._level == "off" or self._matcher.matches(after):
            return
        if self._level == "moderate" and before is not None and not self._matcher.matches(before):
            return
        id_ = after.get("_id")
        if self._warns:
            log.warning("a document fails validation and is stored all the same: _id %s", show(id_))
            return
        raise DocumentValidationError(
            "Document failed validation",
            details={"errInfo": {"failingDocumentId": id_, "details": self._details(after)}},
        )

    def _details(self, document: Mapping[str, object]) -> Document:
        clauses = [(index, self._clause(*pair, document)) for index, pair in enumerate(self._query.items())]
        failed = [(index, details) for index, details in clauses if details is not None]
        if len(self._query) == 1 and failed:
            return failed[0][1]
        return {
            "operatorName": "$and",
            "clausesNotSatisfied": [{"index": index, "details": details} for index, details in failed],
        }

    def _clause(self, name: str, wanted: object, document: Mapping[str, object]) -> Document | None:
        """What a document does not satisfy of one field of the validator; None when it satisfies it."""
        if compile_filter({name: wanted}, self.variables, fold=self._fold).matches(document):
            return None
        if name == "$jsonSchema":
            from replset.query.json_schema import Schema  # few collections need it

            return Schema(wanted).details(document)
        specified: Document = {"operatorName": name, "specifiedAs": {name: wanted}}
        if name == "$expr":
            result = compile_expression(wanted, self.variables).evaluate(document, self.variables)
            shown = {} if result is MISSING else {"expressionResult": result}
            return specified | {"reason": "expression did not match"} | shown
        if name.startswith("$"):
            return specified | {"reason": "child expressions did not match"}
        return _failed_operator(name, wanted, document, self._fold)


def _failed_operator(name: str, wanted: object, document: Mapping[str, object], fold: Fold | None) -> Document:
    """The first condition on a field that a document does not satisfy."""
    operators = wanted if is_operators(wanted) else {"$eq": wanted}
    failed = (
        one for one in operators if not compile_filter({name: {one: operators[one]}}, fold=fold).matches(document)
    )
    operator = next(failed, "$eq")
    details: Document = {"operatorName": operator, "specifiedAs": {name: wanted}}
    values = [value for value, _ in values_at(document, split_path(name), into_last=False) if value is not MISSING]
    if not values:
        return details | {"reason": "field was missing"}
    shown: Document = {"consideredValue": values[0]} if len(values) == 1 else {"consideredValues": values}
    return details | {"reason": "comparison failed"} | shown


@lru_cache(maxsize=64)
def _compiled(options: bytes) -> Validator:
    return Validator(RawDocument(options))


def validator_of(coll: Collection | None, member: Kernel) -> Validator | None:
    """The validator that a write to the collection has to heed, None when there is none. Raises as `Validator`.

    It is ready for a write of this moment. Another write may use it too: $$NOW then is that one's, a little later.
    """
    if coll is None or not coll.has_validator:
        return None
    validator = _compiled(coll.options.raw)
    validator.variables.update(system_variables(member))
    return validator
