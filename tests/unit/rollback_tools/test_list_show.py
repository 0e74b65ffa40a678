"""`rollback-tools list` and `show` on folders as a member writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replset.bson import encode
from replset.replication.rollback_manifest import FileKind, RollbackState, read_manifest
from rollback_tools import main
from tests.unit.rollback_tools.kit import WALL_MS, LostHistory

Capture = pytest.CaptureFixture[str]


def roll_back(dbpath: Path, state: RollbackState = RollbackState.FINISHED, wall_ms: int = WALL_MS) -> Path:
    """Write a rollback that took an update and an insert away; returns the manifest's path."""
    lost = LostHistory({0: {"_id": 0, "old": True}})
    lost.update({"_id": 0})
    lost.insert({"_id": 1})
    lost.noop()
    return lost.write(dbpath, state, wall_ms=wall_ms)


def run(*arguments: object) -> int:
    return main.main(list(map(str, arguments)))


def test_list_for_scripts_is_every_manifest_oldest_first(tmp_path: Path, capsys: Capture) -> None:
    assert run("list", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"rollbacks": [], "damaged": {}}
    written = [roll_back(tmp_path, wall_ms=WALL_MS + shift) for shift in (5000, 0, 1, 2)]
    assert run("list", tmp_path, "--json") == 0
    listed = json.loads(capsys.readouterr().out)["rollbacks"]
    assert [row["id"] for row in listed] == [written[number].stem for number in (1, 2, 3, 0)]
    assert listed[0] == {**json.loads(written[1].read_text()), "acknowledged": None}


def test_list_for_people_says_when_how_much_and_where(tmp_path: Path, capsys: Capture) -> None:
    assert run("list", tmp_path) == 0
    assert capsys.readouterr().out == f"no rollbacks in {tmp_path}\n"
    manifest = roll_back(tmp_path)
    assert run("list", tmp_path / "rollback") == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if manifest.stem in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == [manifest.stem, "finished", "1:10:1", "1:11:1 to 1:11:3", "3", "2", "shop.orders", "-"]
    assert out.splitlines()[-1] == f"See one: rollback-tools show {manifest}"
    roll_back(tmp_path, RollbackState.PLANNED)
    roll_back(tmp_path, RollbackState.ABANDONED)
    assert run("list", tmp_path) == 0
    out = capsys.readouterr().out
    assert ("planned: not settled yet" in out, "abandoned: nothing was undone" in out) == (True, True)


def test_a_damaged_manifest_does_not_hide_the_others(tmp_path: Path, capsys: Capture) -> None:
    manifest = roll_back(tmp_path)
    broken = tmp_path / "rollback" / "rollback-2026-01-01T00-00-00.0.json"
    broken.write_text("{}")
    assert run("list", tmp_path, "--json") == 1
    out, err = capsys.readouterr()
    listed = json.loads(out)
    assert [row["id"] for row in listed["rollbacks"]] == [manifest.stem]
    assert list(listed["damaged"]) == [broken.name]
    assert err.startswith(f"rollback-tools: {broken.name} is not a rollback manifest")
    assert run("list", tmp_path) == 1
    assert manifest.stem in capsys.readouterr().out


def test_show(tmp_path: Path, capsys: Capture) -> None:
    manifest = roll_back(tmp_path)
    assert run("show", manifest) == 0
    out = capsys.readouterr().out
    for text in (
        f"{manifest.stem} (finished, rollback towards 127.0.0.1:27018)",
        "127.0.0.1:27017 of rs0, 2026-09-21T14:13:20.123Z",
        "1:11:1 to 1:11:3: 3 entries (1 inserted, 1 no-op, 1 updated)",
        *(file.name for file in read_manifest(manifest).files),
    ):
        assert text in out
    assert out.count(" ok ") == 3
    assert run("show", "--json", manifest) == 0
    assert json.loads(capsys.readouterr().out) == {**json.loads(manifest.read_text()), "problems": {}}


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_show_checks_the_files(tmp_path: Path, capsys: Capture, damage: str) -> None:
    manifest = roll_back(tmp_path)
    file = next(file for file in read_manifest(manifest).files if file.kind is FileKind.DOCUMENTS)
    path = tmp_path / "rollback" / file.name
    data, words = path.read_bytes(), "missing"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-1])
        words = f"{file.size - 1} bytes, the manifest says {file.size}"
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        words = "its SHA-256 is not the manifest's"
    assert run("show", "--json", manifest) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == {file.name: words}
    assert run("show", manifest) == 1
    assert words in capsys.readouterr().out


NOT_MANIFESTS: dict[str, tuple[bytes, str]] = {
    "text.json": (b"no", "is not a rollback manifest: it is not JSON"),
    "empty": (b"", "is not a rollback manifest: it is not JSON"),
    "bytes": (b"PAR1\xff\xfe\x00\x1b[2J" * 100, "is not a rollback manifest: it is not JSON"),
    "list.json": (b"[1]", "is not a rollback manifest: it is JSON of another form"),
    "other.json": (b'{"a": 1}', "is not a rollback manifest: it has no field 'version'"),
    "later.json": (b'{"version": 9}', "is not a rollback manifest: version 9 is not known here"),
    "shop.orders.bson": (encode({"_id": b"\xff"}), "holds documents: give the rollback-*.json file beside it"),
}


@pytest.mark.parametrize("tool", ["show", "verify", "diff", "restore"])
@pytest.mark.parametrize(("name", "data", "words"), [(name, *row) for name, row in NOT_MANIFESTS.items()])
def test_what_is_no_manifest_is_one_line_and_status_2(
    tmp_path: Path, capsys: Capture, tool: str, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert run(tool, path) == 2
    out, err = capsys.readouterr()
    assert (out, f"{name} {words}" in err, err.count("\n")) == ("", True, 1), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "/none"], "/none is not a folder"),
        (["show", "/none"], "/none is not a file (see `rollback-tools list DBPATH`)"),
        (["verify", "/"], "/ has no rollback of a mongod"),
        (["frobnicate"], ""),
        (["list"], ""),
        (["list", "--frobnicate", "."], ""),
        (["show", "a", "b"], ""),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(capsys: Capture, arguments: list[str], words: str) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"rollback-tools: {words}"), err.count("\n")) == ("", True, 1)


NASTY = "eve\nforged\r\x1b[2J\x9b31m\u2028\u202e[red]"


@pytest.mark.parametrize("command", ["list", "list --json", "show", "show --json", "verify", "verify --json"])
def test_no_name_in_a_manifest_begins_a_line_or_steers_the_terminal(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    path = roll_back(tmp_path)
    document = json.loads(path.read_text())
    document |= {"member": NASTY, "set": NASTY, "source": NASTY}
    for file in document["files"]:
        file["ns"] = file["name"] = NASTY
    path.write_text(json.dumps(document))
    name, *options = command.split()
    what = tmp_path if name == "list" else path
    run(name, what, *options)
    out, err = capsys.readouterr()
    lines = (out + err).split("\n")
    assert any("forged" in line for line in lines)
    assert [line for line in lines if not line.isprintable() or line.lstrip(" │").startswith("forged")] == []


def test_a_dump_on_a_terminal_is_escaped(tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    document: dict[str, object] = {"\x9b2J\x7f": "\u202e", "a\x1b": "é"}
    (tmp_path / "file.bson").write_bytes(encode(document))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for option in ("--type=json", "--pretty", "--type=debug", "--format=table"):
        assert run("dump", option, tmp_path / "file.bson") == 0
        out = capfd.readouterr().out
        assert {char for char in out if not char.isprintable()} <= {"\n", "\t"}, option
        if option == "--pretty":
            assert json.loads(out) == document
