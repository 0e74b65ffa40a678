"""The folder of an export: what may be in it, the names of its files, and how they come in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from pyarrow import fs

from replset.errors import ErrorCode, ReplError
from replset.ids import OPTIME_NULL, OpTime
from spark.columns import MEMBER
from spark.jobs import pinned
from spark.oplog import Oplog, Span, ts_text

MARK = "_SUCCESS"
_EMPTY = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>|\x7f") | {chr(code) for code in range(32)}
_LONGEST_NAME = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEMPORARY = "_temporary-"


class Mode(Enum):
    """What may be in the folder. new: nothing. overwrite: an export, which goes when the new one is written. append:
    an export, to which each member's entries behind its newest exported one are added.
    """

    NEW = "new"
    OVERWRITE = "overwrite"
    APPEND = "append"


class ExportError(ReplError, code=ErrorCode.OPERATION_FAILED):
    """The folder cannot take the export; nothing in it was changed."""


class ExportedFile(NamedTuple):
    """One file. file: its path below the folder. bytes: on disk. first_ts, last_ts: of its entries."""

    member: str
    day: str
    ns: str
    file: str
    entries: int
    bytes: int
    first_ts: int
    last_ts: int


def folder_of(member: str, day: str, ns: str) -> str:
    """The folder for the files of a namespace and day, below the export's."""
    return f"member={segment(member)}/day={day}/ns={segment(ns)}"


def segment(name: str) -> str:
    """A name as part of a path, as Hive and Spark escape it; one that is too long is cut and gets a hash."""
    if not name:
        return _EMPTY
    escaped = "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in name)
    if len(escaped.encode("utf-8", "replace")) <= _LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    cut = escaped.encode("utf-8", "replace")[: _LONGEST_NAME - 17].decode("utf-8", "ignore")
    return f"{cut}~{digest}"


def day_of(ts: int) -> str:
    """YYYY-MM-DD in UTC."""
    return (_EPOCH + timedelta(seconds=ts >> 31)).strftime("%Y-%m-%d")


class Target:
    """The folder of an export, on whatever file system; paths below are relative to it."""

    def __init__(self, uri: str, system: fs.FileSystem, root: str) -> None:
        self.uri, self.system, self.root = uri, system, root.rstrip("/")

    @classmethod
    def open(cls, uri: str) -> Target:
        try:
            if "://" in uri:
                return cls(uri, *fs.FileSystem.from_uri(uri))
            path = str(Path(uri).absolute())  # workers run in another folder
            return cls(path, fs.LocalFileSystem(), path)
        except (OSError, ValueError) as error:
            raise ExportError(f"{uri}: {error}") from error

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def names(self) -> list[str]:
        """The names in the folder itself."""
        return [info.base_name for info in self._list("", recursive=False)]

    def prepare(self, oplogs: Sequence[Oplog], mode: Mode, span: Span) -> list[tuple[Oplog, Span]]:
        """Which span of which oplog to write. ExportError: the folder is not as `mode` wants it."""
        there = [name for name in self.names() if not name.startswith(TEMPORARY)]
        if there and mode is Mode.NEW:
            raise ExportError(f"{self.uri} is not empty: --append or --overwrite an export, or name another folder")
        foreign = [name for name in there if name != MARK and not name.startswith(f"{MEMBER}=")]
        if foreign:
            raise ExportError(f"{self.uri} is no export: it holds {foreign[0]}")
        newest = {oplog.name: self._newest(oplog.name) if mode is Mode.APPEND else None for oplog in oplogs}
        spans = []
        for oplog in pinned(oplogs):
            bounds = oplog.bounds()
            first = max(span.first_ts, bounds.oldest.ts)
            exported = newest[oplog.name]
            if exported is not None:
                _check_continues(oplog, bounds.oldest, exported)
                first = max(first, exported[0] + 1)
            end = min(span.end_ts, bounds.newest.ts + 1)
            if bounds.newest != OPTIME_NULL and first < end:
                spans.append((oplog, Span(first, end)))
        return spans

    def _newest(self, member: str) -> tuple[int, int] | None:
        """(ts, hash) of the newest entry that the export holds of this member."""
        infos = [info for info in self._list(f"{MEMBER}={segment(member)}", recursive=True) if is_part(info)]
        days = {info.path.split("/day=")[-1].split("/")[0] for info in infos}
        found: tuple[int, int] | None = None
        for info in infos:
            if info.path.split("/day=")[-1].split("/")[0] == max(days):
                with pq.ParquetFile(info.path, filesystem=self.system) as file:
                    group = file.read_row_group(file.num_row_groups - 1, columns=["ts", "hash"])
                newest = (group.column("ts")[-1].as_py(), group.column("hash")[-1].as_py())
                found = newest if found is None else max(found, newest)
        return found

    def _list(self, below: str, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.path(below) if below else self.root, allow_not_found=True, recursive=recursive)
        try:
            infos: list[fs.FileInfo] = self.system.get_file_info(selector)
        except OSError as error:
            raise ExportError(f"{self.uri}: {error}") from error
        return infos

    def move_in(self, run: str, files: Iterable[ExportedFile]) -> list[ExportedFile]:
        """Move what `run` wrote to its folders; return the files with their paths there."""
        moved = []
        for number, file in enumerate(sorted(files, key=lambda file: (file.member, file.first_ts, file.ns))):
            below = folder_of(file.member, file.day, file.ns)
            name = f"{below}/part-{file.first_ts}-{number:06}.parquet"
            self.system.create_dir(self.path(below), recursive=True)
            self.system.move(self.path(run, file.file), self.path(name))
            moved.append(file._replace(file=name))
        return moved

    def make(self, run: str) -> None:
        try:
            self.system.create_dir(self.path(run), recursive=True)
        except OSError as error:
            raise ExportError(f"{self.uri}: {error}") from error

    def size(self, *parts: str) -> int:
        """Bytes of a file."""
        return int(self.system.get_file_info(self.path(*parts)).size or 0)

    def written(self, run: str) -> list[ExportedFile]:
        """The files that Spark wrote for `run`, with the facts read from them."""
        found = []
        for info in self._list(run, recursive=True):
            if not is_part(info):
                continue
            with pq.ParquetFile(info.path, filesystem=self.system) as file:
                groups, last = file.metadata.num_row_groups, file.metadata.num_rows
                table = file.read_row_group(0, columns=[MEMBER, "ns", "ts"])
                end = file.read_row_group(groups - 1, columns=["ts"]).column("ts")[-1].as_py()
            first = table.column("ts")[0].as_py()
            member, ns = table.column(MEMBER)[0].as_py(), table.column("ns")[0].as_py()
            name = info.path[len(self.path(run)) + 1 :]
            found.append(ExportedFile(member, day_of(first), ns, name, last, info.size, first, end))
        return found

    def clear(self) -> None:
        """Take away a former export."""
        for name in self.names():
            if name == MARK:
                self.system.delete_file(self.path(name))
            elif name.startswith(f"{MEMBER}="):
                self.system.delete_dir(self.path(name))

    def drop(self, run: str) -> None:
        with suppress(OSError):
            self.system.delete_dir(self.path(run))

    def mark(self) -> None:
        self.system.create_dir(self.root, recursive=True)
        with self.system.open_output_stream(self.path(MARK)):
            pass


def is_part(info: fs.FileInfo) -> bool:
    return bool(info.type == fs.FileType.File and info.base_name.endswith(".parquet"))


def _check_continues(oplog: Oplog, oldest: OpTime, exported: tuple[int, int]) -> None:
    """An appended oplog must still hold the newest exported entry, unchanged."""
    ts, hashed = exported
    shown = ts_text(ts)
    if oldest.ts > ts:
        raise ExportError(f"{oplog.name}: the oplog begins at {oldest}, after the newest exported entry, {shown}")
    for batch in oplog.read(Span(ts, ts + 1), ("hash",)):
        for found in batch.column(0).to_pylist():
            if found == hashed:
                return
    raise ExportError(f"{oplog.name}: the newest exported entry, {shown}, is not in its history any more")
