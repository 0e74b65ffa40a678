"""A job that waits for disk space says so in its progress, and only while it waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from replset.errors import BadValueError, OutOfDiskSpaceError, ReplError
from replset.replication import disk_space
from replset.replication.disk_space import retry_while_disk_full


@pytest.mark.parametrize("end", ["it succeeds", "another error", "it is cancelled"])
async def test_a_job_that_ended_waits_for_nothing(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "PAUSE_S", 0.001)
    progress = SimpleNamespace(waiting_for="")
    seen: list[str] = []

    async def work() -> str:
        seen.append(progress.waiting_for)
        if len(seen) < 3:
            raise OutOfDiskSpaceError("no space left")
        if end == "another error":
            raise BadValueError("the source is gone")
        if end == "it is cancelled":
            raise asyncio.CancelledError
        return "done"

    try:
        assert await retry_while_disk_full(work, "work", progress=progress) == "done"
    except (BadValueError, asyncio.CancelledError):
        assert end != "it succeeds"
    assert seen == ["", "disk space: no space left", "disk space: no space left"]
    assert progress.waiting_for == ""


async def test_the_work_is_tried_after_each_pause_and_the_log_has_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock, tries = asyncio.get_running_loop().time, list[float]()

    async def work() -> float:
        tries.append(clock() - began)
        if len(tries) < 4:
            raise OutOfDiskSpaceError("no space left")
        return tries[-1]

    began = clock()
    with caplog.at_level("WARNING", "replset.disk_space"):
        assert await retry_while_disk_full(work, "the copy") == pytest.approx(3 * disk_space.PAUSE_S)
    assert tries == pytest.approx([0, disk_space.PAUSE_S, 2 * disk_space.PAUSE_S, 3 * disk_space.PAUSE_S])
    assert caplog.messages == [
        "the copy waits for disk space: no space left",
        "the copy goes on: there is disk space again",
    ]


async def test_the_work_is_not_tried_while_there_is_no_space() -> None:
    clock, tries, looks = asyncio.get_running_loop().time, list[float](), iter([False, False, True])

    async def work() -> None:
        tries.append(clock() - began)
        if len(tries) == 1:
            raise OutOfDiskSpaceError("no space left")

    async def has_space() -> bool:
        return next(looks)

    began = clock()
    await retry_while_disk_full(work, "the copy", has_space=has_space)
    assert tries == pytest.approx([0, 3 * disk_space.PAUSE_S])


@pytest.mark.parametrize("error", [OutOfDiskSpaceError("no space left"), BadValueError("the source is gone")])
async def test_what_may_not_wait_and_other_errors_are_raised(error: ReplError) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(type(error)):
        await retry_while_disk_full(work, "the copy", may_wait=lambda: False)
