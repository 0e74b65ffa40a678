"""The commands of operators on a real set: sync sources, maintenance, the oplog, spares, plans, who leads next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replset.cli.main import main
from replset.local_set import LocalMember, LocalSetError, wait_until
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import ForkedSet
from tests.integration.talk import (
    a_secondary,
    configuration,
    ids,
    insert,
    others_of,
    reconfigure,
    row_of,
    run,
    same_everywhere,
    state,
)

Capture = pytest.CaptureFixture[str]


def replset(capsys: Capture, *arguments: object, status: int = 0) -> str:
    """Run the command line; what it printed."""
    capsys.readouterr()
    found = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert found == status, out + err
    return out if status == 0 else err


def test_a_chain_by_the_operators_choice(local: ForkedSet, capsys: Capture) -> None:
    primary = local.wait_for_primary()
    middle, last = others_of(local, primary)

    def has_source(source: LocalMember, by: LocalMember) -> bool:
        return row_of(last, by)["syncSourceHost"] == source.host

    said = replset(capsys, "sync-from", middle.host, "--host", last.host)
    assert f"{last.host} syncs from {middle.host} (before: {primary.host})" in said
    wait_until(lambda: has_source(middle, last), 10, "the chain")
    insert(primary, *range(20), w=3)
    try:
        wait_until(lambda: has_source(middle, middle), 10, "the chain to be known")
    except LocalSetError:  # it failed once: the journal says why the source was left
        print(last.command({"replSetGetElections": 1}))
        raise
    assert "it syncs from this member" in replset(capsys, "sync-from", last.host, "--host", middle.host, status=2)
    reconfigure(local, {"chainingAllowed": False})
    wait_until(lambda: has_source(primary, last), 10, "the end of the chain")
    insert(primary, 21, w=3)


def test_a_member_in_maintenance_mode_serves_no_reads_and_acknowledges(local: ForkedSet, capsys: Capture) -> None:
    primary = local.wait_for_primary()
    member, other = others_of(local, primary)
    assert f"{member.host} is RECOVERING" in replset(capsys, "maintenance", "on", "--host", member.host)
    assert member.command({"find": "orders", "$readPreference": {"mode": "secondary"}}, "shop")["code"] == 13436
    local.kill(other)
    insert(primary, 1)  # a majority of three: this member is the second
    replset(capsys, "maintenance", "off", "--host", member.host)
    assert state(member) == "SECONDARY"
    assert "already out of" in replset(capsys, "maintenance", "off", "--host", member.host, status=2)


def test_the_oplog_is_resized_and_a_restart_keeps_it(local: ForkedSet, capsys: Capture) -> None:
    member = a_secondary(local)
    resize = ("resize-oplog", "2000", "--min-retention-hours", "2", "--host", member.host)
    assert "also after a restart" in replset(capsys, *resize)
    local.kill(member)
    local.start(member)
    wait_until(lambda: state(member) == "SECONDARY", 20, "the member to be back")
    found = run(member, {"collStats": "oplog.rs", "$readPreference": {"mode": "secondary"}}, "local")
    assert found["maxSize"] == 2_000 << 20
    live = replset(capsys, "oplog", "info", "--json", member.dbpath)
    local.stop(member)
    assert json.loads(replset(capsys, "oplog", "info", "--json", member.dbpath))["last"] >= json.loads(live)["last"]


def test_the_operator_chooses_the_next_primary(local: ForkedSet, capsys: Capture) -> None:
    reconfigure(local, {"electionTimeoutMillis": 10_000})
    old, chosen = local.wait_for_primary(), local.members[-1]
    insert(old, *range(10), w=1)
    if chosen is old:
        chosen = local.members[0]
    assert replset(capsys, "step-up", chosen.host) == f"{chosen.host} is primary\n"
    insert(chosen, 10)
    assert ids(chosen) == list(range(11)), "nothing was rolled back"
    assert "is primary already" in replset(capsys, "step-up", chosen.host)


@pytest.mark.in_turns
def test_a_spare_votes_for_a_member_that_was_killed(local: ForkedSet, capsys: Capture) -> None:
    primary = local.wait_for_primary()
    gone, other = others_of(local, primary)
    spare = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
    replset(capsys, "add", spare.host, "--host", primary.host, "--spare-after", "2", "--wait", "20")

    def own() -> dict[str, object]:
        return next(row for row in configuration(local)["members"] if row["host"] == spare.host)

    wait_until(lambda: row_of(spare, by=primary)["stateStr"] == "SECONDARY", 30, "the spare to have copied the data")
    local.kill(gone)
    wait_until(lambda: "spareFor" in own() and row_of(spare, by=primary)["counted"], 30, "the spare to vote")
    local.kill(other)
    insert(primary, 1)  # the primary and the spare are two of three
    local.start(gone)
    local.start(other)
    wait_until(lambda: "spareFor" not in own() and row_of(gone, by=primary)["counted"], 60, "the vote to be given back")


@pytest.mark.in_turns
def test_the_primary_is_replaced_by_a_plan(make_set: MakeSet, tmp_path: Path, capsys: Capture) -> None:
    local = make_set()
    old = local.wait_for_primary()
    insert(old, *range(20))
    new = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
    config = json.loads(replset(capsys, "conf", "--host", old.host))
    next(row for row in config["members"] if row["host"] == old.host)["host"] = new.host
    wanted = tmp_path / "new.json"
    wanted.write_text(json.dumps(config))

    said = replset(capsys, "reconfig", "--plan", wanted, "--host", old.host)
    assert said.splitlines()[0].startswith(f"1. add member {new.host}, and wait until it has caught up")
    assert f"{old.host} is primary and hands over first" in said
    assert said.endswith("step 2 of 2 is done\n")
    primary = local.wait_for_primary(among=others_of(local, old))
    insert(primary, 20)
    local.members.remove(old)
    assert {row["host"] for row in configuration(local)["members"]} == {member.host for member in local.members}
    assert len(same_everywhere(local)) == 21
    local.members.append(old)  # its process ends with the test
    assert "as wanted already" in replset(capsys, "reconfig", "--plan", wanted, "--host", primary.host)


def test_what_if_names_the_member_that_leads_after_a_kill(make_set: MakeSet, capsys: Capture) -> None:
    local = make_set(members=3)
    primary = local.wait_for_primary()
    insert(primary, *range(20), w=3)
    before = configuration(local)["version"]
    said = json.loads(replset(capsys, "what-if", "kill", primary.host, "--host", primary.host, "--plays", 10, "--json"))
    assert (configuration(local)["version"], local.wait_for_primary().host) == (before, primary.host)
    assert said["majorityWritesGoOn"] == 10
    local.kill(primary)
    leader = wait_for_other(local, primary)
    assert leader.host in said["primaries"]
    assert said["primaries"].keys() <= {other.host for other in others_of(local, primary)}
    assert insert(leader, 20)["n"] == 1


def wait_for_other(local: ForkedSet, gone: LocalMember) -> LocalMember:
    wait_until(lambda: any(state(each) == "PRIMARY" for each in others_of(local, gone)), 60, "another primary")
    return next(each for each in others_of(local, gone) if state(each) == "PRIMARY")
