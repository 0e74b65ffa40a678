"""Says how large a value is that an expression made.

One value can stand in many places of another: forty steps of `[x, x]` make an array of a trillion items, which takes
no memory until it is encoded, compared or shown. So all that looks at every part of such a value asks here first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from replset.bson import MAX_DEPTH, encode_key
from replset.errors import ErrorCode, ReplError
from replset.query.time_limit import check_time

MAX_BYTES: Final = 100 << 20
"""What one value, or the values that one accumulator keeps, may take in memory."""
_CHECKED: Final = 1000


def size_of(value: Any, limit: int | None = None) -> int:
    """Return about how many bytes a value takes, each part as often as it is in it.

    146 beyond the limit, 15 for more levels than a document can have.
    """
    kind = type(value)
    if kind is not dict and kind is not list:
        return _leaf_size(value)
    most = MAX_BYTES if limit is None else limit
    if kind is dict:  # most have nothing below them
        size = 100 + 60 * len(value)
        for item in value.values():
            kind = type(item)
            if kind is dict or kind is list:
                break
            size += len(item) + 50 if kind is str else 32 if kind is int or kind is float else _leaf_size(item)
        else:
            if size > most:
                raise too_large("a value of an expression", most)
            return size
    size, level, depth = 0, [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ReplError(f"a value of an expression has over {MAX_DEPTH} levels", code=ErrorCode.OVERFLOW)
        below: list[Any] = []
        for number, inner in enumerate(level):
            is_document = type(inner) is dict
            size += 100 + 60 * len(inner) if is_document else 60 + 8 * len(inner)
            for item in inner.values() if is_document else inner:
                kind = type(item)
                if kind is dict or kind is list:
                    below.append(item)
                else:
                    size += len(item) + 50 if kind is str else 32 if kind is int or kind is float else _leaf_size(item)
            if size > most:
                raise too_large("a value of an expression", most)
            if number % _CHECKED == 0:
                check_time()
        level = below
    return size


def sized_key(value: Any, fold: Callable[[Any], Any] | None = None) -> bytes:
    """Return the key that orders a value that an expression made. 146 for one that is too large.

    fold: of a collation.
    """
    if type(value) is dict or type(value) is list:
        size_of(value)
    return encode_key(value if fold is None else fold(value))


def _leaf_size(value: Any) -> int:
    return 50 + len(value) if isinstance(value, str | bytes) else 50


def too_large(what: str, most: int) -> ReplError:
    return ReplError(f"{what} used too much memory. Memory limit: {most} bytes", code=ErrorCode.EXCEEDED_MEMORY_LIMIT)
