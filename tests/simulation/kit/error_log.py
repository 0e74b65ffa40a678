"""What members log as an error that no fault explains: a command, an application or a rollback that fell over."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tests.simulation.kit.loop import current_process

LOGS = ("replset.commands", "replset.fetcher", "replset.rollback")
"""They answer or try again after whatever went wrong, so that nobody else notices."""


class ErrorLog(logging.Handler):
    """Hands each error to `on_error` with the name of the process that logged it, from `begin` to `close`."""

    def __init__(self, on_error: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._on_error = on_error
        self._levels = {name: logging.getLogger(name).level for name in LOGS}

    def begin(self) -> None:
        for name in LOGS:
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).setLevel(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process.get()
        error = record.exc_info[1] if record.exc_info else None
        self._on_error("" if process is None else process.name, f"{record.getMessage()}: {error!r}")

    def close(self) -> None:
        for name in LOGS:
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).setLevel(self._levels[name])
        super().close()
