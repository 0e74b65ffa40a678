"""What was changed in an archive is named; what its own writers do to it is not taken for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replset.cli.archive import app
from replset.features.archive.archive import Archive
from replset.features.archive.files import FolderFiles
from replset.features.archive.segments import Segment
from replset.features.archive.verify import Verified, verify_archive
from tests.unit.features.archive.test_archive import (
    Driver,
    archived,
    change_a_bit,
    driver,
    files,
    job,
    rows_of,
    trim,
    write,
    write_all,
)

__all__ = ["driver", "files"]


def verified(files: FolderFiles) -> Verified:
    return verify_archive(Archive.open("it", files))


def broken_at(files: FolderFiles) -> str:
    found = verified(files).broken
    return "" if found is None else found.file


def copies_of(files: FolderFiles, segment: Segment) -> list[Path]:
    return list(Path(files.address, "segments").glob(f"{segment.name.stem}.*.manifest"))


def test_a_whole_archive_verifies(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)
    found = verified(files)
    assert (found.broken, found.segments, found.entries) == (None, len(segments), len(rows_of(driver)))
    assert found.spans == [(segments[0].first, segments[-1].last)]
    assert (found.not_covered, found.written_anew, found.begins_later) == ([], [], False)
    assert found.newest == segments[-1].name.manifest


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("kind", ["rows", "manifest"])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.99])
def test_a_changed_byte_is_named(driver: Driver, files: FolderFiles, kind: str, number: int, at: float) -> None:
    segment = write_all(driver, files)[number]
    file = segment.file if kind == "rows" else segment.name.manifest
    data = bytearray(files.read(file) or b"")
    data[int(len(data) * at)] ^= 1
    files.write(file, bytes(data))
    assert broken_at(files) == file


def remove(files: FolderFiles, one: Segment, _other: Segment) -> None:
    files.remove(one.name.manifest)


def remove_with_copy(files: FolderFiles, one: Segment, _other: Segment) -> None:
    files.remove(one.name.manifest)
    for path in copies_of(files, one):
        path.unlink()


def swap(files: FolderFiles, one: Segment, other: Segment) -> None:
    files.write(one.name.manifest, other.encode())
    files.write(other.name.manifest, one.encode())


def forge(files: FolderFiles, one: Segment, _other: Segment) -> None:
    """A manifest with a checksum of its own that is right, and other entries by what it says."""
    files.write(one.name.manifest, replace(one, entry_bytes=one.entry_bytes + 1).encode())


def forge_without_copy(files: FolderFiles, one: Segment, _other: Segment) -> None:
    files.write(one.name.manifest, replace(one, member="other:1").encode())
    for path in copies_of(files, one):
        path.unlink()


@pytest.mark.parametrize("deed", [remove, remove_with_copy, swap, forge, forge_without_copy])
def test_a_manifest_that_is_not_the_one_written_is_named(
    driver: Driver, files: FolderFiles, deed: Callable[[FolderFiles, Segment, Segment], None]
) -> None:
    segments = write_all(driver, files)
    deed(files, segments[1], segments[2])
    assert broken_at(files) == segments[1].name.manifest


def test_manifests_of_an_older_release_are_not_covered(driver: Driver, files: FolderFiles) -> None:
    first = write(driver, files, job(driver)).segment
    assert first is not None
    files.write(first.name.manifest, replace(first, manifest_before=None, manifest_before_sha256=None).encode())
    write_all(driver, files, after=first.end)
    found = verified(files)
    assert (found.broken, found.not_covered, found.written_anew) == (None, [first.name.manifest], [])
    files.write(first.name.manifest, replace(first, manifest_before=None, rows=first.rows + 1).encode())
    assert broken_at(files)


def test_a_gap_that_the_archive_records_is_no_break(driver: Driver, files: FolderFiles) -> None:
    first = write(driver, files, job(driver)).segment
    assert first is not None
    trim(driver, rows_of(driver)[-10].optime)
    write(driver, files, replace(job(driver, first.end), may_leave_gap=True))
    found = verified(files)
    assert (found.broken, len(found.spans)) == (None, 2)
    assert "1 gaps" in "\n".join(found.lines())
    change_a_bit(Path(files.address, first.name.manifest))
    assert broken_at(files) == first.name.manifest


def test_what_remove_took_is_no_break(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)
    for number in range(1, len(segments)):
        assert len(list(Archive.open("it", files).remove_before(segments[number].name.first_ts))) == 1
        found = verified(files)
        assert (found.broken, found.begins_later, found.segments) == (None, True, len(segments) - number)


def test_two_writers_of_one_range(driver: Driver, files: FolderFiles) -> None:
    """The slow one puts its manifest over the other's, which the next segment names already; or has other borders."""
    first, second, *_ = write_all(driver, files)
    files.remove(second.name.manifest)
    write(driver, files, replace(job(driver, first.end), member="slow:1"))
    found = verified(files)
    assert (found.broken, found.written_anew) == (None, [second.name.manifest])
    files.remove(second.name.manifest)
    write(driver, files, job(driver, first.end, max_bytes=2_500))
    assert verified(files).broken is None, "others hold what the manifest held that is gone"
    assert archived(files) == rows_of(driver)


@pytest.mark.parametrize("kind", ["rows", "manifest"])
def test_a_damaged_segment_that_was_written_anew(driver: Driver, files: FolderFiles, kind: str) -> None:
    """The record went back, so segments behind the damaged one are there and name its manifest."""
    first, second, *_ = write_all(driver, files)
    change_a_bit(Path(files.address, second.file if kind == "rows" else second.name.manifest))
    assert broken_at(files)
    for member, max_bytes in (("other:1", 1_500), ("third:1", 2_500)):
        again = replace(job(driver, first.end, max_bytes=max_bytes), member=member)
        assert write(driver, files, again).segment is not None
    assert verified(files).broken is None


def test_the_command(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)
    found = CliRunner().invoke(app, ["verify", files.address], standalone_mode=False)
    assert (found.return_value, "whole; the newest manifest is" in found.output) == (0, True)
    change_a_bit(Path(files.address, segments[1].file))
    found = CliRunner().invoke(app, ["verify", files.address], standalone_mode=False)
    assert found.return_value == 1
    assert f"broken at {segments[1].file}\n  expected: SHA-256 {segments[1].sha256}" in found.output
    found = CliRunner().invoke(app, ["verify", files.address, "--json"], standalone_mode=False)
    assert (found.return_value, json.loads(found.output)["broken"]["file"]) == (1, segments[1].file)
