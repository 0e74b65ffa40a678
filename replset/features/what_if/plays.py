"""The process that plays for a member, `python -m replset.features.what_if.plays`, and the part that runs it.

One play takes 70 ms with three members, half a second with seven and half a minute with fifty. So plays are neither
slices of the event loop nor work of a thread: heartbeats and all clients would wait for each. A process of low priority
keeps nobody waiting, and it can be ended at any moment. One BSON document goes in, one comes out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from replset.bson import RawDocument, decode, encode
from replset.config import ReplSetConfig
from replset.errors import ErrorCode, MaxTimeMSExpiredError, ReplError
from replset.features.what_if.forecast import foresee, story
from replset.features.what_if.situation import deed_of, set_of
from replset.member.feature import FeaturePart
from replset.operations.kernel import Kernel
from replset.own_process import command_of

MODULE: Final = "replset.features.what_if.plays"
PLAYS_S: Final = 5.0
"""The process begins no play after this; the answer says how many there were."""
LIMIT_S: Final = 60.0
"""It is ended after this: one play of a very large set may take half of it. The wait for others before it counts."""
NICENESS: Final = 10


class Plays(FeaturePart):
    """Runs one such process at a time, and ends it with whoever asked, or with the member."""

    def __init__(self, member: Kernel) -> None:
        self._workers = member.workers
        self._one_at_a_time = asyncio.Lock()
        self._process: _Process | None = None

    async def run(self, job: Mapping[str, object], limit_s: float) -> RawDocument:
        """Return what `answer` gives for the job, behind those that came before. MaxTimeMSExpiredError: after `limit_s`
        it is not there.
        """
        try:
            async with asyncio.timeout(limit_s), self._one_at_a_time:
                process, question = _Process(), encode(job)
                self._process = process
                try:
                    return RawDocument(await self._workers.run(lambda: process.run(question)))
                finally:
                    self._process = None
                    process.end()
        except TimeoutError as error:
            text = (
                f"no answer within {limit_s:g} s: others may be played before it; `replset what-if` plays where you are"
            )
            raise MaxTimeMSExpiredError(text) from error

    async def close(self) -> None:
        if self._process is not None:
            self._process.end()


class _Process:
    """The process of one job. It is started in a thread, and may be ended before it is there."""

    def __init__(self) -> None:
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, question: bytes) -> bytes:
        """Run in a thread. ReplError: it cannot be started, or was ended."""
        command, pipe = command_of(MODULE), subprocess.PIPE
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
                self._process = process
                if self._is_over:
                    process.kill()
                found, _ = process.communicate(question)
        except OSError as error:
            raise ReplError(f"the plays cannot be started: {error}", code=ErrorCode.OPERATION_FAILED) from error
        if process.returncode:
            text = f"the plays ended with status {process.returncode}; the log may say why"
            raise ReplError(text, code=ErrorCode.OPERATION_FAILED)
        return found

    def end(self) -> None:
        self._is_over = True
        if self._process is not None:
            self._process.kill()


def answer(job: Mapping[str, Any]) -> dict[str, object]:
    """Return the forecast, or the code and the reason of a refusal. job: the set's `config`, the `replies` to
    replSetGetStatus by member, whose reply is the `view`; `deed`, `host` and `plays`, as they were asked for.
    """
    parent, ends = os.getppid(), time.monotonic() + PLAYS_S
    try:
        known, weights, waiting = set_of(ReplSetConfig.parse(job["config"], keep=True), job["replies"], job["view"])
        deed = deed_of(known, job["deed"], [job["host"]], [])
    except ReplError as error:
        return {"code": error.code, "errmsg": error.message}
    # An orphan ends too: its member was killed.
    is_over = lambda: time.monotonic() > ends or os.getppid() != parent  # noqa: E731
    found = foresee(known, deed, weights, job["plays"], is_over)
    return {**found.document(), "uncommittedWrites": waiting, "text": list(story(deed, known, found, waiting))}


if __name__ == "__main__":
    os.nice(NICENESS)
    sys.stdout.buffer.write(encode(answer(decode(sys.stdin.buffer.read()))))
