"""Stalls of the event loop: each is counted, one in ten minutes is written down."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time

import pytest

from replset.cli.watchdog import REPORT_EVERY_S, StallReports, Watchdog, place_of
from replset.member.process.machine import RecentLog


def test_many_stalls_give_one_line_in_ten_minutes_and_a_count() -> None:
    reports = StallReports()
    texts = [reports.on_stall(second * 1.0, 60 + second, "here") for second in range(int(REPORT_EVERY_S) + 1)]
    written = [text for text in texts if text is not None]
    assert len(written) == 2
    assert written[0] == "the event loop was blocked for over 60 ms, in here"
    assert f"({int(REPORT_EVERY_S) - 1} more since the last report, up to 659 ms)" in written[1]
    assert reports.stalls == int(REPORT_EVERY_S) + 1


def test_a_stall_after_a_quiet_time_is_written_at_once() -> None:
    reports = StallReports()
    assert reports.on_stall(0.0, 60, "a") is not None
    assert reports.on_stall(REPORT_EVERY_S, 60, "b") is not None


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 1), (logging.DEBUG, 2)])
def test_a_stall_is_one_line_and_its_stack_follows_where_debug_asks_for_it(
    caplog: pytest.LogCaptureFixture, level: int, lines: int
) -> None:
    caplog.set_level(level, "replset.watchdog")

    async def block_the_loop() -> None:
        watched = Watchdog(lambda late_s: None)
        watched.start()
        await asyncio.sleep(0.1)
        until = time.monotonic() + 20
        while len(caplog.records) < lines and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251 - this is what it should find
        watched.stop()

    asyncio.run(block_the_loop())
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == lines
    assert not any("\n" in text for text in texts)
    assert "the event loop was blocked for over" in texts[0]
    if level == logging.DEBUG:
        assert "test_watchdog.py" in texts[1]


def test_the_place_is_in_the_product() -> None:
    class Line(str):
        def __getitem__(self, _: object) -> str:  # called by the product
            return place_of(sys._getframe())

    log = RecentLog()
    log.add(Line())
    assert re.fullmatch(r"process/machine\.py:\d+ add", log.lines[0])
    assert place_of(sys._getframe()) == "no code of this product: the machine was busy", "tests are not the product"
