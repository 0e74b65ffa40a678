"""`rollback-tools diff` and `restore` on a set in memory: policies, lines, rows, the record, questions, refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from replset.auth.users import USERS_NS
from replset.bson import Binary, encode_key
from replset.oplog_entry import extra_fields
from replset.recovery.live_set import Write
from replset.recovery.lost_entries import lost_entries
from replset.replication.rollback_manifest import RollbackState, list_manifests
from rollback_tools import diff, main, manifest_source, restore
from tests.unit.rollback_tools.kit import (
    ORDERS,
    UUID_OF_ORDERS,
    Doc,
    FakeSet,
    LostHistory,
    live_at,
    lost_at,
    unreachable,
)

Capture = pytest.CaptureFixture[str]
BEFORE: dict[int, Doc] = {number: {"_id": number, "a": 1, "b": 1} for number in range(1, 7)}
SESSION = Binary(bytes(range(16)), 4)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    """The set in which, meanwhile, 3 got another `b`, 4 another `a`, 6 another `b`."""
    found = FakeSet({ORDERS: BEFORE.values()})
    found.put(ORDERS, {**BEFORE[3], "b": 9})
    found.put(ORDERS, {**BEFORE[4], "a": 9})
    found.put(ORDERS, {**BEFORE[6], "b": 9})
    for module in (diff, restore):
        monkeypatch.setattr(module, "LiveSet", lambda host, set_name: found)
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Lost: insert 10, updates of `a` in 2, 3 and 4, deletes of 5 and 6."""
    return history().write(tmp_path)


def history() -> LostHistory:
    lost = LostHistory(BEFORE)
    session = {"lsid": {"id": SESSION, "uid": Binary(b"x")}, "txnNumber": 7}
    lost.insert({"_id": 10, "new": True}, extra_fields(session))
    for number in (2, 3, 4):
        lost.update({**BEFORE[number], "a": 2})
    lost.delete(5)
    lost.delete(6)
    lost.noop()
    return lost


def run(*arguments: object) -> int:
    return main.main(list(map(str, arguments)))


def rows(capsys: Capture) -> dict[int, dict[str, Any]]:
    found = json.loads(capsys.readouterr().out)["writes"]
    return {int(row["_id"]["$numberInt"]): row for row in found}


# --- diff -------------------------------------------------------------------------------------------------------


def test_diff_for_scripts(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("diff", manifest, "--json") == 1
    found = rows(capsys)
    assert {number: (row["class"], row["standing"]) for number, row in found.items()} == {
        10: ("insert", "clean"),
        2: ("update", "clean"),
        3: ("update", "conflict"),
        4: ("update", "conflict"),
        5: ("delete", "clean"),
        6: ("delete", "conflict"),
    }
    assert found[10]["sessions"] == [{"id": SESSION.hex(), "txnNumber": 7}]
    assert (found[10]["before"], found[10]["live"]) == (None, None)
    assert found[3]["lostChange"] == {"$set": {"a": {"$numberInt": "2"}}}
    assert found[3]["liveChange"] == {"$set": {"b": {"$numberInt": "9"}}}
    assert (found[3]["lastEntry"], found[3]["liveLastEntry"]) == (str(lost_at(3)), str(live_at(1)))
    assert found[4]["conflicts"] == ["a"]
    assert found[4]["fields"] == [
        {
            "path": ["a"],
            "before": {"$numberInt": "1"},
            "lost": {"$numberInt": "2"},
            "live": {"$numberInt": "9"},
            "changedBy": "both",
        }
    ]
    assert (found[5]["beforeKnown"], found[6]["beforeKnown"]) == (True, False)


def test_diff_for_people(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("diff", manifest) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "shop.orders 4 lost update in conflict" in lines
    assert "a 1 2 9" in lines
    assert "shop.orders 10 lost insert unchanged since the common point" in lines
    assert 'lost: {"_id":10,"new":true}; not there now' in lines
    assert 'deleted; live now: {"_id":6,"a":1,"b":9}' in lines
    assert lines[-1] == "3 unchanged since the common point; 3 in conflict"


def test_diff_of_what_is_all_there(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("restore", manifest, "--policy", "overwrite") == 0
    capsys.readouterr()
    assert run("diff", manifest) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 in the set"


def test_nothing_that_is_stored_steers_the_terminal(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    lost = LostHistory()
    lost.insert({"_id": 77, "\x1b[2J": "\x9b31m\u202e"})
    path = lost.write(tmp_path)
    run("diff", path)
    live.put(ORDERS, {"_id": 77, "\x1b[2J": "other"})
    run("diff", path)
    run("restore", path)
    out = capsys.readouterr().out
    assert {char for char in out if not char.isprintable()} == {"\n"}
    assert "\\u001b[2J" in out


# --- policies ---------------------------------------------------------------------------------------------------


def test_keep_newer_puts_back_what_is_newer_than_the_live_one(live: FakeSet, manifest: Path) -> None:
    live.put(ORDERS, {**BEFORE[4], "a": 9}, live_at(1, term=0))
    run("restore", manifest, "--policy", "keep-newer")
    assert live.rows()[3] == {"_id": 4, "a": 2, "b": 1}


def test_an_entry_that_is_gone_is_a_conflict_for_keep_newer(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    live.oplog_is_complete = False
    del live.entries[ORDERS, encode_key(4)]
    assert run("restore", manifest, "--policy", "keep-newer", "--json") == 1
    assert "not in the set's oplog any more" in rows(capsys)[4]["reason"]


@pytest.mark.parametrize("form", [["--policy", "to-collection", "saved"], ["--policy=to-collection", "saved"]])
def test_to_collection_copies_what_was_lost(live: FakeSet, manifest: Path, capsys: Capture, form: list[str]) -> None:
    was = live.rows()
    assert run("restore", *form, manifest, "--json") == 1
    found = rows(capsys)
    assert [row["_id"] for row in live.rows("shop.saved")] == [2, 3, 4, 10]
    assert live.rows() == was
    assert {number for number, row in found.items() if row["result"] == "left"} == {5, 6}


def test_commands_are_put_back_and_a_drop_only_when_asked(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    lost = LostHistory()
    lost.command({"drop": "orders"}, UUID_OF_ORDERS)
    lost.command({"create": "fresh", "idIndex": {}, "note": 1}, bytes(15) + b"1")
    lost.command({"collMod": "fresh"}, bytes(15) + b"1")
    path = lost.write(tmp_path)
    assert run("restore", path) == 1
    assert set(live.uuids) == {ORDERS, "shop.fresh"}
    assert capsys.readouterr().out.splitlines()[:3] == [
        "left  shop.orders: lost drop; a drop is put back by --policy overwrite only",
        "put back  shop.fresh: lost create; the collection is not there",
        "left  shop.fresh: lost collMod; the command collMod is not put back by this tool",
    ]
    assert run("diff", path, "--json") == 1
    assert [row["standing"] for row in json.loads(capsys.readouterr().out)["writes"]] == ["conflict", "there", "clean"]
    run("restore", path, "--policy", "overwrite")
    assert set(live.uuids) == {"shop.fresh"}


@pytest.mark.parametrize("policy", [["skip"], ["overwrite"], ["to-collection", "copies"]])
def test_users_are_left_to_a_person(live: FakeSet, tmp_path: Path, capsys: Capture, policy: list[str]) -> None:
    lost = LostHistory(BEFORE, ns=USERS_NS)
    lost.command({"create": "system.users", "idIndex": {}}, UUID_OF_ORDERS)
    lost.insert({"_id": 10})
    lost.update({**BEFORE[2], "a": 2})
    lost.delete(5)
    path = lost.write(tmp_path)
    assert run("restore", path, "--policy", *policy) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "there  admin.system.users: lost create; createUser makes it"
    why = "users are put back by hand: createUser, updateUser or dropUser"
    assert [line.split(";")[-1].strip() for line in lines[1:4]] == [why] * 3
    assert live.writes == 0
    assert run("diff", path, "--json") == 1
    standings = [row["standing"] for row in json.loads(capsys.readouterr().out)["writes"]]
    assert standings == ["there", "conflict", "conflict", "conflict"]


# --- dry runs, records, second runs -------------------------------------------------------------------------------


def test_a_lost_transaction_is_put_back_document_by_document(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    lost = LostHistory(BEFORE)
    lost.insert({"_id": 10, "new": True})
    lost.update({**BEFORE[2], "a": 2})
    lost.update({**BEFORE[2], "a": 3})
    lost.delete(5)
    lsid = {"id": SESSION, "uid": Binary(b"x")}
    lost.into_transaction(extra_fields({"lsid": lsid, "txnNumber": 7}))
    manifest = lost.write(tmp_path)
    assert run("verify", manifest) == 0
    capsys.readouterr()
    page = lost_entries(manifest.parent, list_manifests(tmp_path)[0], limit=10)
    assert [(row["op"], row["_id"], row["txnNumber"]) for row in page.rows] == [
        ("i", 10, 7),
        ("u", 2, 7),
        ("u", 2, 7),
        ("d", 5, 7),
    ]
    assert run("restore", "--policy", "overwrite", manifest, "--json") == 0
    found = rows(capsys)
    assert set(found) == {2, 5, 10}
    assert {row["_id"]: row.get("a") for row in live.rows() if row["_id"] in (2, 5, 10)} == {2: 3, 10: None}


def test_a_dry_run_says_what_the_run_does_and_writes_nothing(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("restore", manifest, "--policy", "merge", "--dry-run") == 1
    dry = capsys.readouterr().out.splitlines()
    assert (live.writes, list(manifest.parent.glob("restore.*"))) == (0, [])
    assert run("restore", manifest, "--policy", "merge") == 1
    done = capsys.readouterr().out.splitlines()
    assert [line.replace("would put back", "put back") for line in dry[:6]] == done[:6]
    assert (dry[6], done[6]) == ("4 would put back, 2 left", "4 put back, 2 left")


def test_a_dry_run_sees_the_drops_that_it_would_do(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    lost = LostHistory(BEFORE)
    lost.command({"drop": "orders"}, UUID_OF_ORDERS)
    path = lost.write(tmp_path)
    assert run("restore", path, "--policy", "overwrite", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("would put back  shop.orders: lost drop")
    assert len(live.rows()) == 6


def test_the_record_holds_what_was_overwritten_before_it_is(live: FakeSet, manifest: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    seen: list[str] = []

    def look(writes: object) -> None:
        seen.append(record.read_text())

    live.before_write = look
    run("restore", manifest, "--policy", "overwrite", "--audit", record)
    (before,) = seen
    assert '"live": {"_id": {"$numberInt": "4"}, "a": {"$numberInt": "9"}' in before
    found = [json.loads(line) for line in record.read_text().splitlines()]
    assert found[0]["restore"]["policy"] == "overwrite"
    assert [row["outcome"]["result"] for row in found if "outcome" in row] == ["done"] * 6
    assert found[-1]["counts"] == {"done": 6, "there": 0, "would": 0, "left": 0}
    assert run("restore", manifest, "--audit", record) == 2


def test_records_stand_beside_the_manifest_and_are_no_manifests(live: FakeSet, manifest: Path) -> None:
    run("restore", manifest)
    run("restore", manifest)
    assert len(list(manifest.parent.glob(f"restore.{manifest.stem}.*.jsonl"))) == 2
    assert [row.id for row in list_manifests(manifest.parent)] == [manifest.stem]


def test_the_record_of_a_member_s_rollback_is_in_the_current_folder(
    live: FakeSet, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(manifest_source, "_fetch", lambda text, folder, work: manifest)
    assert run("restore", f"http://127.0.0.1:1{manifest_source.ROUTE}/{manifest.stem}", "--policy", "overwrite") == 0
    assert len(list(tmp_path.glob(f"restore.{manifest.stem}.*.jsonl"))) == 1
    assert list(manifest.parent.glob("restore.*")) == []


def test_a_run_that_was_killed_is_run_again(live: FakeSet, manifest: Path) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    live.after_write = die
    assert run("restore", manifest, "--policy", "overwrite") == 130
    live.after_write = lambda: None
    assert run("restore", manifest, "--policy", "overwrite") == 0
    assert [row["_id"] for row in live.rows()] == [1, 2, 3, 4, 10]


def test_a_write_that_the_set_refuses_stays_undone(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    def refuse(write: Write) -> str:
        return "20: not here" if write.before is None else ""

    live.refuse = refuse
    assert run("restore", manifest, "--policy", "overwrite", "--json") == 1
    found = rows(capsys)
    assert (found[10]["result"], found[10]["reason"]) == ("left", "20: not here")
    assert found[4]["result"] == "done"


def test_a_set_that_never_answers_is_given_up(
    live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("replset.recovery.restore.PAUSE_S", 0)
    live.before_write = lambda writes: unreachable()
    assert run("restore", manifest, "--json") == 1
    assert rows(capsys)[10]["reason"] == "the connection broke"
    assert live.writes == 8


# --- by hand ------------------------------------------------------------------------------------------------------


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_each_lost_write_is_asked_about(
    live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    answer(monkeypatch, "k", "?", "", "m", "p", "n", "k")
    assert run("restore", manifest, "--interactive", "--json") == 1
    out, err = capsys.readouterr()
    results = {int(row["_id"]["$numberInt"]): row["result"] for row in json.loads(out)["writes"]}
    assert results == {10: "left", 2: "done", 3: "done", 4: "done", 5: "done", 6: "left"}
    now = {row["_id"]: row for row in live.rows()}
    assert (now[3], now[4]) == ({"_id": 3, "a": 2, "b": 9}, {"_id": 4, "a": 2, "b": 1})
    assert "p: put back, m: merge" in err


@pytest.mark.parametrize(("lines", "done"), [(["q"], set()), ([], set()), (["p", "q"], {10}), (["k", "a"], {2, 5})])
def test_the_rest_by_policy_or_not_at_all(
    live: FakeSet,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    lines: list[str],
    done: set[int],
) -> None:
    answer(monkeypatch, *lines)
    assert run("restore", manifest, "--interactive", "--json") == 1
    assert {number for number, row in rows(capsys).items() if row["result"] == "done"} == done


def test_a_drop_is_asked_about(live: FakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostHistory()
    lost.command({"drop": "orders"}, UUID_OF_ORDERS)
    path = lost.write(tmp_path)
    answer(monkeypatch, "k")
    assert run("restore", path, "--interactive") == 1
    answer(monkeypatch, "p")
    assert run("restore", path, "--interactive") == 0
    assert live.uuids == {}


# --- exports, and what cannot be put back -------------------------------------------------------------------------


def test_of_an_export_only_what_the_set_does_not_have_is_lost(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    """The set has the insert and the update of 2, which was changed again since, and the first update of 3."""
    lost = history()
    lost.update({**BEFORE[3], "a": 3})
    path = lost.write(tmp_path, RollbackState.EXPORTED)
    live.oplog = {lost_at(1), lost_at(2), lost_at(3)}
    live.put(ORDERS, {**BEFORE[2], "a": 77})
    del live.entries[ORDERS, encode_key(3)]
    live.data[ORDERS][encode_key(3)] = live.data[ORDERS][encode_key(2)].replace(b"_id\0\2", b"_id\0\3")
    assert run("restore", path, "--json") == 1
    found = rows(capsys)
    assert set(found) == {3, 4, 5, 6}
    assert (found[3]["standing"], found[3]["result"]) == ("clean", "done")


def test_an_export_that_does_not_say_what_there_was_before(live: FakeSet, tmp_path: Path, capsys: Capture) -> None:
    """What the set did not touch is as it was; what it touched is a conflict."""
    path = history().write(tmp_path, RollbackState.EXPORTED, with_before=False)
    assert run("restore", path, "--policy", "merge", "--json") == 1
    found = {number: (row["class"], row["result"]) for number, row in rows(capsys).items()}
    assert found == {
        10: ("insert", "done"),
        2: ("update", "done"),
        3: ("update", "left"),
        4: ("update", "left"),
        5: ("delete", "done"),
        6: ("delete", "left"),
    }


@pytest.mark.parametrize(
    ("state", "words"),
    [(RollbackState.PLANNED, "planned, not settled yet"), (RollbackState.ABANDONED, "nothing was undone")],
)
def test_a_rollback_that_is_not_over_is_refused(
    live: FakeSet, tmp_path: Path, capsys: Capture, state: RollbackState, words: str
) -> None:
    assert run("restore", history().write(tmp_path, state)) == 2
    assert words in capsys.readouterr().err


def test_damaged_files_are_refused(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    file = next(manifest.parent.glob("shop.orders.*.bson"))
    file.write_bytes(file.read_bytes()[:-1])
    assert run("restore", manifest) == 2
    assert "see `rollback-tools verify" in capsys.readouterr().err
    assert run("diff", manifest) == 2
    assert f"{file.name}: the document at byte" in capsys.readouterr().err
    assert live.writes == 0


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (["sometimes"], "no policy 'sometimes'"),
        (["to-collection"], "takes the NAME of a collection"),
        (["merge saved"], "takes no NAME"),
    ],
)
def test_policies_that_there_are_not(manifest: Path, capsys: Capture, policy: list[str], words: str) -> None:
    assert run("restore", manifest, "--policy", *policy) == 2
    assert words in capsys.readouterr().err


def test_a_manifest_that_leads_elsewhere_is_refused(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    document = json.loads(manifest.read_text())
    for row in document["files"]:
        row["name"] = f"../rollback/{row['name']}"
    manifest.write_text(json.dumps(document))
    assert run("diff", manifest) == 2
    assert "is no file beside the manifest" in capsys.readouterr().err
