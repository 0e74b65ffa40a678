"""Counting votes and copies. Functions of values, without state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    newest_first = sorted((durable.get(holder, OPTIME_NULL) for holder in holders), reverse=True)
    on_majority = newest_first[write_majority - 1]
    return on_majority if on_majority.term == term else OPTIME_NULL


def has_majority(votes: int, voters: int) -> bool:
    """Whether `votes` of `voters` are more than half."""
    return votes * 2 > voters
