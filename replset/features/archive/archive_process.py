"""Runs the process that reads and writes the archive, while there is something to do (worker.py)."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

from replset.errors import CappedPositionLostError, ErrorCode
from replset.features.archive.files import ArchiveError
from replset.features.archive.jobs import HEADER, Failure, OldestJob, ReadJob, WriteJob, Written, pack, unpack
from replset.features.archive.segments import Segment
from replset.features.archive.worker import MODULE
from replset.ids import OpTime
from replset.oplog_row import OplogRow
from replset.own_process import command_of

ANSWER_WITHIN_S = 120.0
"""How long a request may take before the process is ended: a network that hangs must not hold the archive for ever."""
IDLE_S = 20.0
"""How long after its last request the process ends, and its memory is free."""


class ArchiveProcess:
    """Is the member's ArchivePort. Requests wait for each other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def write(self, job: WriteJob) -> Written:
        written: Written = await self._ask(job)
        return written

    async def read(self, after: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        rows: list[OplogRow] = await self._ask(ReadJob(after, limit, max_bytes))
        return rows

    async def oldest(self) -> Segment | None:
        oldest: Segment | None = await self._ask(OldestJob())
        return oldest

    async def close(self) -> None:
        """End the process; what it was doing is then not done."""
        self._cancel_idle()
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, job: object) -> Any:
        async with self._one_at_a_time:
            self._cancel_idle()
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    answer = await self._exchange(job)
            except TimeoutError as error:
                await self.close()
                raise ArchiveError(f"archive: {self._address} does not answer within {ANSWER_WITHIN_S:g} s") from error
            except Exception as error:  # it ended, cannot be started, or answers what is no answer
                await self.close()
                raise ArchiveError("archive: its process ended or cannot be started; see the log") from error
            except BaseException:  # cancelled: its answer would be taken for the next one's
                await self.close()
                raise
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)
        if isinstance(answer, Failure):
            if answer.code == ErrorCode.CAPPED_POSITION_LOST:
                raise CappedPositionLostError(answer.message)
            raise ArchiveError(answer.message, code=answer.code)
        return answer

    async def _exchange(self, job: object) -> object:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                *command_of(MODULE, self._address), stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        source, target = process.stdout, process.stdin
        if source is None or target is None:
            raise OSError("no pipe")
        target.write(pack(job))
        await target.drain()
        size = HEADER.unpack(await source.readexactly(HEADER.size))[0]
        return unpack(await source.readexactly(size))

    def _end_idle(self) -> None:
        """Let it end by itself: it sees the end of its input."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
