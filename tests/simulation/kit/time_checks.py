"""What a wall clock that was far from right must not leave behind, once it is right and some time has passed."""

from __future__ import annotations

from replset.ids import OpTime
from replset.storage.sqlite import first_row
from replset.storage.store import Store
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.environment import Environment

TRIMMED_WITHIN_S = 20
"""After the history that is kept for reads."""
TRIMMED_IN_TURN_S = 5
LAG_S = 10
SINCE_TRIMMED = 1024
"""Bytes of entries that a set at rest may add between two looks."""


def violation_of_time(cluster: SimCluster, written: OpTime, environment: Environment) -> str | None:
    """Return what stays untrimmed or is held back, of entries up to `written`, which are older than the history; None:
    nothing.
    """
    for machine in cluster.members():
        member = machine.running
        if member is None or machine.arbiter:
            continue
        left = _undo_rows(member.store, written)
        if left:
            return f"{machine.name} keeps {left} undo rows of entries up to {written}, which are old and committed"
        size, most = member.store.oplog_bytes, max(environment.oplog_bytes, environment.oplog_lagging_bytes)
        copied = member.snapshots.needed()  # a copy that nobody fetches keeps the entries behind it until it expires
        needed = written if copied is None else min(written, copied, key=lambda at: at.ts)
        if size > most + SINCE_TRIMMED and member.store.oldest.ts < min(member.node.commit_point.ts, needed.ts):
            return f"{machine.name} keeps {size} bytes of oplog, and {most} are enough"
        lag_ms = member.node.lag_ms()
        if lag_ms is None or lag_ms > (cluster.delay_s + LAG_S) * 1000:
            return f"{machine.name} says that it is {lag_ms} ms behind, in a set that is idle"
        if member.store.last_applied < written:
            return f"{machine.name} is held back at {member.store.last_applied}, and {written} is old"
    return None


def _undo_rows(store: Store, written: OpTime) -> int:
    pin = store.oldest_pin
    through = min(written.ts, store.commit_point.ts, written.ts if pin is None else pin.ts)
    (count,) = store.query(
        lambda connection: first_row(connection, "SELECT count(*) FROM undo WHERE ts <= ?", (through,))
    )
    return int(count)
