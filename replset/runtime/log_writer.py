"""Writes the log to standard error in a thread of its own, so that logging never waits for the reader.

A pipe that nobody reads takes some 64 KiB and then blocks its writer for good. Written from the event loop, that would
stop the member, SIGTERM included. Here lines wait in a bounded queue. What does not fit is dropped and counted, and
the log says how many.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Final

from replset.commands.ports import RecentLog

FORMAT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
MAX_LINES: Final = 10_000
MAX_BYTES: Final = 4 << 20
MAX_LINE_CHARS: Final = 64 << 10
FLUSH_S: Final = 1.0
"""How long the end of the process waits for the reader of its last lines."""
_BATCH = 100


class LogWriter(logging.Handler):
    """Writes to the file descriptor `out`. `dropped`: lines so far that did not fit."""

    def __init__(self, out: int, *, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        self._out = out
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()  # nobody holds it while writing
        self._writing = False
        self.dropped = 0
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
        """Queue one entry, of one line or several; never waits."""
        line = text[:MAX_LINE_CHARS].encode("utf-8", "replace") + b"\n"
        with self._changed:
            if len(self._lines) >= self._max_lines or self._bytes + len(line) > MAX_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
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
                while not self._lines:
                    self._changed.wait()
                batch = [self._lines.popleft() for _ in range(min(_BATCH, len(self._lines)))]
                missing = self.dropped - self._told
                self._writing = True
            if missing:
                batch.append(f"{missing} lines of the log were dropped: nobody read them in time\n".encode())
            self._put(b"".join(batch))
            with self._changed:
                self._told += missing
                self._bytes -= sum(len(line) for line in batch[: len(batch) - bool(missing)])
                self._writing = False
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        """Write all of it, however long that takes; what can never be written is given up."""
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                select.select([], [self._out], [], 1)
            except OSError:
                return


def log_to_stderr(level: str) -> LogWriter:
    """Send all log output of this process through one LogWriter from now on."""
    writer = LogWriter(sys.stderr.fileno())
    logging.basicConfig(level=level.upper(), handlers=[writer])
    logging.captureWarnings(True)
    log = logging.getLogger("replset")

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        log.error("%s: %r: %r", found.err_msg or "ignored", found.object, found.exc_value)

    def thread_died(found: threading.ExceptHookArgs) -> None:
        log.error("a thread ended: %r", found.exc_value, exc_info=found.exc_value)

    sys.unraisablehook = unraisable
    threading.excepthook = thread_died
    return writer
