"""What the files of a rollback say of each document, as rows and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from replset.bson import Binary, decode, encode
from replset.errors import CorruptDataError
from replset.features.recovery.lost_writes import LostWrites
from replset.features.recovery.report import JsonReport, summary
from replset.oplog_entry import extra_fields
from replset.replication.rollback_manifest import FileKind, read_manifest
from tests.unit.rollback_tools.kit import LostHistory


def summaries(lost: LostHistory, folder: Path) -> list[dict[str, object]]:
    path = lost.write(folder)
    with LostWrites(path.parent, read_manifest(path)) as found:
        return [summary(row) for row in found.documents]


def test_each_document_has_the_kind_of_what_is_lost_of_it(tmp_path: Path) -> None:
    lost = LostHistory(before={1: {"_id": 1}, 2: {"_id": 2}, 3: {"_id": 3}})
    lost.insert({"_id": 10})
    lost.update({"_id": 1, "changed": True})
    lost.delete(2)
    lost.insert({"_id": 11})
    lost.delete(11)
    lost.delete(3)
    lost.insert({"_id": 3, "again": True})
    rows = summaries(lost, tmp_path)
    found = {row["_id"]["$numberInt"]: (row["class"], row["entries"]) for row in rows}  # type: ignore[index]
    assert found == {"10": ("insert", 1), "1": ("update", 1), "2": ("delete", 1), "3": ("update", 2)}, "11 is not lost"


def test_an_entry_that_names_no_collection_is_refused(tmp_path: Path) -> None:
    lost = LostHistory()
    lost.insert({"_id": 1})
    lost.entries[-1] = encode({name: value for name, value in decode(lost.entries[-1]).items() if name != "ui"})
    with pytest.raises(CorruptDataError, match="names no collection or document"):
        summaries(lost, tmp_path)


def test_of_many_sessions_the_first_eight_are_named(tmp_path: Path) -> None:
    lost = LostHistory()
    for number in range(10):
        session = extra_fields({"lsid": {"id": Binary(bytes([number]) * 16, 4), "uid": Binary(b"x")}, "txnNumber": 1})
        lost.insert({"_id": 1, "n": number}, session)
    (row,) = summaries(lost, tmp_path)
    assert row["sessions"] == [{"id": f"{number:02x}" * 16, "txnNumber": 1} for number in range(8)]


@pytest.mark.parametrize("kind", [FileKind.OPLOG, FileKind.DOCUMENTS])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kind: FileKind) -> None:
    lost = LostHistory()
    lost.insert({"_id": 1, "text": "x" * 100})
    path = lost.write(tmp_path)
    manifest = read_manifest(path)
    (file,) = [file for file in manifest.files if file.kind is kind]
    data = (path.parent / file.name).read_bytes()
    (path.parent / file.name).write_bytes(data[:-5])
    with pytest.raises(CorruptDataError, match=file.name):
        LostWrites(path.parent, manifest)


@pytest.mark.parametrize("rows", [[], [{"n": 1}], [{"n": 1}, {"text": "größer\n\x1b"}]])
def test_rows_are_written_as_they_come_and_make_one_document(rows: list[dict[str, object]]) -> None:
    out = io.StringIO()
    report = JsonReport(out, {"member": "größe:1"}, "writes")
    for row in rows:
        report.row(row)
    report.close({"end": "schön", "ok": True})
    text = out.getvalue()
    assert json.loads(text) == {"member": "größe:1", "writes": rows, "end": "schön", "ok": True}
    assert ("größe:1" in text, "schön" in text, "\x1b" in text) == (True, True, False), "for people, not for a terminal"
    assert text.endswith('],\n  "end": "schön",\n  "ok": true\n}\n'), "laid out as the beginning is"
