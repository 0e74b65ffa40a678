"""The same set of members for tests with asyncio: what waits does so in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from replset.local_set import LocalMember
from replset.testing.replica_set import PATIENCE_S, ReplicaSet, RolledBack, Writes

T = TypeVar("T")


class AsyncReplicaSet:
    """Is a `ReplicaSet` for `async with`: see there."""

    def __init__(
        self,
        members: int = 1,
        *,
        arbiters: int = 0,
        settings: Mapping[str, object] | None = None,
        name: str = "rs0",
        folder: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._set = ReplicaSet(members, arbiters=arbiters, settings=settings, name=name, folder=folder, flags=flags)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        await asyncio.to_thread(self._set.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._set.stop)

    @property
    def members(self) -> tuple[LocalMember, ...]:
        return self._set.members

    @property
    def uri(self) -> str:
        return self._set.uri

    async def http(self) -> str:
        return await asyncio.to_thread(lambda: self._set.http)

    async def primary(self) -> LocalMember:
        return await asyncio.to_thread(lambda: self._set.primary)

    async def secondaries(self) -> tuple[LocalMember, ...]:
        return await asyncio.to_thread(lambda: self._set.secondaries)

    async def command(self, command: dict[str, object], database: str = "admin") -> dict[str, Any]:
        return await asyncio.to_thread(self._set.command, command, database)

    async def wait_until(
        self, condition: Callable[[], T | None], what: str = "that", within_s: float = PATIENCE_S
    ) -> T:
        """condition: called in a thread."""
        return await asyncio.to_thread(self._set.wait_until, condition, what, within_s)

    async def kill_primary(self) -> LocalMember:
        return await asyncio.to_thread(self._set.kill_primary)

    async def restart(self, member: LocalMember) -> None:
        await asyncio.to_thread(self._set.restart, member)

    async def step_down(self) -> LocalMember:
        return await asyncio.to_thread(self._set.step_down)

    async def pause(self, member: LocalMember) -> None:
        await asyncio.to_thread(self._set.pause, member)

    async def cut(self, one: LocalMember, *others: LocalMember) -> None:
        await asyncio.to_thread(self._set.cut, one, *others)

    async def heal(self) -> None:
        await asyncio.to_thread(self._set.heal)

    async def roll_back(self, writes: Writes) -> RolledBack:
        """writes: a function is called in a thread."""
        return await asyncio.to_thread(self._set.roll_back, writes)
