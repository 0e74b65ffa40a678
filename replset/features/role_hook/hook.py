"""Tells the guard process of a role hook (guard.py) until when this member may hold the primary's role."""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from replset.core.messages import Report, RoleReleased
from replset.core.node import Node
from replset.features.role_hook.guard import MODULE
from replset.ids import HostPort, Millis
from replset.member.feature import FeaturePart
from replset.own_process import command_of
from replset.replication.ports import Clock

log = logging.getLogger("replset.role_hook")

LOCK_FILE = "role-hook.lock"
RESTART_S = 0.2
LOOKS = 20
"""How often in `hook_ms` the guard is told, and looked at."""
UNREAD_LOOKS = 5
"""A guard that has read nothing for so many looks hangs, and is replaced. They are counted, since a member that hangs
itself looks at nothing meanwhile."""
START_S = 10.0
"""How long a guard may read nothing after its start."""


class RoleHook(FeaturePart):
    """Keeps one guard process. `holds_role` is True unless the guard has said that the role is released.

    The clock must be the machine's monotonic one, since the guard reads the same.
    """

    def __init__(
        self,
        node: Node,
        hook: str,
        hook_ms: Millis,
        dbpath: str,
        clock: Clock,
        names: tuple[str, HostPort],
        report: Callable[[Report], None],
    ) -> None:
        """names: of the set and of this member. report: feeds the core."""
        self._command = (hook, str(hook_ms / 1000), os.path.join(dbpath, LOCK_FILE))
        self.hook_ms = hook_ms
        self._clock = clock
        self._environment = {**os.environ, "ROLE_SET": names[0], "ROLE_MEMBER": names[1]}
        self._report = report
        self._node = node
        self._process: Process | None = None
        self._number = self._last_held = self._released = 0  # of lines: the last, the last that lets it hold, answered
        self._read = 0  # the last line that the guard has read
        self._is_told = False
        self._is_released = asyncio.Event()

    def holds_role(self) -> bool:
        return self._released <= self._last_held

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    async def run(self) -> None:
        """Keep a guard running, and tell it again and again until when the member may hold the role."""
        while True:
            try:
                await self._run_guard()
                log.error("the guard of the role hook ended; another one is started")
            except OSError as error:
                log.error("the guard of the role hook cannot be started: %s; it is tried again", error)
            await asyncio.sleep(RESTART_S)

    async def _run_guard(self) -> None:
        self._last_held, self._is_told = self._number, True
        self._is_released.clear()
        process = self._process = await asyncio.create_subprocess_exec(
            *command_of(MODULE, *self._command),
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            start_new_session=True,
        )
        answers = asyncio.get_running_loop().create_task(self._read_answers(process))
        first, unread = self._number + 1, 0
        try:
            self._tell(0)
            while not answers.done():
                self.on_topology_changed()
                if self._is_told and self.holds_role():  # it releases, and shall say that it still does
                    self._tell(0)
                wanted, each_s = self._number, self.hook_ms / 1000 / LOOKS
                await asyncio.wait([answers], timeout=each_s)
                unread = 0 if self._read >= wanted else unread + 1
                if unread >= (UNREAD_LOOKS if self._read >= first else START_S / each_s):
                    log.error("the guard of the role hook hangs, and is ended")
                    process.kill()
                    unread = 0
        finally:
            answers.cancel()

    def on_topology_changed(self) -> None:
        """Tell the guard until when the member may hold the role, if that changed."""
        until = self._node.role_until(self._clock.now())
        if until > self._clock.now():
            self._last_held, self._is_told = self._number + 1, False
            self._is_released.clear()
            self._tell(until)
        elif not self._is_told:
            self._is_told = True
            self._tell(0)

    def _tell(self, until: int) -> None:
        self._number += 1
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"%d %d %d\n" % (self._number, until, self._node.term))

    async def _read_answers(self, process: Process) -> None:
        while process.stdout is not None and (line := await process.stdout.readline()):
            kind, _, text = line.decode("utf-8", "replace").rstrip().partition(" ")
            if kind == "read":
                self._read = int(text)
            elif kind != "released":
                log.log(logging.WARNING if kind == "warning" else logging.INFO, "%s", text)
            elif self.holds_role():
                self._released = max(self._released, int(text))
                if not self.holds_role():
                    self._is_released.set()
                    self._report(RoleReleased())

    async def hand_over(self) -> None:
        """Return when the guard has released the role, or when a release and its repetition would be over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self.hook_ms / 1000):
                await self._is_released.wait()
            await asyncio.sleep(0.05)  # the heartbeats that say so are on their way

    async def close(self) -> None:
        """Let the guard end. It goes on alone if the release takes longer."""
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.hook_ms / 1000):
                    await process.wait()
