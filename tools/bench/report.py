"""Tables of the benchmarks of Spark: what was measured, beside what it should be and what it cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tools.bench.measure import Watch

RATE = "M rows/s"
SECONDS = "s"
TIMES = "times"
_HEAD = ("what", "measured", "at least", "aim", "", "cpu s", "others' cores", "notes")


@dataclass(slots=True)
class Report:
    """Rows by parts, shown as one table. bad: an answer was wrong, or something failed."""

    machine: str
    bad: bool = False
    _parts: list[tuple[str, list[tuple[str, ...]]]] = field(default_factory=list)

    def part(self, title: str) -> None:
        """The rows from here on stand below this title."""
        self._parts.append((title, []))
        print(f"-- {title}", file=sys.stderr, flush=True)

    def add(
        self,
        what: str,
        value: float,
        unit: str = SECONDS,
        watch: Watch | None = None,
        *,
        least: float | None = None,
        aim: float | None = None,
        notes: str = "",
    ) -> None:
        """least, aim: what the figure has to reach; more is better of a rate, less of anything else."""
        spent = ("", "") if watch is None else (f"{watch.cpu:.1f}", f"{watch.others:.1f}")
        limits = tuple("" if limit is None else f"{limit:g}" for limit in (least, aim))
        reached = _reached(value, unit, least, aim)
        self._parts[-1][1].append((what, f"{value:.2f} {unit}", *limits, reached, *spent, notes))
        print(f"{what}: {value:.2f} {unit} {reached} {notes}".rstrip(), file=sys.stderr, flush=True)

    def say(self, what: str, text: str) -> None:
        self._parts[-1][1].append((what, "", "", "", "", "", "", text))
        print(f"{what}: {text}", file=sys.stderr, flush=True)

    def right(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.bad = True
            self.say(what, "WRONG ANSWER")

    def show(self) -> int:
        """The exit status: 1 when anything was wrong. A figure that misses its limit is shown, and fails nothing."""
        table = Table(title=f"Spark across the members' oplogs: {self.machine}", title_justify="left")
        for name in _HEAD:
            left = name in ("what", "", "notes")
            table.add_column(name, justify="left" if left else "right", no_wrap=name != "notes")
        for title, rows in self._parts:
            table.add_section()
            table.add_row(f"[bold]{title}[/bold]")
            for row in rows:
                table.add_row(f"  {row[0]}", *row[1:])
        console = Console()
        if not console.is_terminal:
            console.width = 180
        console.print(table)
        return 1 if self.bad else 0


def _reached(value: float, unit: str, least: float | None, aim: float | None) -> str:
    def reaches(limit: float) -> bool:
        return value >= limit if unit == RATE else value <= limit

    if aim is not None and reaches(aim):
        return "aim"
    if least is None:
        return ""
    return "least" if reaches(least) else "MISSED"
