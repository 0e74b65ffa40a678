"""Names BSON's types: the type byte of a Python value, and MongoDB's name for each type byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replset.bson.decimal128 import Decimal128
from replset.bson.values import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
)

TYPE_NAMES: Final[dict[int, str]] = {
    0x01: "double",
    0x02: "string",
    0x03: "object",
    0x04: "array",
    0x05: "binData",
    0x06: "undefined",
    0x07: "objectId",
    0x08: "bool",
    0x09: "date",
    0x0A: "null",
    0x0B: "regex",
    0x0C: "dbPointer",
    0x0D: "javascript",
    0x0E: "symbol",
    0x0F: "javascriptWithScope",
    0x10: "int",
    0x11: "timestamp",
    0x12: "long",
    0x13: "decimal",
    0x7F: "maxKey",
    0xFF: "minKey",
}
TYPE_BYTES: Final[dict[str, int]] = {name: kind for kind, name in TYPE_NAMES.items()}
VALUE_TYPES: Final[dict[type, int]] = {
    float: 0x01,
    str: 0x02,
    dict: 0x03,
    list: 0x04,
    Binary: 0x05,
    bytes: 0x05,
    Undefined: 0x06,
    ObjectId: 0x07,
    bool: 0x08,
    DateTime: 0x09,
    type(None): 0x0A,
    Regex: 0x0B,
    DBPointer: 0x0C,
    Code: 0x0D,
    Symbol: 0x0E,
    CodeWithScope: 0x0F,
    Timestamp: 0x11,
    Int64: 0x12,
    Decimal128: 0x13,
    MaxKey: 0x7F,
    MinKey: 0xFF,
}
"""The type byte of each Python type with one only. A plain int is not here: it is int or long by its size."""


def type_byte(value: object) -> int:
    """Return the type byte that `value` is stored with."""
    kind = type(value)
    if kind is int:
        return 0x10 if -(1 << 31) <= value < 1 << 31 else 0x12  # type: ignore[operator]
    number = VALUE_TYPES.get(kind)
    if number is not None:
        return number
    if isinstance(value, Mapping):
        return 0x03
    return 0x04 if isinstance(value, list | tuple) else 0x02


def type_name(value: object) -> str:
    """Return MongoDB's name for the type of `value`."""
    return TYPE_NAMES[type_byte(value)]
