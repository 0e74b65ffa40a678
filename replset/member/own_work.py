"""Work of the set's own that its primary does once a minute, as a part of a feature."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any

from replset.errors import IllegalOperationError, NotWritablePrimaryError, OutOfDiskSpaceError, ShutdownInProgressError
from replset.member.feature import FeaturePart
from replset.operations.kernel import Kernel

log = logging.getLogger("replset.ttl")

INTERVAL_S = 60.0
_WAITS = (NotWritablePrimaryError, ShutdownInProgressError, OutOfDiskSpaceError, IllegalOperationError)
"""The last one: the set began to follow another one, or to hand over, meanwhile."""


class OwnWork(FeaturePart, ABC):
    """Runs as a task of its own. What it could not do, by a stepdown or a full disk, it does in a minute."""

    def __init__(self, member: Kernel) -> None:
        self._member = member

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._member.own_work_term() is not None:
                await self.work()

    async def work(self) -> None:
        """Do what there is to do now."""
        try:
            await self.do()
        except _WAITS as error:
            log.info("%s waits for a minute: %s", type(self).__name__, error.message)

    @abstractmethod
    async def do(self) -> None:
        """What a feature does. It may raise what refuses a write."""
