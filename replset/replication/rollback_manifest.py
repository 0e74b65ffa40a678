"""The manifest of a rollback: its states, its JSON file, and the note that a person acknowledged it.

`docs/rollback.md` describes the format. A member writes through its disk. The HTTP API and rollback-tools read a
folder by its path, which needs no running member. `rollback_files.py` writes the files that a manifest names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from replset.errors import CorruptDataError
from replset.ids import OpTime

if TYPE_CHECKING:
    from replset.storage.disk import Disk

log = logging.getLogger("replset.rollback")

FOLDER = "rollback"
ACK_SUFFIX = ".ack"
OPLOG_NS = "local.oplog.rs"
MANIFEST_VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RollbackState(Enum):
    """The state of a rollback: planned -> finished, or planned -> abandoned when nothing was undone.

    An export before a wipe begins as `exported`. It becomes `abandoned` when the copy has everything in it.
    """

    PLANNED = "planned"
    FINISHED = "finished"
    EXPORTED = "exported"
    ABANDONED = "abandoned"


class FileKind(Enum):
    """documents: as they were on this member. before: the same at the common point. oplog: the removed entries."""

    DOCUMENTS = "documents"
    BEFORE = "before"
    OPLOG = "oplog"


@dataclass(frozen=True, slots=True)
class RollbackFile:
    """One BSON file. ns: the unescaped namespace. uuid: of the collection, None for the oplog. sha256: in hex."""

    name: str
    kind: FileKind
    ns: str
    uuid: UUID | None
    count: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Says what a rollback undid and in which files it is. id: the file name without `.json`. member: host:port.

    common_point: the newest entry that stays (exported: the newest entry known to be committed). first, last: the
    range of removed entries, with their wall clocks. operations: the number of entries of each op. mongodb_files:
    paths of the documents in MongoDB's layout, if the member writes that too. oplog_only: of a witness, which has the
    entries and no documents. from_mongod: made of mongod's own files (`mongod_files.py`); it is never written.
    """

    id: str
    state: RollbackState
    reason: str
    set_name: str
    member: str
    when: str
    source: str | None
    common_point: OpTime
    first: OpTime
    last: OpTime
    first_wall_ms: int
    last_wall_ms: int
    entries: int
    operations: Mapping[str, int]
    files: tuple[RollbackFile, ...]
    settled: str | None = None
    mongodb_files: tuple[str, ...] = ()
    oplog_only: bool = False
    from_mongod: bool = False

    def document(self) -> dict[str, object]:
        """The document in the JSON file."""
        return {
            "version": MANIFEST_VERSION,
            "id": self.id,
            "state": self.state.value,
            "reason": self.reason,
            "set": self.set_name,
            "member": self.member,
            "when": self.when,
            "settled": self.settled,
            "source": self.source,
            "commonPoint": str(self.common_point),
            "range": {
                "first": str(self.first),
                "last": str(self.last),
                "firstTerm": self.first.term,
                "lastTerm": self.last.term,
                "firstWall": utc_text(self.first_wall_ms),
                "lastWall": utc_text(self.last_wall_ms),
                "entries": self.entries,
                "operations": dict(sorted(self.operations.items())),
            },
            "files": [
                {
                    "name": file.name,
                    "kind": file.kind.value,
                    "ns": file.ns,
                    "uuid": None if file.uuid is None else str(file.uuid),
                    "count": file.count,
                    "bytes": file.size,
                    "sha256": file.sha256,
                }
                for file in self.files
            ],
            **({"mongodbFiles": list(self.mongodb_files)} if self.mongodb_files else {}),
            **({"oplogOnly": True} if self.oplog_only else {}),
        }

    @classmethod
    def parse(cls, text: bytes, name: str) -> Self:
        """Read the bytes of a manifest. CorruptDataError names the file `name` and what is wrong."""
        try:
            document = json.loads(text)
            if document["version"] != MANIFEST_VERSION:
                raise ValueError(f"version {document['version']!r} is not known here")
            span = document["range"]
            return cls(
                id=str(document["id"]),
                state=RollbackState(document["state"]),
                reason=str(document["reason"]),
                set_name=str(document["set"]),
                member=str(document["member"]),
                when=str(document["when"]),
                source=document["source"],
                common_point=OpTime.parse(document["commonPoint"]),
                first=OpTime.parse(span["first"]),
                last=OpTime.parse(span["last"]),
                first_wall_ms=parse_utc(span["firstWall"]),
                last_wall_ms=parse_utc(span["lastWall"]),
                entries=int(span["entries"]),
                operations={str(op): int(count) for op, count in span["operations"].items()},
                files=tuple(
                    RollbackFile(
                        name=str(file["name"]),
                        kind=FileKind(file["kind"]),
                        ns=str(file["ns"]),
                        uuid=None if file["uuid"] is None else UUID(file["uuid"]),
                        count=int(file["count"]),
                        size=int(file["bytes"]),
                        sha256=str(file["sha256"]),
                    )
                    for file in document["files"]
                ),
                settled=document["settled"],
                mongodb_files=tuple(str(path) for path in document.get("mongodbFiles", ())),
                oplog_only=document.get("oplogOnly") is True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{name} is not a rollback manifest: {_fault_of(error)}") from error


def _fault_of(error: Exception) -> str:
    """Return in words what `Manifest.parse` met. No bytes of the file are quoted: it may be any file."""
    if isinstance(error, UnicodeDecodeError | json.JSONDecodeError):
        return "it is not JSON"
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    if isinstance(error, TypeError | AttributeError):
        return "it is JSON of another form"
    return str(error)


# --- names and times -------------------------------------------------------------------------------------------


def utc_text(wall_ms: int) -> str:
    """Format a time as `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return (_EPOCH + timedelta(milliseconds=wall_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_utc(text: str) -> int:
    """Parse what `utc_text` wrote, to milliseconds."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


# --- writing ---------------------------------------------------------------------------------------------------


def sync_names(disk: Disk, dbpath: str) -> None:
    """Make the names of the files and of their folder durable, also those that an earlier run left unsynced."""
    folder = os.path.join(dbpath, FOLDER)
    if disk.exists(folder):
        disk.sync_folder(folder)
        disk.sync_folder(dbpath)


def store_manifest(disk: Disk, dbpath: str, manifest: Manifest) -> None:
    """Write a manifest, or replace it atomically: temporary file, sync, rename, sync of the folder.

    A crash leaves either the old manifest or the new one, never half of one. After this returns, the new manifest
    survives a power loss.
    """
    folder = os.path.join(dbpath, FOLDER)
    path = os.path.join(folder, f"{manifest.id}.json")
    temporary = f"{path}.tmp"
    text = json.dumps(manifest.document(), indent=2, ensure_ascii=False).encode() + b"\n"
    disk.write_file(temporary, [text])
    disk.sync_file(temporary)
    disk.rename(temporary, path)
    disk.sync_folder(folder)


def settle_manifest(disk: Disk, dbpath: str, manifest: Manifest, state: RollbackState, wall_ms: int) -> Manifest:
    """Give a planned or exported manifest its final state, durably."""
    settled = replace(manifest, state=state, settled=utc_text(wall_ms))
    store_manifest(disk, dbpath, settled)
    return settled


def manifests_on(disk: Disk, dbpath: str) -> list[Manifest]:
    """The manifests of a member, read through its disk, oldest first.

    A damaged one is left out with a warning. It must not keep the member from starting.
    """
    folder = os.path.join(dbpath, FOLDER)
    if not disk.exists(folder):
        return []
    names = sorted(name for name in disk.list_folder(folder) if is_manifest_name(name))
    found = []
    for name in names:
        try:
            found.append(Manifest.parse(disk.read_file(os.path.join(folder, name)), name))
        except CorruptDataError as error:
            log.warning("%s", error.message)
    return sorted(found, key=lambda manifest: id_order(manifest.id))


# --- acknowledgements ------------------------------------------------------------------------------------------


def acknowledge(disk: Disk, folder: str, rollback_id: str, *, wall_ms: int, by: str) -> bool:
    """Write a note beside the manifest that a person knows of this rollback. False when there was one already.

    The note is durable: `ID.ack` with `{"acknowledged": WHEN, "by": WHO}`. The manifest does not change. A member and
    a tool in another process may both do this. OSError when the note cannot be written.
    """
    path = os.path.join(folder, f"{rollback_id}{ACK_SUFFIX}")
    if disk.exists(path):
        disk.sync_folder(folder)  # its writer may have died before it synced the folder
        return False
    temporary = f"{path}.tmp"
    try:
        disk.write_file(temporary, [json.dumps({"acknowledged": utc_text(wall_ms), "by": by}).encode() + b"\n"])
        disk.sync_file(temporary)
        disk.rename(temporary, path)
    except OSError:
        disk.remove(temporary)
        raise
    disk.sync_folder(folder)
    return True


def acknowledged(folder: str | Path, rollback_id: str) -> str | None:
    """When a rollback was acknowledged, as `utc_text` writes it; None if nobody did. A damaged note still counts."""
    try:
        note = json.loads((Path(folder) / f"{rollback_id}{ACK_SUFFIX}").read_bytes())
        return str(note["acknowledged"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


# --- reading, without a member ---------------------------------------------------------------------------------


def is_manifest_name(name: str) -> bool:
    return name.startswith("rollback-") and name.endswith(".json")


def id_order(rollback_id: str) -> tuple[str, int]:
    """Sort key of rollback ids: by time, and within one second by number."""
    head, _, number = rollback_id.rpartition(".")
    return head, int(number) if number.isascii() and number.isdigit() else 0


def rollback_folder(path: str | Path) -> Path:
    """The folder with the manifests: `rollback` in a dbpath, or `path` itself."""
    folder = Path(path)
    return folder / FOLDER if (folder / FOLDER).is_dir() else folder


def list_manifests(path: str | Path) -> list[Manifest]:
    """Every manifest under a dbpath or a rollback folder, oldest first; empty when there is none."""
    folder = rollback_folder(path)
    if not folder.is_dir():
        return []
    found = [read_manifest(file) for file in folder.iterdir() if is_manifest_name(file.name)]
    return sorted(found, key=lambda manifest: id_order(manifest.id))


def read_manifest(file: str | Path) -> Manifest:
    """Read one manifest. CorruptDataError when the file is no manifest, OSError when it cannot be read."""
    path = Path(file)
    return Manifest.parse(path.read_bytes(), path.name)


def verify_file(folder: str | Path, file: RollbackFile) -> str | None:
    """What is wrong with a file of a rollback: it is missing, or has another size or SHA-256. None if it is sound."""
    path = Path(folder) / file.name
    if not path.is_file():
        return "missing"
    size, sha256 = size_and_sha256(path)
    if size != file.size:
        return f"{size} bytes, the manifest says {file.size}"
    return None if sha256 == file.sha256 else "its SHA-256 is not the manifest's"


def size_and_sha256(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), sha256
