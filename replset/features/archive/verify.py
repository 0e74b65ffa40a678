"""Verifies an archive: from the first manifest to the last by the SHA-256 that each has of the one before.

A manifest that was written anew, since its segment was damaged or two members wrote the same range, leaves its copy.
Whoever named it is answered by the copy, and what is there instead must hold the same entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from replset.errors import CorruptDataError
from replset.features.archive.archive import Archive
from replset.features.archive.segments import FOLDER, Segment, SegmentName
from replset.ids import OPTIME_NULL
from replset.oplog_row import OplogRow


@dataclass(frozen=True, slots=True)
class Break:
    """Where an archive is not what was written. file: within the archive."""

    file: str
    expected: str
    found: str


class _BrokenError(Exception):
    def __init__(self, file: str, expected: str, found: str) -> None:
        self.broken = Break(file, expected, found)


@dataclass(slots=True)
class Verified:
    """What was found up to the first break. spans: first and last entry of each stretch without a gap. not_covered:
    manifests of an older release, which name no manifest before. written_anew: manifests that took another's place.
    newest, newest_sha256: the manifest that no other one names yet.
    """

    segments: int = 0
    entries: int = 0
    spans: list[tuple[str, str]] = field(default_factory=list)
    begins_later: bool = False
    not_covered: list[str] = field(default_factory=list)
    written_anew: list[str] = field(default_factory=list)
    newest: str = ""
    newest_sha256: str = ""
    broken: Break | None = None

    def lines(self) -> Iterator[str]:
        """What a person reads."""
        if self.begins_later:
            yield f"nothing before {self.spans[0][0]}: it was removed, or never archived"
        for number, (first, last) in enumerate(self.spans):
            if number:
                yield f"gap, as the archive itself says: nothing between {self.spans[number - 1][1]} and {first}"
            yield f"{first} to {last}"
        for file in self.not_covered:
            yield f"not covered: {file}, an older release wrote it without the SHA-256 of the manifest before"
        for file in self.written_anew:
            yield f"written anew: {file}, with the same entries"
        yield f"{self.segments} segments, {self.entries} entries, {max(0, len(self.spans) - 1)} gaps"
        if self.broken is not None:
            yield f"broken at {self.broken.file}"
            yield f"  expected: {self.broken.expected}"
            yield f"  there is: {self.broken.found}"
        elif self.newest:
            yield f"whole; the newest manifest is {self.newest}, SHA-256 {self.newest_sha256}"


def verify_archive(archive: Archive, advance: Callable[[], object] = lambda: None) -> Verified:
    """Read all of it, two segments at a time. advance: called behind each segment. ArchiveError: it cannot be read."""
    walk = _Walk(archive)
    try:
        for name in walk.names:
            walk.step(name)
            advance()
    except _BrokenError as error:
        walk.found.broken = error.broken
    return walk.found


class _Walk:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.names = archive.names()
        self._oldest_end = min((name.last_ts for name in self.names), default=0)
        self._reached: tuple[Segment, list[OplogRow]] | None = None
        self.found = Verified()

    def step(self, name: SegmentName) -> None:
        data = self._archive.files.read(name.manifest)
        if data is None:
            raise _BrokenError(name.manifest, "a manifest", "nothing")
        segment = self._parsed(name, name.manifest, data)
        self._follow(segment)
        rows = self._rows(segment)
        self._continue(segment, rows)
        self.found.segments += 1
        if self._reached is None or name.last_ts > self._reached[0].name.last_ts:
            reached_ts = 0 if self._reached is None else self._reached[0].name.last_ts
            self.found.entries += sum(row.ts > reached_ts for row in rows)
            self.found.spans[-1] = self.found.spans[-1][0], segment.last
            self._reached = segment, rows
            self.found.newest, self.found.newest_sha256 = name.manifest, hashlib.sha256(data).hexdigest()

    def _parsed(self, name: SegmentName, file: str, data: bytes) -> Segment:
        try:
            return self._archive.parse(name, data)
        except CorruptDataError as error:
            raise _BrokenError(file, f"the manifest of {name.stem}", error.message) from error

    def _follow(self, segment: Segment) -> None:
        """Check that the manifest before is the one that this one names."""
        file, expected = segment.manifest_before, segment.manifest_before_sha256 or ""
        if file is None:
            self.found.not_covered.append(segment.name.manifest)
        if not file:
            return
        name = SegmentName.parse(file.removeprefix(f"{FOLDER}/"))
        if name is None or name.last_ts >= segment.name.first_ts:
            raise _BrokenError(segment.name.manifest, "the name of a manifest before it", file)
        if name.last_ts < self._oldest_end:
            return  # `replset archive remove` took it away: it takes all up to a time
        data = self._archive.files.read(file)
        there = "nothing" if data is None else f"SHA-256 {hashlib.sha256(data).hexdigest()}"
        if there == f"SHA-256 {expected}":
            return
        copy = self._archive.files.read(name.copy(expected))
        if copy is None or hashlib.sha256(copy).hexdigest() != expected:
            raise _BrokenError(file, f"SHA-256 {expected}, which {segment.name.manifest} names", there)
        if data is not None:  # else `_continue` finds out whether other segments hold its entries
            named, now = (self._parsed(name, file, one) for one in (copy, data))
            ends = [(one.first, one.last, one.chain, one.rows, one.entry_bytes) for one in (named, now)]
            if ends[0] != ends[1]:
                raise _BrokenError(file, f"the entries of {name.copy(expected)}", "a manifest of other entries")
        if file not in self.found.written_anew:
            self.found.written_anew.append(file)

    def _rows(self, segment: Segment) -> list[OplogRow]:
        data = self._archive.files.read(segment.file)
        there = "nothing" if data is None else f"SHA-256 {hashlib.sha256(data).hexdigest()}"
        if data is None or there != f"SHA-256 {segment.sha256}":
            raise _BrokenError(segment.file, f"SHA-256 {segment.sha256}, which {segment.name.manifest} names", there)
        try:
            return self._archive.decode(segment, data)
        except CorruptDataError as error:
            raise _BrokenError(
                segment.file, f"the entries that {segment.name.manifest} names", error.message
            ) from error

    def _continue(self, segment: Segment, rows: list[OplogRow]) -> None:
        """Check that the entries go on behind those that were reached, or are the same where segments overlap."""
        before, name = segment.before, segment.name
        if self._reached is None:
            self.found.begins_later = segment.previous != str(OPTIME_NULL)
            self.found.spans.append((segment.first, segment.last))
            return
        reached, reached_rows = self._reached
        if name.first_ts <= reached.name.last_ts:
            until = min(name.last_ts, reached.name.last_ts)
            here = [row for row in rows if row.ts <= until]
            if here != [row for row in reached_rows if name.first_ts <= row.ts <= until]:
                raise _BrokenError(segment.file, f"the entries of {reached.file} where both overlap", "other entries")
        elif before is None:
            self.found.spans.append((segment.first, segment.last))
        elif before.optime.ts > reached.name.last_ts:
            missing = segment.manifest_before or segment.name.manifest
            gone = f"the entries between {reached.last} and {segment.first}"
            raise _BrokenError(missing, gone, "no segment has them")
        elif (before.optime, before.chain) != (reached.end.optime, reached.chain):
            expected = f"what follows {reached.last} of {reached.name.manifest}"
            raise _BrokenError(name.manifest, expected, "another history")
