"""How the tools print values and names on a line of text."""

from __future__ import annotations

from replset.bson import to_ejson


def printable(text: str) -> str:
    """Text that a terminal takes as text: what would steer it is escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def short(value: object, limit: int = 60) -> str:
    """A value for a line of text: relaxed Extended JSON, cut where it gets long."""
    text = to_ejson({"": value})
    text = printable(text[text.index(":") + 1 : -1].strip())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
