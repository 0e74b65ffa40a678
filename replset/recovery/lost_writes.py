"""What a rollback took, document by document, read from its files: no member needs to run.

`LostWrites` walks the files once and keeps a small record for each document, with the places of its bytes; the
documents themselves are read when they are asked for. What to do about them is `policy.py`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Self

from replset.bson import InvalidBSONError, RawDocument, encode, encode_key
from replset.bson.limits import MAX_INTERNAL_SIZE
from replset.errors import CorruptDataError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import COMMAND, DELETE, INSERT, NOOP, UPDATE, OplogEntry
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackFile, read_manifest

_BUFFER_BYTES = 1 << 20
_SMALLEST = 5
_KEPT_SESSIONS = 8
_int32 = struct.Struct("<i").unpack


class DamagedFileError(CorruptDataError):
    """A file of a rollback is not what it was when it was written; `offset` is where in it."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class LostKind(Enum):
    """What happened to a document between the common point and the last entry that was lost."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Place:
    """`size` bytes at `offset` of the file with this index in the manifest."""

    file: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Session:
    """Whose write it was: the session's id as hex, the number of the client's statement; None where it gave none."""

    id: str
    txn_number: int | None


@dataclass(slots=True)
class LostDocument:
    """One document that entries behind the common point are about.

    id_element: the bytes of {_id: ...}. first_op, first, last_op, last: its first and last lost entry. entries: how
    many there are. lost: where it stands as it was last on the member; None when it was not there any more. before:
    where it stands as it was at the common point; None when it was not there, or that is not on record.
    """

    ns: str
    uuid: bytes
    key: bytes
    id_element: bytes
    first_op: str
    first: OpTime
    last_op: str = ""
    last: OpTime = OPTIME_NULL
    last_wall_ms: int = 0
    entries: int = 0
    lost: Place | None = None
    before: Place | None = None
    sessions: list[Session] = field(default_factory=list)

    @property
    def id(self) -> object:
        return RawDocument(self.id_element).get("_id")

    @property
    def kind(self) -> LostKind | None:
        """None when nothing is lost: it was inserted and deleted again, or ended as it began."""
        if self.lost is not None:
            return LostKind.INSERT if self.before is None and self.first_op == INSERT else LostKind.UPDATE
        if self.last_op == DELETE and self.first_op != INSERT:
            return LostKind.DELETE
        return None

    @property
    def before_is_known(self) -> bool:
        """Whether the files say what there was at the common point, perhaps nothing.

        They do not for a delete, nor in an export for what the member's undo did not reach.
        """
        return self.lost is not None and (self.before is not None or self.first_op == INSERT)


@dataclass(frozen=True, slots=True)
class LostCommand:
    """A command among the lost entries: a create, a drop. `ns`: the collection, or the database's `$cmd`."""

    ns: str
    uuid: bytes | None
    name: str
    entry: RawDocument
    optime: OpTime
    wall_ms: int

    @property
    def body(self) -> dict[str, object]:
        o = self.entry.get_raw("o")
        return {} if o is None else RawDocument(o).decode()


class LostWrites:
    """One rollback's files, opened. Use it in `with`; `documents` are in the order of their first lost entry."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Reads every file once. CorruptDataError names the file and the place of what does not fit."""
        self.manifest = manifest
        self.commands: list[LostCommand] = []
        self.noops = 0
        self._folder = folder
        self._records: dict[tuple[bytes, bytes], LostDocument] = {}
        self._open: dict[int, BinaryIO] = {}
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """By the manifest's path. CorruptDataError, OSError."""
        return cls(Path(path).parent, read_manifest(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    @property
    def documents(self) -> list[LostDocument]:
        """Those of which something is lost, without those of collections that were dropped behind it."""
        gone = self.dropped_uuids
        return [row for row in self._records.values() if row.kind is not None and row.uuid not in gone]

    @property
    def dropped_uuids(self) -> frozenset[bytes]:
        """The collections whose drop is among the lost entries."""
        return frozenset(row.uuid for row in self.commands if row.name == "drop" and row.uuid is not None)

    @property
    def created_uuids(self) -> frozenset[bytes]:
        return frozenset(row.uuid for row in self.commands if row.name == "create" and row.uuid is not None)

    def entries(self) -> Iterator[OplogEntry]:
        """The lost entries, oldest first. CorruptDataError."""
        for index, file in enumerate(self.manifest.files):
            if file.kind is FileKind.OPLOG:
                for offset, raw in read_bson(self._file(index), file.name):
                    yield _entry(raw, file, offset)

    def read(self, place: Place | None) -> bytes | None:
        """The bytes of a document; None for no place."""
        if place is None:
            return None
        file = self._file(place.file)
        file.seek(place.offset)
        raw = file.read(place.size)
        if len(raw) != place.size:
            raise CorruptDataError(f"{self.manifest.files[place.file].name} changed while it was read")
        return raw

    # --- inside

    def _file(self, index: int) -> BinaryIO:
        file = self._open.get(index)
        if file is None:
            name = self.manifest.files[index].name
            if Path(name).name != name:
                raise CorruptDataError(f"{self.manifest.id}: {name!r} is no file beside the manifest")
            path = self._folder / name
            file = self._open[index] = path.open("rb", buffering=_BUFFER_BYTES)
        file.seek(0)
        return file

    def _read(self) -> None:
        for entry in self.entries():
            self._add(entry)
        for index, file in enumerate(self.manifest.files):
            if file.kind is not FileKind.OPLOG:
                self._find(index, file)

    def _add(self, entry: OplogEntry) -> None:
        if entry.op == NOOP:
            self.noops += 1
            return
        if entry.op == COMMAND:
            self.commands.append(_command(entry))
            return
        key = entry.key()
        if key is None or entry.ui is None:
            raise CorruptDataError(f"{self.manifest.id}: the entry {entry.optime} names no collection or document")
        row = self._records.get((entry.ui, key))
        if row is None:
            about = entry.o2 if entry.op == UPDATE else entry.o
            id_element = b"" if about is None else _id_document(about)
            row = LostDocument(entry.ns, entry.ui, key, id_element, entry.op, entry.optime)
            self._records[entry.ui, key] = row
        row.last_op, row.last, row.last_wall_ms = entry.op, entry.optime, entry.wall_ms
        row.entries += 1
        session = _session(entry)
        if session is not None and session not in row.sessions and len(row.sessions) < _KEPT_SESSIONS:
            row.sessions.append(session)

    def _find(self, index: int, file: RollbackFile) -> None:
        """Note where the documents of one file stand."""
        if file.uuid is None:
            raise CorruptDataError(f"{self.manifest.id}: the file {file.name} belongs to no collection")
        uuid = file.uuid.bytes
        for offset, raw in read_bson(self._file(index), file.name):
            row = self._records.get((uuid, _key_of(raw, file, offset)))
            if row is None:
                raise DamagedFileError(f"{file.name}: no lost entry is about the document at byte {offset}", offset)
            place = Place(index, offset, len(raw))
            if file.kind is FileKind.DOCUMENTS:
                row.lost = place
            else:
                row.before = place


def read_bson(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each document from the file's place on; DamagedFileError where it is cut."""
    offset = file.tell()
    while head := file.read(4):
        size = _int32(head)[0] if len(head) == 4 else 0
        if not _SMALLEST <= size <= MAX_INTERNAL_SIZE:
            raise DamagedFileError(f"{name}: no document begins at byte {offset}", offset)
        body = file.read(size - 4)
        if len(body) < size - 4 or body[-1]:
            raise DamagedFileError(f"{name}: the document at byte {offset} is cut or damaged", offset)
        yield offset, head + body
        offset += size


def _entry(raw: bytes, file: RollbackFile, offset: int) -> OplogEntry:
    try:
        return OplogEntry(raw)
    except InvalidBSONError as error:
        raise DamagedFileError(f"{file.name}: no oplog entry at byte {offset}: {error.message}", offset) from error


def _key_of(raw: bytes, file: RollbackFile, offset: int) -> bytes:
    try:
        document = RawDocument(raw)
        if "_id" not in document:
            raise InvalidBSONError("it has no _id")
        return encode_key(document.get("_id"))
    except InvalidBSONError as error:
        raise DamagedFileError(f"{file.name}: the document at byte {offset}: {error.message}", offset) from error


def _id_document(about: RawDocument) -> bytes:
    return encode({"_id": about.get("_id")})


def _command(entry: OplogEntry) -> LostCommand:
    name = entry.o.first_key or ""
    value = entry.o.get(name)
    ns = f"{entry.database}.{value}" if isinstance(value, str) else entry.ns
    return LostCommand(ns, entry.ui, name, RawDocument(entry.raw), entry.optime, entry.wall_ms)


def _session(entry: OplogEntry) -> Session | None:
    lsid = entry.get("lsid")
    if not isinstance(lsid, Mapping):
        return None
    number = entry.get("txnNumber")
    identifier = lsid.get("id")
    text = identifier.hex() if isinstance(identifier, bytes) else str(identifier)
    return Session(text, int(number) if isinstance(number, int) else None)
