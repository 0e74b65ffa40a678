"""Whose hash chain is the set's: what the members say of one entry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from replset.core.messages import ChainsCompared, DamageFound, Report
from replset.ids import HostPort, OpTime
from replset.replication.chain_check import compare_chains
from tests.unit.replication.kit import NS, Member, Network, copy_log, numbered


@pytest.fixture
def members(tmp_path: Path) -> list[Member]:
    network = Network()
    made = [Member(f"m{number}:1", tmp_path, network) for number in range(3)]
    made[0].create(NS)
    made[0].insert(NS, *numbered(range(5)))
    for other in made[1:]:
        copy_log(made[0], other)
    return made


def compare(mine: Member, *others: Member, at: OpTime | None = None) -> Report:
    hosts = [HostPort(other.host) for other in others]
    asyncio.run(compare_chains(mine.context, mine.network, at or mine.store.last_applied, hosts))
    report = mine.reports.pop()
    assert not mine.reports
    return report


def change(member: Member, column: str) -> None:
    newest = member.store.last_applied
    member.store._connection.execute(f"UPDATE oplog SET {column} = {column} + 1 WHERE ts = ?", (newest.ts,))


def counts(found: ChainsCompared) -> tuple[int, int, int]:
    return found.same, found.other, found.silent


def test_members_that_agree_or_cannot_say(members: list[Member]) -> None:
    """One that is down, and one that does not hold the entry, cannot."""
    found = compare(*members)
    assert (found.at, *counts(found)) == (members[0].store.last_applied, 3, 0, 0)
    members[0].insert(NS, {"_id": "new"})
    members[0].network.down.add(members[1].host)
    assert counts(compare(*members)) == (1, 0, 2)


def test_a_member_with_another_history_finds_itself_alone(members: list[Member]) -> None:
    for member, text in zip(members, ("mine", "theirs", "theirs"), strict=True):
        member.insert(NS, {"_id": "same optime", "text": text})
    assert counts(compare(*members)) == (1, 2, 0)


@pytest.mark.parametrize("column", ["hash", "chain"])
def test_damage_of_my_own_needs_nobody_else_to_be_seen(members: list[Member], column: str) -> None:
    change(members[0], column)
    assert isinstance(compare(*members), DamageFound)


def test_a_damaged_member_is_no_witness(members: list[Member]) -> None:
    change(members[1], "chain")
    assert counts(compare(*members)) == (2, 0, 1)
    assert members[1].damage
