"""`rollback-tools verify` finds every damage with its place; `ack` is noted once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from replset.bson import encode
from replset.replication.rollback_manifest import RollbackState, acknowledged
from rollback_tools import main
from tests.unit.rollback_tools.kit import Doc, LostHistory

Capture = pytest.CaptureFixture[str]
BEFORE: dict[int, Doc] = {number: {"_id": number, "text": "before"} for number in range(3)}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return history().write(tmp_path)


def history() -> LostHistory:
    lost = LostHistory(BEFORE)
    for number in range(3):
        lost.update({**BEFORE[number], "text": "after"})
    lost.insert({"_id": 9})
    lost.noop()
    return lost


def run(*arguments: object) -> int:
    return main.main(list(map(str, arguments)))


def path_of(manifest: Path, kind: str) -> Path:
    rows = json.loads(manifest.read_text())["files"]
    return manifest.parent / next(str(row["name"]) for row in rows if row["kind"] == kind)


def rewrite(manifest: Path, kind: str, data: bytes) -> None:
    """Other bytes, and a manifest that says that they are right."""
    document = json.loads(manifest.read_text())
    (row,) = [row for row in document["files"] if row["kind"] == kind]
    row["bytes"], row["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    manifest.write_text(json.dumps(document))
    (manifest.parent / row["name"]).write_bytes(data)


def problems(manifest: Path, capsys: Capture) -> dict[str, list[tuple[int | None, str]]]:
    """By kind of file, and "" for what is wrong with the whole."""
    assert run("verify", manifest, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    by_kind = {row["kind"]: [(one["offset"], one["problem"]) for one in row["problems"]] for row in found["files"]}
    by_kind[""] = [(None, text) for text in found["problems"]]
    return {kind: rows for kind, rows in by_kind.items() if rows}


def test_a_sound_rollback(manifest: Path, capsys: Capture) -> None:
    assert run("verify", manifest) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{manifest.stem} is sound"
    assert run("verify", manifest, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["problems"]) == (True, [])
    assert {row["kind"]: row["documents"] for row in found["files"]} == {"documents": 4, "before": 3, "oplog": 5}


def flip(offset: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + bytes([data[offset] ^ 0x40]) + data[offset + 1 :]


SIZE = len(encode({**BEFORE[0], "text": "after"}))


@pytest.mark.parametrize(
    ("damage", "place", "words"),
    [
        pytest.param(lambda data: data[:-1], -1, "bytes, the manifest says", id="cut"),
        pytest.param(lambda data: data + b"\0", None, "bytes, the manifest says", id="longer"),
        pytest.param(flip(SIZE + 4), SIZE + 4, "in the document at byte", id="type-byte"),
        pytest.param(flip(SIZE + 3), SIZE, "no document begins at byte", id="length"),
        pytest.param(flip(SIZE - 1), 0, "the document at byte 0 is cut or damaged", id="terminator"),
        pytest.param(flip(SIZE + 10), None, "its SHA-256 is not the manifest's", id="value"),
    ],
)
def test_damage_is_named_with_its_place(
    manifest: Path, capsys: Capture, damage: Callable[[bytes], bytes], place: int | None, words: str
) -> None:
    path = path_of(manifest, "documents")
    data = path.read_bytes()
    path.write_bytes(damage(data))
    found = problems(manifest, capsys)["documents"]
    if words.endswith("says"):
        assert found[0] == (min(len(data), len(damage(data))), f"{len(damage(data))} {words} {len(data)}")
    assert any(words in text and (place in (None, -1) or offset == place) for offset, text in found), found
    assert run("verify", manifest) == 1
    assert words.split("says")[0] in " ".join(capsys.readouterr().out.split())


Change = Callable[[bytes], bytes]
END = 3 * SIZE
"""Where the last document begins."""
NOT_TOGETHER: dict[str, tuple[str, Change, list[tuple[int | None, str]]]] = {
    "twice": (
        "documents",
        lambda data: data + data[:SIZE],
        [(END + 14, "the document is here twice"), (None, "5 documents, the manifest says 4")],
    ),
    "stranger": (
        "documents",
        lambda data: data + encode({"_id": 77}),
        [
            (END + 14, "nothing else in the rollback is about this document"),
            (None, "5 documents, the manifest says 4"),
        ],
    ),
    "no-id": ("documents", lambda data: data[:-14] + encode({"no": 5}), [(END, "the document has no _id")]),
    "count": ("before", lambda data: encode({"_id": 9}) + data, [(None, "4 documents, the manifest says 3")]),
    "no-entry": (
        "oplog",
        lambda data: encode({"_id": 1}) + data,
        [(0, "no oplog entry: it needs op, ns, ts and t"), (None, "6 documents, the manifest says 5")],
    ),
}


@pytest.mark.parametrize(("kind", "change", "expected"), NOT_TOGETHER.values(), ids=NOT_TOGETHER)
def test_what_does_not_belong_together(
    manifest: Path, capsys: Capture, kind: str, change: Change, expected: list[tuple[int | None, str]]
) -> None:
    rewrite(manifest, kind, change(path_of(manifest, kind).read_bytes()))
    assert problems(manifest, capsys)[kind] == expected


def test_entries_that_are_missing_or_out_of_order(manifest: Path, capsys: Capture) -> None:
    data = path_of(manifest, "oplog").read_bytes()
    first = int.from_bytes(data[:4], "little")
    rewrite(manifest, "oplog", data[first:])
    found = problems(manifest, capsys)["oplog"]
    assert any("first and last entry: 1:11:2 to 1:11:5, the manifest says 1:11:1 to 1:11:5" in row[1] for row in found)
    assert any("entries: {" in text for _, text in found)
    rewrite(manifest, "oplog", data[first:] + data[:first])
    assert problems(manifest, capsys)["oplog"][0] == (len(data) - first, "the entry 1:11:1 does not follow 1:11:5")


def test_a_manifest_without_its_oplog_file_or_under_another_name(manifest: Path, capsys: Capture) -> None:
    moved = manifest.rename(manifest.with_name("rollback-other.0.json"))
    assert "by its name of rollback-other.0" in problems(moved, capsys)[""][0][1]
    assert run("verify", moved) == 1
    assert "by its name of rollback-other.0" in capsys.readouterr().out
    document = json.loads(moved.rename(manifest).read_text())
    manifest.write_text(json.dumps({**document, "files": document["files"][:-1]}))
    assert "names no file of them" in problems(manifest, capsys)[""][0][1]


# --- ack --------------------------------------------------------------------------------------------------------


def test_a_rollback_is_acknowledged_once(manifest: Path, capsys: Capture) -> None:
    assert run("ack", manifest, "--by", "anna") == 0
    when = acknowledged(manifest.parent, manifest.stem)
    assert capsys.readouterr().out == f"{manifest.stem} is acknowledged {when}\n"
    assert run("ack", manifest, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rollbacks"]
    assert rows == [{"id": manifest.stem, "acknowledged": when, "new": False}]
    assert json.loads(manifest.with_suffix(".ack").read_text())["by"] == "anna"
    assert run("list", manifest.parent, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rollbacks"][0]["acknowledged"] == when


def test_several_are_acknowledged_or_none(tmp_path: Path, capsys: Capture) -> None:
    first, second = history().write(tmp_path), history().write(tmp_path)
    assert run("ack", first, tmp_path / "none.json") == 2
    assert "is no rollback-*.json file" in capsys.readouterr().err
    assert acknowledged(first.parent, first.stem) is None
    assert run("ack", first, second) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_planned_one_is_refused_and_a_damaged_one_is_not(tmp_path: Path, capsys: Capture) -> None:
    planned = history().write(tmp_path, RollbackState.PLANNED)
    assert run("ack", planned) == 2
    assert "planned, not settled yet" in capsys.readouterr().err
    planned.write_text("{")
    assert run("ack", planned) == 0
