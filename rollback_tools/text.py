"""Prints values and names on a line of text."""

from __future__ import annotations

from replset.bson import to_ejson
from replset.text import printable


def short(value: object, limit: int = 60) -> str:
    """Print a value as relaxed Extended JSON, cut when it is long."""
    text = to_ejson({"": value})
    text = printable(text[text.index(":") + 1 : -1].strip())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
