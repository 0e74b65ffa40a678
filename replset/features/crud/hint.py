"""The `hint` of a command: an index by its name or by its keys, or the order in which documents are stored.

With it go the `min` and `max` of find: keys of that index.
"""

from __future__ import annotations

from typing import NamedTuple

from replset.bson import RawDocument
from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError
from replset.operations import fields
from replset.query.bounds import Cut, point
from replset.query.collation import Fold
from replset.query.order import equals

_LONGEST = 1000
"""Bytes: no index has so long a key."""


class Limits(NamedTuple):
    """The entries of an index from `low` on and before `high`, by the paths of its fields; empty for no limit."""

    low: dict[str, Cut]
    high: dict[str, Cut]


class Hint(NamedTuple):
    """One of the first three. natural: 1 or -1, else 0. limits: what a find wants of the index."""

    name: str | None = None
    key: dict[str, object] | None = None
    natural: int = 0
    limits: Limits | None = None


def hint_of(body: RawDocument, place: str) -> Hint | None:
    """The hint of a command or a statement. FailedToParseError and BadValueError for what is no hint."""
    kind = body.type_of("hint")
    if kind in (None, 10):
        return None
    if kind not in (2, 3):
        raise FailedToParseError(f"{place}.hint must be a string or an object")
    if len(body.get_raw("hint") or b"") > _LONGEST:
        raise bad_hint()
    hint = body.get("hint")
    if not hint:
        return None
    if not isinstance(hint, dict):
        return Hint(name=str(hint))
    if "$natural" not in hint:
        return Hint(key=hint)
    if len(hint) > 1 or not any(equals(one)(hint["$natural"]) for one in (1, -1)):
        raise BadValueError("$natural hint cannot be set to a value other than -1 or 1.")
    return Hint(natural=1 if equals(1)(hint["$natural"]) else -1)


def limits_of(body: RawDocument, place: str, fold: Fold | None) -> Limits | None:
    """The `min` and `max` of a find. ReplError (51176) when they name different fields. fold: of its collation."""
    low, high = (
        {path: point(value, fold).low for path, value in fields.decoded(body, name, place).items()}
        for name in ("min", "max")
    )
    if low and high and list(low) != list(high):
        raise ReplError("min and max must have the same field names", code=ErrorCode.MIN_MAX_FIELDS_DIFFER)
    return Limits(low, high) if low or high else None


def bad_hint() -> BadValueError:
    return BadValueError(
        "error processing query: planner returned error :: caused by :: hint provided does not correspond to an"
        " existing index"
    )
