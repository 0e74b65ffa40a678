"""Oplogs as Parquet: FOLDER/member=NAME/day=YYYY-MM-DD/ns=NAMESPACE/part-*.parquet, every column in every file.

The workers write, each its span of an oplog, with pyarrow: a million entries cost some 4 s of two cores, through
Spark's own writer 19 s, and 37 s when it sorts by namespace first. Small files of one namespace and day, as many
namespaces make them, are then put together. Nothing is in its folder before everything is written: files grow in
FOLDER/_temporary-*, and the driver moves them. Rows are ordered by ts; day is the UTC day of ts. Folder names are
escaped (%XX); the true names are in the columns. A reader that takes the columns from the folders' names shows
null for the empty namespace of no-ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from replset.bson import RawDocument
from replset.ejson import to_ejson
from replset.errors import ReplError
from spark.columns import COLUMNS, MEMBER, arrow_schema, batch_from, schema_of, table_from
from spark.jobs import with_member
from spark.oplog import EVERYTHING, Oplog, OplogError, Span
from spark.render.content import Content, ContentTable, Document, Phrase, Tone, byte_size, count_text, several
from spark.render.report_documents import rows_of
from spark.reports.export_folder import TEMPORARY, ExportedFile, Mode, Target, day_of, folder_of
from spark.runners import Rows, SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = schema_of(
    "member day ns file entries bytes first_ts last_ts", **dict.fromkeys(("member", "day", "ns", "file"), pa.string())
)
PARSED = "parsed"
"""With variant: the entry as VARIANT, from its relaxed Extended JSON."""
ROWS_PER_TASK = 1_000_000
_ROW_GROUP_ROWS = 131_072
_BUFFER_BYTES = 64 << 20
_OPEN_FILES = 64
_SMALL_BYTES = 16 << 20
_MERGED_BYTES = 128 << 20
_DAY_S = 86_400
_SCHEMA = arrow_schema((MEMBER, *COLUMNS))
_TEXTS = pa.schema([*_SCHEMA, ("text", pa.string()), ("folder", pa.string())])
_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [MEMBER, "op", "ns"],
    "column_encoding": dict.fromkeys(("ts", "term", "wall"), "DELTA_BINARY_PACKED"),
    "sorting_columns": [pq.SortingColumn(_SCHEMA.get_field_index("ts"))],
}


def export(
    spark: SparkSession,
    oplogs: Sequence[Oplog],
    folder: str | Path,
    *,
    mode: Mode = Mode.NEW,
    span: Span = EVERYTHING,
    variant: bool = False,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """Write the entries of `span`; rows of _FILES, one a file written, by member, day, ns and file.

    folder: a path, or a URI that pyarrow knows (s3://, hdfs://, gs://), which every worker must reach. variant: one
    column more, PARSED. ExportError: the folder is not as `mode` wants it, or an appended member's history is not the
    exported one. OplogError: an oplog could not be read.
    """
    target = Target.open(str(folder))
    spans = target.prepare(oplogs, mode, span)
    run = f"{TEMPORARY}{uuid4().hex}"
    try:
        write = _write_variants if variant else _write_files
        files = write(spark, spans, target, run, rows_per_task)
        if mode is Mode.OVERWRITE:
            target.clear()
        shown = target.move_in(run, files)
    finally:
        target.drop(run)
    target.mark()
    return spark.createDataFrame(table_from(sorted(shown), _FILES))


# --- pure ------------------------------------------------------------------------------------------------------


def runs_by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch cut where its UTC day changes; it has the column `ts`."""
    if batch.num_rows == 0:
        return
    days = (np.asarray(batch.column("ts")) >> 31) // _DAY_S
    begins = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(begins):
        yield day_of(int(days[begin]) * _DAY_S << 31), batch.slice(begin, end - begin)


def by_namespace(batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each namespace, in their order; namespaces by name."""
    table = pa.Table.from_batches(batches).combine_chunks()
    encoded = table.column("ns").combine_chunks().dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], table
        return
    numbers = np.asarray(encoded.indices)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
    ordered = table.take(pa.array(order))
    for number in sorted(range(len(names)), key=names.__getitem__):
        begin = int(ends[number - 1]) if number else 0
        yield names[number], ordered.slice(begin, int(ends[number]) - begin)


def merges(files: Iterable[ExportedFile]) -> list[list[ExportedFile]]:
    """Which files to put together: of one member, day and namespace, one after the other, small, up to a size."""
    found: list[list[ExportedFile]] = []
    ordered = sorted(files, key=lambda file: (file.member, file.day, file.ns, file.first_ts))
    for _, alike in groupby(ordered, key=lambda file: (file.member, file.day, file.ns)):
        group: list[ExportedFile] = []
        for file in [*alike, None]:
            small = file is not None and file.bytes < _SMALL_BYTES
            if not small or (file is not None and sum(f.bytes for f in group) + file.bytes > _MERGED_BYTES):
                if len(group) > 1:
                    found.append(group)
                group = []
            if small and file is not None:
                group.append(file)
    return found


# --- in the workers --------------------------------------------------------------------------------------------


class _Files:
    """The files that one task writes, of one member. Few namespaces keep their files open over several row groups."""

    def __init__(self, target: Target, run: str, member: str) -> None:
        self._target, self._run, self._member = target, run, member
        self._day = ""
        self._pending: list[pa.RecordBatch] = []
        self._size = 0
        self._open: dict[str, tuple[pq.ParquetWriter, ExportedFile]] = {}
        self.done: list[ExportedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for day, part in runs_by_day(batch):
            if day != self._day:
                self.end()
                self._day = day
            self._pending.append(part)
            self._size += part.nbytes
            if self._size >= _BUFFER_BYTES:
                self._flush()

    def end(self) -> None:
        """Write what is left of the day and close its files."""
        self._flush()
        for ns in list(self._open):
            self._close(ns)

    def _flush(self) -> None:
        if not self._pending:
            return
        for ns, table in by_namespace(self._pending):
            writer, file = self._open.pop(ns) if ns in self._open else self._begin(ns)
            writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
            ts = table.column("ts")
            first, last = ts[0].as_py(), ts[-1].as_py()
            first = file.first_ts if file.entries else first
            self._open[ns] = writer, file._replace(entries=file.entries + len(table), first_ts=first, last_ts=last)
            if len(self._open) > _OPEN_FILES:
                self._close(ns)
        self._pending, self._size = [], 0

    def _begin(self, ns: str) -> tuple[pq.ParquetWriter, ExportedFile]:
        name = f"{uuid4().hex}.parquet"
        writer = pq.ParquetWriter(
            self._target.path(self._run, name), _SCHEMA, filesystem=self._target.system, **_WRITING
        )
        return writer, ExportedFile(self._member, self._day, ns, name, 0, 0, 0, 0)

    def _close(self, ns: str) -> None:
        writer, file = self._open.pop(ns)
        writer.close()
        self.done.append(file._replace(bytes=self._target.size(self._run, file.file)))


def _write_files(
    spark: SparkSession, spans: Sequence[tuple[Oplog, Span]], target: Target, run: str, rows_per_task: int
) -> list[ExportedFile]:
    from pyspark.sql import DataFrame

    uri = target.uri
    target.make(run)

    def work(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _Files(Target.open(uri), run, member)
        try:
            for batch in with_member(member, batches):
                files.add(batch)
            files.end()
        except (OSError, pa.ArrowException) as error:
            raise OplogError(member, f"writing to {uri}: {error}") from error
        yield batch_from(files.done, _FILES)

    frames = [
        SparkRunner.of(spark).read([oplog], COLUMNS, work, _FILES, span=span, rows_per_task=rows_per_task)
        for oplog, span in spans
    ]
    files = [ExportedFile(*row) for row in reduce(DataFrame.unionAll, frames).collect()] if frames else []
    return _merged(spark, files, uri, run)


def _merged(spark: SparkSession, files: Sequence[ExportedFile], uri: str, run: str) -> list[ExportedFile]:
    """The files, small ones put together."""
    groups = merges(files)
    if not groups:
        return list(files)

    parts = min(len(groups), 4 * spark.sparkContext.defaultParallelism)

    def merge(part: int) -> Iterator[pa.RecordBatch]:
        target = Target.open(uri)
        yield batch_from([_put_together(target, run, group) for group in groups[part::parts]], _FILES)

    merged = SparkRunner.of(spark).numbers(parts, merge, _FILES).collect()
    gone = {file.file for group in groups for file in group}
    return [*(file for file in files if file.file not in gone), *(ExportedFile(*row) for row in merged)]


def _put_together(target: Target, run: str, group: Sequence[ExportedFile]) -> ExportedFile:
    name = f"{uuid4().hex}.parquet"
    path, system = target.path(run, name), target.system
    waiting: list[pa.Table] = []
    try:
        with pq.ParquetWriter(path, _SCHEMA, filesystem=system, **_WRITING) as writer:
            for file in group:
                waiting.append(pq.read_table(target.path(run, file.file), filesystem=system, partitioning=None))
                if sum(map(len, waiting)) >= _ROW_GROUP_ROWS or sum(t.nbytes for t in waiting) >= _BUFFER_BYTES:
                    writer.write_table(pa.concat_tables(waiting), row_group_size=_ROW_GROUP_ROWS)
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting), row_group_size=_ROW_GROUP_ROWS)
        for file in group:
            system.delete_file(target.path(run, file.file))
    except (OSError, pa.ArrowException) as error:
        raise OplogError(group[0].member, f"writing to {target.uri}: {error}") from error
    entries, size = sum(file.entries for file in group), target.size(run, name)
    return group[0]._replace(file=name, entries=entries, bytes=size, last_ts=group[-1].last_ts)


# --- with VARIANT, through Spark's own writer ------------------------------------------------------------------


def _write_variants(
    spark: SparkSession, spans: Sequence[tuple[Oplog, Span]], target: Target, run: str, rows_per_task: int
) -> list[ExportedFile]:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    frames = [
        SparkRunner.of(spark).read(
            [oplog], COLUMNS, _with_text, _TEXTS, span=span, rows_per_task=min(rows_per_task, ROWS_PER_TASK // 4)
        )
        for oplog, span in spans
    ]
    if not frames:
        return []
    found = reduce(DataFrame.unionAll, frames)
    # What VARIANT cannot hold (too large or too deep) is null there; `entry` has it.
    shown = found.withColumn(PARSED, f.try_parse_json("text")).drop("text").sortWithinPartitions("folder", "ts")
    uri = f"{target.uri}/{run}" if "://" in target.uri else f"file://{quote(target.path(run))}"
    shown.write.option("compression", "zstd").partitionBy("folder").parquet(uri)
    return target.written(run)


def _with_text(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Beside the columns the entry as Extended JSON and its folder in the export."""
    for batch in with_member(member, batches):
        entries, ns, ts = (batch.column(name).to_pylist() for name in ("entry", "ns", "ts"))
        try:
            texts = [to_ejson(RawDocument(entry).decode()) for entry in entries]
        except ReplError as error:
            raise OplogError(member, f"an entry cannot be parsed: {error.message}") from error
        folders = [folder_of(member, day_of(at), name) for at, name in zip(ts, ns, strict=True)]
        columns = [*batch.columns, pa.array(texts, pa.string()), pa.array(folders, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=_TEXTS)


# --- document and text ---------------------------------------------------------------------------------


def document_of(files: Rows, folder: str) -> dict[str, Any]:
    """What was written: files, entries and bytes of each namespace of a member, not each file."""
    sums: dict[tuple[str, str], dict[str, int]] = {}
    days: set[str] = set()
    for row in rows_of(files):
        counts = sums.setdefault((row["member"], row["ns"]), {"files": 0, "entries": 0, "bytes": 0})
        counts["files"] += 1
        counts["entries"] += row["entries"]
        counts["bytes"] += row["bytes"]
        days.add(row["day"])
    written = [{"member": member, "ns": ns, **counts} for (member, ns), counts in sorted(sums.items())]
    return {"folder": folder, "days": sorted(days), "written": written}


def content(document: Document) -> Content:
    rows = document["written"]
    entries, files = sum(row["entries"] for row in rows), sum(row["files"] for row in rows)
    days = document["days"]
    when = f", {days[0]} to {days[-1]}" if len(days) > 1 else f", {days[0]}" if days else ""
    answer = f"{several(entries, 'entry', 'entries')} in {several(files, 'file')} below {document['folder']}{when}."
    cells = [
        (row["member"], row["ns"] or "-", count_text(row["entries"]), count_text(row["files"]), byte_size(row["bytes"]))
        for row in rows
    ]
    columns = ("member", "namespace", "entries", "files", "bytes")
    return Content(
        "Export", [Phrase(answer, Tone.GOOD)], [ContentTable("Written", columns, cells, numbers=columns[2:])]
    )
