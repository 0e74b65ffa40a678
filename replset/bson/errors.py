"""The errors of the BSON package, one class per cause."""

from __future__ import annotations

from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError


def shown_path(path: str) -> str:
    """Return a dotted path for a message: at most 200 characters, and without zero bytes."""
    path = path if len(path) <= 200 else path[:197] + "..."
    return path.replace("\0", "\\0")


class InvalidBSONError(ReplError, code=ErrorCode.INVALID_BSON):
    """Bytes are not a BSON document, or a Python value has no BSON form (22).

    offset: the position in the bytes, when decoding. path: the dotted path of the field, when encoding.
    """

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

    def with_parent(self, name: str) -> InvalidBSONError:
        """Put `name` in front of the path, for the document one level further out, and return this error."""
        self.path = name if self.path is None else f"{name}.{self.path}"
        self.message = self._text()
        self.args = (self.message,)
        return self


class InvalidValueError(BadValueError, ValueError):
    """A value does not fit its type, such as an ObjectId of 11 bytes (2)."""


class ExtendedJSONError(FailedToParseError):
    """Text is not JSON, or JSON is not Extended JSON (9). The message names line and column, or the path."""
