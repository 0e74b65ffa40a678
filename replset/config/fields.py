"""Numbers and booleans of a configuration document; each error names the field."""

from __future__ import annotations

from collections.abc import Mapping

from replset.errors import BadValueError, TypeMismatchError


def read_integer(document: Mapping[str, object], name: str, default: int, place: str = "") -> int:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"{place}{name} must be a number")
    if isinstance(value, float) and not value.is_integer():
        raise BadValueError(f"{place}{name} must be a whole number, not {value}")
    if not -(1 << 63) <= value < 1 << 63:
        raise BadValueError(f"{place}{name} must fit into 64 bits")
    return int(value)


def read_boolean(document: Mapping[str, object], name: str, default: bool, place: str) -> bool:
    value = document.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(value)
    if not isinstance(value, bool):
        raise TypeMismatchError(f"{place}{name} must be true or false")
    return value
