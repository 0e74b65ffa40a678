"""Reads fields of a configuration document. Errors name the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

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


def other_fields(
    document: Mapping[str, object], known: Collection[str], place: str, keep: bool
) -> Mapping[str, object]:
    """Return the fields that this release does not know.

    keep: the configuration comes from a member or from disk. A newer release may have written it, and this one stands
    in the set beside it: it passes on what it does not know. From a client such a field is an error, as in MongoDB.
    """
    others = {name: value for name, value in document.items() if name not in known}
    if others and not keep:
        raise BadValueError(f"unknown field {place}{next(iter(others))}")
    return MappingProxyType(others)
