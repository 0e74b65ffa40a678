"""Failover on real processes with MongoDB's timeouts: a killed primary, a hand-over by choice, one broken link."""

from __future__ import annotations

import os
import signal
import time

import pytest

from replset.cli.local_set import LocalMember, wait_until
from replset.cli.main import main
from tests.integration.conftest import MakeSet
from tests.integration.talk import all_counted, cut, heal, ids, insert, run, status

DEFAULT: dict[str, object] = {
    "electionTimeoutMillis": 10_000,
    "heartbeatIntervalMillis": 2_000,
    "heartbeatTimeoutSecs": 10,
}


def test_a_killed_primary_is_replaced_before_the_election_timeout(make_set: MakeSet) -> None:
    local = make_set(**DEFAULT)
    old = local.wait_for_primary()
    insert(old, *range(10))
    local.kill(old)
    new = local.wait_for_primary()
    insert(new, 10)
    assert status(new)["electionCandidateMetrics"]["lastElectionReason"] == "fastFailover"
    assert ids(new) == list(range(11))
    assert run(new, {"hello": 1}, "admin")["me"] != old.host
    lines = new.log.read_text().splitlines()
    became = f" INFO replset.member this member is PRIMARY in term {status(new)['term']}, it was SECONDARY"
    assert any(line.endswith(became) for line in lines)
    assert any(" WARNING " in line and f"member: {old.host} is not reachable" in line for line in lines)


def test_a_paused_primary_is_left_to_the_election_timeout(make_set: MakeSet) -> None:
    """It refuses no connect, and may go on at any moment."""
    local = make_set(electionTimeoutMillis=600_000, heartbeatIntervalMillis=250, heartbeatTimeoutSecs=1)
    primary = local.wait_for_primary()
    term = status(primary)["term"]
    others = [member for member in local.members if member is not primary]
    os.kill(primary.pid, signal.SIGSTOP)
    try:
        for member in others:
            wait_until(lambda member=member: not is_healthy(primary, by=member), 60, "the pause to be noticed")
        assert local.primary(among=others) is None
    finally:
        os.kill(primary.pid, signal.SIGCONT)
    wait_until(lambda: local.primary() is primary, 10, "the primary to go on")
    assert status(primary)["term"] == term


def is_healthy(member: LocalMember, by: LocalMember) -> bool:
    return next(row["health"] == 1.0 for row in status(by)["members"] if row["name"] == member.host)


def test_the_operator_chooses_the_next_primary(make_set: MakeSet, capsys: pytest.CaptureFixture[str]) -> None:
    local = make_set(**DEFAULT)
    old = local.wait_for_primary()
    chosen = [member for member in local.members if member is not old][-1]
    insert(old, *range(10), w=1)
    assert main(["step-up", chosen.host]) == 0
    assert capsys.readouterr().out == f"{chosen.host} is primary\n"
    assert local.primary() is chosen
    insert(chosen, 10)
    assert ids(chosen) == list(range(11))  # nothing was rolled back
    assert main(["step-up", chosen.host]) == 0
    assert "is primary already" in capsys.readouterr().out
    reply = chosen.command({"replSetStepDown": 10, "handOverTo": "127.0.0.1:1"})
    assert (reply["code"], "no other member" in str(reply["errmsg"])) == (74, True)
    reply = chosen.command({"replSetAbortPrimaryCatchUp": 1})
    assert reply["code"] == 20


def test_one_broken_link_changes_no_primary(make_set: MakeSet) -> None:
    local = make_set()
    primary, deaf, _ = (local.wait_for_primary(), *(m for m in local.members if m is not local.primary()))
    term = status(primary)["term"]
    cut(deaf, [primary])
    cut(primary, [deaf])
    for number in range(40):
        insert(primary, number)
        time.sleep(0.1)
    assert status(primary)["term"] == term
    heal(deaf)
    heal(primary)
    all_counted(local)
    assert local.primary() is primary
