"""Which tests run which lines: recorded by coverage.py, kept in `.venv`, and renewed for files of tests that changed.

A line is known by its file, its function and its text, so the record holds though lines move. `python -m
tools.mutate.record FILE...` runs these files of tests and records them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import coverage
import pytest

from tools.importers import ROOT, TOPS, test_files

LAYERS = ("unit", "property")
"""The tests that run in one process. Real processes would load the module from its file."""
APART = "tests/unit/spark/"
"""They start a JVM, and run little of what is judged."""
PATH = ROOT / ".venv" / ".tests-by-line.json"
AT_MOST = 1000
"""Tests that are kept by line, the cheapest."""


@dataclass(slots=True)
class Record:
    """files: their digests. tests: each with its seconds of processor. lines: by path and line, which of the tests."""

    files: dict[str, str] = field(default_factory=dict)
    tests: list[tuple[str, float]] = field(default_factory=list)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def tests_of(self, path: str, line: int, *, exactly: bool = False) -> dict[str, float]:
        """Return the tests that run this line, each with its seconds; if none does, those of the whole function, unless
        they are to run it `exactly`.
        """
        lines, (function, text) = self.lines.get(path, {}), names_of_lines(ROOT / path)[line - 1]
        found = set(lines.get(f"{function}:{text}", ()))
        if not found and function and not exactly:
            found = {test for key, tests in lines.items() if key.startswith(f"{function}:") for test in tests}
        return dict(self.tests[test] for test in found if self.tests[test][0].partition("::")[0] in self.files)

    def seconds_of(self, file: str) -> float:
        return sum(seconds for name, seconds in self.tests if name.startswith(f"{file}::"))


def up_to_date() -> Record:
    """Return the record, after the tests have run that it does not hold as they are."""
    record = read()
    changed = [name for name, digest in _digests().items() if record.files.get(name) != digest]
    if changed:
        print(f"records which lines {len(changed)} files of tests run, in {PATH.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", __spec__.name, *changed], cwd=ROOT, check=True)
    return read()


def read() -> Record:
    return Record(**json.loads(PATH.read_text())) if PATH.exists() else Record()


def _digests() -> dict[str, str]:
    names = {path: path.relative_to(ROOT).as_posix() for path in test_files(LAYERS)}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in names.items()
        if not name.startswith(APART)
    }


@cache
def names_of_lines(path: Path) -> list[tuple[str, str]]:
    """Return the function, "" outside of any, and the text of each line of a file."""
    source = path.read_text("utf-8")
    names = [("", line.strip()) for line in source.splitlines()]

    def walk(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                walk(child, scope)
                continue
            inner = (*scope, child.name)
            if not isinstance(child, ast.ClassDef):
                for line in range(child.lineno - 1, child.end_lineno or child.lineno):
                    names[line] = (".".join(inner), names[line][1])
            walk(child, inner)

    walk(ast.parse(source), ())
    return names


# --- recording ------------------------------------------------------------------------------------------------------


class Recorder:
    """A pytest plugin: gives each function of tests a context of its own, with its fixtures and its threads."""

    def __init__(self) -> None:
        self.coverage = coverage.Coverage(data_file=None, config_file=False, source=list(TOPS[:2]))
        self.seconds = defaultdict[str, float](float)
        self.failed = set[str]()
        self._current = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        name = item.nodeid.partition("[")[0]
        if name != self._current:
            self._current = name
            self.coverage.switch_context(name)
        began = time.process_time()
        result = yield
        self.seconds[name] += time.process_time() - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid.partition("[")[0])

    def add_to(self, record: Record) -> None:
        """Add what passed. A test that fails without a fault shows none."""
        passed = [name for name in self.seconds if name not in self.failed]
        numbers = {name: len(record.tests) + place for place, name in enumerate(passed)}
        record.tests += [(name, round(self.seconds[name], 3)) for name in passed]
        data = self.coverage.get_data()
        for file in data.measured_files():
            names, path = names_of_lines(Path(file)), Path(file).relative_to(ROOT).as_posix()
            if not names:
                continue  # an empty file is said to have run its line 0
            lines = record.lines.setdefault(path, {})
            for line, contexts in data.contexts_by_lineno(file).items():
                if line > len(names):
                    print(f"{path} has no line {line}, which {sorted(contexts)[:3]} ran", flush=True)
                    continue
                function, text = names[line - 1]
                kept = lines.setdefault(f"{function}:{text}", [])
                kept += {numbers[name] for name in contexts if name in numbers}.difference(kept)
                kept.sort(key=lambda test: record.tests[test][1])
                del kept[AT_MOST:]


def main(files: Sequence[str]) -> int:
    record, digests, recorder = read(), _digests(), Recorder()
    recorder.coverage.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[recorder])
    recorder.coverage.stop()
    gone = {number for number, (name, _) in enumerate(record.tests) if name.partition("::")[0] in files}
    for lines in record.lines.values():
        for key, tests in lines.items():
            lines[key] = [test for test in tests if test not in gone]
    recorder.add_to(record)
    record.files = {name: digest for name, digest in digests.items() if name in files or name in record.files}
    PATH.write_text(json.dumps(asdict(record)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
