"""Long work shows itself on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from replset.long_work import LongWork, _Step, scaled


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(out: io.StringIO, text: str) -> None:
    until = time.monotonic() + 20
    while text not in out.getvalue():
        assert time.monotonic() < until, out.getvalue()[-500:]
        time.sleep(0.01)


def test_a_file_gets_lines() -> None:
    out = io.StringIO()
    with LongWork("tool", out=out, line_every_s=0.02) as work:
        work.begin("reading", total=2_000_000, unit="B")
        work.advance(500_000)
        wait_for(out, "tool: reading: 500.0 kB of 2.0 MB (25 %)")
        work.begin("waiting for Java")
        wait_for(out, "tool: waiting for Java, 0 s\n")
    shown = out.getvalue()
    time.sleep(0.06)
    assert out.getvalue() == shown, "nothing follows its end"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    out = Terminal()
    with LongWork("tool", out=out) as work:
        work.begin("comparing", total=40, unit="entries")
        work.update(10)
        wait_for(out, "10 of 40 entries")
        work.begin("writing")
        wait_for(out, "writing")
    assert out.getvalue().endswith("\x1b[1A\x1b[2K"), "the bar's line is cleared"


def test_what_is_said_meanwhile_stands_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    with LongWork("tool") as work:
        work.begin("comparing", total=40)
        wait_for(out, "0 of 40")
        print("tool: Java from PATH", file=sys.stderr)
        wait_for(out, "tool: Java from PATH")
    before, _, after = out.getvalue().partition("tool: Java from PATH")
    assert before.endswith("\r\x1b[2K"), "the bar was cleared"
    assert after.startswith("\n")


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_short_work_shows_nothing(out: io.StringIO) -> None:
    with LongWork("tool", out=out) as work:
        work.begin("reading")
    assert out.getvalue() == ""


def test_a_reader_that_has_gone_stops_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with LongWork("tool", out=Closed(), line_every_s=0.001) as work:
        work.begin("reading")
        time.sleep(0.02)


def test_the_rest_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.long_work.time", SimpleNamespace(monotonic=lambda: 110.0))
    step = _Step("copying", total=100, done=25, began=100.0)
    assert step.line() == "copying: 25 of 100 (25 %), 10 s, about 30 s left"


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (17, "entries", "17 entries"),
        (340_000, "entries", "340.0 k entries"),
        (1_234_000_000, "B", "1.2 GB"),
        (3, "", "3"),
    ],
)
def test_numbers_are_short(number: int, unit: str, text: str) -> None:
    assert scaled(number, unit) == text
