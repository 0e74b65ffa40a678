"""How far each member is behind the primary: over time from the oplogs, and now from live members' status.

An entry's wall clock is the primary's, of the moment it was written; when a member received it is in no oplog. So what
the oplogs show is where a member's oplog ends or has its gaps: at each point in time, the wall of the newest entry that
the history has by then minus the wall of the newest one of those that the member has. A member that holds everything
is never behind here, however late it got it. Three sources, one column:

- `walls`: as above, at the end of each stretch of time in which the history has an entry;
- `commitPoint`: how far the majority was behind when an idle primary wrote a "periodic noop": the wall of the entry
  before the no-op minus the wall of the entry at the commit point that it names; `member` is null;
- `status`: what live members report now.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replset.bson import DateTime, RawDocument
from replset.client import HttpClient
from replset.ejson import from_ejson_value
from replset.errors import BadValueError, ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.optime import optime_or_none
from spark.columns import batch_from, schema_of, table_from, tuples_of
from spark.jobs import Work, pinned
from spark.oplog import EVERYTHING, Oplog, OplogError, Span
from spark.readers.live import LiveOplog
from spark.render.charts import Chart, Line, line_chart
from spark.render.content import Content, ContentTable, Document, Phrase, Tone, count_text, duration
from spark.render.report_documents import rows_of
from spark.reports.elections import NOOPS, MemberTerm, fork_of, winner_of
from spark.runners import Rows, Runner, SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = npt.NDArray[np.int64]
WALLS = "walls"
COMMIT_POINT = "commitPoint"
STATUS = "status"
LAG = schema_of(
    "member at source behind_ms ts term optime", **dict.fromkeys(("member", "source", "optime"), pa.string())
)
PERIODIC = "periodic noop"
POINTS = 500
MOST_POINTS = 100_000
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_NOOPS = schema_of("ts term point_ts point_term")
_MARKS = schema_of("member kind at term ts wall", member=pa.string(), kind=pa.string())


def lag(spark: SparkSession, oplogs: Sequence[Oplog], **how: Any) -> DataFrame:
    """The rows as a DataFrame. how: as in `lag_of`."""
    return spark.createDataFrame(lag_of(SparkRunner.of(spark), oplogs, **how))


def lag_of(
    runner: Runner, oplogs: Sequence[Oplog], *, span: Span = EVERYTHING, every_ms: int | None = None
) -> pa.Table:
    """Rows (member, at, source, behind_ms, ts, term, optime), by source, at and member; see the module.

    at: wall clock in milliseconds. ts, term, optime: where the member is (commitPoint: the commit point). every_ms: the
    width of the stretches of time; without it a round one that makes about 500 of the span at most. OplogError: an
    oplog could not be read, a live member not asked. BadValueError: every_ms would make more than 100,000 stretches.
    """
    oplogs = pinned(oplogs)
    bounds = [oplog.bounds() for oplog in oplogs]
    known = [(b.oldest.seconds, b.newest.seconds) for b in bounds if b.newest != OPTIME_NULL]
    width_ms = width_ms_of(known, span, every_ms)
    here = runner.of_size(0, 0)  # few rows leave a part
    noop_rows = tuples_of(here.read(oplogs, ("ts", "term", "entry"), _noop_batches, _NOOPS, span=span, only=NOOPS))
    noops = {PeriodicNoop(*row) for row in noop_rows}
    work = _marks_for(width_ms, noops)
    mark_rows = tuples_of(here.read(oplogs, ("ts", "term", "wall"), work, _MARKS, span=span))
    marks = [LagMark(*row) for row in mark_rows]
    rows = [
        *wall_rows(marks),
        *commit_point_rows(marks, noops),
        *status_rows([(oplog.name, answer) for oplog in oplogs if (answer := status_of(oplog)) is not None]),
    ]
    ordered = sorted(rows, key=lambda row: (row.source, row.at, row.member or "", row.term, row.ts))
    shown = [(*row, str(OpTime(row.term, row.ts))) for row in ordered]
    return table_from(shown, LAG)


class Lag(NamedTuple):
    """One row, but for the optime as text."""

    member: str | None
    at: int
    source: str
    behind_ms: int
    ts: int
    term: int


class PeriodicNoop(NamedTuple):
    """A periodic no-op and the commit point that it names."""

    ts: int
    term: int
    point_ts: int
    point_term: int


class LagMark(NamedTuple):
    """What a worker notes of a member's entries.

    kind `newest`: the newest entry of its term in the stretch of time that ends at `at`; `first`: the first one of its
    term in that part; `at`: an entry asked for; `before`: the one before the entry with ts `at`; `end`: the last one of
    the worker's part.
    """

    member: str
    kind: str
    at: int
    term: int
    ts: int
    wall: int

    @property
    def optime(self) -> OpTime:
        return OpTime(self.term, self.ts)


# --- pure ------------------------------------------------------------------------------------------------------


def round_width_ms(seconds: int, points: int = POINTS) -> int:
    """The smallest round width, in milliseconds, that makes at most `points` of so many seconds."""
    least = -(-seconds // points)
    return 1000 * next((width for width in _WIDTHS_S if width >= least), -(-least // 86_400) * 86_400)


def width_ms_of(known: Sequence[tuple[int, int]], span: Span, every_ms: int | None) -> int:
    """The width of the stretches of time. known: first and last second of each oplog that has entries."""
    if every_ms is not None and every_ms < 1:
        raise BadValueError(f"a stretch of time is at least 1 ms, not {every_ms}")
    if not known:
        return every_ms or 1000
    first = max(span.first_ts >> 31, min(first for first, _ in known))
    last = min(span.end_ts >> 31, max(last for _, last in known))
    seconds = max(0, last - first) + 1
    if every_ms is None:
        return round_width_ms(seconds)
    if seconds * 1000 > every_ms * MOST_POINTS:
        raise BadValueError(f"{seconds} s in stretches of {every_ms} ms are more than {MOST_POINTS} points")
    return every_ms


def wall_rows(marks: Iterable[LagMark]) -> list[Lag]:
    """Each member behind the history at the end of each stretch of time, from its first entry on."""
    marks = list(marks)
    members = sorted({mark.member for mark in marks})
    newest = _by_clocks_that_were_right(_in_history(marks))
    at_of: dict[int, dict[str, LagMark]] = {}
    for mark in newest:
        had = at_of.setdefault(mark.at, {})
        if mark.member not in had or had[mark.member].optime < mark.optime:
            had[mark.member] = mark
    rows: list[Lag] = []
    now: dict[str, LagMark] = {}
    for at in sorted(at_of):
        for member, mark in at_of[at].items():
            if member not in now or now[member].optime < mark.optime:
                now[member] = mark
        newest_of_all = max(now.values(), key=lambda mark: mark.optime)
        for member in members:
            if (mine := now.get(member)) is not None:
                behind = max(0, newest_of_all.wall - mine.wall)
                rows.append(Lag(member, at, WALLS, behind, mine.ts, mine.term))
    return rows


def _by_clocks_that_were_right(marks: Iterable[LagMark]) -> list[LagMark]:
    """The marks with a time that rises with the history.

    Where a later entry has an earlier time than one in front of it, the clock that wrote that one was ahead: it counts
    as written then. A time before all in front of it is of a clock that was behind, and counts as theirs.
    """
    risen: list[LagMark] = []
    for mark in sorted(marks, key=lambda mark: (mark.optime, mark.at)):
        known = bisect_right(risen, mark.wall, key=attrgetter("wall"))
        if known == 0 and risen:
            mark = mark._replace(wall=risen[-1].wall, at=risen[-1].at)
            known = len(risen)
        risen[known:] = [one._replace(wall=mark.wall, at=mark.at) for one in risen[known:]]
        risen.append(mark)
    return risen


def commit_point_rows(marks: Iterable[LagMark], noops: Iterable[PeriodicNoop]) -> list[Lag]:
    """How far the majority was behind at each periodic no-op of the history whose entries are known; see the module."""
    marks = list(marks)
    reach = _reach(marks)
    wall_at = {mark.optime: mark.wall for mark in marks if mark.kind == "at"}
    before = _before(marks)
    rows = []
    for noop in sorted(set(noops), key=lambda noop: (noop.term, noop.ts)):
        optime, point = OpTime(noop.term, noop.ts), OpTime(noop.point_term, noop.point_ts)
        at, point_wall, previous = wall_at.get(optime), wall_at.get(point), before.get(noop.ts)
        last = reach.get(noop.term)
        if at is None or point_wall is None or previous is None or (last is not None and noop.ts > last.last_ts):
            continue
        rows.append(Lag(None, at, COMMIT_POINT, max(0, previous.wall - point_wall), point.ts, point.term))
    return rows


def status_rows(answers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Lag]:
    """How far each member of the set is behind the newest position in any answer.

    answers: (name of the oplog, its answer to replSetGetStatus). By how much, each member measures (`lagMillis`); where
    it does not say so, the wall times of the newest entries do. A member's own answer counts; of one that was not
    asked, the answer with its newest position does. A member that nobody knows a position of has no row.
    """
    positions: dict[str, tuple[bool, OpTime, int, int, int]] = {}  # by host: (by itself, optime, wall, at, measured)
    names: dict[str, str] = {}
    for name, answer in answers:
        at = _ms(answer.get("date"))
        for member in answer.get("members", []):
            host, is_self = str(member.get("name")), bool(member.get("self"))
            if is_self:
                names[host] = name
            optime = optime_or_none(member.get("optime"))
            if optime is None or optime.ts == 0:
                continue
            measured = member.get("lagMillis")
            lag_ms = measured if isinstance(measured, int) else 0
            found = (is_self, optime, _ms(member.get("lastAppliedWallTime")), at, lag_ms)
            if host not in positions or positions[host] < found:
                positions[host] = found
    if not positions:
        return []
    newest, newest_wall = max(positions.values(), key=lambda found: found[1])[1:3]
    rows = []
    for host, (_, optime, wall, at, lag_ms) in sorted(positions.items()):
        behind = 0 if optime == newest else lag_ms or max(0, newest_wall - wall)
        rows.append(Lag(names.get(host, host), at, STATUS, behind, optime.ts, optime.term))
    return rows


def noop_in(ts: int, term: int, entry: bytes) -> PeriodicNoop | None:
    """The periodic no-op that this entry is, if it is one."""
    o = RawDocument(entry).get("o")
    if not isinstance(o, Mapping) or o.get("msg") != PERIODIC:
        return None
    point = optime_or_none(o.get("commitPoint"))
    return None if point is None or point == OPTIME_NULL else PeriodicNoop(ts, term, point.ts, point.term)


def lag_marks_in(
    member: str, batches: Iterator[pa.RecordBatch], width_ms: int, wanted: Numbers, noops: Numbers
) -> Iterator[LagMark]:
    """What `lag` needs of one part of an oplog. wanted: ts of the entries asked for, noops: of those whose predecessor
    is asked for; both rising.
    """
    newest: dict[tuple[int, int], LagMark] = {}
    firsts: dict[int, LagMark] = {}
    last: LagMark | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ts, term, wall = (np.asarray(batch.column(name)) for name in ("ts", "term", "wall"))
        wall = np.where(wall > 0, wall, (ts >> 31) * 1000)  # a dump may lack walls
        ends = (wall // width_ms + 1) * width_ms
        changes = np.flatnonzero((np.diff(term) != 0) | (np.diff(ends) != 0))
        for i in [*changes.tolist(), batch.num_rows - 1]:
            key = (int(ends[i]), int(term[i]))
            newest[key] = LagMark(member, "newest", key[0], key[1], int(ts[i]), int(wall[i]))
        for i in [0, *(np.flatnonzero(np.diff(term)) + 1).tolist()]:
            found = LagMark(member, "first", int(ends[i]), int(term[i]), int(ts[i]), int(wall[i]))
            firsts.setdefault(found.term, found)
        for i in np.flatnonzero(np.isin(ts, wanted)).tolist():
            yield LagMark(member, "at", 0, int(term[i]), int(ts[i]), int(wall[i]))
        for i in np.flatnonzero(np.isin(ts, noops)).tolist():
            if i:
                yield LagMark(member, "before", int(ts[i]), int(term[i - 1]), int(ts[i - 1]), int(wall[i - 1]))
            elif last is not None:
                yield last._replace(kind="before", at=int(ts[i]))
        last = LagMark(member, "end", 0, int(term[-1]), int(ts[-1]), int(wall[-1]))
    yield from newest.values()
    yield from firsts.values()
    if last is not None:
        yield last


def _terms_of(marks: Iterable[LagMark]) -> list[MemberTerm]:
    """What each member has of each term, as `elections` finds it (without counts)."""
    spans: dict[tuple[str, int], list[LagMark]] = {}
    for mark in marks:
        if mark.kind in ("newest", "first"):
            span = spans.setdefault((mark.member, mark.term), [mark, mark])
            span[0] = min(span[0], mark, key=lambda mark: mark.ts)
            span[1] = max(span[1], mark, key=lambda mark: mark.ts)
    return [
        MemberTerm(member, term, first.ts, first.wall, last.ts, last.wall, 0)
        for (member, term), (first, last) in sorted(spans.items())
    ]


def _reach(marks: Iterable[LagMark]) -> dict[int, MemberTerm]:
    """The winner's stretches by term: how far the history goes in each."""
    stretches = _terms_of(marks)
    winner = winner_of(stretches)
    return {stretch.term: stretch for stretch in stretches if stretch.member == winner}


def _in_history(marks: Sequence[LagMark]) -> list[LagMark]:
    """The `newest` marks, each moved back to the newest entry of the history that the member has by then."""
    stretches = _terms_of(marks)
    winner = winner_of(stretches)
    history = [stretch for stretch in stretches if stretch.member == winner]
    reach = {stretch.term: stretch for stretch in history}
    forks = {
        member: fork_of([stretch for stretch in stretches if stretch.member == member], history)
        for member in {mark.member for mark in marks}
    }
    kept = []
    for mark in marks:
        tail = forks[mark.member].tail
        if mark.kind != "newest":
            continue
        if tail is None or mark.ts < tail.first_ts:
            kept.append(mark)
        elif (last := reach.get(mark.term)) is not None and last.last_ts < tail.first_ts:
            # The part of the term that both have ends within this stretch of time, or ended before.
            kept.append(mark._replace(ts=last.last_ts, wall=last.last_wall))
    return kept


def _before(marks: Iterable[LagMark]) -> dict[int, LagMark]:
    """By the ts of a no-op, the entry before it: as a worker noted it, or, where the no-op began a worker's part, the
    last entry of the part before. Of members that do not agree the one that has more.
    """
    noted: dict[tuple[str, int], LagMark] = {}
    ends: dict[str, list[LagMark]] = {}
    asked: list[LagMark] = []
    for mark in marks:
        if mark.kind == "before":
            noted[mark.member, mark.at] = mark
        elif mark.kind == "end":
            ends.setdefault(mark.member, []).append(mark)
        elif mark.kind == "at":
            asked.append(mark)
    for of_member in ends.values():
        of_member.sort(key=_ts)
    found: dict[int, LagMark] = {}
    for mark in asked:
        previous = noted.get((mark.member, mark.ts))
        if previous is None:
            parts = ends.get(mark.member, [])
            behind = bisect_left(parts, mark.ts, key=_ts)
            previous = parts[behind - 1] if behind else None
        if previous is not None and (mark.ts not in found or found[mark.ts].optime < previous.optime):
            found[mark.ts] = previous
    return found


def _ts(mark: LagMark) -> int:
    return mark.ts


def _ms(value: object) -> int:
    return value.ms if isinstance(value, DateTime) else 0


# --- in Spark, and from live members ---------------------------------------------------------------------------


def status_of(oplog: Oplog) -> dict[str, Any] | None:
    """What a live member answers to replSetGetStatus; None for an oplog that is no live member's."""
    if not isinstance(oplog, LiveOplog):
        return None
    try:
        answer = from_ejson_value(HttpClient(oplog.url).get("/v1/replset/status"))
    except ReplError as error:
        raise OplogError(oplog.name, error.message) from error
    return answer if isinstance(answer, dict) else None


def _noop_batches(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield batch_from([noop for row in rows if (noop := noop_in(*row)) is not None], _NOOPS)


def _marks_for(width_ms: int, noops: Collection[PeriodicNoop]) -> Work:
    noop_ts = np.unique(np.array([noop.ts for noop in noops], np.int64))
    wanted = np.union1d(noop_ts, np.array([noop.point_ts for noop in noops], np.int64))

    def work(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield batch_from(list(lag_marks_in(member, batches, width_ms, wanted, noop_ts)), _MARKS)

    return work


# --- document, text and charts ---------------------------------------------------------------------------------


def document_of(found: Rows) -> dict[str, Any]:
    """The series by source and member, each point [wall in ms, ms behind]; `now`: how far each is behind at its end."""
    series: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in rows_of(found):
        series.setdefault((row["source"], row["member"]), []).append(row)
    return {
        "series": [
            {
                "source": source,
                "member": member,
                "now": rows[-1]["behind_ms"],
                "worst": max(row["behind_ms"] for row in rows),
                "optime": rows[-1]["optime"],
                "points": [[row["at"], row["behind_ms"]] for row in rows],
            }
            for (source, member), rows in series.items()
        ]
    }


_SOURCES = {
    "walls": "from the oplogs",
    "commitPoint": "majority, from no-ops",
    "status": "now, as live members report",
}


def content(document: Document) -> Content:
    series = document["series"]
    if not series:
        return Content("Lag", [Phrase("The oplogs are empty.", Tone.WARN)])
    of_members = [row for row in series if row["member"] is not None]
    answers = []
    behind = [row for row in of_members if row["now"] > 0]
    if behind:
        worst = max(behind, key=lambda row: row["now"])
        answers.append(Phrase(f"{worst['member']} is furthest behind at the end: {duration(worst['now'])}.", Tone.WARN))
    else:
        answers.append(Phrase("At the end no member is behind the newest entry.", Tone.GOOD))
    most = max(series, key=lambda row: row["worst"])
    if most["worst"] > 0:
        who = most["member"] or "the commit point"
        answers.append(Phrase(f"At worst {who} was {duration(most['worst'])} behind."))
    columns = ("member", "source", "behind at the end", "at worst", "points", "where it is")
    rows = [
        (
            row["member"] or "commit point",
            _SOURCES[row["source"]],
            Phrase(duration(row["now"]), Tone.WARN if row["now"] else Tone.PLAIN),
            duration(row["worst"]),
            count_text(len(row["points"])),
            row["optime"],
        )
        for row in series
    ]
    grid = ContentTable("Behind the primary", columns, rows, numbers=("behind at the end", "at worst", "points"))
    return Content("Lag", answers, [grid])


def charts(document: Document) -> list[Chart]:
    return lag_chart(document["series"])


def lag_chart(series: Sequence[Document]) -> list[Chart]:
    """How far each member was behind, over time; nothing where no source knows more than a moment."""
    shown = [
        Line(row["member"] or "commit point", [(at, behind / 1000) for at, behind in row["points"]])
        for row in series
        if row["source"] != STATUS and len(row["points"]) > 1
    ]
    if not shown:
        return []
    drawing = line_chart(shown, label="seconds behind over time", unit=lambda value: duration(round(value * 1000)))
    return [Chart("Behind the primary", drawing, "How much older than the newest entry what each member had was.")]
