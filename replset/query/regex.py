"""MongoDB's regular expressions (PCRE) as Python's: translated where they are spelled otherwise.

Limits, told in docs/query.md: recursion, conditionals on assertions, callouts and verbs are not Python's and are
refused; there is no limit of time, so a pattern that backtracks without end holds the member up.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from replset.bson import Regex, Symbol
from replset.errors import ReplError
from replset.query.order import Predicate

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.NOFLAG}
_POSIX_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "word": r"\w",
    "cntrl": r"\x00-\x1f\x7f",
    "print": r"\x20-\x7e",
    "graph": r"\x21-\x7e",
}
_ESCAPES = {r"\z": r"\Z", r"\Z": r"(?=\n?\Z)", r"\h": r"[ \t]", r"\R": r"(?:\r\n|[\n\v\f\r])"}
_ESCAPES_IN_CLASS = {r"\h": r" \t"}
# Quoted text, an escape, a POSIX class, a named group, or a bracket.
_TOKEN = re.compile(r"\\Q(.*?)(?:\\E|\Z)|(\\.)|\[:(\w+):\]|(\(\?<(?=[A-Za-z_]))|(\[\^?\]?)|(\])", re.DOTALL)


def matcher(pattern: str, options: str) -> Predicate:
    """Asks whether a string or symbol contains the expression, or whether a value is the same expression.

    Raises 51108 for an unknown option, 51091 for a pattern that cannot be read.
    """
    search = _compiled(pattern, options).search
    same = Regex(pattern, options)

    def matches(value: object) -> bool:
        if isinstance(value, str):
            return search(value) is not None
        if type(value) is Symbol:
            return search(value.text) is not None
        return type(value) is Regex and value == same

    return matches


@lru_cache(maxsize=256)
def _compiled(pattern: str, options: str) -> re.Pattern[str]:
    flags = re.NOFLAG
    for option in options:
        if option not in _FLAGS:
            raise ReplError(f"invalid flag in regex options: {option}", code=51108)
        flags |= _FLAGS[option]
    if "\0" in pattern:
        raise ReplError("Regular expression cannot contain an embedded null byte", code=51091)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of nested sets and the like, which mean here what they mean in PCRE
            return re.compile(_translated(pattern), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ReplError(f"Regular expression is invalid: {error}", code=51091) from None


def _translated(pattern: str) -> str:
    in_class = False

    def translate(token: re.Match[str]) -> str:
        nonlocal in_class
        quoted, escape, posix, group, opening, closing = token.groups()
        if quoted is not None:
            return re.escape(quoted)
        if escape is not None:
            return (_ESCAPES_IN_CLASS if in_class else _ESCAPES).get(escape, escape)
        if posix is not None:
            return _POSIX_CLASSES.get(posix, token[0]) if in_class else token[0]
        if group is not None:
            return "(?P<" if not in_class else group
        if opening is not None and not in_class:
            in_class = True
            return opening
        if closing is not None:
            in_class = False
        # An opening bracket within a class is an ordinary character; one with a closing one behind it ends the class.
        if opening is not None and opening.endswith("]"):
            in_class = False
            return rf"\{opening}"
        return rf"\{opening}" if opening is not None else token[0]

    return _TOKEN.sub(translate, pattern)
