"""Counting: who holds what, who is up, and what follows from it. Functions of values, no state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from replset.ids import OPTIME_NULL, MemberId, OpTime, invariant


def commit_point(
    durable: Mapping[MemberId, OpTime], holders: Collection[MemberId], write_majority: int, term: int
) -> OpTime:
    """Return the newest optime that enough voters hold on disk to survive any election (map C8, K1).

    durable: last_durable by member, silent members absent. holders: voting data-bearing ids.
    write_majority: min(voters // 2 + 1, len(holders)). Returns OPTIME_NULL while nothing of the primary's own `term`
    is on that many: older entries commit only through a newer one (Raft, 5.4.2).
    """
    invariant(0 < write_majority <= len(holders), "a write majority is made of data-bearing voters")
    newest_first = sorted((durable.get(holder, OPTIME_NULL) for holder in holders), reverse=True)
    held = newest_first[write_majority - 1]
    return held if held.term == term else OPTIME_NULL


def has_majority(votes: int, voters: int) -> bool:
    """Whether `votes` of `voters` are more than half; a primary that loses this steps down (map H5)."""
    return votes * 2 > voters


def electable_majority(holders_caught_up: int, electable_caught_up: int, write_majority: int) -> bool:
    """Whether a stepdown may go on: a write majority has everything, and one of them can be elected (map E11)."""
    return holders_caught_up >= write_majority and electable_caught_up > 0
