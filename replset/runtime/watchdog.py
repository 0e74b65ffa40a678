"""Names what held the event loop: heartbeats live on it, so nothing else may keep it for long."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

log = logging.getLogger("replset.watchdog")

LIMIT_S = 0.05
BEAT_S = 0.02


class Watchdog:
    """A thread that watches the loop's beat and logs the stack of whatever holds it over 50 ms, once for each stall."""

    def __init__(self) -> None:
        self.stalls = 0
        self._beat_at = time.monotonic()
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """On the loop's own thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stopped.wait(BEAT_S):
            beat_at = self._beat_at
            held = time.monotonic() - beat_at - BEAT_S
            if held > LIMIT_S and beat_at != reported:
                reported = beat_at
                self.stalls += 1
                frame = sys._current_frames().get(self._loop_thread)
                where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "?"
                log.info("the event loop was held for over %d ms, at:\n%s", held * 1000, where.rstrip())
