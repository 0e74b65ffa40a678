"""Reports upstream: at once, one at a time, the newest only."""

from __future__ import annotations

import asyncio

import pytest

from replset.core.effects import Send
from replset.core.messages import ProgressReply, ProgressRequest, ReplyBody, Response
from replset.errors import HostUnreachableError
from replset.ids import HostPort, MemberId, Millis
from replset.replication.progress import ProgressReporter
from tests.unit.replication.kit import SOURCE, TestClock, until


class Upstream:
    """A reporter with a source that answers when the test says so."""

    def __init__(self, interval_ms: int = 10_000) -> None:
        self.at = 1
        self.source: HostPort | None = SOURCE
        self.sent: list[Send] = []
        self.answers: list[Response] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: HostUnreachableError | None = None
        self.reporter = ProgressReporter(
            clock=TestClock(),
            source=lambda: self.source,
            request=lambda: ProgressRequest(MemberId(1), self.at, 1, 1, ()),
            exchange=self.exchange,
            interval_ms=lambda: Millis(interval_ms),
            report=self.answers.append,
        )

    async def exchange(self, send: Send) -> ReplyBody:
        self.sent.append(send)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return ProgressReply(1, True)

    @property
    def terms(self) -> list[int]:
        """What was sent, told apart by the term that the test counts up."""
        return [send.body.term for send in self.sent]


async def test_each_move_is_reported_at_once_and_while_one_is_under_way_only_the_newest() -> None:
    up = Upstream()
    task = asyncio.get_running_loop().create_task(up.reporter.run())
    await until(lambda: up.answers)
    up.gate.clear()
    for up.at in (2, 3, 4, 5):
        up.reporter.notify()
        await asyncio.sleep(0.1)
    assert up.terms == [1, 2]
    up.gate.set()
    await until(lambda: len(up.answers) == 3)
    assert up.terms == [1, 2, 5]
    assert up.answers[-1] == Response(0, SOURCE, ProgressReply(1, True), "", Millis(0))
    await asyncio.sleep(5)
    assert len(up.sent) == 3, "nothing moved"
    task.cancel()


async def test_it_reports_every_interval_anyway() -> None:
    up = Upstream(interval_ms=5)
    task = asyncio.get_running_loop().create_task(up.reporter.run())
    await until(lambda: len(up.sent) >= 4)
    task.cancel()


async def test_without_a_source_nothing_is_sent_until_there_is_one() -> None:
    up = Upstream()
    up.source = None
    task = asyncio.get_running_loop().create_task(up.reporter.run())
    await asyncio.sleep(5)
    assert up.sent == []
    up.source = SOURCE
    up.reporter.notify()
    await until(lambda: up.sent)
    task.cancel()


@pytest.mark.parametrize(("interval_ms", "again"), [(60_000, False), (1, True)])
async def test_an_unreachable_source_is_reported_and_tried_again_without_haste(interval_ms: int, again: bool) -> None:
    up = Upstream(interval_ms=interval_ms)
    up.error = HostUnreachableError("gone")
    task = asyncio.get_running_loop().create_task(up.reporter.run())
    await until(lambda: up.answers)
    assert up.answers[0] == Response(0, SOURCE, None, "gone", Millis(0))
    up.reporter.notify()
    up.error = None
    if again:
        await until(lambda: up.answers[-1].body is not None)
    else:
        await asyncio.sleep(0.4)
        assert len(up.sent) == 1
    task.cancel()
