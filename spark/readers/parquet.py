"""Exported oplogs: a folder of Parquet files, FOLDER[/member=NAME]/.../*.parquet, here or on a file system Arrow knows.

Files of several namespaces cover the same times: a read walks over their row groups by time and merges them. What
each row group holds is noted once, from the footers. What begins with `_` or `.` is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from replset.ids import OpTime
from spark.columns import COLUMNS, FIELDS, MEMBER, arrow_schema
from spark.oplog import ALL, Bounds, EntryFilter, OplogError, Span, one_line
from spark.readers.pieces import InPieces, Piece, side_by_side

_BATCH_ROWS = 16_384
_ENTRY_ROWS = 2_048
_THREADS = 8
_OPEN_FILES = 64


class Group(NamedTuple):
    """A row group: `number` in `file`, its rows, and the least and greatest values of columns in it (None: unknown)."""

    file: str
    number: int
    rows: int
    ts: tuple[int, int]
    ns: tuple[str, str] | None
    mixed: bool
    """It holds entries of several members."""
    stored: tuple[int, int]
    """All rows and bytes of the row group, which show whether the file still is the one that was looked at."""


class Index(NamedTuple):
    """Groups by their first ts."""

    groups: tuple[Group, ...]
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class ParquetOplog(InPieces):
    """One member's entries below `folder` (a path or a URI), or in one file; member None: all that there are.

    `pin` makes the index; without one each question makes it anew.
    """

    name: str
    folder: str
    member: str | None = None
    index: Index | None = field(default=None, repr=False)

    def pin(self) -> ParquetOplog:
        return replace(self, index=self._index())

    def bounds(self) -> Bounds:
        return self._index().bounds

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        rows = _ENTRY_ROWS if "entry" in columns else _BATCH_ROWS
        chosen = _Chosen(tuple(columns), span, only, self.member)
        groups = [group for group in self._index().groups if chosen.may_be_in(group)]
        with _errors(self.name, self.folder):
            files = _Files.open(self.folder)
            for table in _merged(groups, lambda group: chosen.of(files.read(group, chosen.needed(group)))):
                yield from table.select(columns).cast(arrow_schema(columns)).to_batches(rows)

    def _pieces(self) -> list[Piece]:
        return side_by_side(Piece(group.ts[0], group.ts[1] + 1, group.rows) for group in self._index().groups)

    def _index(self) -> Index:
        if self.index:
            return self.index
        with _errors(self.name, self.folder):
            files = _Files.open(self.folder)
            groups = sorted(files.groups(self.member), key=lambda group: group.ts)
            return Index(tuple(groups), self._bounds(files, groups))

    def _bounds(self, files: _Files, groups: Sequence[Group]) -> Bounds:
        if not groups:
            return Bounds()
        ends = []
        for ts in (groups[0].ts[0], max(group.ts[1] for group in groups)):
            chosen = _Chosen(("ts", "term", "chain"), Span(ts, ts + 1), ALL, self.member)
            group = next(group for group in groups if ts in group.ts)
            ends.append(chosen.of(files.read(group, chosen.needed(group))).to_pylist()[-1])
        oldest, newest = (OpTime(end["term"], end["ts"]) for end in ends)
        return Bounds(oldest, newest, sum(group.rows for group in groups), chain=ends[1]["chain"])


def exported_members(folder: str) -> list[str]:
    """The members whose oplogs are there; empty when the files do not name them. OplogError: it cannot be read."""
    with _errors(folder, folder):
        return _Files.open(folder).members()


class _Chosen(NamedTuple):
    """Which rows and columns a read wants."""

    columns: tuple[str, ...]
    span: Span
    only: EntryFilter
    member: str | None

    def may_be_in(self, group: Group) -> bool:
        wanted = not self.only.ns or group.ns is None or any(group.ns[0] <= ns <= group.ns[1] for ns in self.only.ns)
        return wanted and group.ts[0] < self.span.end_ts and group.ts[1] >= self.span.first_ts

    def needed(self, group: Group) -> list[str]:
        by_member = [MEMBER] if group.mixed and self.member is not None else []
        return [*columns_for(self.columns, self.only), *by_member]

    def of(self, table: pa.Table) -> pa.Table:
        found = rows_in(table, self.span, self.only)
        if self.member is None or MEMBER not in table.schema.names:
            return found
        return found.filter(pc.equal(found.column(MEMBER), self.member))


class _Files:
    """The Parquet files of a folder. OSError, ValueError and Arrow's errors name the file."""

    def __init__(self, system: fs.FileSystem, root: str) -> None:
        self._system, self._root = system, root
        self._opened: dict[str, pq.ParquetFile] = {}  # the one used last at the end

    @classmethod
    def open(cls, folder: str) -> _Files:
        if "://" in folder:
            return cls(*fs.FileSystem.from_uri(folder))
        return cls(fs.LocalFileSystem(), str(Path(folder).absolute()))

    def groups(self, member: str | None) -> list[Group]:
        """The row groups that hold entries of this member (None: of whomever)."""
        paths = self._paths()
        with ThreadPoolExecutor(_THREADS) as threads:
            found = list(threads.map(lambda path: self._groups_of(path, member), paths))
        return [group for groups in found for group in groups]

    def members(self) -> list[str]:
        names = {name for path in self._paths() for name in self._members_of(path)}
        return sorted(names)

    def read(self, group: Group, columns: Sequence[str]) -> pa.Table:
        file = self._file(group.file)
        if group.number >= file.num_row_groups or _stored(file, group.number) != group.stored:
            raise ValueError(f"{group.file} was changed while it was read")
        try:
            return file.read_row_group(group.number, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{group.file} is damaged: {error}") from error

    def _paths(self) -> list[str]:
        info = self._system.get_file_info(self._root)
        if info.type == fs.FileType.File:
            return [self._root]
        found = self._system.get_file_info(fs.FileSelector(self._root, recursive=True))
        below = len(self._root.rstrip("/")) + 1
        return sorted(file.path for file in found if file.type == fs.FileType.File and _is_data(file.path[below:]))

    def _file(self, path: str) -> pq.ParquetFile:
        file = self._opened.pop(path, None) or self._open(path)
        self._opened[path] = file
        if len(self._opened) > _OPEN_FILES:
            self._opened.pop(next(iter(self._opened))).close()
        return file

    def _open(self, path: str) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path, filesystem=self._system)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path} is damaged or no Parquet: {error}") from error

    def _groups_of(self, path: str, member: str | None) -> Iterator[Group]:
        file = self._open(path)
        for name in COLUMNS:
            if name not in file.schema_arrow.names:
                raise ValueError(f"{path} holds no oplog: it has no column {name}")
            found = file.schema_arrow.field(name).type
            if not _is_like(found, FIELDS[name]):
                raise ValueError(f"{path} holds no oplog: its column {name} is {found}, not {FIELDS[name]}")
        found = []
        for number in range(file.num_row_groups):
            metadata = file.metadata.row_group(number)
            members = _range(metadata, MEMBER) if MEMBER in file.schema_arrow.names else _named_in(path)
            ts, mixed = _range(metadata, "ts"), members is None or members[0] != members[1]
            if metadata.num_rows and (member is None or mixed or members == (member, member)):
                ends = ts or (0, 0), _range(metadata, "ns")
                group = Group(path, number, metadata.num_rows, *ends, mixed, _stored(file, number))
                found.append(group if ts and not (mixed and member) else _looked_into(file, group, member))
        return (group for group in found if group.rows)

    def _members_of(self, path: str) -> set[str]:
        file = self._open(path)
        if MEMBER not in file.schema_arrow.names:
            return set(_named_in(path) or ())
        names: set[str] = set()
        for number in range(file.num_row_groups):
            ends = _range(file.metadata.row_group(number), MEMBER)
            if ends is None or ends[0] != ends[1]:
                names.update(file.read_row_group(number, [MEMBER]).column(0).unique().to_pylist())
            else:
                names.add(ends[0])
        return names


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column can be read as one of ours, whoever wrote the file."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    for kinds in (_INTEGERS, _TEXTS, _BYTES):
        if any(of_kind(wanted) for of_kind in kinds):
            return any(of_kind(found) for of_kind in kinds) or pa.types.is_null(found)
    return bool(found == wanted)


_INTEGERS = (pa.types.is_integer,)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def _looked_into(file: pq.ParquetFile, group: Group, member: str | None) -> Group:
    """The group as its rows show it, where the footer is not enough."""
    table = file.read_row_group(group.number, ["ts", MEMBER] if group.mixed and member is not None else ["ts"])
    if table.num_columns == 2:
        table = table.filter(pc.equal(table.column(MEMBER), member))
    ends = pc.min_max(table.column("ts")).as_py()
    return group._replace(rows=len(table), ts=(ends["min"] or 0, ends["max"] or 0))


def _stored(file: pq.ParquetFile, number: int) -> tuple[int, int]:
    metadata = file.metadata.row_group(number)
    return metadata.num_rows, metadata.total_byte_size


def _range(metadata: Any, column: str) -> Any:
    """(least, greatest) of a row group's column; None where the footer has none."""
    for number in range(metadata.num_columns):
        found = metadata.column(number)
        if found.path_in_schema == column:
            statistics = found.statistics
            known = statistics is not None and statistics.has_min_max
            return (statistics.min, statistics.max) if known and not statistics.null_count else None
    return None


def _named_in(path: str) -> tuple[str, str] | None:
    """The member whose folder the file is in, twice."""
    for part in reversed(path.split("/")[:-1]):
        if part.startswith(f"{MEMBER}="):
            name = unquote(part.partition("=")[2])
            return name, name
    return None


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in path.split("/"))


def _merged(groups: Sequence[Group], read: Callable[[Group], pa.Table]) -> Iterator[pa.Table]:
    """The tables of all groups by ts; a group is read when the time has come to it. groups: by their first ts."""
    open_tables: list[tuple[Any, pa.Table]] = []
    waiting = 0
    for number, group in enumerate(groups):
        open_tables.append(_by_ts(read(group)))
        waiting += len(open_tables[-1][1])
        border = groups[number + 1].ts[0] if number + 1 < len(groups) else None
        if border is not None and waiting < _BATCH_ROWS:
            continue
        ready = [len(stamps) if border is None else int(np.searchsorted(stamps, border)) for stamps, _ in open_tables]
        tables = [table.slice(0, count) for (_, table), count in zip(open_tables, ready, strict=True) if count]
        if tables:
            yield _by_ts(pa.concat_tables(tables))[1]
        left = zip(open_tables, ready, strict=True)
        open_tables = [(stamps[count:], table.slice(count)) for (stamps, table), count in left if count < len(stamps)]
        waiting = sum(len(stamps) for stamps, _ in open_tables)


def _by_ts(table: pa.Table) -> tuple[Any, pa.Table]:
    """The table's ts as numbers, and the table, both in the order of ts."""
    stamps = table.column("ts").to_numpy()
    if (stamps[1:] < stamps[:-1]).any():
        order = np.argsort(stamps, kind="stable")
        return stamps[order], table.take(pa.array(order))
    return stamps, table


@contextmanager
def _errors(name: str, folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        text = one_line(error)
        raise OplogError(name, text if folder in text else f"{folder}: {text}") from error


def columns_for(columns: Sequence[str], only: EntryFilter) -> list[str]:
    """Those to read, so that `rows_in` can choose rows."""
    by_choice = [name for name, wanted in (("ns", only.ns), ("op", only.op)) if wanted]
    return list(dict.fromkeys([*columns, "ts", *by_choice]))


def rows_in(table: pa.Table, span: Span, only: EntryFilter) -> pa.Table:
    ts = table.column("ts")
    mask = pc.and_(pc.greater_equal(ts, span.first_ts), pc.less(ts, span.end_ts))
    for name, wanted in (("ns", only.ns), ("op", only.op)):
        if wanted:
            mask = pc.and_(mask, pc.is_in(table.column(name), pa.array(wanted, pa.string())))
    return table.filter(mask)
