"""Write concerns: the value, whether a configuration can meet one, whether an entry meets it (map A8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from replset.config import ReplSetConfig
from replset.core.messages import Position, Refused
from replset.errors import ErrorCode
from replset.ids import OpTime

MAJORITY = "majority"


@dataclass(frozen=True, slots=True)
class WriteConcern:
    """w: number of members, or "majority". j: whether on their disks, None: not given. wtimeout_ms: 0 waits for ever.

    provenance: clientSupplied, customDefault or implicitDefault (map W6).
    """

    w: int | str = MAJORITY
    j: bool | None = None
    wtimeout_ms: int = 0
    provenance: str = "clientSupplied"

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {"w": self.w, "wtimeout": self.wtimeout_ms}
        if self.j is not None:
            document["j"] = self.j
        return {**document, "provenance": self.provenance}


def implicit_default(config: ReplSetConfig) -> WriteConcern:
    """{w: 1} if with arbiters one lost member could block majority writes, else majority (map W6)."""
    voters = [member for member in config.members if member.votes == 1]
    holders = [member for member in voters if member.bears_data]
    with_arbiters = len(holders) < len(voters)
    if with_arbiters and len(holders) <= len(voters) // 2 + 1:
        return WriteConcern(1, provenance="implicitDefault")
    return WriteConcern(MAJORITY, provenance="implicitDefault")


def kept_default(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """What is reported once majority is stored as the set's default before `new`, whose implicit default is another."""
    if implicit_default(old).w == MAJORITY:
        would_be = f"without it, this change would have made it {{w: {implicit_default(new).w!r}}}"
    else:
        would_be = "it was {w: 1}, because of the arbiters"
    return f"the default write concern is {{w: 'majority'}} from now on: {would_be}; setDefaultRWConcern changes it"


def unsatisfiable(config: ReplSetConfig, concern: WriteConcern) -> Refused | None:
    """Why the set as configured can never meet `concern`, None when it can (codes 100 and 79)."""
    if isinstance(concern.w, str):
        if concern.w == MAJORITY:
            return None
        return Refused(
            ErrorCode.UNKNOWN_WRITE_CONCERN_MODE, f"no write concern mode named {concern.w!r} in the configuration"
        )
    holders = len(config.data_bearing)
    if concern.w > holders:
        return Refused(
            ErrorCode.UNSATISFIABLE_WRITE_CONCERN,
            f"w: {concern.w} asks for more members than the {holders} that hold data",
        )
    return None


def satisfied(
    concern: WriteConcern,
    optime: OpTime,
    own: Position,
    positions: Callable[[], Iterable[Position]],
    committed: OpTime,
) -> bool:
    """Whether the entry at `optime` meets `concern`.

    positions: gives those of the data-bearing members, own included. committed: the commit point; with j, what of it a
    majority has on disk. Only the commit point counts for "majority": an entry of an older term may be on a majority
    and be rolled back all the same, until an entry of this primary's own term is committed (Raft, 5.4.2).
    """
    if isinstance(concern.w, str):
        return committed >= optime
    if concern.j and own.last_durable < optime:
        return False
    if concern.w <= 1:
        return True
    if concern.j:
        return sum(position.last_durable >= optime for position in positions()) >= concern.w
    return sum(position.last_applied >= optime for position in positions()) >= concern.w
