"""Write and read concern on a running member: what a client waits for before it is answered. Rules are the core's."""

from __future__ import annotations

from collections.abc import Callable

from replset.commands.ports import Level, WriteConcernFailure
from replset.core.member_state import MemberState
from replset.core.node import Node
from replset.core.write_concern import WriteConcern, unsatisfiable
from replset.errors import (
    ErrorCode,
    MaxTimeMSExpiredError,
    NotPrimaryOrSecondaryError,
    NotWritablePrimaryError,
    PrimarySteppedDownError,
)
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.replication.ports import Clock
from replset.runtime.waiters import Bell, Waiters, done_within
from replset.storage.store import Store


class Concerns:
    """The waits of one member's clients. news: rings with whatever a read may wait for."""

    def __init__(self, node: Node, store: Callable[[], Store], clock: Clock, news: Bell) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._news = news
        self._waiters = Waiters()

    def release(self) -> None:
        """Somebody's last_applied or last_durable, or the commit point, moved."""
        self._waiters.release()

    def stepped_down(self) -> None:
        self._waiters.fail_all(lambda: PrimarySteppedDownError("the primary stepped down"))

    async def wait_for_write_concern(
        self, optime: OpTime, concern: WriteConcern, deadline: Millis | None
    ) -> WriteConcernFailure | None:
        """See `commands/ports.MemberPort`."""
        config = self._node.config
        if config is not None and (refusal := unsatisfiable(config, concern)) is not None:
            return WriteConcernFailure(refusal.code, refusal.reason)
        wait = WriteConcern(concern.w, concern.j, 0, "")
        # An entry of an earlier term may have been rolled back before this member led again.
        if optime.term >= self._node.term and self._node.is_satisfied(wait, optime):
            return None
        if optime.term < self._node.term or self._node.state is not MemberState.PRIMARY:
            return WriteConcernFailure(
                ErrorCode.PRIMARY_STEPPED_DOWN, "the primary stepped down", progress=self._node.member_progress()
            )
        timeout_ms = concern.wtimeout_ms or None
        by_deadline = False
        if deadline is not None:
            left = max(0, deadline - self._clock.now())
            by_deadline = timeout_ms is None or left < timeout_ms
            timeout_ms = left if by_deadline else timeout_ms
        key = (wait.w, bool(wait.j))
        future = self._waiters.add(key, optime, lambda reached: self._node.is_satisfied(wait, reached))
        try:
            if await done_within(future, timeout_ms):
                return None
        except PrimarySteppedDownError as error:
            return WriteConcernFailure(
                ErrorCode.PRIMARY_STEPPED_DOWN, error.message, progress=self._node.member_progress()
            )
        if by_deadline:
            return WriteConcernFailure(
                ErrorCode.MAX_TIME_EXPIRED, "operation exceeded time limit", progress=self._node.member_progress()
            )
        text = "waiting for replication timed out"
        return WriteConcernFailure(
            ErrorCode.WRITE_CONCERN_TIMEOUT, text, timed_out=True, progress=self._node.member_progress()
        )

    async def wait_for_read(self, level: Level, after: int | None, deadline: Millis | None) -> OpTime | None:
        """See `commands/ports.MemberPort`."""
        while True:
            if level == "linearizable" and self._node.state is not MemberState.PRIMARY:
                raise NotWritablePrimaryError(
                    "cannot satisfy linearizable read concern on non-primary node", primary=self._node.primary_host
                )
            if not self._node.state.is_readable:
                raise NotPrimaryOrSecondaryError(f"this member is in {self._node.state.name}: it serves no reads now")
            point = self._read_point(level)
            if point is not None and (after is None or point.ts >= after):
                return point if level == "majority" else None
            left = None if deadline is None else deadline - self._clock.now()
            if left is not None and left <= 0:
                raise MaxTimeMSExpiredError("operation exceeded time limit while waiting for the read concern")
            await self._news.wait(left)

    def _read_point(self, level: Level) -> OpTime | None:
        """Up to where a read may see now; None: nowhere yet. A primary's majority and linearizable reads wait for its
        own term.
        """
        if level == "local":
            return self._store().last_applied
        if level == "linearizable" and not self._node.writable:
            return None
        point = min(self._node.commit_point, self._store().last_applied)
        if point == OPTIME_NULL or (self._node.state is MemberState.PRIMARY and point.term != self._node.term):
            return None
        return point
