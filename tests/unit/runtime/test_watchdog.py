"""Stalls of the event loop: each is counted, one a minute is written down."""

from __future__ import annotations

from replset.runtime.watchdog import REPORT_EVERY_S, StallReports


def test_many_stalls_give_one_stack_a_minute_and_a_count() -> None:
    reports = StallReports()
    texts = [reports.on_stall(second * 1.0, 60 + second, "here") for second in range(int(REPORT_EVERY_S) + 1)]
    written = [text for text in texts if text is not None]
    assert len(written) == 2
    assert written[0].splitlines() == ["the event loop was blocked for over 60 ms, at:", "here"]
    assert f"({int(REPORT_EVERY_S) - 1} more since the last report, up to 119 ms)" in written[1]
    assert reports.stalls == int(REPORT_EVERY_S) + 1


def test_a_stall_after_a_quiet_time_is_written_at_once() -> None:
    reports = StallReports()
    assert reports.on_stall(0.0, 60, "a") is not None
    assert reports.on_stall(REPORT_EVERY_S, 60, "b") is not None
