"""Every file of one rollback against what its manifest says, document by document."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replset.bson import InvalidBSONError, RawDocument, encode_key, validate
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import COMMAND, NOOP, OplogEntry
from replset.recovery.lost_writes import DamagedFileError, read_bson
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackFile

MOST_PROBLEMS = 20
Place = tuple[bytes, bytes]
"""A collection's UUID, and encode_key of an `_id`."""


@dataclass(slots=True)
class FileCheck:
    """What was found in one file. problems: (byte offset or None, what is wrong)."""

    file: RollbackFile
    count: int = 0
    size: int = 0
    problems: list[tuple[int | None, str]] = field(default_factory=list)

    def add(self, offset: int | None, problem: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append((offset, problem))

    def row(self) -> dict[str, Any]:
        found = [{"offset": offset, "problem": problem} for offset, problem in self.problems]
        return {"name": self.file.name, "kind": self.file.kind.value, "documents": self.count, "problems": found}


@dataclass(frozen=True, slots=True)
class RollbackCheck:
    """What was found in one rollback. general: what is wrong with the whole."""

    id: str
    files: list[FileCheck]
    general: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.general and not any(row.problems for row in self.files)

    def document(self) -> dict[str, Any]:
        """For scripts."""
        rows = [row.row() for row in self.files]
        return {"id": self.id, "ok": self.is_sound, "files": rows, "problems": self.general}


def verify_rollback(path: Path, manifest: Manifest) -> RollbackCheck:
    """path: of the manifest, whose files stand beside it."""
    checked, general = check(path.parent, manifest)
    if path.stem != manifest.id:
        general.append(f"the manifest is that of {manifest.id}, by its name of {path.stem}")
    return RollbackCheck(manifest.id, checked, general)


def check(folder: Path, manifest: Manifest) -> tuple[list[FileCheck], list[str]]:
    """Each file's result, in the manifest's order; and what is wrong with the whole."""
    touched: set[Place] = set()
    lost: set[Place] = set()
    general: list[str] = []
    checked = {file.name: FileCheck(file) for file in manifest.files}
    order = (FileKind.OPLOG, FileKind.DOCUMENTS, FileKind.BEFORE)
    for row in sorted(checked.values(), key=lambda row: order.index(row.file.kind)):
        path = folder / row.file.name
        if not path.is_file():
            row.add(None, "missing")
            continue
        _check_bytes(path, row)
        if row.file.kind is FileKind.OPLOG:
            _check_entries(path, row, manifest, touched)
        else:
            allowed, seen = (touched, lost) if row.file.kind is FileKind.DOCUMENTS else (lost, set[Place]())
            _check_documents(path, row, allowed, seen)
        if row.count != row.file.count:
            row.add(None, f"{row.count} documents, the manifest says {row.file.count}")
    if manifest.entries and not any(file.kind is FileKind.OPLOG for file in manifest.files):
        general.append(f"the manifest counts {manifest.entries} entries and names no file of them")
    return list(checked.values()), general


def _check_bytes(path: Path, row: FileCheck) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        row.size = file.tell()
    if row.size != row.file.size:
        row.add(min(row.size, row.file.size), f"{row.size} bytes, the manifest says {row.file.size}")
    if digest != row.file.sha256:
        row.add(None, "its SHA-256 is not the manifest's")


def _check_entries(path: Path, row: FileCheck, manifest: Manifest, touched: set[Place]) -> None:
    operations: Counter[str] = Counter()
    first, last = OPTIME_NULL, OPTIME_NULL
    for offset, entry in _entries(path, row):
        first = entry.optime if first == OPTIME_NULL else first
        if entry.optime.ts <= last.ts:
            row.add(offset, f"the entry {entry.optime} does not follow {last}")
        last = entry.optime
        operations[entry.op] += 1
        try:
            key = None if entry.op in (COMMAND, NOOP) else entry.key()
        except InvalidBSONError as error:
            row.add(offset, error.message)
            continue
        if key is not None and entry.ui is not None:
            touched.add((entry.ui, key))
    if row.problems:
        return  # what follows would only say it again
    _expect(row, "entries", dict(operations), dict(manifest.operations))
    _expect(row, "first and last entry", (first, last), (manifest.first, manifest.last))


def _entries(path: Path, row: FileCheck) -> Iterator[tuple[int, OplogEntry]]:
    for offset, raw in _read(path, row):
        try:
            entry = OplogEntry(raw)
        except InvalidBSONError as error:
            row.add(offset, error.message)
            continue
        yield offset, entry


def _expect(row: FileCheck, what: str, found: object, expected: object) -> None:
    if found != expected:
        row.add(None, f"{what}: {_shown(found)}, the manifest says {_shown(expected)}")


def _shown(value: object) -> str:
    if isinstance(value, tuple) and not isinstance(value, OpTime):
        return " to ".join(map(str, value))
    return str(value)


def _check_documents(path: Path, row: FileCheck, allowed: set[Place], seen: set[Place]) -> None:
    """allowed: what can stand here; seen: takes what does."""
    uuid = b"" if row.file.uuid is None else row.file.uuid.bytes
    for offset, raw in _read(path, row):
        document = RawDocument(raw)
        if "_id" not in document:
            row.add(offset, "the document has no _id")
            continue
        place = uuid, encode_key(document.get("_id"))
        if place in seen:
            row.add(offset, "the document stands here twice")
        elif place not in allowed:
            row.add(offset, "nothing else in the rollback is about this document")
        seen.add(place)


def _read(path: Path, row: FileCheck) -> Iterator[tuple[int, bytes]]:
    """The documents that can be decoded, with their place."""
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
