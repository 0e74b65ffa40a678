"""The `hint` of a command: there is the index on `_id`, and the order in which documents are stored."""

from __future__ import annotations

from replset.bson import RawDocument
from replset.errors import BadValueError, FailedToParseError
from replset.query.order import equals
from replset.query.sort import compile_sort

_INDEX = "_id_"
_LONGEST = 1000
"""Bytes: no index has so long a key."""


def hint_of(body: RawDocument, place: str) -> int:
    """1 or -1: whether an unsorted read goes through the documents as they are stored, or backwards.

    FailedToParseError for what is no hint, BadValueError (2) for an index that is not there.
    """
    return check_hint(given_hint(body, place))


def given_hint(body: RawDocument, place: str) -> object:
    """The hint as it is given, None for none."""
    kind = body.type_of("hint")
    if kind in (None, 10):
        return None
    if kind not in (2, 3):
        raise FailedToParseError(f"{place}.hint must be a string or an object")
    return body.get("hint") if len(body.get_raw("hint") or b"") <= _LONGEST else _LONGEST


def check_hint(hint: object) -> int:
    """As `hint_of`, of what `given_hint` gave."""
    if hint is None or hint in ("", _INDEX, {}):
        return 1
    if isinstance(hint, dict):
        if list(hint) == ["$natural"]:
            return compile_sort(hint).natural
        if list(hint) == ["_id"] and any(equals(one)(hint["_id"]) for one in (1, -1)):
            return 1
    raise BadValueError(
        "error processing query: planner returned error :: caused by :: hint provided does not correspond to an"
        " existing index"
    )
