"""No test depends on how fast the machine is: no assertion uses what a real clock says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
NAMES = ("perf_counter", "thread_time", "process_time", "monotonic", "time")
CLOCKS = {*NAMES, *(f"{name}_ns" for name in NAMES)}
MENTIONED = re.compile(r"\btime\.time|" + "|".join(sorted(CLOCKS - {"time", "time_ns"})))
WAIT = "wait"
"""Begins the names of helpers that poll until a deadline: there the clock only ends a wait that is in vain."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def reads_clock(node: ast.AST, names: set[str]) -> bool:
    """Whether it has a call of a clock in it, or one of the names that were made of such calls."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=ast.Name("time"), attr=name)) if name in CLOCKS:
                return True
            case ast.Call(func=ast.Name(name)) if name in CLOCKS - {"time", "time_ns"}:
                return True
            case ast.Name(name) if name in names:
                return True
    return False


def timed_asserts(function: Function) -> Iterator[int]:
    """The lines of the assertions in it that depend on a clock."""
    names: set[str] = set()
    parts = list(ast.walk(function))
    while True:  # a name may be made of one that stands further down, in a loop
        before = len(names)
        for part in parts:
            if isinstance(part, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and part.value is not None:
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                if reads_clock(part.value, names):
                    names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if len(names) == before:
            break
    for part in parts:
        if isinstance(part, ast.Assert) and reads_clock(part.test, names):
            yield part.lineno


def found_in(text: str) -> list[int]:
    if not MENTIONED.search(text):
        return []
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, Function) and not node.name.startswith(WAIT)
    ]
    return sorted({line for function in functions for line in timed_asserts(function)})


@pytest.mark.parametrize("folder", sorted(path.name for path in TESTS.iterdir() if path.is_dir()))
def test_no_assertion_uses_a_clock(folder: str) -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted((TESTS / folder).rglob("*.py"))
        for line in found_in(path.read_text(encoding="utf-8"))
    }
    assert found == set(), "show it by counts, on a virtual clock, or wait for the condition (CONTRIBUTING.md)"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("assert time.monotonic() < 5", [2]),
        ("began = time.thread_time()\n assert time.thread_time() - began < 1", [3]),
        ("took = perf_counter() - 1\n assert pytest.approx(took) == 5", [3]),
        ("began = time.time()\n took = 1 - began\n assert 3 > took", [4]),
        ("end = time.monotonic()\n while time.monotonic() < end:\n  assert ready", []),
        ("assert clock.time() == loop.time()", []),
    ],
)
def test_the_check_itself(body: str, lines: list[int]) -> None:
    assert found_in(f"def test():\n {body}") == lines
    assert found_in(f"async def wait_until():\n {body}") == []
