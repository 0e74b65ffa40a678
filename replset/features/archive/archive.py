"""One archive: finds, reads and adds segments. Everything here blocks, and needs pyarrow where rows are concerned.

Segments may overlap: a member that lost the lease may end a segment that the next one writes too. Both hold the same
committed entries, so a reader takes whichever leads on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

from replset.errors import BadValueError, CappedPositionLostError, CorruptDataError, ReplError
from replset.features.archive.files import ArchiveError, Files, open_files
from replset.features.archive.segments import ARCHIVE_FILE, FOLDER, ArchiveInfo, Position, Segment, SegmentName
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import OplogRow, first_damaged, next_chain

# --- a segment: a Parquet file, with the columns that oplog-spark reads

_GROUP_BYTES = 1 << 20
"""How many bytes of entries a row group has: who reads a part of a segment reads little more than it needs."""
_NAMES = ("ts", "term", "op", "ns", "key", "wall", "hash", "chain", "entry")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadValueError(
            "an archive needs the package pyarrow (pip install '.[archive]' in the clone of replset)"
        ) from error
    return pyarrow, pyarrow.parquet


def encode_rows(rows: Sequence[OplogRow]) -> bytes:
    """Return a Parquet file; equal rows give equal bytes under one version of pyarrow."""
    pa, pq = _pyarrow()
    whole, text, binary = pa.int64(), pa.string(), pa.binary()
    schema = pa.schema(zip(_NAMES, (whole, whole, text, text, binary, whole, whole, whole, binary), strict=True))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in _groups(rows):
            columns = zip(zip(*group, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _groups(rows: Sequence[OplogRow]) -> list[list[OplogRow]]:
    groups: list[list[OplogRow]] = [[]]
    size = 0
    for row in rows:
        if groups[-1] and size + len(row.entry) > _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += len(row.entry)
    return groups


def decode_rows(data: bytes, where: str, chain: int | None) -> list[OplogRow]:
    """Read and check all rows of a segment. chain: before its first row, None where that is unknown.

    where: for the message of a CorruptDataError.
    """
    pa, pq = _pyarrow()
    try:
        table = pq.read_table(pa.BufferReader(data), columns=list(_NAMES), use_threads=False)
        rows = [OplogRow._make(row) for row in zip(*(table.column(name).to_pylist() for name in _NAMES), strict=True)]
        damaged = first_damaged(rows, chain)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise CorruptDataError(f"{where} holds no oplog: {str(error).splitlines()[0]:.200}") from error
    if damaged is not None:
        raise CorruptDataError(f"{where}: the entry {rows[damaged].optime} is not the one that was written")
    return rows


PAGE_ROWS, PAGE_BYTES = 5_000, 8 << 20


class Archive:
    """Keeps the list of segments and the rows of the one that was read last."""

    def __init__(self, files: Files, info: ArchiveInfo) -> None:
        """Use `open`."""
        self.files = files
        self.info = info
        self._names: list[SegmentName] = []
        self._segments: dict[SegmentName, Segment] = {}
        self._read: tuple[SegmentName, list[OplogRow]] | None = None

    @classmethod
    def open(cls, address: str, files: Files | None = None) -> Self:
        """Open the archive at an address. BadValueError: there is none."""
        files = files or open_files(address)
        data = files.read(ARCHIVE_FILE)
        if data is None:
            raise BadValueError(f"{address} is no archive: it has no {ARCHIVE_FILE}")
        return cls(files, ArchiveInfo.parse(data, f"{files.address}/{ARCHIVE_FILE}"))

    @classmethod
    def of_set(cls, files: Files, wanted: ArchiveInfo, known_id: str) -> Self:
        """Open it to add to it; make it when it is missing. wanted: of the set, with an id for a new archive.

        known_id: of the archive that the set writes to; empty: of none yet. ArchiveError: what is there is another's.
        """
        data = files.read(ARCHIVE_FILE)
        # A file system that is not mounted looks like this. A new archive there would go on from where the set's record
        # says, and the entries before would seem to be archived nowhere.
        if data is None and known_id:
            raise ArchiveError(f"{files.address} is empty, and the set's archive {known_id} is not")
        try:
            info = None if data is None else ArchiveInfo.parse(data, f"{files.address}/{ARCHIVE_FILE}")
        except CorruptDataError:
            if known_id or files.names(FOLDER):
                raise
            info = None  # its first write broke off
        if info is None:
            if files.names(FOLDER):
                raise ArchiveError(f"{files.address} has segments and no {ARCHIVE_FILE}: it is damaged")
            files.write(ARCHIVE_FILE, wanted.encode())
            return cls(files, wanted)
        if info.set_id != wanted.set_id:
            raise ArchiveError(f"{files.address} is the archive of set {info.set_name} with id {info.set_id}")
        if known_id not in ("", info.archive_id):
            raise ArchiveError(f"{files.address} is archive {info.archive_id}, and the set writes to {known_id}")
        return cls(files, info)

    def names(self, *, refresh: bool = True) -> list[SegmentName]:
        """All segments by their first entry. refresh: look for new ones."""
        if refresh or not self._names:
            found = (SegmentName.parse(file) for file in self.files.names(FOLDER))
            self._names = sorted(name for name in found if name is not None)
        return self._names

    @property
    def newest_ts(self) -> int:
        """The ts of the newest entry there is; 0: there is none."""
        return max((name.last_ts for name in self.names()), default=0)

    def oldest(self) -> Segment | None:
        """The oldest segment there is."""
        names = self.names()
        return self.segment(names[0]) if names else None

    def segment(self, name: SegmentName) -> Segment:
        """Read a manifest. CorruptDataError; CappedPositionLostError: it was removed meanwhile."""
        if name not in self._segments:
            where = f"{self.files.address}/{name.manifest}"
            data = self.files.read(name.manifest)
            if data is None:
                raise self._missing(name, where)
            self._segments[name] = self.parse(name, data)
        return self._segments[name]

    def parse(self, name: SegmentName, data: bytes) -> Segment:
        """Read the bytes of this segment's manifest. CorruptDataError."""
        where = f"{self.files.address}/{name.manifest}"
        segment = Segment.parse(data, where)
        if segment.name != name or segment.set_id != self.info.set_id:
            raise CorruptDataError(f"{where} describes another segment: {segment.first} of set {segment.set_id}")
        return segment

    def rows(self, segment: Segment) -> list[OplogRow]:
        """Read a whole segment, and check its bytes and every entry. Raises as `segment`."""
        if self._read is not None and self._read[0] == segment.name:
            return self._read[1]
        where = f"{self.files.address}/{segment.file}"
        data = self.files.read(segment.file)
        if data is None:
            raise self._missing(segment.name, where)
        if len(data) != segment.size or hashlib.sha256(data).hexdigest() != segment.sha256:
            raise CorruptDataError(f"{where} is damaged: its hash differs from the manifest's")
        rows = self.decode(segment, data)
        self._read = segment.name, rows
        return rows

    def decode(self, segment: Segment, data: bytes) -> list[OplogRow]:
        """Read all rows of a segment's file, and check that they are those its manifest names. CorruptDataError."""
        where = f"{self.files.address}/{segment.file}"
        rows = decode_rows(data, where, segment.previous_chain)
        ends = [(str(row.optime), row.chain) for row in (rows[0], rows[-1])] if rows else []
        if len(rows) != segment.rows or ends[0][0] != segment.first or ends[1] != (segment.last, segment.chain):
            raise CorruptDataError(f"{where} does not hold the entries that its manifest names")
        return rows

    def _missing(self, name: SegmentName, where: str) -> ReplError:
        """The error where a file is not there."""
        if name in self.names():
            return CorruptDataError(f"{where} is missing")
        return CappedPositionLostError(f"{where} was removed")

    def after(self, optime: OpTime) -> Segment | None:
        """The segment with the entry behind this one; None: nothing newer is archived.

        OPTIME_NULL: the oldest segment. CappedPositionLostError: the entries behind it are in no segment.
        """
        name = self._name_after(optime, ())
        return None if name is None else self._segment_behind(optime, name)

    def _name_after(self, optime: OpTime, damaged: Collection[SegmentName]) -> SegmentName | None:
        """damaged: segments to pass over. None: nothing newer is archived but them."""
        names = self.names(refresh=False)
        if not names or names[-1].last_ts <= optime.ts:
            names = self.names()
        newer = [name for name in names if name.last_ts > optime.ts and name not in damaged]
        if damaged and optime == OPTIME_NULL:  # `_segment_behind` sees no gap in front of the oldest one
            newer = [name for name in newer if name.first_ts <= min(damaged).first_ts]
        if not newer:
            return None
        holding = [name for name in newer if name.first_ts <= optime.ts]
        return max(holding, key=lambda one: one.last_ts) if holding else newer[0]

    def _segment_behind(self, optime: OpTime, name: SegmentName) -> Segment:
        segment = self.segment(name)
        before_ts = name.first_ts - 1 if segment.before is None else segment.before.optime.ts
        if name.first_ts > optime.ts and optime != OPTIME_NULL and before_ts > optime.ts:
            raise CappedPositionLostError(f"the archive has no entries between {optime} and {segment.first}")
        return segment

    def rows_after(self, optime: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        """Rows behind this entry in order, of one segment: up to `limit`, or `max_bytes` of entries; the first always.

        Empty: nothing newer is archived. CappedPositionLostError as in `after`. A damaged segment is passed over where
        another one goes on from this entry, too.
        """
        damaged: dict[SegmentName, CorruptDataError] = {}
        while (name := self._name_after(optime, damaged)) is not None:
            try:
                rows = self.rows(self._segment_behind(optime, name))
            except CorruptDataError as error:
                damaged[name] = error
            except CappedPositionLostError:
                if damaged:
                    break
                raise
            else:
                return self._first_behind(rows, optime, limit, max_bytes)
        if damaged:
            raise next(iter(damaged.values()))
        return []

    @staticmethod
    def _first_behind(rows: list[OplogRow], optime: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        found: list[OplogRow] = []
        size = 0
        for row in rows:
            if row.ts <= optime.ts:
                continue
            size += len(row.entry)
            if found and (len(found) == limit or size > max_bytes):
                break
            found.append(row)
        return found

    def pages(self, after: Position) -> Iterator[list[OplogRow]]:
        """All rows behind a position, each page continuing the chain of the one before.

        CorruptDataError: they are of another history.
        """
        position = after
        while rows := self.rows_after(position.optime, PAGE_ROWS, PAGE_BYTES):
            check_continues(rows, position, self.files.address)
            yield rows
            position = Position(rows[-1].optime, rows[-1].chain)

    def add(self, rows: Sequence[OplogRow], before: Position | None, *, member: str, written: str) -> Segment:
        """Write a segment: rows, a copy of the manifest, the manifest. before: the entry that the first row follows.

        CorruptDataError: the rows do not continue `before`. A manifest would vouch for a history that has a hole.
        """
        if before is not None:
            check_continues(rows, before, self.files.address)
        data = encode_rows(rows)
        manifest_before, manifest_before_sha256 = self._manifest_before(rows[0].ts)
        segment = Segment(
            set_id=self.info.set_id,
            previous=None if before is None else str(before.optime),
            previous_chain=None if before is None else before.chain,
            first=str(rows[0].optime),
            last=str(rows[-1].optime),
            chain=rows[-1].chain,
            rows=len(rows),
            entry_bytes=sum(len(row.entry) for row in rows),
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            member=member,
            written=written,
            lowest_wall_ms=min(row.wall_ms for row in rows),
            manifest_before=manifest_before,
            manifest_before_sha256=manifest_before_sha256,
        )
        manifest = segment.encode()
        self.files.write(segment.file, data)
        # Two members may write the same range, and a damaged segment is written again. The next one may name either.
        self.files.write(segment.name.copy(hashlib.sha256(manifest).hexdigest()), manifest)
        self.files.write(segment.name.manifest, manifest)
        return segment

    def _manifest_before(self, first_ts: int) -> tuple[str, str]:
        """The newest manifest of what ends before this entry, and its SHA-256; empty: there is none."""
        older = [name for name in self.names() if name.last_ts < first_ts]
        for name in sorted(older, key=lambda one: (one.last_ts, one.first_ts), reverse=True):
            data = self.files.read(name.manifest)
            if data is not None:  # else it was removed just now
                return name.manifest, hashlib.sha256(data).hexdigest()
        return "", ""

    def remove_before(self, end_ts: int, *, dry_run: bool = False) -> Iterator[SegmentName]:
        """Remove all whose entries are older, whole or not, the oldest first; give the name of each.

        A manifest goes before its rows. Behind the newest segment rows may just be about to get theirs.
        """
        end_ts = min(end_ts, self.newest_ts + 1)
        found: dict[SegmentName, list[str]] = {}
        for file in self.files.names(FOLDER):
            name = SegmentName.of_file(file)
            if name is not None and name.last_ts < end_ts:
                found.setdefault(name, []).append(f"{FOLDER}/{file}")
        # By their ends: whatever is left when this breaks off, no manifest is missing between those that are there.
        for name, files in sorted(found.items(), key=lambda item: (item[0].last_ts, item[0].first_ts)):
            yield name
            # A manifest says that its rows are there. If the rows went first and the process died, a reader would find
            # the manifest alone and take the archive for damaged. Rows without a manifest count for nothing.
            for file in () if dry_run else sorted(files, key=name.manifest.__ne__):
                self.files.remove(file)


def check_continues(rows: Sequence[OplogRow], position: Position, where: str) -> None:
    """Raise CorruptDataError if these rows do not follow this position by the hash chain."""
    if position.optime != OPTIME_NULL and next_chain(position.chain, rows[0].hash) != rows[0].chain:
        raise CorruptDataError(f"{where}: {rows[0].optime} does not follow {position.optime}: it is of another history")
