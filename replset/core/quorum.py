"""How many votes and copies are enough: majorities, the commit point, and write concerns (map A8). Without state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from replset.config import Member, ReplSetConfig, TagCounts
from replset.core.messages import Position, Refused
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, MemberId, OpTime, invariant


def commit_point(
    durable: Mapping[MemberId, OpTime], holders: Collection[MemberId], write_majority: int, term: int
) -> OpTime:
    """Return the newest optime that enough voters hold on disk to survive any election (map C8, K1).

    durable: last_durable by member; members that did not report are absent. holders: ids of the voters that hold the
    oplog, witnesses too. write_majority: min(voters // 2 + 1, len(holders)). Returns OPTIME_NULL until an entry of the
    primary's own `term` is on that many. An older entry on a majority can still be rolled back by a primary of a term
    in between; it is safe only once an entry of this term follows it (Raft, 5.4.2).
    """
    invariant(0 < write_majority <= len(holders), "a write majority is made of voters that hold the oplog")
    newest_first = sorted([durable.get(holder, OPTIME_NULL) for holder in holders], reverse=True)
    on_majority = newest_first[write_majority - 1]
    return on_majority if on_majority.term == term else OPTIME_NULL


def has_majority(votes: int, voters: int) -> bool:
    """Whether `votes` of `voters` are more than half."""
    return votes * 2 > voters


MAJORITY = "majority"
IN_SYNC = "inSync"


@dataclass(frozen=True, slots=True)
class WriteConcern:
    """What a write waits for. j: whether on their disks, None: not given. wtimeout_ms: 0 waits for ever.

    w: number of members; "majority"; "inSync", a majority and all members that are in sync; the name of a mode in the
    configuration; or tags with their counts.
    provenance: clientSupplied, customDefault or implicitDefault (map W6), durabilityLevel. level_of: the namespace in
    settings.durabilityLevels whose level may be lowered while the write waits; then it waits for less.
    """

    w: int | str | TagCounts = MAJORITY
    j: bool | None = None
    wtimeout_ms: int = 0
    provenance: str = "clientSupplied"
    level_of: str = ""

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "w": dict(self.w) if isinstance(self.w, tuple) else self.w,
            "wtimeout": self.wtimeout_ms,
        }
        if self.j is not None:
            document["j"] = self.j
        return {**document, "provenance": self.provenance}


def implicit_default(config: ReplSetConfig) -> WriteConcern:
    """{w: 1} if with arbiters one lost member could block majority writes, else majority (map W6)."""
    voters = [
        member
        for member in config.members
        if member.votes == 1 and (member.spare_for is None or config.member(member.spare_for) is None)
    ]
    holders = [member for member in voters if member.holds_oplog]
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


def tag_counts(config: ReplSetConfig, concern: WriteConcern) -> TagCounts | None:
    """Return the tags that `concern` asks for, by itself or by a mode of the configuration; None: it asks for none."""
    if isinstance(concern.w, str):
        return config.settings.write_concern_modes.get(concern.w)
    return concern.w if isinstance(concern.w, tuple) else None


class Number(NamedTuple):
    """A write concern that asks for a number of these members."""

    needed: int
    members: tuple[Member, ...]


def number_of(config: ReplSetConfig, concern: WriteConcern) -> Number | None:
    """Return how many of which members `concern` asks for, by itself or by a built-in mode (map C7); None: it asks for
    tags, or for a mode of the configuration.
    """
    match concern.w:
        case int(w):
            return Number(w, config.data_bearing)
        case "majority" | "inSync" | "$majority":
            return Number(config.write_majority, config.oplog_voters)
        case "$votingMembers":
            voters = tuple(member for member in config.oplog_voters if member.bears_data)
            return Number(len(voters), voters)
        case "$stepDownCheck":
            return Number(2, tuple(member for member in config.members if member.is_electable))
    return None


def is_enough(config: ReplSetConfig, concern: WriteConcern, holders: Collection[MemberId]) -> bool:
    """Whether these members, if they have an entry, are as many and of the kind that `concern` asks for.

    A witness counts for a majority alone. "inSync" asks for a majority at least. A mode that the configuration does not
    have is met by nobody.
    """
    number = number_of(config, concern)
    if number is not None:
        return sum(member.id in holders for member in number.members) >= number.needed
    counts = tag_counts(config, concern)
    if counts is None:
        return False
    members = [member for member in config.data_bearing if member.id in holders]
    return all(len({member.tags[tag] for member in members if tag in member.tags}) >= count for tag, count in counts)


def unsatisfiable(config: ReplSetConfig, concern: WriteConcern) -> Refused | None:
    """Why the set as configured can never meet `concern`, None when it can (codes 100 and 79)."""
    if concern.w in (MAJORITY, IN_SYNC):  # every configuration can; asked for each majority write
        return None
    number = number_of(config, concern)
    if number is None and isinstance(concern.w, str) and tag_counts(config, concern) is None:
        return Refused(
            ErrorCode.UNKNOWN_WRITE_CONCERN_MODE, f"no write concern mode named {concern.w!r} in the configuration"
        )
    if is_enough(config, concern, [member.id for member in config.oplog_holders]):
        return None
    if isinstance(concern.w, int):
        reason = f"w: {concern.w} asks for more members than the {len(config.data_bearing)} that hold data"
    elif number is not None:
        reason = f"w: {concern.w!r} asks for {number.needed} members of its kind, and there are {len(number.members)}"
    else:
        asked = ", ".join(f"{count} of {tag}" for tag, count in tag_counts(config, concern) or ())
        reason = f"w: {concern.document()['w']!r} asks for different tags ({asked}), and the members have fewer"
    return Refused(ErrorCode.UNSATISFIABLE_WRITE_CONCERN, reason)


def satisfied(
    concern: WriteConcern,
    optime: OpTime,
    own: Position,
    positions: Callable[[], Iterable[Position]],
    committed: OpTime,
) -> bool:
    """Whether the entry at `optime` meets `concern`, which asks for a number of members or for a majority.

    positions: gives those of the data-bearing members, own included. committed: the commit point; with j, what of it a
    majority has on disk. Only the commit point counts for "majority": an entry of an older term may be on a majority
    and be rolled back all the same, until an entry of this primary's own term is committed (Raft, 5.4.2).
    """
    if not isinstance(concern.w, int):
        return committed >= optime
    if concern.j and own.last_durable < optime:
        return False
    if concern.w <= 1:
        return True
    if concern.j:
        return sum(position.last_durable >= optime for position in positions()) >= concern.w
    return sum(position.last_applied >= optime for position in positions()) >= concern.w
