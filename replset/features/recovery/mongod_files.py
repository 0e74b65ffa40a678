"""Reads the rollback folder that mongod writes, as a manifest whose files are these (map Ro5, Ro6).

The files hold each document that the lost writes inserted or updated, as it was just before the rollback. They hold no
deletes, no versions before, no times and no operations; from 4.4 on they name a collection by its UUID only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from replset.errors import BadValueError, ReplError
from replset.features.recovery.lost_writes import DamagedFileError, read_bson
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    RollbackFile,
    RollbackState,
    is_manifest_name,
    parse_utc,
    rollback_folder,
)

ENCRYPTED: Final = ".enc"
REMOVED: Final = "removed"
_STAMP: Final = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d"
_IS_STAMP: Final = re.compile(_STAMP).fullmatch
_NAME: Final = re.compile(rf"(?P<head>.+)\.(?P<stamp>{_STAMP})\.\d+\.bson(?P<end>\.enc)?").fullmatch
_COMMON_POINT: Final = re.compile(r"(?:(\d{1,19}):)?(\d{1,10}):(\d{1,10})").fullmatch


@dataclass(frozen=True, slots=True)
class MongodFile:
    """One file. collection: its UUID or its namespace, as the name of the file or of its folder has it."""

    path: Path
    collection: str
    stamp: str
    is_encrypted: bool

    @property
    def uuid(self) -> UUID | None:
        try:
            return UUID(self.collection)
        except ValueError:
            return None


def file_of(path: Path) -> MongodFile | None:
    """The file, judged by its name; None when mongod gives a rollback's file no such name."""
    match = _NAME(path.name)
    if match is None:
        return None
    collection = path.absolute().parent.name if match["head"] == REMOVED else match["head"]
    return MongodFile(path, collection, match["stamp"], match["end"] is not None)


def has_manifests(folder: Path) -> bool:
    return any(is_manifest_name(path.name) for path in folder.glob("rollback-*.json"))


def files_in(folder: Path) -> list[MongodFile]:
    """mongod's files in a rollback folder, or in that of one collection; none beside manifests."""
    if has_manifests(folder):
        return []
    paths = [path for path in (*folder.iterdir(), *folder.glob(f"*/{REMOVED}.*")) if path.is_file()]
    found = [file for path in sorted(paths) if (file := file_of(path)) is not None]
    return sorted(found, key=lambda file: file.stamp)


def locate(path: Path) -> Path | None:
    """The path by which `read_rollback` knows the rollback of a file, a folder or FOLDER/TIME; None: not mongod's.

    BadValueError when a folder has more than one.
    """
    if path.is_dir():
        folder = rollback_folder(path)
        stamps = sorted({file.stamp for file in files_in(folder)})
        if len(stamps) > 1:
            raise BadValueError(f"{path} has {len(stamps)} rollbacks: give one of them, as {folder / stamps[-1]}")
        return folder / stamps[0] if stamps else None
    if _IS_STAMP(path.name) and path.parent.is_dir():
        return path if _files_of(path) else None
    beside = has_manifests(path.parent) or has_manifests(path.parent.parent)
    return path if path.is_file() and not beside and file_of(path) is not None else None


def is_mongods(path: Path) -> bool:
    """Whether a path that `locate` gave, or that of a manifest, is of mongod's."""
    return _IS_STAMP(path.name) is not None or file_of(path) is not None


def files_at(path: Path) -> list[Path]:
    """The files of mongod's rollback at a path that is no file. BadValueError as `locate`."""
    found = None if path.is_file() else locate(path)
    return [] if found is None else [file.path for file in _files_of(found)]


def _files_of(path: Path) -> list[MongodFile]:
    if _IS_STAMP(path.name):
        return [file for file in files_in(path.parent) if file.stamp == path.name]
    file = file_of(path)
    return [] if file is None else [file]


def read_rollback(path: Path) -> Manifest:
    """The rollback at a path that `locate` gave. ReplError when a file is encrypted.

    What mongod does not record is null: the common point and the range of entries. Nothing is checked here: a file that
    is cut counts the documents before the cut.
    """
    files = _files_of(path)
    for file in files:
        if file.is_encrypted:
            raise ReplError(f"{file.path.name} is encrypted by mongod's storage engine: it cannot be read here")
    date, _, time = files[0].stamp.partition("T")
    when = f"{date}T{time.replace('-', ':')}.000Z"
    return Manifest(
        id=files[0].stamp,
        state=RollbackState.FINISHED,
        reason="rolled back by mongod",
        set_name="",
        member="",
        when=when,
        source=None,
        common_point=OPTIME_NULL,
        first=OPTIME_NULL,
        last=OPTIME_NULL,
        first_wall_ms=parse_utc(when),
        last_wall_ms=parse_utc(when),
        entries=0,
        operations={},
        files=tuple(
            RollbackFile(
                name=file.path.relative_to(path.parent).as_posix(),
                kind=FileKind.DOCUMENTS,
                ns=file.collection,
                uuid=file.uuid,
                count=sum(1 for _ in _documents(file.path)),
                size=file.path.stat().st_size,
                sha256="",
            )
            for file in files
        ),
        from_mongod=True,
    )


def _documents(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=1 << 20) as file:
            for _, raw in read_bson(file, path.name):
                yield raw
    except DamagedFileError:
        return


def parse_common_point(text: str) -> OpTime:
    """Read `SECONDS:INC` or `TERM:SECONDS:INC`, as mongod's log has the common point. BadValueError."""
    match = _COMMON_POINT(text)
    if match is None:
        raise BadValueError(f"{text!r} is no common point: it is SECONDS:INC, the t and i of its timestamp in the log")
    return OpTime(int(match[1] or 0), pack_ts(int(match[2]), int(match[3])))
