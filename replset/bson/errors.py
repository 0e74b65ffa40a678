"""What the BSON package raises: one class per cause."""

from __future__ import annotations

from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError


def shown_path(path: str) -> str:
    """A dotted path as a message shows it: not endless, and without what a terminal would choke on."""
    path = path if len(path) <= 200 else path[:197] + "..."
    return path.replace("\0", "\\0")


class InvalidBSONError(ReplError):
    """Bytes that are no BSON document, or a Python value that has no BSON form (22).

    offset: where in the bytes, when decoding. path: the dotted path of the field, when encoding.
    """

    code = ErrorCode.INVALID_BSON

    def __init__(self, reason: str, *, offset: int | None = None, path: str | None = None) -> None:
        self.reason = reason
        self.offset = offset
        self.path = path
        super().__init__(self._text())

    def _text(self) -> str:
        text = self.reason
        if self.path is not None:
            text += f" in field '{shown_path(self.path)}'"
        if self.offset is not None:
            text += f" at offset {self.offset}"
        return text

    def under(self, name: str) -> InvalidBSONError:
        """This error as seen from one level further out: `name` goes in front of the path."""
        self.path = name if self.path is None else f"{name}.{self.path}"
        self.message = self._text()
        self.args = (self.message,)
        return self


class InvalidValueError(BadValueError, ValueError):
    """A value type was asked to hold what it cannot, such as an ObjectId of 11 bytes (2)."""


class ExtendedJSONError(FailedToParseError):
    """Text that is no JSON, or JSON that is no Extended JSON; the message names line and column, or the path (9)."""
