"""Rounds of load on several subjects, one after the other, and the table and JSON of their medians."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.bench import generator
from tools.bench.generator import FIRST_FOUND, Loaded
from tools.bench.measure import resident_mib, tree_seconds, watched
from tools.bench.subjects import Subject

MOST_WARM_UP_S = 1.0
DOCUMENTS_FOUND = 20_000
AT_LEAST = {
    ("majority", 1): 900,
    ("majority", 16): 7_000,
    ("majority", 64): 12_000,
    ("bulk", 1): 50_000,
    ("bulk", 4): 50_000,
    ("find", 64): 18_000,
    ("http", 64): 6_500,
}
"""Documents a second, on a machine where PostgreSQL makes 15,600 durable inserts a second on 64 connections."""


@dataclass(frozen=True, slots=True)
class Point:
    """Describes one load. row: of subjects.ROWS, or `floor`. size: bytes of a document. label: what a sweep varies.

    documents: so many are there before the load, and `find` looks for them; 0: 20,000 for `find`, none for a write.
    """

    row: str
    connections: int
    size: int = 256
    label: str = ""
    documents: int = 0


@dataclass(slots=True)
class Figures:
    """Holds what one load measured, or the median of several. CPU in microseconds for each operation.

    messages: of other members at the primary, for each operation. mib: the largest resident size of a server.
    """

    documents_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    messages: float
    primary_us: float
    secondaries_us: float
    client_us: float
    client_share: float
    mib: float
    errors: float
    other_programs: float


class Bench:
    """Loads subjects, and keeps what was measured by point and subject."""

    def __init__(self, program: Path, seconds: float) -> None:
        self._program = program
        self.seconds = seconds
        self._found: dict[tuple[Point, str], list[Figures]] = {}
        self._filled: dict[tuple[Subject, int], int] = {}
        self.failed = False

    def round(self, number: int, points: Sequence[Point], subjects: Sequence[Subject]) -> None:
        """Load all subjects in turn at each point; who begins changes with the number of the round."""
        at = number % len(subjects)
        for point in points:
            for subject in [*subjects[at:], *subjects[:at]]:
                self.measure(point, subject)

    def measure(self, point: Point, subject: Subject) -> Figures | None:
        """Load `subject` once; None where it has no such row."""
        target = subject.target(point.row)
        if target is None:
            return None
        mode, port = target
        options: dict[str, float] = {"connections": point.connections, "size": point.size, "seconds": self.seconds}
        documents = point.documents or (DOCUMENTS_FOUND if point.row == "find" else 0)
        self._fill(subject, point.size, documents)
        if point.row == "find":
            options |= {"first": FIRST_FOUND, "documents": documents}
        subject.settle()
        before = _used(subject)
        with watched() as watch:
            loaded = generator.run(self._program, port, mode, warm_up=min(MOST_WARM_UP_S, self.seconds), **options)
        figures = _figures(loaded, before, _used(subject), subject)
        figures.other_programs = watch.others
        subject.settle()
        self.add(point, subject.name, figures)
        if loaded.errors:
            self.failed = True
            say(f"{subject.name}, {point.row}: {loaded.errors} errors, the first: {loaded.error_text}")
        say(f"{point.label or point.row:>12} {point.connections:>5} {subject.name}: {figures.documents_per_s:,.0f}/s")
        return figures

    def add(self, point: Point, name: str, figures: Figures) -> None:
        self._found.setdefault((point, name), []).append(figures)

    def _fill(self, subject: Subject, size: int, documents: int) -> None:
        """Insert what is missing of so many documents, with the numbers that `find` looks for."""
        there = self._filled.get((subject, size), 0)
        bulk = subject.target("bulk")
        mode, port = bulk or subject.target("majority") or ("", 0)
        if there >= documents:
            return
        self._filled[subject, size] = documents
        count = (documents - there) // (1000 if bulk else 1)
        connections = 2 if bulk else 64
        found = generator.run(
            self._program,
            port,
            mode,
            warm_up=0,
            operations=count,
            connections=connections,
            size=size,
            first=FIRST_FOUND + there,
        )
        if found.errors:
            raise RuntimeError(f"{subject.name} did not take the documents to find: {found.error_text}")

    def medians(self) -> dict[tuple[Point, str], Figures]:
        """Return the medians in the order in which the points were first loaded."""
        return {key: _median(self._found[key]) for point in self._points() for key in self._found if key[0] == point}

    def _points(self) -> list[Point]:
        return list(dict.fromkeys(point for point, _ in self._found))

    def table(self, title: str, ours: str = "replset") -> Table:
        """Make a line for each point and subject; `times`: its rate by that of `ours`."""
        table = Table(title=title, title_justify="left")
        for column in ("row", "connections", "who"):
            table.add_column(column, no_wrap=True)
        for column in ("docs/s", "at least", "times", "p50 ms", "p99 ms", "messages", "primary us", "secondaries us"):
            table.add_column(column, justify="right")
        for column in ("client us", "client cpu", "MiB", "elsewhere"):
            table.add_column(column, justify="right")
        medians = self.medians()
        last_of = {point: name for point, name in medians}  # the name in the last line of each point
        several = len({name for _, name in medians}) > 1
        for (point, name), found in medians.items():
            reference = medians.get((point, ours))
            least = AT_LEAST.get((point.row, point.connections)) if name == ours and not point.label else None
            table.add_row(
                point.label or point.row,
                str(point.connections),
                name,
                f"{found.documents_per_s:,.0f}",
                "" if least is None else f"{least:,}",
                "" if reference is None or name == ours else f"{found.documents_per_s / reference.documents_per_s:.2f}",
                *_cells(found),
                end_section=several and name == last_of[point],
            )
        return table

    def document(self) -> dict[str, object]:
        """Return the same for programs, with the figures of each round."""
        medians = self.medians()
        return {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
            "seconds": self.seconds,
            "rows": [
                {**asdict(point), "who": name, **asdict(medians[point, name]), "rounds": [asdict(one) for one in runs]}
                for (point, name), runs in self._found.items()
            ],
        }

    def show(self, title: str, json_file: Path | None) -> int:
        """Print the table and write the JSON. Returns the exit status."""
        console = Console()
        if not console.is_terminal:
            console.width = 200
        console.print(self.table(title))
        if json_file is not None:
            json_file.write_text(json.dumps({"title": title, **self.document()}, indent=1) + "\n")
        return 1 if self.failed else 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plain(documents_per_s: float, latencies_ms: Sequence[float] = ()) -> Figures:
    """Return figures of something that has a rate, and maybe latencies."""
    found = Figures(documents_per_s, *[0.0] * (len(fields(Figures)) - 1))
    if latencies_ms:
        ordered = sorted(latencies_ms)
        found.p50_ms, found.p90_ms, found.p99_ms = (ordered[int(len(ordered) * share)] for share in (0.5, 0.9, 0.99))
        found.max_ms = ordered[-1]
    return found


def _median(runs: list[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(one, field.name) for one in runs) for field in fields(Figures)))


def _used(subject: Subject) -> tuple[float, float, float]:
    """Return the CPU seconds of the primary and of the others so far, and the messages at the primary."""
    others = sum(tree_seconds(pid) for pid in subject.secondaries)
    return tree_seconds(subject.primary), others, subject.member_messages() or 0.0


def _figures(
    loaded: Loaded, before: tuple[float, float, float], after: tuple[float, float, float], subject: Subject
) -> Figures:
    operations = max(loaded.all_operations, 1)
    primary, others, messages = ((new - old) / operations for old, new in zip(before, after, strict=True))
    return Figures(
        documents_per_s=loaded.documents_per_s,
        p50_ms=loaded.p50_ms,
        p90_ms=loaded.p90_ms,
        p99_ms=loaded.p99_ms,
        max_ms=loaded.max_ms,
        messages=messages,
        primary_us=primary * 1e6,
        secondaries_us=others * 1e6,
        client_us=loaded.cpu_us,
        client_share=loaded.cpu_share,
        mib=max(resident_mib(pid) for pid in [subject.primary, *subject.secondaries]),
        errors=loaded.errors,
        other_programs=0.0,
    )


def _cells(found: Figures) -> list[str]:
    """Return all but the rate; empty where nothing was measured."""
    times = [f"{found.p50_ms:.2f}", f"{found.p99_ms:.2f}"]
    if not found.primary_us:
        return times if found.max_ms else []
    messages = f"{found.messages:.2f}" if found.messages else ""
    spent = [f"{value:.1f}" for value in (found.primary_us, found.secondaries_us, found.client_us)]
    return [*times, messages, *spent, f"{found.client_share:.0%}", f"{found.mib:.0f}", f"{found.other_programs:.1f}"]
