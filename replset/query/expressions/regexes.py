"""Operators that search with regular expressions: $regexFind, $regexFindAll, $regexMatch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from replset.bson import Regex
from replset.errors import ErrorCode, ReplError
from replset.query.expressions.compiler import fault, named, spend
from replset.query.order import is_null
from replset.query.regex import Find, find_in

_MATCH_BYTES: Final = 500
"""What Python takes for the document of one match."""


_cached = lru_cache(maxsize=8)(find_in)


def _finder(name: str, text: Any, regex: Any, options: Any) -> Find | None:
    """Return what searches, None if there is nothing to search in or for."""
    if not is_null(text) and not isinstance(text, str):
        raise fault(51104, f"{name} needs 'input' to be of type string")
    if not is_null(regex) and not isinstance(regex, str | Regex):
        raise fault(51105, f"{name} needs 'regex' to be of type string or regex")
    if not is_null(options) and not isinstance(options, str):
        raise fault(51106, f"{name} needs 'options' to be of type string")
    pattern, flags = (regex.pattern, regex.options) if type(regex) is Regex else (regex, "")
    if not is_null(options):
        if flags:
            raise fault(51107, f"{name}: found regex option(s) specified in both 'regex' and 'option' fields")
        flags = options
    if isinstance(pattern, str) and "\0" in pattern:
        raise fault(51109, f"{name}: regular expression cannot contain an embedded null byte")
    if "\0" in flags:
        raise fault(51110, f"{name}: regular expression options cannot contain an embedded null byte")
    try:
        find = _cached("" if is_null(pattern) else pattern, flags)
    except ReplError as error:
        if error.code != ErrorCode.INVALID_REGEX:
            raise
        raise fault(51111, f"Invalid Regex in {name}: {error.message}") from None
    return None if is_null(text) or is_null(pattern) else find


def _shown(match: Any) -> dict[str, object]:
    spend(_MATCH_BYTES + len(match[0]))
    return {"match": match[0], "idx": match.start(), "captures": list(match.groups())}


def _find(text: Any, regex: Any, options: Any) -> object:
    find = _finder("$regexFind", text, regex, options)
    match = None if find is None else find(text, 0)
    return None if match is None else _shown(match)


def _find_all(text: Any, regex: Any, options: Any) -> object:
    find = _finder("$regexFindAll", text, regex, options)
    found: list[dict[str, object]] = []
    place = 0
    while find is not None and place <= len(text):
        match = find(text, place)
        if match is None:
            break
        found.append(_shown(match))
        place = match.end() if match.end() > match.start() else match.end() + 1
    return found


def _is_match(text: Any, regex: Any, options: Any) -> bool:
    find = _finder("$regexMatch", text, regex, options)
    return find is not None and find(text, 0) is not None


_FUNCTIONS: Final[dict[str, Callable[[Any, Any, Any], object]]] = {
    "$regexFind": _find,
    "$regexFindAll": _find_all,
    "$regexMatch": _is_match,
}

OPERATORS: Final = tuple(
    named(name, function, ("input", "regex"), {"options": None}, 51103, 31024, {"input": 31022, "regex": 31023})
    for name, function in _FUNCTIONS.items()
)
