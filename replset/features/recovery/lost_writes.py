"""Reads which writes a rollback undid, document by document, from its files. No member needs to run.

`LostWrites` reads the files once and keeps a small record for each document: where its bytes are, not the bytes.
`policy.py` decides what to do about a lost write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from replset.bson import DateTime, InvalidBSONError, RawDocument, encode, encode_key
from replset.bson.limits import MAX_INTERNAL_SIZE
from replset.errors import CorruptDataError, IllegalOperationError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import COMMAND, DELETE, INSERT, NOOP, UPDATE, OplogEntry
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackFile

DocumentId = tuple[bytes, bytes]
"""The UUID of a collection, and encode_key of an `_id`."""
_BUFFER_BYTES = 1 << 20
_MIN_DOCUMENT_BYTES = 5
_SESSIONS_MAX = 8
_int32 = struct.Struct("<i").unpack


class DamagedFileError(CorruptDataError):
    """A rollback file has changed since it was written. `offset` is the byte at which that shows."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class LostKind(Enum):
    """What happened to a document between the common point and the last lost entry."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    WRITE = "insert or update"  # mongod's files do not say which


class CommandKind(Enum):
    DROP = "drop"
    CREATE = "create"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileRange:
    """`size` bytes at `offset` of one file, which is given by its index in the manifest."""

    file: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Session:
    """The session that wrote an entry: its id in hex, and the client's transaction number if it sent one."""

    id: str
    txn_number: int | None


@dataclass(slots=True)
class LostDocument:
    """One document that lost entries are about.

    id_element: the bytes of {_id: ...}. first_op, first, last_op, last: its first and last lost entry; empty and null
    where mongod wrote the file. entries: the number of its lost entries, each write of a transaction counted. lost: its
    last version on the member; None when it was deleted. before: its version at the common point; None when it did not
    exist then, or when the files do not hold it.
    """

    ns: str
    uuid: bytes
    key: bytes
    id_element: bytes
    first_op: str
    first: OpTime
    last_op: str = ""
    last: OpTime = OPTIME_NULL
    entries: int = 0
    lost: FileRange | None = None
    before: FileRange | None = None
    sessions: list[Session] = field(default_factory=list)

    @property
    def id(self) -> object:
        return RawDocument(self.id_element).get("_id")

    @property
    def kind(self) -> LostKind | None:
        """None when nothing is lost: the document was inserted and deleted again, or ended as it began."""
        if not self.first_op:
            return LostKind.WRITE
        if self.lost is not None:
            return LostKind.INSERT if self.before is None and self.first_op == INSERT else LostKind.UPDATE
        if self.last_op == DELETE and self.first_op != INSERT:
            return LostKind.DELETE
        return None

    @property
    def before_is_known(self) -> bool:
        """Whether the files show the version at the common point, or that there was none.

        They do not for a delete. In an export they also do not where the member's undo log was already cut off.
        """
        return self.lost is not None and (self.before is not None or self.first_op == INSERT)


@dataclass(frozen=True, slots=True)
class LostCommand:
    """A command among the lost entries, such as a create or a drop. ns: the collection, or the database's `$cmd`."""

    ns: str
    uuid: bytes | None
    name: str
    o: RawDocument
    optime: OpTime

    @property
    def kind(self) -> CommandKind:
        return CommandKind(self.name) if self.name in ("create", "drop") else CommandKind.OTHER

    @property
    def options(self) -> dict[str, object]:
        """The collection's options of a create, nothing of a drop, the whole command of others."""
        match self.kind:
            case CommandKind.DROP:
                return {}
            case CommandKind.CREATE:
                return {name: value for name, value in self.o.decode().items() if name not in ("create", "idIndex")}
            case CommandKind.OTHER:
                return self.o.decode()


class LostWrites:
    """The files of one rollback, opened. Use it in `with`. `documents` are in the order of their first lost entry."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Reads every file once. CorruptDataError names the file and the byte that does not fit."""
        if manifest.oplog_only:
            # Without documents every write would look as if nothing of it were lost.
            raise IllegalOperationError(
                f"{manifest.id} is of {manifest.member}, a witness: it has the entries and no documents to compare or"
                " put back; if the member that took the writes rolled them back too, use that rollback; rollback-tools"
                " dump prints the entries"
            )
        self.manifest = manifest
        self._commands: list[LostCommand] = []
        self._folder = folder
        self._records: dict[DocumentId, LostDocument] = {}
        self._open: dict[int, BinaryIO] = {}
        try:
            for entry in self.entries():
                for operation in entry.operations:
                    self._add_entry(operation)
            for index, file in enumerate(manifest.files):
                if file.kind is not FileKind.OPLOG:
                    self._find_documents(index, file)
        except BaseException:
            self.close()
            raise

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
        """The documents of which something is lost, except in collections that were dropped afterwards."""
        dropped = self._uuids_of(CommandKind.DROP)
        return [row for row in self._records.values() if row.kind is not None and row.uuid not in dropped]

    def name_collections(self, names: Mapping[bytes, str]) -> None:
        """Give the documents of mongod's files their namespaces. names: by UUID; what is not there keeps its UUID."""
        for row in self._records.values():
            row.ns = names.get(row.uuid, row.ns)

    @property
    def commands(self) -> list[LostCommand]:
        """The lost commands, oldest first. A create and a drop of the same collection cancel each other."""
        created, dropped = self._uuids_of(CommandKind.CREATE), self._uuids_of(CommandKind.DROP)
        cancelled = created & dropped
        return [row for row in self._commands if row.kind is CommandKind.OTHER or row.uuid not in cancelled]

    def _uuids_of(self, kind: CommandKind) -> set[bytes]:
        return {row.uuid for row in self._commands if row.kind is kind and row.uuid is not None}

    def entries(self) -> Iterator[OplogEntry]:
        """The lost entries, oldest first. CorruptDataError."""
        for index, file in enumerate(self.manifest.files):
            if file.kind is FileKind.OPLOG:
                for offset, raw in read_bson(self._file(index), file.name):
                    try:
                        yield OplogEntry(raw)
                    except InvalidBSONError as error:
                        message = f"{file.name}: no oplog entry at byte {offset}: {error.message}"
                        raise DamagedFileError(message, offset) from error

    def read(self, place: FileRange | None) -> bytes | None:
        """The bytes of a document; None for None."""
        if place is None:
            return None
        file = self._file(place.file)
        file.seek(place.offset)
        raw = file.read(place.size)
        if len(raw) != place.size:
            raise CorruptDataError(f"{self.manifest.files[place.file].name} changed while it was read")
        return raw

    def _file(self, index: int) -> BinaryIO:
        file = self._open.get(index)
        if file is None:
            name = self.manifest.files[index].name
            # A manifest from elsewhere must not make us read any other file.
            if Path(name).name != name and not self.manifest.from_mongod:
                raise CorruptDataError(f"{self.manifest.id}: {name!r} is no file beside the manifest")
            path = self._folder / name
            file = self._open[index] = path.open("rb", buffering=_BUFFER_BYTES)
        file.seek(0)
        return file

    def _add_entry(self, entry: OplogEntry) -> None:
        if entry.op == NOOP:
            return
        if entry.op == COMMAND:
            name = entry.o.first_key or ""
            collection = entry.o.get(name)
            ns = f"{entry.database}.{collection}" if isinstance(collection, str) else entry.ns
            self._commands.append(LostCommand(ns, entry.ui, name, entry.o, entry.optime))
            return
        key = entry.key()
        if key is None or entry.ui is None:
            raise CorruptDataError(f"{self.manifest.id}: the entry {entry.optime} names no collection or document")
        row = self._records.get((entry.ui, key))
        if row is None:
            about = entry.o2 if entry.op == UPDATE else entry.o
            id_element = b"" if about is None else encode({"_id": about.get("_id")})
            row = LostDocument(entry.ns, entry.ui, key, id_element, entry.op, entry.optime)
            self._records[entry.ui, key] = row
        row.last_op, row.last = entry.op, entry.optime
        row.entries += 1
        session = _session_of(entry)
        if session is not None and session not in row.sessions and len(row.sessions) < _SESSIONS_MAX:
            row.sessions.append(session)

    def _find_documents(self, index: int, file: RollbackFile) -> None:
        """Note where the documents of one file are."""
        if file.uuid is None and not self.manifest.from_mongod:
            raise CorruptDataError(f"{self.manifest.id}: the file {file.name} belongs to no collection")
        uuid = file.ns.encode() if file.uuid is None else file.uuid.bytes
        for offset, raw in read_bson(self._file(index), file.name):
            key = _key_of(raw, file, offset)
            row = self._records.get((uuid, key))
            if row is None and not self.manifest.entries:
                row = self._records[uuid, key] = self._replaced_document(file, uuid, key, raw)
            if row is None:
                raise DamagedFileError(f"{file.name}: no lost entry is about the document at byte {offset}", offset)
            place = FileRange(index, offset, len(raw))
            if file.kind is FileKind.DOCUMENTS:
                row.lost = place
            else:
                row.before = place

    def _replaced_document(self, file: RollbackFile, uuid: bytes, key: bytes, raw: bytes) -> LostDocument:
        """A document that no entry is about: in a file of mongod's, or one that `replset repair` replaced.

        The latter, as an insert after the common point, is put back where the set has no such document, and is a
        conflict where the set has another one.
        """
        id_element = encode({"_id": RawDocument(raw).get("_id")})
        if self.manifest.from_mongod:
            return LostDocument(file.ns, uuid, key, id_element, "", OPTIME_NULL)
        after = OpTime(self.manifest.common_point.term, self.manifest.common_point.ts + 1)
        return LostDocument(file.ns, uuid, key, id_element, INSERT, after, INSERT, after)


def read_bson(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each document, from the current position on. DamagedFileError where the file is cut."""
    offset = file.tell()
    while head := file.read(4):
        size = _int32(head)[0] if len(head) == 4 else 0
        if not _MIN_DOCUMENT_BYTES <= size <= MAX_INTERNAL_SIZE:
            raise DamagedFileError(f"{name}: no document begins at byte {offset}", offset)
        body = file.read(size - 4)
        if len(body) < size - 4 or body[-1]:
            raise DamagedFileError(f"{name}: the document at byte {offset} is cut or damaged", offset)
        yield offset, head + body
        offset += size


def session_id(entry: OplogEntry) -> str:
    """The id of the session that wrote the entry, 32 hex digits; empty when no session did."""
    lsid = entry.get("lsid")
    if not isinstance(lsid, Mapping):
        return ""
    identifier = lsid.get("id")
    return identifier.hex() if isinstance(identifier, bytes) else str(identifier)


def _session_of(entry: OplogEntry) -> Session | None:
    identifier = session_id(entry)
    number = entry.get("txnNumber")
    return Session(identifier, int(number) if isinstance(number, int) else None) if identifier else None


def _key_of(raw: bytes, file: RollbackFile, offset: int) -> bytes:
    try:
        document = RawDocument(raw)
        if "_id" not in document:
            raise InvalidBSONError("it has no _id")
        return encode_key(document.get("_id"))
    except InvalidBSONError as error:
        raise DamagedFileError(f"{file.name}: the document at byte {offset}: {error.message}", offset) from error


SESSION_FIELDS = ("lsid", "txnNumber", "stmtId")


class LostPage(NamedTuple):
    """rows: as `entry_row` makes them. next: the byte at which the next page begins, None at the end."""

    rows: list[dict[str, object]]
    next: int | None


def lost_entries(folder: Path, manifest: Manifest, *, session: str = "", after: int = 0, limit: int) -> LostPage:
    """Up to `limit` lost entries from the byte `after` of the oplog file on, without no-ops, in the oplog's order.

    A transaction counts as many as it has operations, and is never cut: the last one may pass the limit.

    session: only those of the session with this id (a UUID, with or without dashes). CorruptDataError when the file is
    damaged or no page ended at `after`; OSError when the file cannot be read.
    """
    wanted = session.replace("-", "").lower()
    rows: list[dict[str, object]] = []
    file = next((file for file in manifest.files if file.kind is FileKind.OPLOG), None)
    if file is None:
        raise CorruptDataError(f"{manifest.id} names no oplog file")
    with (folder / file.name).open("rb") as opened:
        opened.seek(after)
        for offset, raw in read_bson(opened, file.name):
            if len(rows) >= limit:
                return LostPage(rows, offset)
            entry = OplogEntry(raw)
            if entry.op != NOOP and (not wanted or session_id(entry) == wanted):
                rows += map(entry_row, entry.operations)
    return LostPage(rows, None)


def entry_row(entry: OplogEntry) -> dict[str, object]:
    """Optime, wall clock, operation, namespace, the document's `_id` or the command, and the session's fields."""
    row: dict[str, object] = {
        "optime": str(entry.optime),
        "wall": DateTime(entry.wall_ms),
        "op": entry.op,
        "ns": entry.ns,
    }
    if entry.op == COMMAND:
        row["command"] = entry.o.first_key or ""
    else:
        about = entry.o2 if entry.op == UPDATE else entry.o
        row["_id"] = None if about is None else about.get("_id")
    return row | {name: value for name in SESSION_FIELDS if (value := entry.get(name)) is not None}
