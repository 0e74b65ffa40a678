"""Formats a line of the log, as text or as JSON with the field names of MongoDB's log.

JSON also shows the values that a call gives as log.info(text, extra={"attr": {...}}).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import orjson

from replset.text import printable

TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
SECONDS: Final = "%Y-%m-%dT%H:%M:%S"
SEVERITY: Final = {"DEBUG": "D1", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "F"}
MAX_MESSAGE_CHARS: Final = 16 << 10
MAX_STACK_CHARS: Final = 16 << 10


class TextFormatter(logging.Formatter):
    """One line for each event. Only a stack, of an error that nobody expected, takes more."""

    def __init__(self) -> None:
        super().__init__(TEXT, SECONDS)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, without the line breaks and control characters that a client may have sent."""
        return printable(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One document for each event: t, s (severity), c (part of the program), ctx (thread), msg, attr."""

    def format(self, record: logging.LogRecord) -> str:
        attributes: dict[str, Any] = dict(getattr(record, "attr", None) or {})
        if record.exc_info:
            attributes["error"] = self.formatException(record.exc_info)[-MAX_STACK_CHARS:]
        seconds = time.strftime(SECONDS, time.gmtime(record.created))
        line: dict[str, Any] = {
            "t": {"$date": f"{seconds}.{int(record.msecs):03d}Z"},
            "s": SEVERITY.get(record.levelname, "I"),
            "c": record.name.removeprefix("replset."),
            "ctx": record.threadName,
            "msg": record.getMessage()[:MAX_MESSAGE_CHARS],
        }
        if attributes:
            line["attr"] = attributes
        try:
            return printable(orjson.dumps(line, default=str).decode())
        except TypeError:  # half of a surrogate pair, which UTF-8 cannot hold, or a number of over 64 bits
            plain = {**line, "msg": _plain(line["msg"]), "attr": _plain(str(attributes))}
            return printable(orjson.dumps(plain).decode())


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
