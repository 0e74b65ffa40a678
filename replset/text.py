"""Text: what a terminal would obey is escaped in all that the command lines print; web addresses."""

from __future__ import annotations

import json
import re

_NOT_ASCII_TEXT = re.compile("[^ -~]")


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def printable(text: str, keep: str = "") -> str:
    """Escape what is not printable as JSON does, so that a name can neither steer a terminal nor begin a line.

    That is every control, format, private and unassigned character, every separator but the space, and lone
    surrogates (`str.isprintable`): ESC, line ends, C1, and what turns the direction of text or cannot be seen. JSON
    stays the same JSON. keep: characters that lay the text out, as line ends in JSON that is indented.
    """
    if text.isprintable():
        return text
    return _NOT_ASCII_TEXT.sub(lambda found: _shown(found[0], keep), text)


def _shown(char: str, keep: str) -> str:
    if char.isprintable() or char in keep:
        return char
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]  # JSON may hold DEL as it is
