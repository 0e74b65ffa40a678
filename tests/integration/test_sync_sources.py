"""Chains of sync sources, and a member in maintenance mode, by the commands that operators have. Real processes."""

from __future__ import annotations

import pytest

from replset.cli.local_set import LocalMember, wait_until
from replset.cli.main import main
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import ForkedSet
from tests.integration.talk import all_counted, insert, run, same_everywhere, state, status


def source_of(member: LocalMember, by: LocalMember | None = None) -> str:
    """As the member says itself, or as another one knows it by heartbeats."""
    rows = status(by or member)["members"]
    return str(next(row["syncSourceHost"] for row in rows if row["name"] == member.host))


def secondaries(local: ForkedSet) -> list[LocalMember]:
    primary = local.wait_for_primary()
    return [member for member in local.members if member is not primary]


def test_a_chain_by_the_operators_choice(make_set: MakeSet, capsys: pytest.CaptureFixture[str]) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    middle, last = secondaries(local)
    insert(primary, 0)
    assert main(["sync-from", middle.host, "--host", last.host]) == 0
    assert f"{last.host} syncs from {middle.host} (before: {primary.host})" in capsys.readouterr().out
    wait_until(lambda: source_of(last) == middle.host, 10, "the chain")
    for number in range(1, 21):
        insert(primary, number, w=3)
    wait_until(lambda: source_of(last, by=middle) == middle.host, 10, "the chain to be known")
    assert main(["sync-from", last.host, "--host", middle.host]) == 2
    assert "it syncs from this member" in capsys.readouterr().err
    local.kill(middle)
    insert(primary, 21)
    wait_until(lambda: source_of(last) == primary.host, 20, "the last member to return to the primary")
    local.start(middle)
    assert len(same_everywhere(local)) == 22


def test_without_chaining_everybody_fetches_from_the_primary(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    middle, last = secondaries(local)
    run(last, {"replSetSyncFrom": middle.host}, "admin")
    wait_until(lambda: source_of(last) == middle.host, 10, "the chain")
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    config["version"] += 1
    config["settings"]["chainingAllowed"] = False
    run(primary, {"replSetReconfig": config}, "admin")
    wait_until(lambda: source_of(last) == primary.host, 10, "the end of the chain")
    assert last.command({"replSetSyncFrom": middle.host})["code"] == 72
    insert(primary, 1, w=3)


def test_a_member_in_maintenance_mode_serves_no_reads_and_acknowledges(
    make_set: MakeSet, capsys: pytest.CaptureFixture[str]
) -> None:
    local = make_set()
    primary, (member, other) = local.wait_for_primary(), secondaries(local)
    assert main(["maintenance", "on", "--host", member.host]) == 0
    assert f"{member.host} is RECOVERING" in capsys.readouterr().out
    assert run(member, {"hello": 1}, "admin")["secondary"] is False
    find = {"find": "orders", "$db": "shop", "$readPreference": {"mode": "secondary"}}
    assert member.command(find, "shop")["code"] == 13436
    row = next(row for row in status(member)["members"] if row.get("self"))
    assert row["maintenanceMode"] == 1
    local.kill(other)
    insert(primary, 1)  # a majority of three: this member is the second
    assert main(["maintenance", "off", "--host", member.host]) == 0
    assert state(member) == "SECONDARY"
    assert main(["maintenance", "off", "--host", member.host]) == 2
    assert "already out of maintenance mode" in capsys.readouterr().err


def test_the_oplog_is_resized_and_a_restart_keeps_it(make_set: MakeSet, capsys: pytest.CaptureFixture[str]) -> None:
    local = make_set()
    member = secondaries(local)[0]
    assert main(["resize-oplog", "2000", "--min-retention-hours", "2", "--host", member.host]) == 0
    assert "also after a restart" in capsys.readouterr().out

    def most_bytes() -> int:
        return int(run(member, {"collStats": "oplog.rs", "$readPreference": {"mode": "secondary"}}, "local")["maxSize"])

    assert most_bytes() == 2_000 << 20
    local.kill(member)
    local.start(member)
    wait_until(lambda: state(member) == "SECONDARY", 20, "the member to be back")
    assert most_bytes() == 2_000 << 20
    assert main(["resize-oplog", "1", "--host", member.host]) == 2
    assert "must be from 990" in capsys.readouterr().err


def test_a_member_without_indexes_has_the_documents(make_set: MakeSet) -> None:
    """It came with a copy that had an index, and follows a build; it serves no member with indexes."""
    local = make_set()
    primary = local.wait_for_primary()
    insert(primary, *range(50))
    run(primary, {"createIndexes": "orders", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
    member = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
    row = {"host": member.host, "buildIndexes": False, "priority": 0}
    run(primary, {"replSetAddMember": row}, "admin")
    all_counted(local)
    run(primary, {"createIndexes": "orders", "indexes": [{"key": {"x": 1}, "name": "x_1"}]})
    insert(primary, 50, w=4)
    command = {"listIndexes": "orders", "$readPreference": {"mode": "secondary"}}
    names = {m.host: [i["name"] for i in run(m, command)["cursor"]["firstBatch"]] for m in local.members}
    assert names.pop(member.host) == ["_id_"]
    assert all(found == ["_id_", "n_1", "x_1"] for found in names.values())
    assert len(same_everywhere(local)) == 51
    assert run(member, {"hello": 1}, "admin")["buildIndexes"] is False
    assert secondaries(local)[0].command({"replSetSyncFrom": member.host})["code"] == 72


def test_a_member_that_was_too_stale_reports_no_rollback(make_set: MakeSet) -> None:
    """What it exports before it copies anew is committed, and was in the set's history before that was trimmed."""
    local = make_set()
    for member in local.members:
        local.kill(member)
        member.flags += ["--oplog-size-mb", "0.2", "--oplog-lagging-mb", "0"]
    for member in local.members:
        local.start(member)
    primary = local.wait_for_primary()
    away = secondaries(local)[0]
    insert(primary, *range(500))
    wait_until(
        lambda: status(away)["optimes"]["appliedOpTime"] == status(primary)["optimes"]["appliedOpTime"], 20, "it"
    )
    local.kill(away)
    run(primary, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 5}, "admin")
    primary = local.wait_for_primary()  # the rest of the oplog is of a later term
    newest = status(primary)["optimes"]["appliedOpTime"]["ts"]

    def is_trimmed() -> bool:
        run(primary, {"insert": "filler", "documents": [{"x": "x" * 20_000} for _ in range(20)]})
        oldest = {"find": "oplog.rs", "sort": {"$natural": 1}, "limit": 1}
        oldest["$readPreference"] = {"mode": "secondaryPreferred"}
        found = [run(member, oldest, "local")["cursor"]["firstBatch"] for member in local.members if member is not away]
        return all(entries[0]["ts"] > newest for entries in found)  # either may be its sync source

    wait_until(is_trimmed, 60, "both oplogs to be trimmed")
    local.start(away)
    all_counted(local)
    same_everywhere(local)
    assert "too stale" in away.log.read_text()
    assert [row["unacknowledgedRollbacks"] for row in status(away)["members"]] == [0, 0, 0]
