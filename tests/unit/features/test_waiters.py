"""Waits end in order, fail together, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from replset.errors import PrimarySteppedDownError, ReplError
from replset.ids import OpTime
from replset.operations.waiters import Notifier, WaiterList, done_within
from tests.simulation.kit.clock import SimClock
from tests.unit.member.kit import settle


def at(ts: int) -> OpTime:
    return OpTime(1, ts)


class Point:
    """A commit point that the test moves."""

    def __init__(self) -> None:
        self.ts = 0
        self.looks = 0

    def reached(self, optime: OpTime) -> bool:
        self.looks += 1
        return optime.ts <= self.ts


def wait(
    waiters: WaiterList, key: object, optime: OpTime, is_satisfied: Callable[[OpTime], bool]
) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.add(key, optime, is_satisfied, future)
    return future


@pytest.fixture
def point() -> Point:
    return Point()


@pytest.fixture
def waiters() -> WaiterList:
    return WaiterList()


async def test_a_condition_that_is_met_is_not_waited_for(waiters: WaiterList, point: Point) -> None:
    point.ts = 5
    assert wait(waiters, "majority", at(5), point.reached).done()
    assert len(waiters) == 0


async def test_who_joins_is_not_asked_and_ends_with_the_others(waiters: WaiterList, point: Point) -> None:
    """Only with the object that was waited with last, while somebody waits with it, and for no older entry."""
    concern, other = object(), object()
    loop = asyncio.get_running_loop()
    first, second, third = (loop.create_future() for _ in range(3))
    assert not waiters.join(concern, at(3), second)
    waiters.add("majority", at(3), point.reached, first, concern)
    assert not waiters.join(other, at(3), second)
    assert not waiters.join(concern, at(2), second)
    assert waiters.join(concern, at(3), second)
    assert waiters.join(concern, at(5), third)
    assert point.looks == 1
    point.ts = 4
    waiters.release()
    assert [first.done(), second.done(), third.done()] == [True, True, False]
    point.ts = 5
    waiters.release()
    assert third.done()
    assert not waiters.join(concern, at(6), loop.create_future())


@pytest.mark.parametrize("ends", [WaiterList.fail_all, lambda w, error: w.fail_where(lambda _key: error)])
async def test_nobody_joins_those_whose_wait_has_failed(
    ends: Callable[[WaiterList, Callable[[], ReplError]], None], waiters: WaiterList, point: Point
) -> None:
    concern, loop = object(), asyncio.get_running_loop()
    waits = loop.create_future()
    waiters.add("majority", at(3), point.reached, waits, concern)
    ends(waiters, lambda: PrimarySteppedDownError("gone"))
    with pytest.raises(PrimarySteppedDownError):
        await waits
    assert not waiters.join(concern, at(3), loop.create_future())
    assert len(waiters) == 0


async def test_older_optimes_are_released_first_whatever_came_first(waiters: WaiterList, point: Point) -> None:
    woken: list[int] = []
    for ts in (7, 3, 5, 3):
        future = wait(waiters, "majority", at(ts), point.reached)
        future.add_done_callback(lambda _future, ts=ts: woken.append(ts))
    waiters.release()
    assert len(waiters) == 4
    point.ts = 5
    waiters.release()
    await settle()
    assert woken == [3, 3, 5]
    assert len(waiters) == 1
    point.ts = 7
    waiters.release()
    await settle()
    assert woken == [3, 3, 5, 7]
    assert len(waiters) == 0


async def test_a_release_checks_one_waiter_while_the_oldest_still_waits(waiters: WaiterList, point: Point) -> None:
    for ts in range(1, 101):
        wait(waiters, "majority", at(ts), point.reached)
    point.looks = 0
    waiters.release()
    assert point.looks == 1


async def test_leaving_primary_fails_every_waiter_with_an_error_of_its_own(waiters: WaiterList, point: Point) -> None:
    futures = [wait(waiters, key, at(ts), point.reached) for key, ts in (("majority", 3), (2, 4), ("majority", 9))]
    waiters.fail_all(lambda: PrimarySteppedDownError("the primary stepped down"))
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [PrimarySteppedDownError] * 3
    assert len({id(error) for error in errors}) == 3
    point.ts = 9
    waiters.release()  # progress of another term finds nobody
    assert len(waiters) == 0


async def test_a_client_that_is_gone_is_skipped(waiters: WaiterList, point: Point) -> None:
    gone = wait(waiters, "majority", at(1), point.reached)
    stays = wait(waiters, "majority", at(2), point.reached)
    gone.cancel()
    assert len(waiters) == 1
    point.ts = 2
    waiters.release()
    assert stays.done()
    waiters.fail_all(lambda: ReplError("x"))
    assert gone.cancelled()


async def test_waits_that_timed_out_behind_one_that_still_waits_do_not_pile_up(
    waiters: WaiterList, point: Point
) -> None:
    oldest = wait(waiters, 3, at(1), point.reached)
    for ts in range(2, 5000):
        assert not await done_within(wait(waiters, 3, at(ts), point.reached), 1)
    assert waiters.kept < 200
    assert not oldest.done()
    point.ts = 1
    waiters.release()
    assert oldest.done()
    assert waiters.kept == 0


async def test_done_within_is_true_when_the_wait_ended_in_time(waiters: WaiterList, point: Point) -> None:
    future = wait(waiters, "majority", at(1), point.reached)
    point.ts = 1
    asyncio.get_running_loop().call_later(0.02, waiters.release)
    assert await done_within(future, 30)
    assert await done_within(future, 0), "what is done needs no time"
    forever = wait(waiters, "majority", at(2), point.reached)
    point.ts = 2
    asyncio.get_running_loop().call_later(3600, waiters.release)
    assert await done_within(forever, None)


async def test_a_notifier_wakes_everybody_in_the_order_of_arrival() -> None:
    notifier, woken = Notifier(), []

    async def wait(name: str) -> None:
        assert await notifier.wait(100)
        woken.append(name)

    waiting = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await settle()
    notifier.notify()
    await asyncio.gather(*waiting)
    assert woken == ["a", "b", "c"]


async def test_an_earlier_notification_wakes_nobody(clock: SimClock) -> None:
    notifier = Notifier()
    notifier.notify()
    assert not await notifier.wait(25)
    assert clock.now() == 25


async def test_waits_that_time_out_do_not_pile_up() -> None:
    notifier = Notifier()
    for _ in range(10):
        assert not await notifier.wait(1)
    left = asyncio.ensure_future(notifier.wait(None))
    await settle()
    assert notifier.waiting == 1
    left.cancel()
    await settle()
    assert notifier.waiting == 0
