"""Verifies the files of one rollback against its manifest, document by document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replset.bson import InvalidBSONError, RawDocument, encode_key, validate
from replset.features.recovery.lost_writes import DamagedFileError, DocumentId, read_bson
from replset.ids import OPTIME_NULL
from replset.oplog_entry import COMMAND, NOOP, OplogEntry
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackFile, size_and_sha256

MAX_PROBLEMS = 20


@dataclass(slots=True)
class FileCheck:
    """What one file holds and what is wrong with it. problems: (byte offset or None, text)."""

    file: RollbackFile
    count: int = 0
    size: int = 0
    problems: list[tuple[int | None, str]] = field(default_factory=list)

    def add(self, offset: int | None, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append((offset, problem))


@dataclass(frozen=True, slots=True)
class RollbackCheck:
    """The result for one rollback. problems: what is wrong with it as a whole."""

    id: str
    files: list[FileCheck]
    problems: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.problems and not any(row.problems for row in self.files)

    def document(self) -> dict[str, Any]:
        """The document of `--json`."""
        rows = [
            {
                "name": row.file.name,
                "kind": row.file.kind.value,
                "documents": row.count,
                "problems": [{"offset": offset, "problem": problem} for offset, problem in row.problems],
            }
            for row in self.files
        ]
        return {"id": self.id, "ok": self.is_sound, "files": rows, "problems": self.problems}


def verify_rollback(
    path: Path, manifest: Manifest, on_checked: Callable[[int], None] = lambda size: None
) -> RollbackCheck:
    """Check every file of a rollback. path: of the manifest; its files are beside it. on_checked: called with the size
    of each file that is done. Of mongod's files nothing else tells what is in them: each document is checked.
    """
    touched: set[DocumentId] = set()
    lost: set[DocumentId] = set()
    problems: list[str] = []
    checked = {file.name: FileCheck(file) for file in manifest.files}
    order = (FileKind.OPLOG, FileKind.DOCUMENTS, FileKind.BEFORE)
    for row in sorted(checked.values(), key=lambda row: order.index(row.file.kind)):
        file = path.parent / row.file.name
        if not file.is_file():
            row.add(None, "missing")
            continue
        if manifest.from_mongod:
            row.size = row.file.size
        else:
            _check_bytes(file, row)
        if row.file.kind is FileKind.OPLOG:
            _check_entries(file, row, manifest, touched)
        else:
            about = touched if manifest.entries else None
            allowed, seen = (about, lost) if row.file.kind is FileKind.DOCUMENTS else (lost, set[DocumentId]())
            _check_documents(file, row, allowed, seen)
        if row.count != row.file.count and not manifest.from_mongod:
            row.add(None, f"{row.count} documents, the manifest says {row.file.count}")
        on_checked(row.size)
    if manifest.entries and not any(file.kind is FileKind.OPLOG for file in manifest.files):
        problems.append(f"the manifest counts {manifest.entries} entries and names no file of them")
    if path.stem != manifest.id and not manifest.from_mongod:
        problems.append(f"the manifest is that of {manifest.id}, by its name of {path.stem}")
    return RollbackCheck(manifest.id, list(checked.values()), problems)


def _check_bytes(path: Path, row: FileCheck) -> None:
    row.size, sha256 = size_and_sha256(path)
    if row.size != row.file.size:
        row.add(min(row.size, row.file.size), f"{row.size} bytes, the manifest says {row.file.size}")
    if sha256 != row.file.sha256:
        row.add(None, "its SHA-256 is not the manifest's")


def _check_entries(path: Path, row: FileCheck, manifest: Manifest, touched: set[DocumentId]) -> None:
    """touched: gets the documents that the entries are about."""
    operations: Counter[str] = Counter()
    first, last = OPTIME_NULL, OPTIME_NULL
    for offset, raw in _read(path, row):
        try:
            entry = OplogEntry(raw)
            first = entry.optime if first == OPTIME_NULL else first
            if entry.optime.ts <= last.ts:
                row.add(offset, f"the entry {entry.optime} does not follow {last}")
            last = entry.optime
            operations[entry.op] += 1
            writes = [one for one in entry.operations if one.op not in (COMMAND, NOOP)]
            about = [(one.ui, one.key()) for one in writes]
        except InvalidBSONError as error:
            row.add(offset, error.message)
            continue
        touched.update((uuid, key) for uuid, key in about if uuid is not None and key is not None)
    if row.problems:
        return  # the checks below would only repeat it
    if operations != manifest.operations:
        row.add(None, f"entries: {dict(operations)}, the manifest says {dict(manifest.operations)}")
    found, expected = f"{first} to {last}", f"{manifest.first} to {manifest.last}"
    if found != expected:
        row.add(None, f"first and last entry: {found}, the manifest says {expected}")


def _check_documents(path: Path, row: FileCheck, allowed: set[DocumentId] | None, seen: set[DocumentId]) -> None:
    """allowed: the documents that may be in this file; None: any. seen: gets those that are."""
    uuid = row.file.ns.encode() if row.file.uuid is None else row.file.uuid.bytes
    for offset, raw in _read(path, row):
        document = RawDocument(raw)
        if "_id" not in document:
            row.add(offset, "the document has no _id")
            continue
        identifier = uuid, encode_key(document.get("_id"))
        if identifier in seen:
            row.add(offset, "the document is here twice")
        elif allowed is not None and identifier not in allowed:
            row.add(offset, "nothing else in the rollback is about this document")
        seen.add(identifier)


def _read(path: Path, row: FileCheck) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and bytes of each document that can be decoded."""
    try:
        with path.open("rb", buffering=1 << 20) as file:
            for offset, raw in read_bson(file, path.name):
                row.count += 1
                try:
                    validate(raw)
                except InvalidBSONError as error:
                    row.add(offset + (error.offset or 0), f"in the document at byte {offset}: {error.reason}")
                    continue
                yield offset, raw
    except DamagedFileError as error:
        row.add(error.offset, error.message)
