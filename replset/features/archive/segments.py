"""What an archive consists of: `archive.json`, which names its set, and segments of the oplog.

A segment is a Parquet file with the rows of a range, and a manifest that is written after it. Without a manifest there
is no segment. Its name is its range, so the same segment written twice is one segment. This file is pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from replset.ids import OpTime, pack_ts
from replset.manifest import Manifest

ARCHIVE_FILE = "archive.json"
FOLDER = "segments"
COPY = ".manifest"
_NAME = re.compile(r"(\d{10})\.(\d{10})-(\d{10})\.(\d{10})\..+")


class Position(NamedTuple):
    """An entry, and the hash chain at it, which tells two histories apart."""

    optime: OpTime
    chain: int


class SegmentName(NamedTuple):
    """The range of a segment: the ts of its first and of its last entry."""

    first_ts: int
    last_ts: int

    @property
    def stem(self) -> str:
        return f"{_shown(self.first_ts)}-{_shown(self.last_ts)}"

    @property
    def manifest(self) -> str:
        return f"{FOLDER}/{self.stem}.json"

    def copy(self, sha256: str) -> str:
        """The copy of the manifest with these bytes. It stays when the segment is written anew: others may name it."""
        return f"{FOLDER}/{self.stem}.{sha256[:16]}{COPY}"

    @classmethod
    def parse(cls, file: str) -> Self | None:
        """Read the name of a manifest within its folder; None: it is another file."""
        name = cls.of_file(file)
        return name if name is not None and f"{FOLDER}/{file}" == name.manifest else None

    @classmethod
    def of_file(cls, file: str) -> Self | None:
        """The segment to which a file of this name belongs; None: to none."""
        found = _NAME.fullmatch(file)
        if found is None:
            return None
        seconds, increment, last_seconds, last_increment = map(int, found.groups())
        return cls(pack_ts(seconds, increment), pack_ts(last_seconds, last_increment))


def _shown(ts: int) -> str:
    optime = OpTime(0, ts)
    return f"{optime.seconds:010}.{optime.increment:010}"


@dataclass(frozen=True, slots=True)
class Segment(Manifest):
    """Describes a segment. first, last, previous: TERM:SECONDS:INC of its ends and of the entry before it.

    previous, previous_chain: None where no member had that entry any more. chain: at the last entry. size, sha256: of
    the Parquet file. entry_bytes: of all entries. member, written: who wrote it and when (UTC), for people.
    lowest_wall_ms: the earliest wall time of its entries.
    manifest_before, manifest_before_sha256: the manifest of the segment before it, as the writer found it. Both empty:
    there was none; None: an older release wrote this one.
    """

    what = "segment"
    set_id: str
    previous: str | None
    previous_chain: int | None
    first: str
    last: str
    chain: int
    rows: int
    entry_bytes: int
    size: int
    sha256: str
    member: str
    written: str
    lowest_wall_ms: int | None = None
    manifest_before: str | None = None
    manifest_before_sha256: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.name.first_ts <= self.name.last_ts or self.rows < 1:
            raise ValueError("its range is empty")

    @property
    def name(self) -> SegmentName:
        return SegmentName(OpTime.parse(self.first).ts, OpTime.parse(self.last).ts)

    @property
    def file(self) -> str:
        """The Parquet file. Its name has a part of the hash: two members that write the same range do not mix files."""
        return f"{FOLDER}/{self.name.stem}.{self.sha256[:16]}.parquet"

    @property
    def before(self) -> Position | None:
        if self.previous is None or self.previous_chain is None:
            return None
        return Position(OpTime.parse(self.previous), self.previous_chain)

    @property
    def end(self) -> Position:
        return Position(OpTime.parse(self.last), self.chain)


@dataclass(frozen=True, slots=True)
class ArchiveInfo(Manifest):
    """Names the set whose oplog an archive holds. set_id: settings.replicaSetId, in hex. archive_id: drawn when it was
    made, so that a set notices when its members were given different addresses.
    """

    what = "archive"
    set_name: str
    set_id: str
    archive_id: str
