"""A job that waits for disk space says so in its progress, and only while it waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from replset.errors import BadValueError, OutOfDiskSpaceError
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
