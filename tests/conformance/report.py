"""Writes `docs/conformance.md` from the results of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.conformance.known import cause_of
from tests.conformance.runner import Result, Status
from tests.conformance.suites import FOLDERS

OWN_SUITE = Path(__file__).with_name("pymongo_suite.md")
"""What PyMongo's own tests say, written by hand: they are run from a clone of its repository."""
HEAD = """# Conformance with the driver specifications

The unified tests of [mongodb/specifications](https://github.com/mongodb/specifications) run against a real set of three
members, with PyMongo {driver} as the client. Their files are not part of this project. To run them, clone that
repository, let `REPLSET_SPECIFICATIONS` name the clone, and run `./dev conformance`: it writes this page.
This run was made with commit `{commit}` of the specifications.

A test is skipped where the file itself asks for another topology or server version, or where PyMongo cannot do what it
asks.
"""


def unexpected(results: Iterable[Result]) -> list[str]:
    """Name each failure that no known cause covers, and each test that passes though a cause says that it fails."""
    surprises = []
    for result in results:
        cause = cause_of(result.name)
        if result.status is Status.FAILED and cause is None:
            surprises.append(f"fails, without a known cause: {result.name}")
        if result.status is Status.PASSED and cause is not None:
            surprises.append(f"passes, take it out of known.py: {result.name}")
    return surprises


def page(results: Sequence[Result], *, driver: str, commit: str) -> str:
    """Return the page: figures by suite, then what does not pass by cause, then the files that pass."""
    parts = [HEAD.format(driver=driver, commit=commit), _table(results), _failures(results), _skips(results)]
    return "\n".join([*parts, OWN_SUITE.read_text(), _passes(results)])


def _table(results: Sequence[Result]) -> str:
    lines = ["| suite | passed | failed | skipped |", "| --- | ---: | ---: | ---: |"]
    counts: dict[str, Counter[Status]] = defaultdict(Counter)
    for result in results:
        counts[result.suite][result.status] += 1
        counts["**all**"][result.status] += 1
    for suite in (*(suite for suite in FOLDERS if suite in counts), "**all**"):
        figures = " | ".join(str(counts[suite][status]) for status in Status)
        lines.append(f"| {suite} | {figures} |")
    return "\n".join(lines) + "\n"


def _failures(results: Sequence[Result]) -> str:
    by_cause: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.status is Status.FAILED:
            cause = cause_of(result.name)
            by_cause[cause.reason if cause else "Not looked into yet."].append(result)
    return _grouped("## Failed, by cause", by_cause, results)


def _skips(results: Sequence[Result]) -> str:
    by_reason: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.status is Status.SKIPPED:
            by_reason[result.reason[0].upper() + result.reason[1:].rstrip(".") + "."].append(result)
    return _grouped("## Skipped, by reason", by_reason, results)


def _grouped(title: str, groups: dict[str, list[Result]], results: Sequence[Result]) -> str:
    sizes = Counter((result.suite, result.file) for result in results)
    lines = [title, ""]
    for reason, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- **{reason}** ({len(members)})")
        files: dict[tuple[str, str], list[str]] = defaultdict(list)
        for member in members:
            files[member.suite, member.file].append(member.test)
        for (suite, file), tests in files.items():
            whole = len(tests) == sizes[suite, file]
            lines.append(f"  - {suite}/{file}" + (f" (all {len(tests)})" if whole else f": {'; '.join(tests)}"))
    return "\n".join([*lines, ""] if groups else [title, "", "None.", ""])


def _passes(results: Sequence[Result]) -> str:
    """List the files in which each test that ran has passed."""
    files: dict[tuple[str, str], Counter[Status]] = defaultdict(Counter)
    for result in results:
        files[result.suite, result.file][result.status] += 1
    lines = ["## Files without a failure", ""]
    for suite in FOLDERS:
        named = [
            f"{file} ({counts[Status.PASSED]})"
            for (of, file), counts in files.items()
            if of == suite and counts[Status.PASSED] and not counts[Status.FAILED]
        ]
        if named:
            lines.append(f"- {suite}: {', '.join(named)}")
    return "\n".join([*lines, ""])
