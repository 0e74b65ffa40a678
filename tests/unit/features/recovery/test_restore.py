"""Lost writes compared and put back on a set in memory: each case by the tool and over HTTP.

What a policy makes of three versions is in `test_policy.py`; lines, questions and records of the tool in
`rollback_tools/test_restore.py`; failures on the way, and many requests at once, in `api/test_recovery.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.routes import recovery
from replset.auth.users import USERS_NS
from replset.bson import encode_key
from replset.features.recovery.lost_writes import lost_entries
from replset.replication.rollback_manifest import RollbackState, list_manifests
from rollback_tools import diff, main, restore
from tests.rig import Rig, a_set
from tests.unit.api.kit import Api, read_rollbacks
from tests.unit.rollback_tools.kit import (
    BEFORE,
    ORDERS,
    SESSION,
    UUID_OF_ORDERS,
    Doc,
    FakeSet,
    LostHistory,
    live_at,
    live_orders,
    lost_at,
    lost_orders,
    unreachable,
)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    found = live_orders()
    for module in (diff, restore, recovery):
        monkeypatch.setattr(module, "LiveSet", lambda host, set_name: found)
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return lost_orders().write(tmp_path)


Ask = Callable[..., dict[str, Any]]
"""Ask for `verify`, `diff` or `restore` of a rollback; the answer as JSON. It is {"refused": why} for a refusal."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with a_set() as made:
        yield made


@pytest.fixture(params=["tool", "http"])
def ask(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    api = Api(rig, monkeypatch)

    def by_tool(what: str, manifest: Path, policy: str = "", collection: str = "", *, dry: bool = False) -> Any:
        options = ["--policy", policy, *([collection] if collection else [])] if policy else []
        capsys.readouterr()
        status = main.main([what, str(manifest), "--json", *options, *(["--dry-run"] if dry else [])])
        out, err = capsys.readouterr()
        assert (status == 2) == (err.count("\n") == 1), err
        found = json.loads(out) if status != 2 else {"refused": err}
        counts = found.get("counts", {})
        assert status in (
            2,
            int(any(counts.get(name) for name in ("left", "clean", "conflict")) or not found.get("ok", 1)),
        )
        return found

    def over_http(what: str, manifest: Path, policy: str = "", collection: str = "", *, dry: bool = False) -> Any:
        given = {"policy": policy, "collection": collection, "dryRun": dry}
        url = f"/v1/replset/rollbacks/{manifest.stem}/{what}"
        body = {name: value for name, value in given.items() if value}
        read_rollbacks(api, monkeypatch, manifest.parent)
        found = api.post(url, body) if what == "restore" else api.get(url)
        assert api.member.admission.in_use == 0
        document = found.json()
        if found.status_code == 200:
            document.pop("ok" if what != "verify" else "operationTime", None)
            return document
        assert found.status_code == 400, found.text
        return {"refused": document["errmsg"]}

    return by_tool if request.param == "tool" else over_http


def by_id(answer: dict[str, Any], *names: str) -> dict[int, Any]:
    """Of each document's row, what stands under the names."""
    rows = ((int(row["_id"]["$numberInt"]), row) for row in answer["writes"])
    return {number: row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for number, row in rows}


def test_each_lost_write_is_compared(ask: Ask, live: FakeSet, manifest: Path) -> None:
    answer = ask("diff", manifest)
    assert answer["counts"] == {"there": 0, "clean": 3, "conflict": 3}
    assert by_id(answer, "class", "standing") == {
        10: ("insert", "clean"),
        2: ("update", "clean"),
        3: ("update", "conflict"),
        4: ("update", "conflict"),
        5: ("delete", "clean"),
        6: ("delete", "conflict"),
    }
    found = {int(row["_id"]["$numberInt"]): row for row in answer["writes"]}
    assert found[10]["sessions"] == [{"id": bytes(range(16)).hex(), "txnNumber": 7}]
    assert (found[10]["before"], found[10]["live"]) == (None, None)
    assert found[3]["lostChange"] == {"$set": {"a": {"$numberInt": "2"}}}
    assert found[3]["liveChange"] == {"$set": {"b": {"$numberInt": "9"}}}
    assert (found[3]["lastEntry"], found[3]["liveLastEntry"]) == (str(lost_at(3)), str(live_at(1)))
    assert found[4]["conflicts"] == ["a"]
    (field,) = found[4]["fields"]
    assert (field["path"], field["changedBy"]) == (["a"], "both")
    assert [field[side] for side in ("before", "lost", "live")] == [{"$numberInt": number} for number in "129"]
    assert (found[5]["beforeKnown"], found[6]["beforeKnown"]) == (True, False)


def older(live: FakeSet) -> None:
    live.put(ORDERS, {**BEFORE[4], "a": 9}, live_at(1, term=0))


def trimmed(live: FakeSet) -> None:
    live.oplog_is_complete = False
    del live.entries[ORDERS, encode_key(4)]


def nothing(live: FakeSet) -> None:
    pass


PUT_BACK = {10: {"new": True}, 2: {"a": 2, "b": 1}, 5: None}
"""What every policy puts back: nobody wrote these since."""
POLICIES: list[tuple[str, Callable[[FakeSet], None], dict[int, Doc | None]]] = [
    ("skip", nothing, {}),
    ("keep-newer", nothing, {}),
    ("keep-newer", older, {4: {"a": 2, "b": 1}}),
    ("keep-newer", trimmed, {5: BEFORE[5]}),  # that nobody wrote it is not known any more
    ("merge", nothing, {3: {"a": 2, "b": 9}}),
    ("overwrite", nothing, {3: {"a": 2, "b": 1}, 4: {"a": 2, "b": 1}, 6: None}),
]


@pytest.mark.parametrize(("policy", "change", "more"), POLICIES)
def test_a_policy_puts_back_what_its_dry_run_says_and_a_second_run_nothing(
    ask: Ask, live: FakeSet, manifest: Path, policy: str, change: Callable[[FakeSet], None], more: dict[int, Doc | None]
) -> None:
    change(live)
    was = {row["_id"]: row for row in live.rows()}
    change_of = {number: fields and {"_id": number, **fields} for number, fields in {**PUT_BACK, **more}.items()}
    expected = {number: row for number, row in {**was, **change_of}.items() if row}
    put_back = {number for number in change_of if expected.get(number) != was.get(number)}
    dry = ask("restore", manifest, policy, dry=True)
    assert (live.writes, list(manifest.parent.glob("restore.*")), dry["audit"]) == (0, [], None)

    done = ask("restore", manifest, policy)
    assert {row["_id"]: row for row in live.rows()} == expected
    results = by_id(done, "result")
    assert {number for number, result in results.items() if result == "done"} == put_back
    assert by_id(dry, "result") == {number: result.replace("done", "would") for number, result in results.items()}
    left = len(results) - len(put_back)
    assert done["counts"] == {"done": 6 - left, "there": 0, "would": 0, "left": left}
    (record,) = manifest.parent.glob(f"restore.{manifest.stem}.*.jsonl")
    notes = [json.loads(line) for line in record.read_text().splitlines()]
    assert (str(record), notes[0]["restore"]["policy"], notes[-1]["counts"]) == (done["audit"], policy, done["counts"])
    assert sorted(note["outcome"]["result"] for note in notes if "outcome" in note) == sorted(results.values())

    writes = live.writes
    again = ask("restore", manifest, policy)
    assert (again["counts"], live.writes) == ({**done["counts"], "done": 0, "there": 6 - left}, writes)
    assert [row.id for row in list_manifests(manifest.parent)] == [manifest.stem], "a record is no manifest"
    if not left:
        assert ask("diff", manifest)["counts"] == {"there": 6, "clean": 0, "conflict": 0}


def test_to_collection_copies_what_was_lost(ask: Ask, live: FakeSet, manifest: Path) -> None:
    was = live.rows()
    answer = ask("restore", manifest, "to-collection", "saved")
    assert [row["_id"] for row in live.rows("shop.saved")] == [2, 3, 4, 10]
    assert (live.rows(), answer["policy"]) == (was, "to-collection saved")
    assert [number for number, result in by_id(answer, "result").items() if result == "left"] == [5, 6]


def test_commands_are_put_back_and_a_drop_only_when_asked(
    ask: Ask, live: FakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = LostHistory()
    lost.command({"drop": "orders"}, UUID_OF_ORDERS)
    lost.command({"create": "fresh", "idIndex": {}, "note": 1}, bytes(15) + b"1")
    lost.command({"collMod": "fresh"}, bytes(15) + b"1")
    path = lost.write(tmp_path)
    answer = ask("restore", path)
    assert set(live.uuids) == {ORDERS, "shop.fresh"}
    assert [(row["command"], row["result"], row["reason"]) for row in answer["writes"]] == [
        ("drop", "left", "a drop is put back by --policy overwrite only"),
        ("create", "done", "the collection is not there"),
        ("collMod", "left", "the command collMod is not put back by this tool"),
    ]
    assert [row["standing"] for row in ask("diff", path)["writes"]] == ["conflict", "there", "clean"]
    assert ask("restore", path, "overwrite", dry=True)["writes"][0]["result"] == "would"
    assert set(live.uuids) == {ORDERS, "shop.fresh"}
    (before,) = path.parent.glob("restore.*.jsonl")
    drop = live.drop

    def drop_after_the_record(ns: str) -> None:
        (record,) = set(path.parent.glob("restore.*.jsonl")) - {before}
        assert "decision" in json.loads(record.read_text().splitlines()[-1]), "it can be found again, whatever comes"
        drop(ns)

    monkeypatch.setattr(live, "drop", drop_after_the_record)
    ask("restore", path, "overwrite")
    assert set(live.uuids) == {"shop.fresh"}


@pytest.mark.parametrize("policy", [["skip"], ["overwrite"], ["to-collection", "copies"]])
def test_users_are_left_to_a_person(ask: Ask, live: FakeSet, tmp_path: Path, policy: list[str]) -> None:
    lost = LostHistory(BEFORE, ns=USERS_NS)
    lost.command({"create": "system.users", "idIndex": {}}, UUID_OF_ORDERS)
    lost.insert({"_id": 10})
    lost.update({**BEFORE[2], "a": 2})
    lost.delete(5)
    path = lost.write(tmp_path)
    create, *others = ask("restore", path, *policy)["writes"]
    assert (create["result"], create["reason"]) == ("there", "createUser makes it")
    for row in others:
        why = "users are put back by hand: createUser, updateUser or dropUser"
        assert (row["result"], row["reason"].split("; ")[-1]) == ("left", why)
    assert live.writes == 0
    assert [row["standing"] for row in ask("diff", path)["writes"]] == ["there", "conflict", "conflict", "conflict"]


def test_a_lost_transaction_is_put_back_document_by_document(ask: Ask, live: FakeSet, tmp_path: Path) -> None:
    lost = LostHistory(BEFORE)
    lost.insert({"_id": 10, "new": True})
    lost.update({**BEFORE[2], "a": 2})
    lost.update({**BEFORE[2], "a": 3})
    lost.delete(5)
    lost.into_transaction(SESSION)
    path = lost.write(tmp_path)
    assert ask("verify", path)["ok"] is True
    page = lost_entries(path.parent, list_manifests(tmp_path)[0], limit=10)
    assert [(row["op"], row["_id"], row["txnNumber"]) for row in page.rows] == [
        *(("i", 10, 7), ("u", 2, 7)),
        *(("u", 2, 7), ("d", 5, 7)),
    ]
    assert set(by_id(ask("restore", path, "overwrite"), "result")) == {2, 5, 10}
    assert {row["_id"]: row.get("a") for row in live.rows() if row["_id"] in (2, 5, 10)} == {2: 3, 10: None}


# --- exports ------------------------------------------------------------------------------------------------------


def test_of_an_export_only_what_the_set_does_not_have_is_lost(ask: Ask, live: FakeSet, tmp_path: Path) -> None:
    """The set has the insert and the update of 2, which was changed again since, and the first update of 3."""
    lost = lost_orders()
    lost.update({**BEFORE[3], "a": 3})
    path = lost.write(tmp_path, RollbackState.EXPORTED)
    live.oplog = {lost_at(1), lost_at(2), lost_at(3)}
    live.put(ORDERS, {**BEFORE[2], "a": 77})
    del live.entries[ORDERS, encode_key(3)]
    live.data[ORDERS][encode_key(3)] = live.data[ORDERS][encode_key(2)].replace(b"_id\0\2", b"_id\0\3")
    found = by_id(ask("restore", path), "standing", "result")
    assert (set(found), found[3]) == ({3, 4, 5, 6}, ("clean", "done"))


def test_an_export_that_does_not_say_what_there_was_before(ask: Ask, live: FakeSet, tmp_path: Path) -> None:
    """What the set did not touch is as it was; what it touched is a conflict."""
    path = lost_orders().write(tmp_path, RollbackState.EXPORTED, with_before=False)
    assert by_id(ask("restore", path, "merge"), "class", "result") == {
        10: ("insert", "done"),
        2: ("update", "done"),
        3: ("update", "left"),
        4: ("update", "left"),
        5: ("delete", "done"),
        6: ("delete", "left"),
    }


# --- what cannot be put back --------------------------------------------------------------------------------------


def documents_of(manifest: Path) -> Path:
    return next(manifest.parent.glob("shop.orders.*.bson"))


def in_state(state: RollbackState) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace('"finished"', f'"{state.value}"'))


def cut(manifest: Path) -> None:
    documents_of(manifest).write_bytes(documents_of(manifest).read_bytes()[:-1])


def elsewhere(manifest: Path) -> None:
    document = json.loads(manifest.read_text())
    for row in document["files"]:
        row["name"] = f"../rollback/{row['name']}"
    manifest.write_text(json.dumps(document))


REFUSED: dict[str, tuple[Callable[[Path], object], str, list[str], str]] = {
    "planned": (in_state(RollbackState.PLANNED), "restore", [], "planned, not settled yet"),
    "abandoned": (in_state(RollbackState.ABANDONED), "restore", [], "nothing was undone"),
    "damaged": (cut, "restore", [], "shop.orders"),
    "damaged-diff": (cut, "diff", [], "the document at byte"),
    "missing": (lambda path: documents_of(path).unlink(), "restore", [], "shop.orders"),
    "no-manifest": (lambda path: path.write_text("{"), "restore", [], "is not a rollback manifest"),
    "no-manifest-diff": (lambda path: path.write_text("{"), "diff", [], "is not a rollback manifest"),
    "no-manifest-verify": (lambda path: path.write_text("{"), "verify", [], "is not a rollback manifest"),
    "elsewhere": (elsewhere, "diff", [], "is no file beside the manifest"),
    "no-policy": (lambda path: None, "restore", ["sometimes"], "no policy 'sometimes'"),
    "no-name": (lambda path: None, "restore", ["to-collection"], "takes the NAME"),
    "no-collection": (lambda path: None, "restore", ["to-collection", "$x"], "Invalid namespace"),
    "system": (lambda path: None, "restore", ["to-collection", "system.x"], "system collections"),
}


@pytest.mark.parametrize(("spoil", "what", "policy", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_writes_nothing(
    ask: Ask, live: FakeSet, manifest: Path, spoil: Callable[[Path], object], what: str, policy: list[str], words: str
) -> None:
    spoil(manifest)
    assert words in ask(what, manifest, *policy)["refused"]
    assert (live.writes, list(manifest.parent.glob("restore.*"))) == (0, [])


def test_a_write_that_the_set_refuses_stays_undone(ask: Ask, live: FakeSet, manifest: Path) -> None:
    live.refuse = lambda write: "20: not here" if write.before is None else ""
    found = by_id(ask("restore", manifest, "overwrite"), "result", "reason")
    assert (found[10], found[4][0]) == (("left", "20: not here"), "done")


def test_a_set_that_never_answers_is_given_up(
    ask: Ask, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[int] = []

    class Pause(float):
        def __mul__(self, attempt: int) -> float:  # type: ignore[override]
            paused.append(attempt)
            return 0.0

    monkeypatch.setattr("replset.features.recovery.restore.PAUSE_S", Pause())
    live.before_write = lambda writes: unreachable()
    assert by_id(ask("restore", manifest), "reason")[10] == "the connection broke"
    assert live.writes == 8
    assert paused == [2, 3, 4, 5, 6, 7], "longer each time"
