"""Shows on standard error how far long work is: a bar on a terminal, elsewhere a line every five seconds.

For the command lines. A member logs the progress of its own work.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TextIO

from replset.text import printable

LINE_EVERY_S = 5.0
BAR_AFTER_S: Final = 0.5
"""Work that ends before this shows no bar."""
BAR_EVERY_S: Final = 0.2
UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class LongWork:
    """Shows the steps of one command's work, one after the other. It can be called from any thread.

    with LongWork("rollback-tools") as work:
        work.begin("reading the files", total=size, unit="B")
        for block in blocks:
            work.advance(len(block))
    """

    def __init__(self, program: str, *, out: TextIO | None = None, line_every_s: float | None = None) -> None:
        """program: begins each line. out: standard error, unless a test gives another file."""
        self._program = program
        self._out = sys.stderr if out is None else out
        self._line_every_s = LINE_EVERY_S if line_every_s is None else line_every_s
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._step = _Step("")
        self._thread = threading.Thread(target=self._show, name="long-work", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, what: str, total: int = 0, unit: str = "") -> None:
        """Begin the next step. total: how much there is to do, 0: unknown. unit: of it, `B` for bytes."""
        with self._lock:
            self._step = _Step(printable(what), total, unit)

    def advance(self, count: int = 1) -> None:
        """Note that `count` more are done."""
        with self._lock:
            self._step.done += count

    def update(self, done: int, total: int | None = None) -> None:
        """Note how much is done, and a new total if it is given."""
        with self._lock:
            self._step.done = done
            self._step.total = self._step.total if total is None else total

    def on_row(self) -> None:
        """Note that one more is done, and that its line is printed next. On a terminal no bar is shown from here on."""
        self.advance()
        if sys.stdout.isatty():
            self.close()

    def close(self) -> None:
        """Show nothing any more: the command prints its result now. A second call does nothing."""
        self._is_over.set()
        self._thread.join()

    def _show(self) -> None:
        """Run in the thread. Nobody may read standard error any more; then nothing is shown."""
        with suppress(OSError, ValueError):
            if self._out.isatty():
                self._show_bar()
            else:
                while not self._is_over.wait(self._line_every_s):
                    with self._lock:
                        text = self._step.line()
                    if text:
                        print(f"{self._program}: {text}", file=self._out, flush=True)

    def _show_bar(self) -> None:
        if self._is_over.wait(BAR_AFTER_S):
            return
        from rich.console import Console  # a tenth of a second, which short work does not have to spend
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=30))
        amount = TextColumn("{task.fields[amount]}")
        with Progress(
            *columns,
            amount,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._out),
            transient=True,
            redirect_stdout=False,  # what the command prints may go to a file
            redirect_stderr=True,  # what it says meanwhile stands above the bar
        ) as bar:
            shown, task = _Step(""), bar.add_task("", amount="")
            while True:
                with self._lock:
                    step, done, total, text = self._step, self._step.done, self._step.total, self._step.amount()
                if step is not shown:
                    for old in bar.task_ids:
                        bar.remove_task(old)
                    shown, task = step, bar.add_task(step.what, total=None, amount="")
                bar.update(task, completed=done, total=total or None, amount=text)
                if self._is_over.wait(BAR_EVERY_S):
                    return


@dataclass(slots=True)
class _Step:
    what: str
    total: int = 0
    unit: str = ""
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def amount(self) -> str:
        if self.total:
            return f"{scaled(self.done, 'B' if self.unit == 'B' else '')} of {scaled(self.total, self.unit)}"
        return scaled(self.done, self.unit) if self.done else ""

    def line(self) -> str:
        """Return the progress as text; empty before the first step."""
        if not self.what:
            return ""
        took_s = time.monotonic() - self.began
        parts = [f"{self.what}: {amount}" if (amount := self.amount()) else self.what, f"{took_s:.0f} s"]
        if self.total:
            parts[0] += f" ({100 * self.done // self.total} %)"
        if 0 < self.done < self.total:
            parts.append(f"about {took_s * (self.total - self.done) / self.done:.0f} s left")
        return ", ".join(parts)


def scaled(number: int, unit: str) -> str:
    """Return a number for people: `1.2 GB`, `340.0 k entries`, `17 entries`."""
    for size, letter in UNITS:
        if number >= size:
            return f"{number / size:.1f} {letter}{'' if unit == 'B' else ' '}{unit}".rstrip()
    return f"{number} {unit}".rstrip()
