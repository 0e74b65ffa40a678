"""Prints values and names on a line of text."""

from __future__ import annotations

from replset.bson import to_ejson


def printable(text: str) -> str:
    """Escape characters that a terminal would take as control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def short(value: object, limit: int = 60) -> str:
    """Print a value as relaxed Extended JSON, cut when it is long."""
    text = to_ejson({"": value})
    text = printable(text[text.index(":") + 1 : -1].strip())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
