"""What a driver knows of a member's role: topologyVersion, and the wait for its next change (map B2)."""

from __future__ import annotations

from replset.bson import Int64, ObjectId
from replset.commands.waiters import Notifier
from replset.replication.ports import Clock


class Topology:
    """counter: grows with each change of state, configuration, primary or writability. process_id: made at start."""

    def __init__(self, process_id: ObjectId, clock: Clock) -> None:
        self.process_id = process_id
        self.counter = 0
        self._clock = clock
        self._changes = Notifier()

    def document(self) -> dict[str, object]:
        """Return it as topologyVersion."""
        return {"processId": self.process_id, "counter": Int64(self.counter)}

    def on_changed(self) -> None:
        self.counter += 1
        self._changes.notify()

    async def wait(self, counter: int, timeout_ms: int) -> None:
        """Return when the counter is not `counter` any more, or after `timeout_ms`."""
        deadline = self._clock.now() + timeout_ms
        while self.counter == counter:
            left = deadline - self._clock.now()
            if left <= 0 or not await self._changes.wait(left):
                return
