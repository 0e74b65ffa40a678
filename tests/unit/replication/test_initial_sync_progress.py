"""What an initial sync says about itself: its attempts, how long the rest takes, and when the log has a line."""

from __future__ import annotations

import pytest

from replset.ids import HostPort, Millis
from replset.replication.initial_sync_progress import LINE_EVERY_MS, FailedAttempt, InitialSyncProgress

A, B = HostPort("a:1"), HostPort("b:1")


def at(ms: int) -> Millis:
    return Millis(1_000_000 + ms)


def test_failed_attempts_are_kept_until_the_next_initial_sync() -> None:
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    progress.on_unreachable(at(1_000), 0)
    progress.on_unreachable(at(2_000), 0)
    progress.fail(A, at(0), at(5_000), "it went away")
    progress.begin(B, at(7_000), 0)
    progress.fail(B, at(7_000), at(7_500), "no space")
    assert progress.attempts == [
        FailedAttempt(A, 5_000, "it went away", retried=2, unreachable_ms=4_000),
        FailedAttempt(B, 500, "no space"),
    ]
    assert (progress.failed, progress.began) == (2, at(0)), "the pause between attempts is part of it"
    progress.begin(A, at(8_000), 0)
    progress.succeed(at(9_000), 0)
    assert progress.failed == len(progress.attempts) == 2, "they can be read when it is over"
    progress.begin(A, at(10_000), 0)
    assert (progress.failed, progress.attempts, progress.began) == (0, [], at(10_000))


def test_the_newest_ten_attempts_are_shown() -> None:
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    for number in range(12):
        progress.fail(A, at(0), at(1), str(number))
    assert [attempt.reason for attempt in progress.attempts] == [str(number) for number in range(2, 12)]
    assert progress.failed == 12


def test_how_long_the_source_did_not_answer() -> None:
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    assert progress.unreachable_for(at(500)) == 0
    progress.on_unreachable(at(1_000), 0)
    assert progress.unreachable_for(at(1_400)) == 400
    progress.on_answer(at(2_000))
    progress.on_unreachable(at(5_000), 0)
    assert progress.unreachable_for(at(5_100)) == 1_100, "both times together"


def test_a_source_that_is_away_after_the_end_counts_no_more() -> None:
    """It is still told that its copy is not needed, and may not answer that."""
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    progress.succeed(at(1_000), 0)
    progress.on_unreachable(at(31_000), 0)
    assert (progress.retried, progress.unreachable_since, progress.unreachable_for(at(40_000))) == (0, None, 0)


@pytest.mark.parametrize(
    ("kept", "copied", "total", "expected"),
    [
        pytest.param(0, 0, 100, None, id="nothing-came"),
        pytest.param(40, 40, 100, None, id="what-was-here-has-no-rate"),
        pytest.param(0, 1, 101, 1_000_000, id="one-byte-came"),
        pytest.param(0, 50, 100, 10_000, id="half"),
        pytest.param(40, 60, 100, 20_000, id="a-third-of-what-was-missing"),
        pytest.param(0, 100, 100, 0, id="all"),
    ],
)
def test_the_rest_takes_as_long_as_the_rate_so_far_says(
    kept: int, copied: int, total: int, expected: int | None
) -> None:
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    progress.begin_transfer(A, kept, total, at(5_000))
    progress.copied = copied
    assert progress.remaining_ms(at(15_000)) == expected


def test_the_log_has_a_line_every_ten_seconds_from_the_beginning_on() -> None:
    progress = InitialSyncProgress()
    progress.begin(A, at(0), 0)
    due = [ms for ms in range(0, 3 * LINE_EVERY_MS, 500) if progress.is_line_due(at(ms))]
    assert due == [LINE_EVERY_MS, 2 * LINE_EVERY_MS]
