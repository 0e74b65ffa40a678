"""The record of the archive: one holder at a time, what is archived never becomes less, gaps are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.bson import Int64
from replset.errors import RemoteProtocolError
from replset.features.archive import archive_lease
from replset.features.archive.archive_lease import ArchiveLease, ArchiveRecord, ArchiveStart, Claim, read_record
from replset.features.archive.segments import Position
from replset.ids import HostPort, OpTime
from replset.member.member import RunningMember
from tests.rig import Client

SET = "a" * 24
A, B = HostPort("a:1"), HostPort("b:1")
ONE, TWO, THREE = (Position(OpTime(1, number << 31 | 1), number) for number in (1, 2, 3))
START = ArchiveStart(ONE.optime, OpTime(0, 0))


def ask(client: Client, claim: Claim, set_id: str = SET) -> ArchiveRecord:
    record = client.rig.write(lambda group: client.member[ArchiveLease].grant(group, claim, set_id))
    assert read_record(client.member.store, set_id) == record
    return record


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, 3650 * 86_400_000, -3650 * 86_400_000])
def test_one_member_holds_the_lease_until_it_ends(client: Client, member: RunningMember, ahead_ms: int) -> None:
    """Whatever the primary's wall clock showed when it gave the lease."""
    member.clock.set_wall_ahead(ahead_ms)
    assert ask(client, Claim(A)).holder == A
    member.clock.set_wall_ahead(0)
    assert ask(client, Claim(B)).holder == A
    client.rig.wait((archive_lease.LEASE_MS - 100) / 1000)
    assert ask(client, Claim(B)).holder == A
    client.rig.wait(0.2)
    assert ask(client, Claim(B)).holder == B
    assert ask(client, Claim(A, "x", ONE)) == read_record(member.store, SET)
    assert read_record(member.store, SET).through is None, "who has lost the lease notes nothing"


def test_what_is_archived_never_becomes_less(client: Client) -> None:
    ask(client, Claim(A, "x", ONE, START))
    assert ask(client, Claim(A, "x", THREE)).through == THREE
    record = ask(client, Claim(A, "y", TWO, replace(START, oldest=TWO.optime)))
    assert (record.through, record.archive_id, record.start, record.gaps) == (THREE, "x", START, ())


def test_a_gap_is_kept_and_moves_the_start(client: Client) -> None:
    ask(client, Claim(A, "x", ONE, START))
    behind = ArchiveStart(THREE.optime, TWO.optime)
    record = ask(client, Claim(A, "x", THREE, behind))
    assert (record.start, len(record.gaps)) == (behind, 1)
    assert ArchiveRecord.parse(record.document()) == record
    assert ask(client, Claim(A, "x", THREE, behind)).gaps == record.gaps, "an answer that was lost notes none twice"


def test_the_record_of_another_set_is_none(client: Client) -> None:
    ask(client, Claim(A, "x", ONE, START))
    record = ask(client, Claim(B), "b" * 24)
    assert (record.holder, record.through, record.archive_id) == (B, None, "")


def test_only_members_get_it_and_an_administrator_may_forget_it(client: Client, member: RunningMember) -> None:
    assert client.code({"replSetArchiveLease": 1, "holder": "stranger:1"}, "admin") == 9
    reply = client.ok({"replSetArchiveLease": 1, "holder": "a:27017"}, "admin")
    assert reply["record"]["holder"] == "a:27017"
    client.ok({"replSetForgetArchive": 1}, "admin")
    assert read_record(member.store, "None") == ArchiveRecord("None")
    client.ok({"replSetForgetArchive": 1}, "admin")


def test_a_malformed_position_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        ArchiveRecord.parse({"through": {"ts": 1, "t": Int64(1)}})
