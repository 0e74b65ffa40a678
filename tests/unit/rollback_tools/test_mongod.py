"""The tools on the rollback folder that mongod writes: each layout that it had, and what its files do not tell."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from replset.bson import encode, encode_key
from replset.errors import ErrorCode, ReplError
from replset.ids import OpTime, pack_ts
from rollback_tools import diff, main, restore
from tests.unit.rollback_tools.kit import ORDERS, UUID_OF_ORDERS, Doc, FakeSet, lost_orders

STAMP, LATER = "2026-11-27T23-51-57", "2026-11-28T01-00-00"
ORDERS_UUID, DROPPED = str(UUID(bytes=UUID_OF_ORDERS)), str(UUID(int=99))
BEFORE: list[Doc] = [{"_id": number, "a": 1, "b": 1} for number in range(1, 5)]
LOST: list[Doc] = [{"_id": 1, "a": 2, "b": 1}, {"_id": 2, "a": 2, "b": 1}, {"_id": 10, "new": True}]
COMMON = ("--common-point", "1790000000:1")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    """The set in which, meanwhile, 2 got another `b`."""
    found = FakeSet({ORDERS: BEFORE, "shop.spare": []})
    found.put(ORDERS, {**BEFORE[1], "b": 9})
    for module in (diff, restore):
        monkeypatch.setattr(module, "LiveSet", lambda host, set_name: found)
    return found


def write(dbpath: Path, name: str, documents: list[Doc] = LOST) -> Path:
    path = dbpath / "rollback" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encode, documents)))
    return path


def removed(collection: str, stamp: str = STAMP, number: int = 0) -> str:
    return f"{collection}/removed.{stamp}.{number}.bson"


def run(*arguments: object) -> int:
    return main.main(list(map(str, arguments)))


def answer(capsys: Capture, *arguments: object) -> Any:
    capsys.readouterr()
    assert run(*arguments, "--json") in (0, 1)
    return json.loads(capsys.readouterr().out)


def lines(capsys: Capture) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def by_id(found: Any, field: str) -> dict[int, Any]:
    return {int(row["_id"]["$numberInt"]): row[field] for row in found["writes"]}


LAYOUTS = {
    "4.4": removed(ORDERS_UUID),
    "4.0": removed(ORDERS),
    "3.6": f"{ORDERS}.{STAMP}.0.bson",
    "refetch": f"{ORDERS_UUID}.{STAMP}.0.bson",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_given_in_every_way(layout: str, tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    path = write(tmp_path, LAYOUTS[layout])
    folder = tmp_path / "rollback"
    for listed in (tmp_path, folder):
        (row,) = answer(capsys, "list", listed)["rollbacks"]
        assert (row["id"], row["commonPoint"]) == (STAMP, None)
        assert [file["name"] for file in row["files"]] == [LAYOUTS[layout]]
    for given in (tmp_path, folder, folder / STAMP, path, *([path.parent] if path.parent != folder else [])):
        shown = answer(capsys, "show", given)
        assert (shown["id"], shown["commonPoint"], shown["problems"]) == (STAMP, None, {})
        assert [(file["count"], file["bytes"]) for file in shown["files"]] == [(3, path.stat().st_size)]
        assert answer(capsys, "verify", given)["ok"] is True
        found = answer(capsys, "diff", given)
        assert {row["ns"] for row in found["writes"]} == {ORDERS}
        assert by_id(found, "class") == dict.fromkeys((1, 2, 10), "insert or update")
        assert (found["set"], found["commonPoint"], found["writes"][0]["lastEntry"]) == (None, None, None)
    for given in (tmp_path, folder, folder / STAMP, path):
        assert run("dump", given) == 0
        assert capsys.readouterr().out.count('"_id"') == 3


def test_from_within_the_folder(
    tmp_path: Path, live: FakeSet, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, removed(ORDERS_UUID))
    monkeypatch.chdir(path.parent)
    for given in (".", path.name):
        assert {row["ns"] for row in answer(capsys, "diff", given)["writes"]} == {ORDERS}


def test_what_cannot_be_known_is_said(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    assert run("list", tmp_path) == 0
    assert f"See one: rollback-tools show {tmp_path}/rollback/{STAMP}" in " ".join(lines(capsys))
    assert run("show", tmp_path) == 0
    shown = lines(capsys)
    assert 'common point unknown here: mongod\'s log has it ("Rollback common point")' in shown
    assert "undone inserts and updates, as below; deletes and commands are not in mongod's files" in shown
    live.terms = [OpTime(3, pack_ts(1_790_513_610, 2))]
    assert run("diff", tmp_path) == 1
    told = lines(capsys)
    assert "shop.orders 1 lost insert or update in conflict" in told
    assert told[told.index("shop.orders 1 lost insert or update in conflict") + 1 :][:2] == [
        "field common point lost live now",
        "a ? 2 1",  # what is the same in both is left out
    ]
    assert 'lost: {"_id":10,"new":true}; not there now' in told
    assert told[-3:] == [
        "not in mongod's files: deletes, dropped collections, and whether a write was an insert or an update",
        "the common point is not known: with --common-point of mongod's log this compares three versions",
        "it may be 1790513610:2 (2026-09-27T12:53:30Z): a new primary came then",
    ]


def test_an_oplog_that_the_user_may_not_read(
    tmp_path: Path, live: FakeSet, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions need none of it."""

    def refuse(until_s: int) -> list[OpTime]:
        raise ReplError("not authorized on local", code=ErrorCode.UNAUTHORIZED)

    monkeypatch.setattr(live, "ends_of_terms", refuse)
    write(tmp_path, removed(ORDERS_UUID))
    assert run("diff", tmp_path) == 1
    assert lines(capsys)[-1] == "what it may be is not known: not authorized on local"
    assert run("restore", tmp_path, "--policy", "overwrite") == 0


def test_without_the_common_point_only_overwrite_puts_back(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    for policy in ("skip", "keep-newer", "merge"):
        found = answer(capsys, "restore", tmp_path, "--policy", policy)
        assert found["counts"] == {"done": 0, "there": 0, "would": 0, "left": 3}, policy
    assert live.writes == 0
    assert by_id(answer(capsys, "restore", tmp_path), "reason")[10] == (
        "the set has no such document, and what it did since is not known"
    )
    assert answer(capsys, "restore", tmp_path, "--policy", "overwrite", "--dry-run")["counts"]["would"] == 3
    assert live.writes == 0
    done = answer(capsys, "restore", tmp_path, "--policy", "overwrite")
    assert done["counts"]["done"] == 3
    assert [row for row in live.rows() if row in LOST] == LOST
    assert Path(done["audit"]).parent == Path.cwd()
    assert sorted(path.name for path in (tmp_path / "rollback").iterdir()) == [ORDERS_UUID]
    writes = live.writes
    again = answer(capsys, "restore", tmp_path, "--policy", "overwrite")
    assert (again["counts"]["there"], live.writes) == (3, writes)


def test_with_the_common_point_what_nobody_wrote_since_is_put_back(
    tmp_path: Path, live: FakeSet, capsys: Capture
) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    found = answer(capsys, "diff", tmp_path, *COMMON)
    assert found["commonPoint"] == "0:1790000000:1"
    assert by_id(found, "standing") == {1: "clean", 2: "conflict", 10: "clean"}
    assert by_id(found, "before")[1] == by_id(found, "live")[1]
    assert by_id(answer(capsys, "restore", tmp_path, *COMMON), "result") == {1: "done", 2: "left", 10: "done"}
    assert by_id(answer(capsys, "restore", tmp_path, *COMMON), "result") == {1: "there", 2: "left", 10: "there"}
    live.oplog_is_complete = False
    write(tmp_path, removed(ORDERS_UUID), [{"_id": 3, "a": 7}])
    assert by_id(answer(capsys, "diff", tmp_path, *COMMON), "standing") == {3: "conflict"}


def test_a_document_that_both_sides_changed_is_merged(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    """Where the set's oplog tells what it was at the common point; again it is there."""
    write(tmp_path, removed(ORDERS_UUID), LOST[:2])
    live.at_common[ORDERS, encode_key(2)] = encode(BEFORE[1])
    found = answer(capsys, "diff", tmp_path, *COMMON)
    assert by_id(found, "beforeKnown") == {1: True, 2: True}
    assert by_id(found, "conflicts")[2] == []
    for result in ("done", "there"):
        found = answer(capsys, "restore", tmp_path, "--policy", "merge", *COMMON)
        assert by_id(found, "result") == {1: result, 2: result}
    assert live.rows()[1] == {"_id": 2, "a": 2, "b": 9}


def test_a_document_that_was_put_back_to_what_it_was(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID), [LOST[1], {"_id": 11}])
    live.at_common |= {(ORDERS, encode_key(2)): encode({**BEFORE[1], "b": 9}), (ORDERS, encode_key(11)): None}
    live.put(ORDERS, {"_id": 11})
    live.remove(ORDERS, 11)
    assert by_id(answer(capsys, "diff", tmp_path, *COMMON), "standing") == {2: "clean", 11: "clean"}


def test_a_common_point_is_refused_where_it_is_none(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    assert run("diff", tmp_path, "--common-point", "yesterday") == 2
    assert "'yesterday' is no common point" in capsys.readouterr().err
    manifest = lost_orders().write(tmp_path / "own")
    assert run("restore", manifest, *COMMON) == 2
    assert "the manifest has the common point" in capsys.readouterr().err


def test_collections_that_are_not_put_back(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    """A dropped one keeps its UUID as its name; mongod's own and its users are no client's."""
    for number, collection in enumerate((DROPPED, "config.transactions", "admin.system.users", "shop.system.js")):
        write(tmp_path, removed(collection, number=number), [{"_id": 1}])
    for policy in (("overwrite",), ("to-collection", "saved")):
        found = answer(capsys, "restore", tmp_path, "--policy", *policy, *COMMON)
        assert {row["ns"]: row["reason"] for row in found["writes"]} == {
            DROPPED: "the set has no collection with this UUID: it was dropped, or this is another set",
            "config.transactions": "mongod itself keeps this collection",
            "admin.system.users": "users are put back by hand: createUser, updateUser or dropUser",
            "shop.system.js": "mongod itself keeps this collection",
        }
    assert live.writes == 0


def test_copies_to_another_collection(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    for result in ("done", "there"):
        found = answer(capsys, "restore", tmp_path, "--policy", "to-collection", "saved")
        assert found["counts"][result] == 3
    assert live.rows("shop.saved") == LOST


def test_files_of_one_time_are_one_rollback(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    write(tmp_path, removed(ORDERS_UUID))
    write(tmp_path, removed(DROPPED, number=1), [{"_id": 7}])
    write(tmp_path, removed(ORDERS_UUID, LATER, 2), [{"_id": 3}])
    write(tmp_path, "notes.txt", [])
    assert run("dump", tmp_path) == 1
    assert "has 2 rollbacks" in capsys.readouterr().err
    assert run("dump", tmp_path / "rollback" / STAMP) == 0
    assert capsys.readouterr().out.count("_id") == 4
    rows = answer(capsys, "list", tmp_path)["rollbacks"]
    assert [(row["id"], len(row["files"])) for row in rows] == [(STAMP, 2), (LATER, 1)]
    assert run("diff", tmp_path) == 2
    assert f"has 2 rollbacks: give one of them, as {tmp_path}/rollback/{LATER}" in capsys.readouterr().err
    assert len(answer(capsys, "diff", tmp_path / "rollback" / STAMP)["writes"]) == 4
    assert by_id(answer(capsys, "diff", tmp_path / "rollback" / LATER), "standing") == {3: "conflict"}
    assert run("diff", tmp_path / "rollback" / "2026-01-01T00-00-00") == 2


def test_a_damaged_file_is_found_and_never_put_back(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    path = write(tmp_path, removed(ORDERS_UUID))
    whole = path.read_bytes()
    first = len(encode(LOST[0]))
    for damaged, offset in (
        (whole[:-3], first * 2),
        (whole[: first + 5] + b"\x7f" + whole[first + 6 :], first),
        (whole + whole[:first], len(whole)),
        (encode({"a": 1}), 0),
    ):
        path.write_bytes(damaged)
        (row,) = answer(capsys, "verify", tmp_path)["files"]
        assert row["problems"][0]["offset"] in range(offset, offset + 20)
        assert list(answer(capsys, "show", tmp_path)["problems"]) == [row["name"]]
        assert run("restore", tmp_path, "--policy", "overwrite") == 2
        assert "see `rollback-tools verify" in capsys.readouterr().err
    assert live.writes == 0


def test_an_encrypted_file_cannot_be_read(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    path = write(tmp_path, f"{removed(ORDERS_UUID)}.enc")
    assert run("list", tmp_path) == 0
    assert "1 encrypted, not to be read here" in " ".join(lines(capsys))
    for given in (tmp_path, path):
        for command in ("show", "verify", "diff", "restore"):
            assert run(command, given) == 2
            assert f"{path.name} is encrypted by mongod's storage engine" in capsys.readouterr().err


def test_files_beside_manifests_are_not_mongods(tmp_path: Path, live: FakeSet, capsys: Capture) -> None:
    manifest = lost_orders().write(tmp_path)
    path = write(tmp_path, removed(ORDERS_UUID))
    assert [row["id"] for row in answer(capsys, "list", tmp_path)["rollbacks"]] == [manifest.stem]
    assert run("show", path) == 2
    assert "give the rollback-*.json file" in capsys.readouterr().err
    assert run("show", tmp_path) == 2
    assert "has no rollback of a mongod" in capsys.readouterr().err


def test_an_unknown_option_is_named_before_the_set_is_asked(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path, removed(ORDERS_UUID))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = f"127.0.0.1:{nobody.getsockname()[1]}"
    for command in ("diff", "restore"):
        assert run(command, path, "--host", f"mongodb://{closed}/?tlsCaFlie=x&retryWrites=true") == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first == "rollback-tools: unknown option 'tlscaflie'"
        assert f"{closed} cannot be reached" in second
