"""Compares expected values with actual ones: "Evaluating Matches" of the unified test format."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex

MISSING = object()
"""Stands for the value of a key that a document does not have."""
_TYPES: dict[str, tuple[type, ...]] = {
    "double": (float,),
    "string": (str,),
    "object": (Mapping,),
    "array": (list,),
    "binData": (bytes, Binary),
    "objectId": (ObjectId,),
    "bool": (bool,),
    "date": (datetime.datetime,),
    "null": (type(None),),
    "regex": (Regex, re.Pattern),
    "dbPointer": (DBRef,),
    "javascript": (Code,),
    "int": (int,),
    "long": (int, Int64),
    "decimal": (Decimal128,),
    "number": (int, float, Decimal128),
    "minKey": (MinKey,),
    "maxKey": (MaxKey,),
}


class MismatchError(AssertionError):
    """An actual value is not what a test file expects. The message says where."""


class Matcher:
    """Matches values; entity and lsid look up what `$$matchesEntity` and `$$sessionLsid` name."""

    def __init__(self, entity: Callable[[str], Any], lsid: Callable[[str], Any]) -> None:
        self._entity = entity
        self._lsid = lsid

    def match(self, expected: Any, actual: Any, path: str = "result", *, root: bool = True) -> None:
        """Raise MismatchError unless `actual` matches. root: a document may have fields that are not expected."""
        operator = _operator(expected)
        if operator is not None:
            self._match_operator(operator, expected[operator], actual, path, root)
        elif actual is MISSING:
            raise MismatchError(f"{path} is missing; expected {expected!r}")
        elif isinstance(expected, Mapping):
            self._match_document(expected, actual, path, root)
        elif isinstance(expected, list):
            self._match_array(expected, actual, path, root)
        elif not _same_value(expected, actual):
            raise MismatchError(f"{path} is {actual!r}; expected {expected!r}")

    def _match_document(self, expected: Mapping[str, Any], actual: Any, path: str, root: bool) -> None:
        if not isinstance(actual, Mapping):
            raise MismatchError(f"{path} is {actual!r}; expected the document {expected!r}")
        for key, value in expected.items():
            self.match(value, actual.get(key, MISSING), f"{path}.{key}", root=False)
        extra = [key for key in actual if key not in expected]
        if extra and not root:
            raise MismatchError(f"{path} has more fields than expected: {', '.join(map(str, extra))}")

    def _match_array(self, expected: list[Any], actual: Any, path: str, root: bool) -> None:
        if not isinstance(actual, list):
            raise MismatchError(f"{path} is {actual!r}; expected an array")
        if len(actual) != len(expected):
            raise MismatchError(f"{path} has {len(actual)} elements: {actual!r}; expected {len(expected)}")
        for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
            self.match(one, other, f"{path}.{number}", root=root)

    def _match_operator(self, operator: str, operand: Any, actual: Any, path: str, root: bool) -> None:
        if operator == "$$exists":
            if (actual is not MISSING) is not operand:
                raise MismatchError(f"{path} {'is missing' if operand else f'must not be there: {actual!r}'}")
            return
        if operator == "$$unsetOrMatches":
            if actual is not MISSING and actual is not None:
                self.match(operand, actual, path, root=root)
            return
        if actual is MISSING:
            raise MismatchError(f"{path} is missing; expected {operator}: {operand!r}")
        match operator:
            case "$$type":
                names = operand if isinstance(operand, list) else [operand]
                if not any(_is_type(actual, name) for name in names):
                    raise MismatchError(f"{path} is {actual!r}; expected the type {' or '.join(names)}")
            case "$$matchesEntity":
                self.match(self._entity(operand), actual, path, root=root)
            case "$$sessionLsid":
                self.match(self._lsid(operand), actual, path, root=False)
            case "$$matchesHexBytes":
                self.match(bytes.fromhex(operand), actual, path)
            case "$$lte":
                if not (isinstance(actual, int | float) and actual <= operand):
                    raise MismatchError(f"{path} is {actual!r}; expected at most {operand!r}")
            case "$$matchAsRoot":
                self.match(operand, actual, path, root=True)
            case _:
                raise NotImplementedError(f"the operator {operator}")


def _operator(expected: Any) -> str | None:
    """Return the name of the special operator that a document is."""
    if isinstance(expected, Mapping) and len(expected) == 1:
        key: str = next(iter(expected))
        return key if key.startswith("$$") else None
    return None


def _is_type(actual: Any, name: str) -> bool:
    if isinstance(actual, bool):
        return name == "bool"
    if name == "int" and isinstance(actual, Int64):
        return False
    return isinstance(actual, _TYPES[name])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_value(expected: Any, actual: Any) -> bool:
    if _is_number(expected) or _is_number(actual):
        return _is_number(expected) and _is_number(actual) and bool(expected == actual)
    if isinstance(expected, bytes) or isinstance(actual, bytes):
        return isinstance(expected, bytes) and isinstance(actual, bytes) and bytes(expected) == bytes(actual)
    return type(expected) is type(actual) and bool(expected == actual)
