"""`rollback-tools diff` and `restore` on a set in memory: lines for people, records, and questions.

`recovery/test_restore.py` has what is put back, which is the same over HTTP.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from rollback_tools import diff, main, manifest_source, restore
from tests.unit.rollback_tools.kit import ORDERS, UUID_OF_ORDERS, FakeSet, LostHistory, live_orders, lost_orders

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    found = live_orders()
    for module in (diff, restore):
        monkeypatch.setattr(module, "LiveSet", lambda host, set_name: found)
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return lost_orders().write(tmp_path)


def run(*arguments: object) -> int:
    return main.main(list(map(str, arguments)))


def results(out: str) -> dict[int, str]:
    return {int(row["_id"]["$numberInt"]): row["result"] for row in json.loads(out)["writes"]}


def test_diff_for_people(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("diff", manifest) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "shop.orders 4 lost update in conflict" in lines
    assert "a 1 2 9" in lines
    assert "shop.orders 10 lost insert unchanged since the common point" in lines
    assert 'lost: {"_id":10,"new":true}; not there now' in lines
    assert 'deleted; live now: {"_id":6,"a":1,"b":9}' in lines
    assert lines[-1] == "3 unchanged since the common point; 3 in conflict"


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


def test_what_would_be_done_and_what_is_done_for_people(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("restore", manifest, "--policy", "merge", "--dry-run") == 1
    dry = capsys.readouterr().out.splitlines()
    assert run("restore", manifest, "--policy", "merge") == 1
    done = capsys.readouterr().out.splitlines()
    assert [line.replace("would put back", "put back") for line in dry[:6]] == done[:6]
    assert (dry[6], done[6]) == ("4 would put back, 2 left", "4 put back, 2 left")


def test_a_policy_and_its_name(live: FakeSet, manifest: Path, capsys: Capture) -> None:
    assert run("restore", "--policy=to-collection", "saved", manifest) == 1
    assert len(live.rows("shop.saved")) == 4
    assert run("restore", manifest, "--policy", "merge saved") == 2
    assert "takes no NAME" in capsys.readouterr().err


def test_the_record_holds_what_was_overwritten_before_it_is(live: FakeSet, manifest: Path, tmp_path: Path) -> None:
    record, seen = tmp_path / "record.jsonl", list[str]()
    live.before_write = lambda writes: seen.append(record.read_text())
    run("restore", manifest, "--policy", "overwrite", "--audit", record)
    (before,) = seen
    assert '"live": {"_id": {"$numberInt": "4"}, "a": {"$numberInt": "9"}' in before
    assert run("restore", manifest, "--audit", record) == 2


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


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_each_lost_write_is_asked_about(
    live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    answer(monkeypatch, "k", "?", "", "m", "p", "n", "k")
    assert run("restore", manifest, "--interactive", "--json") == 1
    out, err = capsys.readouterr()
    assert results(out) == {10: "left", 2: "done", 3: "done", 4: "done", 5: "done", 6: "left"}
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
    assert {number for number, result in results(capsys.readouterr().out).items() if result == "done"} == done


def test_a_drop_is_asked_about(live: FakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostHistory()
    lost.command({"drop": "orders"}, UUID_OF_ORDERS)
    path = lost.write(tmp_path)
    answer(monkeypatch, "k")
    assert run("restore", path, "--interactive") == 1
    answer(monkeypatch, "p")
    assert run("restore", path, "--interactive") == 0
    assert live.uuids == {}
