"""Writes the log to standard error or a file in a thread of its own, so that logging never waits for the reader.

A pipe that nobody reads takes some 64 KiB and then blocks its writer for good. Written from the event loop, that would
stop the member, SIGTERM included. Here lines wait in a bounded queue. What does not fit, or what a full disk does not
take, is dropped and counted, and the log says how many.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import orjson

from replset.member.process.machine import RecentLog
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


log = logging.getLogger("replset.log")

MAX_LINES: Final = 10_000
MAX_BYTES: Final = 4 << 20
MAX_LINE_CHARS: Final = 64 << 10
FLUSH_S: Final = 1.0
"""How long the end of the process waits for the reader of its last lines."""
_BATCH = 100


class LogWriter(logging.Handler):
    """Writes to the file descriptor `out`. `dropped`: lines so far that were not written."""

    def __init__(
        self, out: int, *, path: Path | None = None, as_json: bool = False, max_lines: int = MAX_LINES
    ) -> None:
        """path: of the file that `out` is; None: standard error."""
        super().__init__()
        self.setFormatter(JsonFormatter() if as_json else TextFormatter())
        self.path = path
        self._as_json = as_json
        self._out = out
        self._is_to_reopen = False
        self._is_torn = False  # the file ends in the middle of a line, because the disk was full
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()  # nobody holds it while writing
        self._writing = False
        self._told = 0
        self.recent = RecentLog()
        threading.Thread(target=self._run, name="replset-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            self.recent.add(line)
            self.write(line)
        except Exception:  # a record that cannot be formatted must not hurt who logs it
            self.write(f"a line of the log could not be written: {record.name}")

    def write(self, text: str) -> None:
        """Queue one line, or with a stack several; never waits."""
        line = text[:MAX_LINE_CHARS].encode("utf-8", "replace") + b"\n"
        with self._changed:
            if len(self._lines) >= self._max_lines or self._bytes + len(line) > MAX_BYTES:
                self.recent.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def write_last(self, text: str) -> None:
        """Write why the process ends. In a file it looks like the other lines, and standard error gets it too."""
        if self._as_json or self.path is not None:
            self.emit(logging.makeLogRecord({"name": "replset", "levelname": "ERROR", "msg": text}))
        else:
            self.write(text)
        self.flush()
        if self.path is not None:
            print(printable(text), file=sys.stderr, flush=True)

    def reopen(self) -> None:
        """Open the file again by its name, for what comes from now on: the old one was renamed (SIGUSR1)."""
        with self._changed:
            self._is_to_reopen = self.path is not None
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, but not for a reader that does not read."""
        deadline = time.monotonic() + FLUSH_S
        with self._changed:
            while (self._lines or self._writing) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._is_to_reopen:
                    self._changed.wait()
                is_to_reopen, self._is_to_reopen = self._is_to_reopen, False
                batch = [self._lines.popleft() for _ in range(min(_BATCH, len(self._lines)))]
                missing = self.recent.dropped - self._told
                self._writing = True
            size = sum(map(len, batch))
            is_written = self._put(b"".join(batch) + (self._missing_line(missing) if missing else b""))
            with self._changed:
                if is_written:
                    self._told += missing
                elif self.path is not None:
                    self.recent.dropped += len(batch)
                self._bytes -= size
                self._writing = False
                self._changed.notify_all()
            if is_to_reopen:
                self._reopen()

    def _missing_line(self, count: int) -> bytes:
        why = "nobody read them in time" if self.path is None else "the file did not take them in time"
        text = f"{count} lines of the log were dropped: {why}"
        if self._as_json:
            text = self.format(logging.makeLogRecord({"name": "replset.log", "levelname": "WARNING", "msg": text}))
        return text.encode() + b"\n"

    def _put(self, data: bytes) -> bool:
        """Write all of it, however long that takes; False: it can never be written, and is given up."""
        if self._is_torn:
            data = b"\n" + data
        while data:
            try:
                count = os.write(self._out, data)
                data, self._is_torn = data[count:], count < len(data)
            except BlockingIOError:
                select.select([], [self._out], [], 1)
            except OSError:
                return False
        return True

    def _reopen(self) -> None:
        """Open the file again. If that fails, the old one is used on."""
        if self.path is None:
            return
        try:
            out = open_log_file(self.path)
        except OSError as error:
            log.warning("%s cannot be opened again, so the log stays in the old file: %s", self.path, error.strerror)
            return
        old, self._out, self._is_torn = self._out, out, False
        os.close(old)
        log.info("the log goes on in %s", self.path)


def open_log_file(path: Path) -> int:
    """Open it for lines at its end; made when missing, for its owner alone. OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def log_to_file(path: Path) -> LogWriter:
    """A writer of lines that are no part of the log. OSError: `path` cannot be written."""
    return LogWriter(open_log_file(path), path=path, as_json=True)


def start_log(level: str, path: Path | None = None, *, as_json: bool = False) -> LogWriter:
    """Send all log output of this process through one LogWriter from now on. OSError: `path` cannot be written."""
    out = sys.stderr.fileno() if path is None else open_log_file(path)
    writer = LogWriter(out, path=path, as_json=as_json)
    logging.basicConfig(level=level.upper(), handlers=[writer])
    logging.captureWarnings(True)

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        log.error("%s: %r: %r", found.err_msg or "ignored", found.object, found.exc_value)

    def thread_died(found: threading.ExceptHookArgs) -> None:
        log.error("a thread ended: %r", found.exc_value, exc_info=found.exc_value)

    sys.unraisablehook = unraisable
    threading.excepthook = thread_died
    return writer
