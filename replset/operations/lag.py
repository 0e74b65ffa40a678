"""How old an entry is, and how far a reader is behind, in time.

Both are measured, as far back as this member has listened. For what was before, the wall times of entries count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replset.errors import ReplError
from replset.ids import OpTime
from replset.storage import oplog

if TYPE_CHECKING:
    from replset.operations.kernel import Kernel


def behind_ms(member: Kernel, at: OpTime) -> int:
    """Return for how long the set has had an entry that a reader at `at` lacks; 0: it lacks none.

    at: of term 0 where only the timestamp is known.
    """
    try:
        row = None if at.term else member.store.row_at_or_before(at)
    except ReplError:  # the data is being replaced
        return 0
    lag_ms, is_whole = member.node.measured_lag_ms(at if row is None else row.optime, member.clock.now())
    return lag_ms if is_whole else max(lag_ms, _since_written(member, at.ts + 1))


def age_ms(member: Kernel, optime: OpTime) -> int:
    """Return for how long the set has had the entry at `optime`."""
    at_least, at_most = member.node.measured_age_ms(optime, member.clock.now())
    return max(at_least, _since_written(member, optime.ts)) if at_most is None else at_most


def _since_written(member: Kernel, ts: int) -> int:
    """How old the first entry with this ts or a later one is, by its wall time; 0 if there is none."""
    try:
        wall_ms = member.store.query(lambda connection: oplog.wall_ms_at(connection, ts))
    except ReplError:  # the data is being replaced
        return 0
    return 0 if wall_ms is None else member.clock.wall_ms() - wall_ms
