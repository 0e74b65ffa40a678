"""The lines of the journal become elections again, with phases, refusals and what came before."""

from __future__ import annotations

from typing import Any

from replset.core.effects import RecordElectionEvent
from replset.core.member_state import MemberState
from replset.features.administration.election_journal import find_elections
from replset.storage.member_file import JournalLine
from tests.rig import Client, Rig
from tests.simulation.core_kit.machine import host
from tests.unit.core.single_node import SingleNode, grant, only, ready
from tests.unit.core.test_elections import until_election_starts


def lines_of(effects: list[Any], wall_ms: int) -> list[JournalLine]:
    records = [effect.record for effect in only(effects, RecordElectionEvent)]
    return [JournalLine(wall_ms, record.term, record.event, record.detail) for record in records]


def candidate() -> tuple[SingleNode, list[JournalLine]]:
    node = ready()
    return node, lines_of(until_election_starts(node)[1], 1_000)


def test_an_election_that_is_won() -> None:
    node, lines = candidate()
    lines.insert(0, JournalLine(-20_000, 1, "member", "long before"))
    lines.insert(1, JournalLine(900, 1, "member", f"{host(1)} is not reachable: refused"))
    lines += lines_of(grant(node, 2), 1_004)
    lines += lines_of(grant(node, 2), 1_015)
    assert node.state is MemberState.PRIMARY
    lines += [JournalLine(1_020, 2, "draining", "nobody is ahead"), JournalLine(1_027, 2, "leading", "")]
    lines += [JournalLine(2_000, 2, "stepped down", "replSetStepDown")]
    (election,) = find_elections(lines)
    found = election.document()
    assert (found["reason"], found["outcome"], found["term"]) == ("electionTimeout", "won", 2)
    assert found["asked"] == [host(1), host(2)]
    assert found["grantedInDryRun"] == found["granted"] == [host(0), host(2)]
    assert found["phases"] == [
        {"phase": "dry run", "millis": 4},
        {"phase": "election", "millis": 11},
        {"phase": "catch-up", "millis": 5},
        {"phase": "drain", "millis": 7},
    ]
    assert [line.detail for line in election.before] == [f"{host(1)} is not reachable: refused"]
    assert election.ended is not None
    assert election.ended.detail == "replSetStepDown"


def test_a_dry_run_that_is_refused_is_quoted() -> None:
    node, lines = candidate()
    for number in (1, 2):
        lines += lines_of(grant(node, number, granted=False, reason="it has contact: with h0:1"), 1_010)
    (election,) = find_elections(lines)
    found = election.document()
    assert (found["outcome"], found["why"]) == ("lost", "1 of 2 votes")
    assert found["refused"] == [{"member": host(n), "reason": "it has contact: with h0:1"} for n in (1, 2)]
    assert found["phases"] == [{"phase": "dry run", "millis": 10}]


def test_each_election_is_one_row() -> None:
    lines = []
    for term, wall_ms in ((2, 100), (3, 200), (4, 300)):
        lines.append(JournalLine(wall_ms, term, "election", "stepUpRequestSkipDryRun: asking b:1; 2 of 2 votes needed"))
        lines.append(JournalLine(wall_ms + 1, term, "election lost", "0 of 2 votes"))
    assert [election.document()["term"] for election in find_elections(lines)] == [2, 3, 4]
    assert find_elections([JournalLine(1, 1, "vote", "for b:1 in term 1: granted")]) == []


def test_the_command_answers_newest_first_and_names_who_is_silent(rig: Rig, client: Client) -> None:
    rig.do(rig.lead_again())
    rig.wait(1)
    rows = client.ok({"replSetGetElections": 1}, "admin")["elections"]
    assert {(row["member"], row["outcome"]) for row in rows} == {("a:27017", "won")}
    assert [row["term"] for row in rows] == sorted({row["term"] for row in rows}, reverse=True)
    assert len(rows) >= 2
    assert client.code({"replSetGetElections": 1, "limit": 0}, "admin") in (2, 51024)
    assert "unreachable" in client.ok({"replSetGetElections": 1, "all": True}, "admin")
