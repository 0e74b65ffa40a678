"""Logs what blocks the event loop. Heartbeats run on it, so nothing may block it for long."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

log = logging.getLogger("replset.watchdog")

LIMIT_S = 0.05
BEAT_S = 0.02
IDLE_BEAT_S = 0.25
"""Between two beats while the process uses less than BUSY of a core: beats were half of what an idle member used."""
BUSY = 0.05
REPORT_EVERY_S = 600.0


class StallReports:
    """Which stalls are written to the log: one in ten minutes, with the number and the longest of those before it.

    A slow machine stalls the loop again and again, and a line for each would fill the log.
    """

    def __init__(self) -> None:
        self.stalls = 0
        self._reported_at: float | None = None
        self._left_out = 0
        self._longest_ms = 0

    def on_stall(self, now_s: float, held_ms: int, where: str) -> str | None:
        """Count one stall; the line for the log, None: it is only counted."""
        self.stalls += 1
        if self._reported_at is not None and now_s - self._reported_at < REPORT_EVERY_S:
            self._left_out += 1
            self._longest_ms = max(self._longest_ms, held_ms)
            return None
        more = f" ({self._left_out} more since the last report, up to {self._longest_ms} ms)" if self._left_out else ""
        self._reported_at, self._left_out, self._longest_ms = now_s, 0, 0
        return f"the event loop was blocked for over {held_ms} ms{more}, in {where}"


class Watchdog:
    """Watches the event loop from a thread, and reports what blocks it for over 50 ms, once for each stall.

    While the process is nearly idle it looks less often, and may miss a stall of under half a second.
    """

    def __init__(self, on_beat: Callable[[float], None]) -> None:
        """on_beat: called on the loop with how late each beat is, in seconds."""
        self.reports = StallReports()
        self._on_beat = on_beat
        self._interval_s = BEAT_S
        self._due_at = time.monotonic()
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to watch. Call it on the loop's own thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End the watch. On return its thread writes nothing more."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        now, interval_s = time.monotonic(), self._interval_s
        self._on_beat(now - self._due_at)
        self._due_at = now + interval_s
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._beat)

    def _watch(self) -> None:
        reported, looked_at, used_s = 0.0, time.monotonic(), time.process_time()
        while not self._stopped.wait(self._interval_s):
            due_at = self._due_at
            now, used_now_s = time.monotonic(), time.process_time()
            blocked_s = now - due_at
            if blocked_s > LIMIT_S and due_at != reported:
                reported = due_at
                frame = sys._current_frames().get(self._loop_thread)
                text = self.reports.on_stall(now, int(blocked_s * 1000), place_of(frame))
                if text is not None:
                    log.info("%s", text)
                    log.debug("the stack of it, innermost first: %s", " < ".join(stack_of(frame)))
            is_busy = used_now_s - used_s > BUSY * (now - looked_at)
            self._interval_s = BEAT_S if is_busy else IDLE_BEAT_S
            looked_at, used_s = now, used_now_s


def stack_of(frame: FrameType | None) -> list[str]:
    """Return the calls of a thread, the innermost first, each as `folder/file.py:LINE function`."""
    rows = traceback.extract_stack(frame)[::-1] if frame is not None else []
    return [f"{'/'.join(Path(row.filename).parts[-2:])}:{row.lineno} {row.name}" for row in rows]


def place_of(frame: FrameType | None) -> str:
    """Return the innermost call in this product's own files. Where only the start is on the stack, nothing ran here."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(("replset.", "api.")):
        frame = frame.f_back
    if frame is None or frame.f_globals["__name__"].startswith("replset.cli."):
        return "no code of this product: the machine was busy"
    return stack_of(frame)[0]
