"""The member's side of a role hook: it holds the role until the guard says otherwise, and keeps a guard running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replset.core.messages import RoleReleased
from replset.features.role_hook.hook import RoleHook
from replset.ids import HostPort, Millis
from replset.member.process.machine import RealClock

Calls = Callable[[], list[str]]


class FakeNode(SimpleNamespace):
    """A node that may hold the role for `for_ms` from now on."""

    for_ms = 0
    term = 2

    def role_until(self, now: Millis) -> Millis:
        return Millis(now + self.for_ms)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # it is about the files of other processes
            await asyncio.sleep(0.01)


def with_hook(folder: Path, test: Callable[[RoleHook, Any, Calls], Awaitable[None]], first: str = "") -> list[Any]:
    """Run `test` with a running hook, its node, and what the hook was called with; return what the core was told."""
    log, script = folder / "calls", folder / "hook"
    script.write_text(f'#!/bin/sh\n{first}echo "$1 $ROLE_SET $ROLE_MEMBER" >> {log}\n')
    script.chmod(0o755)
    reports: list[Any] = []

    def calls() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    async def run() -> None:
        node: Any = FakeNode()
        names = ("rs0", HostPort("m0:27017"))
        hook = RoleHook(node, str(script), Millis(2_000), str(folder), RealClock(), names, reports.append)
        assert hook.holds_role(), "nothing is known of an earlier process"
        task = asyncio.get_running_loop().create_task(hook.run())
        try:
            await test(hook, node, calls)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await hook.close()

    asyncio.run(run())
    return reports


GAIN, RELEASE = "gain rs0 m0:27017", "release rs0 m0:27017"


def test_it_holds_the_role_until_the_guard_has_released_it(tmp_path: Path) -> None:
    async def story(hook: RoleHook, node: Any, calls: Calls) -> None:
        await until(lambda: not hook.holds_role())
        assert calls() == [RELEASE]
        node.for_ms = 60_000
        hook.on_topology_changed()
        assert hook.holds_role(), "from the moment at which the guard is told"
        await until(lambda: calls() == [RELEASE, GAIN])
        node.for_ms = 0
        hook.on_topology_changed()
        await hook.hand_over()
        assert not hook.holds_role()
        assert calls() == [RELEASE, GAIN, RELEASE]

    assert with_hook(tmp_path, story) == [RoleReleased()] * 2


def test_a_guard_that_is_killed_is_replaced_and_gains_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(hook: RoleHook, node: Any, calls: Calls) -> None:
        node.for_ms = 60_000
        await until(lambda: calls() == [RELEASE, GAIN])
        assert hook._process is not None
        os.kill(hook._process.pid, signal.SIGKILL)
        await until(lambda: calls() in ([RELEASE, GAIN, GAIN], [RELEASE, GAIN, RELEASE, GAIN]))
        assert hook.holds_role()

    with_hook(tmp_path, story)
    assert "the guard of the role hook ended; another one is started" in caplog.text


@pytest.mark.parametrize("for_ms", [60_000, 0], ids=["while it holds the role", "while it releases"])
def test_a_guard_that_hangs_alone_is_replaced_and_the_role_released(tmp_path: Path, for_ms: int) -> None:
    """The member itself is well, so nothing else would see it."""

    async def story(hook: RoleHook, node: Any, calls: Calls) -> None:
        await until(lambda: not hook.holds_role())
        node.for_ms = 60_000
        await until(lambda: calls() == [RELEASE, GAIN])
        assert hook._process is not None
        (tmp_path / "slow").touch()
        node.for_ms = for_ms
        if not for_ms:
            await until(lambda: (tmp_path / "slow-pid").exists())
        os.kill(hook._process.pid, signal.SIGSTOP)
        (tmp_path / "slow").unlink()
        node.for_ms = 0
        await until(lambda: not hook.holds_role())
        assert calls() == [RELEASE, GAIN, RELEASE]

    with_hook(tmp_path, story, f"[ ! -e {tmp_path}/slow ] || {{ echo $$ > {tmp_path}/slow-pid; sleep 60; }}\n")


def test_a_guard_that_cannot_be_started_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = asyncio.create_subprocess_exec

    async def fail(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", real)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)

    async def story(hook: RoleHook, node: Any, calls: Calls) -> None:
        await until(lambda: not hook.holds_role())

    with_hook(tmp_path, story)
    assert "cannot be started" in caplog.text
