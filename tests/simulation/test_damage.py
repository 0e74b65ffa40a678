"""A disk that changes an oplog entry: the damage does not spread, and the damaged member is the one that stops."""

from __future__ import annotations

import os
from dataclasses import replace

import apsw
import pytest

from replset.bson import encode, encode_key
from replset.core.member_state import MemberState
from replset.member.disk import housekeeping
from replset.member.member import RunningMember
from replset.oplog_row import entry_hash, next_chain
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.machine import DamagedEntry
from tests.simulation.kit.runs import draw_plan, run_seed
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run

OLD, NEW = b"token-2-", b"token-X-"


def member(cluster: SimCluster, name: str) -> RunningMember:
    running = cluster.machines[name].running
    assert running is not None
    return running


def damage_entry(scenario: ScenarioRun, name: str) -> None:
    """The disk changes the newest entry but three; this member's memory forgets it."""
    store = member(scenario.cluster, name).store
    sql = "SELECT ts, entry FROM oplog WHERE op = 'i' ORDER BY ts DESC LIMIT 1 OFFSET 3"
    ts, entry = next(store._connection.execute(sql))
    assert OLD in entry
    store._connection.execute("UPDATE oplog SET entry = ? WHERE ts = ?", (entry.replace(OLD, NEW), ts))
    store.tail.clear()
    scenario.cluster.damaged_entry = DamagedEntry(name, ts, entry)


def change_history(scenario: ScenarioRun, name: str) -> None:
    """Other entries from a write on; each row gives its own hash and chain."""
    store = member(scenario.cluster, name).store
    chain: int | None = None
    for ts, entry, before, hashed in list(store._connection.execute("SELECT ts, entry, chain, hash FROM oplog")):
        if chain is None and OLD not in entry:
            last = before
            continue
        entry = entry.replace(OLD, NEW)
        hashed = entry_hash(entry)
        chain = next_chain(last if chain is None else chain, hashed)
        row = (entry, hashed, chain, ts)
        store._connection.execute("UPDATE oplog SET entry = ?, hash = ?, chain = ? WHERE ts = ?", row)
    store.reload()


def holds_damage(scenario: ScenarioRun, name: str) -> bool:
    rows = member(scenario.cluster, name).store._connection.execute("SELECT entry FROM oplog")
    return any(NEW in entry for (entry,) in rows)


@pytest.mark.parametrize("behind", [1, 2])
def test_a_primary_with_a_damaged_entry_hands_over_and_spreads_nothing(behind: int) -> None:
    with scenario_run(seed=behind) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for name in scenario.others[:behind]:
            scenario.kill(name)
        for _ in range(5):
            scenario.write(old, concern="w1")
        damage_entry(scenario, old)
        for name in scenario.others[:behind]:
            scenario.restart(name)
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        assert member(cluster, old).node.state is MemberState.RECOVERING
        assert "not the one that was written" in member(cluster, old).node.quarantine
        status = cluster.command(cluster.primary() or "", {"replSetGetStatus": 1})
        assert "not the one that was written" in str(status["members"])
        journal = member(cluster, old)._member_file.journal(100)
        assert {"damage found", "quarantined"} <= {line.event for line in journal}
        leader = cluster.primary()
        assert leader is not None
        assert scenario.write(leader).outcome == "ok", "a majority write"
        assert not any(holds_damage(scenario, name) for name in scenario.others)
        for name in scenario.others:
            assert member(cluster, name).node.quarantine == ""
        assert cluster.command(old, {"replSetResync": 1})["ok"] == 1.0
        cluster.run_until(lambda: member(cluster, old).node.state is MemberState.SECONDARY, 60, "it copied anew")
        assert not holds_damage(scenario, old)
        if behind == 1:
            scenario.heal_all_and_judge()
        else:  # what the damaged member alone held is exported, each document as it was written
            disk, folder = cluster.machines[old].disk, member(cluster, old).rollbacks.folder
            files = {name: disk.read_file(os.path.join(folder, name)) for name in disk.list_folder(folder)}
            documents = b"".join(data for name, data in files.items() if not name.startswith("local.oplog"))
            assert all(f"token-{number}-".encode() in documents for number in (2, 3, 4, 5))
            assert NEW not in b"".join(files.values())
            assert b"damaged on this member's disk" in b"".join(files.values())


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("seed", "line"),
    [
        *((seed, "has other documents") for seed in (194_012, 194_013, 700_046, 780_005)),
        (720_002, "has put its documents right by itself"),
    ],
)
def test_documents_that_a_disk_changed_are_put_right(seed: int, line: str) -> None:
    """Behind other faults; with two copies the operator says whose is right. In the third, an update does not fit. In
    the last a secondary does it by itself.
    """
    plan = draw_plan(seed)
    outcome = run_seed(seed, replace(plan, faults=replace(plan.faults, damage_document=20)))
    assert outcome.error is None, outcome.report()
    assert line in "\n".join(outcome.trace)


def change_document(scenario: ScenarioRun, name: str, key: int, doc: bytes) -> None:
    """The disk of a member gives a document of `scrub.kept` other bytes, or brings it back."""
    store = member(scenario.cluster, name).store
    coll = store.collection("scrub.kept")
    assert coll is not None
    sql = f"INSERT INTO {coll.table} (key, doc) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET doc = excluded.doc"
    store._connection.execute(sql, (encode_key(key), doc))


def test_an_index_on_a_collection_that_is_empty_but_for_one_member_ends_nobody() -> None:
    """The disk of one member brought a deleted document back."""
    with scenario_run(seed=21) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        everywhere = {"writeConcern": {"w": 3}}
        insert = {"insert": "kept", "documents": [{"_id": 1, "a": 1}], **everywhere}
        assert cluster.command(scenario.primary, insert, "scrub")["ok"] == 1.0
        delete = {"delete": "kept", "deletes": [{"q": {}, "limit": 0}], **everywhere}
        assert cluster.command(scenario.primary, delete, "scrub")["n"] == 1
        change_document(scenario, one, 1, encode({"_id": 1, "a": 1}))
        index = {"createIndexes": "kept", "indexes": [{"key": {"a": 1}, "name": "a_1"}], "commitQuorum": 3}
        assert cluster.command(scenario.primary, index, "scrub")["ok"] == 1.0
        assert scenario.write(scenario.primary).outcome == "ok"
        cluster.run_until(cluster.converged, 60, "converged")
        assert member(cluster, one).node.state is MemberState.SECONDARY
        cluster.run_for(3)  # until the others' newest positions are known, behind the delete
        reply = cluster.command(one, {"replSetRepairDocuments": "scrub.kept"})
        assert [row["_id"] for row in reply["corrected"]] == [1]
        scenario.heal_all_and_judge()


def test_an_entry_that_does_not_fit_the_disk_of_a_member_leaves_it_in_recovering_until_it_copies_anew() -> None:
    with scenario_run(seed=22) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        insert = {"insert": "kept", "documents": [{"_id": 1, "a": 1}], "writeConcern": {"w": 3}}
        assert cluster.command(scenario.primary, insert, "scrub")["ok"] == 1.0
        change_document(scenario, one, 1, b"\x07 none")
        cluster.rotten = one
        update = {"update": "kept", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]}
        assert cluster.command(scenario.primary, update, "scrub")["n"] == 1
        for _start in range(2):
            cluster.run_until(lambda: bool(member(cluster, one).node.quarantine), 60, "it is quarantined")
            assert member(cluster, one).node.state is MemberState.RECOVERING
            assert "'u' of scrub.kept" in member(cluster, one).node.quarantine
            assert scenario.write(scenario.primary).outcome == "ok"
            scenario.kill(one)
            scenario.restart(one)
            cluster.run_until(lambda: cluster.machines[one].running is not None, 60, "it starts")
        cluster.run_until(lambda: bool(member(cluster, one).node.quarantine), 60, "it is quarantined")
        assert cluster.command(one, {"replSetResync": 1})["ok"] == 1.0
        cluster.rotten = ""
        scenario.heal_all_and_judge()


def test_a_rollback_that_the_disk_does_not_let_undo_leaves_its_member_in_recovering_until_it_copies_anew() -> None:
    with scenario_run(seed=23) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.write(old)
        scenario.cut(old)
        scenario.write(old, concern="w1")
        store = member(cluster, old).store
        store._connection.execute("UPDATE undo SET kind = 'dob' WHERE ts = ?", (store.last_applied.ts,))
        cluster.rotten = old
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        scenario.heal()
        for _start in range(2):
            cluster.run_until(lambda: "cannot be undone" in member(cluster, old).node.quarantine, 60, "quarantine")
            assert member(cluster, old).node.state is MemberState.RECOVERING
            scenario.kill(old)
            scenario.restart(old)
            cluster.run_until(lambda: cluster.machines[old].running is not None, 60, "it starts")
        cluster.run_until(lambda: "cannot be undone" in member(cluster, old).node.quarantine, 60, "quarantine")
        assert cluster.command(old, {"replSetResync": 1})["ok"] == 1.0
        cluster.rotten = ""
        scenario.heal_all_and_judge()


def lose_pages(scenario: ScenarioRun, name: str) -> None:
    """The disk loses every page of the database but the first, and the member's memory has none of them."""
    machine, running = scenario.cluster.machines[name], member(scenario.cluster, name)
    running.store._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert machine.disk.damage_pages(running.store.path, machine.rng, 1_000)
    running.store._connection.pragma("shrink_memory")
    scenario.cluster.damaged.add(name)


@pytest.mark.parametrize("who", ["the primary", "a secondary"])
def test_a_member_whose_database_lost_pages_ends_and_copies_anew_from_an_empty_disk(who: str) -> None:
    with scenario_run(seed=11) as scenario:
        cluster = scenario.cluster
        name = scenario.primary if who == "the primary" else scenario.others[0]
        for _ in range(5):
            scenario.write(scenario.primary)
        lose_pages(scenario, name)
        scenario.write(scenario.primary)
        cluster.run_until(lambda: name not in cluster.alive(), 60, "it ends")
        assert "is damaged: database disk image is malformed" in "\n".join(scenario.cluster.trace.lines)
        cluster.run_until(lambda: cluster.primary() not in (None, name), 60, "another member leads")
        leader = cluster.primary()
        assert leader is not None
        assert scenario.write(leader).outcome == "ok"
        scenario.restart(name)
        cluster.run_until(lambda: name not in cluster.alive(), 60, "it ends again")
        scenario.restart(name)
        cluster.kill(name, wipe=True)
        scenario.restart(name)
        scenario.heal_all_and_judge()


def test_a_damaged_entry_is_found_when_a_member_starts() -> None:
    with scenario_run(seed=5) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        for _ in range(5):
            scenario.write(scenario.primary)
        damage_entry(scenario, one)
        scenario.kill(one)
        scenario.restart(one)
        cluster.run_until(lambda: cluster.machines[one].running is not None, 10)
        cluster.run_until(lambda: member(cluster, one).node.state is MemberState.RECOVERING, 60)
        assert cluster.primary() == scenario.primary
        assert scenario.write(scenario.primary).outcome == "ok"


def test_a_damaged_entry_that_nobody_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have it, so no page and no rollback ever meets it; a check of old entries does."""
    monkeypatch.setattr(housekeeping, "RECHECK_EVERY_MS", 5_000)
    with scenario_run(seed=8) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(5):
            scenario.write(old)
        damage_entry(scenario, old)
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        assert "not the one that was written" in member(cluster, old).node.quarantine
        assert [member(cluster, name).node.quarantine for name in scenario.others] == ["", ""]
        assert cluster.command(old, {"replSetResync": 1})["ok"] == 1.0
        scenario.heal_all_and_judge()
        assert not holds_damage(scenario, old)


def test_the_member_whose_history_a_majority_does_not_have_is_the_one_that_stops() -> None:
    """Each row gives its own hash and chain, and still the primary's are not what the others have."""
    with scenario_run(seed=6) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(5):
            scenario.write(old)
        change_history(scenario, old)
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        assert "outvoted" in member(cluster, old).node.quarantine
        assert all(member(cluster, name).node.quarantine == "" for name in scenario.others)
        leader = cluster.primary()
        assert leader is not None
        assert scenario.write(leader).outcome == "ok"


@pytest.mark.parametrize("whose", ["mine", "the source's"])
def test_a_rollback_that_meets_another_history_quarantines_only_the_outvoted(whose: str) -> None:
    """The one that has to roll back may be the healthy one: the others say whose history is the set's."""
    with scenario_run(seed=7) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(5):
            scenario.write(old)
        scenario.cut(old)
        scenario.write(old, concern="w1")
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        source = cluster.primary()
        assert source is not None
        outvoted = old if whose == "mine" else source
        change_history(scenario, outvoted)
        scenario.heal()
        cluster.run_until(lambda: bool(member(cluster, outvoted).node.quarantine), 60, "it is outvoted")
        assert "outvoted" in member(cluster, outvoted).node.quarantine
        healthy = [name for name in cluster.machines if name != outvoted]
        cluster.run_until(lambda: cluster.primary() in healthy, 60, "a healthy member leads")
        leader = cluster.primary()
        assert leader is not None
        assert scenario.write(leader).outcome == "ok"
        assert [member(cluster, name).node.quarantine for name in healthy] == ["", ""]
