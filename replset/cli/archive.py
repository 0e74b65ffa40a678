"""`replset archive` looks after the archive of the oplog; no member need run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from replset.ejson import to_ejson
from replset.errors import ReplError
from replset.features.archive.archive import Archive, check_continues
from replset.features.archive.segments import COPY, FOLDER, Position, Segment
from replset.features.archive.verify import verify_archive
from replset.ids import OPTIME_NULL, OpTime
from replset.long_work import LongWork
from replset.terminal import echo, echo_json

app = typer.Typer(help="Look after the archive of the oplog.", no_args_is_help=True)
GOOD, FAULTS = 0, 1
AHEAD_S = 60
Url = Annotated[str, typer.Argument(metavar="URL", help="a folder, or an address such as s3://BUCKET/PATH")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of text")]


@app.command("list")
def list_segments(url: Url, json: AsJson = False) -> None:
    """List the segments by time, with the gaps between them."""
    archive = Archive.open(url)
    segments = [archive.segment(name) for name in archive.names()]
    if json:
        rows = [{"first": one.first, "last": one.last, "rows": one.rows, "bytes": one.size} for one in segments]
        gaps = [{"after": after, "before": before} for after, before in _gaps(segments)]
        echo(to_ejson({"set": archive.info.set_name, "setId": archive.info.set_id, "segments": rows, "gaps": gaps}))
        return
    gap_before = {before: after for after, before in _gaps(segments)}
    echo(f"archive {archive.info.archive_id} of set {archive.info.set_name} ({archive.info.set_id})")
    if segments and segments[0].previous != str(OPTIME_NULL):
        echo(f"  nothing before {segments[0].first}: it was removed, or never archived")
    for one in segments:
        if one.first in gap_before:
            echo(f"  gap: nothing between {gap_before[one.first]} and {one.first}")
        echo(f"  {one.first} to {one.last}: {one.rows} entries, {one.size} bytes, {one.written} by {one.member}")
    echo(f"{len(segments)} segments, {sum(one.size for one in segments)} bytes, {len(gap_before)} gaps")


def _gaps(segments: list[Segment]) -> list[tuple[str, str]]:
    """(last entry before, first entry behind) of each gap. segments: by their first entry; they may overlap."""
    found: list[tuple[str, str]] = []
    reached = ""
    reached_ts = 0
    for one in segments:
        before = one.before
        if reached and one.name.first_ts > reached_ts and (before is None or before.optime.ts > reached_ts):
            found.append((reached, one.first))
        if one.name.last_ts > reached_ts:
            reached, reached_ts = one.last, one.name.last_ts
    return found


@app.command()
def check(url: Url, json: AsJson = False) -> int:
    """Read everything and check it: hashes, entries, the chain from segment to segment. Status 0 good, 1 faults."""
    archive = Archive.open(url)
    faults: list[str] = []
    position: Position | None = None
    segments: list[Segment] = []
    names = archive.names()
    with LongWork("replset") as work:
        work.begin("checking the archive", len(names), "segments")
        for name in names:
            work.advance()
            try:
                segment = archive.segment(name)
                segments.append(segment)
                rows = archive.rows(segment)
                if position is not None and segment.before is not None and segment.before.optime == position.optime:
                    check_continues(rows, position, f"{archive.files.address}/{segment.file}")
                position = segment.end if position is None or segment.end.optime > position.optime else position
            except ReplError as error:
                faults.append(error.message)
    faults += [f"nothing between {after} and {before}" for after, before in _gaps(segments)]
    known = {file.rpartition("/")[2] for one in segments for file in (one.file, one.name.manifest)}
    known |= {name.manifest.rpartition("/")[2] for name in names}
    extra = sorted(file for file in archive.files.names(FOLDER) if file not in known and not file.endswith(COPY))
    if json:
        echo(to_ejson({"segments": len(names), "faults": faults, "withoutManifest": extra}))
    else:
        for fault in faults:
            echo(fault)
        if extra:
            echo(f"without a manifest, not used: {', '.join(extra[:10])}{' ...' if len(extra) > 10 else ''}")
        echo(f"{len(names)} segments checked, {len(faults)} faults")
    return FAULTS if faults else GOOD


@app.command()
def verify(url: Url, json: AsJson = False) -> int:
    """Follow the SHA-256 from manifest to manifest, and check each segment. Status 1: broken; names the first break."""
    archive = Archive.open(url)
    with LongWork("replset") as work:
        work.begin("verifying the archive", len(archive.names()), "segments")
        found = verify_archive(archive, work.advance)
    if json:
        echo_json(asdict(found))
    else:
        for line in found.lines():
            echo(line)
    return FAULTS if found.broken else GOOD


@app.command()
def remove(
    url: Url,
    before: Annotated[str, typer.Option("--before", metavar="TIME", help="2026-10-03T12:00:00Z, or an entry's optime")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
) -> None:
    """Remove the segments whose entries are all older, the oldest first."""
    from replset.features.archive.point_in_time import PointInTime  # imports the storage
    from replset.member.process.machine import RealClock  # with asyncio, which no other command here needs

    archive = Archive.open(url)
    point = PointInTime.parse(before)
    end_ts = point.end_ts
    count = 0
    for name in archive.remove_before(end_ts, dry_run=dry_run):
        count += 1
        echo(f"{'would remove' if dry_run else 'removed'} {name.stem}")
    newest_s = OpTime(0, archive.newest_ts).seconds
    if point.wall_ms is not None and newest_s > RealClock().wall_ms() // 1000 + AHEAD_S:
        echo(
            f"the newest optime, of second {newest_s}, is ahead of the time of day: a clock was ahead. Segments since"
            " then stay; to remove them, give --before an optime"
        )
    echo(f"{count} of {len(archive.names())} segments" if dry_run else f"{count} segments removed")
