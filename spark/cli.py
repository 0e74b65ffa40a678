"""`oplog-spark`: where members' oplogs differ and what they hold. Each command's work stands in a module of its own."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replset.errors import BadValueError
from replset.terminal import refuse, run_app
from spark.command_run import (
    NEEDS,
    PROGRAM,
    Engine,
    Format,
    Run,
    check_target,
    not_installed,
    only_of,
    optime_of,
    point_of,
    running,
    span_of,
    tables_of,
)
from spark.render.content import readable

if TYPE_CHECKING:
    from spark.oplog import EntryFilter, Span
    from spark.reports.diff.classify import Diff
    from spark.reports.diff.documents import DocumentDiff
    from spark.reports.tail import Second

app = typer.Typer(
    help="See where members' oplogs differ and what they hold. A MEMBER is a dbpath or its replset.db, a mongodump "
    "oplog.bson, a folder of exported Parquet, or http://HOST:PORT of a live member; NAME=MEMBER gives it a name.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables show a type for flags, which take none
    context_settings={"max_content_width": 110},
)

ByBytes = Annotated[bool, typer.Option("--bytes", help="compare hashes computed of the entries, not the stored ones")]
AtDocuments = Annotated[
    bool, typer.Option("--documents", help="also compare the documents of the data files, at the newest common entry")
]
Members = Annotated[list[str], typer.Argument(metavar="MEMBER", help="oplogs: dbpath, file, folder or http://...")]
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="an oplog: dbpath, file, folder or http://...")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="local: in this process; diff, summary, verify only")]
Master = Annotated[str | None, typer.Option(metavar="URL", help="Spark's master; without one local[*]")]
FormatOption = Annotated[Format, typer.Option("--format", help="what standard output gets")]
AsJson = Annotated[bool, typer.Option("--json", help="as --format json: one document for scripts")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="also write a page with charts there")]
ParquetDir = Annotated[Path | None, typer.Option("--parquet", metavar="DIR", help="also write all rows there")]
Namespaces = Annotated[list[str] | None, typer.Option("--ns", metavar="DB.COLL", help="only this namespace (repeat)")]
Count = Annotated[int, typer.Option("--samples", min=0, metavar="N", help="how many entries to look at closely")]
From = Annotated[str | None, typer.Option("--from", metavar="WHEN", help="optime TERM:SECONDS:INC, or a time")]
To = Annotated[str | None, typer.Option("--to", metavar="WHEN", help="up to this optime, or before this time")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. Every failure is one line on standard error and status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter stops nothing
    try:
        return run_app(app, PROGRAM, list(sys.argv[1:] if argv is None else argv))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDS:
            raise
        return refuse(PROGRAM, not_installed([str(error.name)]))


@app.command()
def diff(
    members: Members,
    ns: Namespaces = None,
    begin: From = None,
    end: To = None,
    samples: Count = 10,
    by_bytes: ByBytes = False,
    with_documents: AtDocuments = False,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    html: Html = None,
    parquet: ParquetDir = None,
) -> int:
    """Where members differ: common points, and missing, extra, divergent and rolled-back entries.

    Exit status 0: the same; 1: different; 2: could not compare.
    """
    span = span_of(begin, end)
    with running(
        "diff", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        if len(run.oplogs) == 1:
            raise BadValueError(f"{run.oplogs[0].name} is alone: give two members or more to compare")
        from spark.render import documents
        from spark.reports.diff.documents import check_places

        if with_documents:
            check_places(run.oplogs)
        found = differences(run, span, only_of(ns), by_bytes)
        held = documents_of(run, found, ns or ()) if with_documents else None
        document = {"ns": ns or None, **documents.diff(found, run.oplogs, samples, by_bytes=by_bytes, held=held)}
        tables = tables_of(found)
        if held is not None:
            tables["documents_at"] = held.differing
        run.show(document, tables, lambda: more_for_diff(run, found, span))
        return 0 if document["same"] else 1


def differences(run: Run, span: Span, only: EntryFilter, by_bytes: bool) -> Diff[Any]:
    if run.engine is Engine.LOCAL:
        from spark.reports.diff.local_engine import local_diff

        return local_diff(run.oplogs, span=span, only=only, by_bytes=by_bytes)
    from spark.reports.diff.spark_engine import diff as spark_diff

    return spark_diff(run.session, run.oplogs, span=span, only=only, by_bytes=by_bytes)


def documents_of(run: Run, found: Diff[Any], namespaces: Sequence[str]) -> DocumentDiff:
    """The documents of the members' files at the newest entry that all have."""
    from spark.render.documents import rows_of
    from spark.reports.diff.documents import document_diff, newest_common

    point = newest_common(rows_of(found.pairs))
    return document_diff(run.oplogs, point, namespaces, None if run.engine is Engine.LOCAL else run.session)


def more_for_diff(run: Run, found: Diff[Any], span: Span) -> dict[str, Any]:
    """What only the page shows: the differences over time, what each member holds, and with Spark the lag."""
    from spark.render import documents
    from spark.reports.lag import lag as lag_of
    from spark.reports.summary import local_summary
    from spark.reports.summary import summary as summary_of

    known = [bounds for bounds in run.bounds if bounds.rows]
    seconds = max((b.newest.seconds for b in known), default=0) - min((b.oldest.seconds for b in known), default=0)
    width_s = max(1, -(-seconds // 400))
    more: dict[str, Any] = {"timeline": documents.timeline(found.entries, width_s), "timelineSeconds": width_s}
    if run.engine is Engine.LOCAL:
        return {**more, "held": documents.rows_of(local_summary(run.oplogs, span=span, top=0).namespaces)}
    held = summary_of(run.session, run.oplogs, span=span, top=0).namespaces
    return {
        **more,
        "held": documents.rows_of(held),
        "lag": documents.lag(lag_of(run.session, run.oplogs, span=span))["series"],
    }


@app.command()
def verify(
    members: Members,
    begin: From = None,
    end: To = None,
    samples: Count = 10,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    html: Html = None,
    parquet: ParquetDir = None,
) -> int:
    """Whether oplogs are sound: hashes, the chain, rising optimes, well-formed entries, idempotence.

    Exit status 0: sound; 1: faults found; 2: could not check.
    """
    span = span_of(begin, end)
    with running(
        "verify", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark.render import documents
        from spark.reports.verify import check as audit

        found: audit.Verification[Any]
        if engine is Engine.LOCAL:
            found = audit.local_verify(run.oplogs, span=span)
        else:
            found = audit.verify(run.session, run.oplogs, span=span)
        document = documents.verify(found, run.oplogs, samples)
        run.show(document, tables_of(found))
        return 0 if document["sound"] else 1


@app.command()
def elections(
    members: Members,
    samples: Count = 10,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    html: Html = None,
    parquet: ParquetDir = None,
) -> None:
    """The terms: who led, how long nobody did, which entries each change cost."""
    require_spark("elections", engine)
    with running(
        "elections", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark.render import documents
        from spark.reports import elections as audit

        found = audit.elections(run.session, run.oplogs)
        tables = {"terms": found.terms, "lost": found.lost, "rollbacks": found.rollbacks}
        run.show(documents.elections(found, samples), tables)


@app.command()
def lag(
    members: Members,
    begin: From = None,
    end: To = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="a point so often; else some 500 points")
    ] = None,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    html: Html = None,
    parquet: ParquetDir = None,
) -> None:
    """Each member behind the primary over time: from walls, commit points in no-ops, and live status."""
    require_spark("lag", engine)
    span = span_of(begin, end)
    with running(
        "lag", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark.render import documents
        from spark.reports import lag as audit

        found = audit.lag(run.session, run.oplogs, span=span, every_ms=None if every is None else int(every * 1000))
        run.show(documents.lag(found), {"lag": found})


@app.command()
def summary(
    members: Members,
    ns: Namespaces = None,
    begin: From = None,
    end: To = None,
    top: Annotated[int, typer.Option(min=0, help="how many hot documents of each member")] = 20,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    html: Html = None,
    parquet: ParquetDir = None,
) -> None:
    """What the oplogs hold: by namespace, operation, term and minute; sizes, hot documents, the cost of updates."""
    span = span_of(begin, end)
    with running(
        "summary", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark.render import documents
        from spark.reports import summary as audit

        only = only_of(ns)
        found: audit.Summary[Any]
        if engine is Engine.LOCAL:
            found = audit.local_summary(run.oplogs, span=span, only=only, top=top)
        else:
            found = audit.summary(run.session, run.oplogs, span=span, only=only, top=top)
        run.show(documents.summary(found), tables_of(found))


@app.command()
def replay(
    member: Member,
    ns: Annotated[str, typer.Option("--ns", metavar="DB.COLL", help="whose documents")],
    at: Annotated[str | None, typer.Option(metavar="OPTIME", help="as of this entry; else as of the newest")] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="BASE", help="begin from a dbpath, FILE.bson[@OPTIME] of mongodump, or `empty`"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="write them as .bson there instead")] = None,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
    parquet: ParquetDir = None,
) -> None:
    """The documents of a namespace at a point in time, as Extended JSON, one a line, by _id.

    --json: canonical Extended JSON, which tells all types apart.
    """
    require_spark("replay", engine)
    shown = form_of(form, as_json)
    if shown is Format.HTML:
        raise BadValueError("replay prints documents: --format table or json")
    point = None if at is None else optime_of(at, "--at")
    if out is not None and out.exists():
        raise BadValueError(f"--out: {out} is there already")
    check_target(out, "--out")
    with running("replay", [member], engine=engine, master=master, form=shown, parquet=parquet) as run:
        from spark.reports.replay import replay as work
        from spark.reports.replay.base import open_base

        start = None if base is None else open_base(base)
        documents = work.replay(run.session, run.oplogs[0], ns, at=point, base=start)
        if parquet is not None:
            run.write_parquet(parquet, {"documents": documents})
        if out is not None:
            count = work.write_bson(documents, out)
            typer.echo(f"{count} documents of {ns} in {out}")
            return
        for line in work.ejson_lines(documents, canonical=shown is Format.JSON):
            typer.echo(line)


@app.command()
def export(
    members: Members,
    parquet: Annotated[str, typer.Option("--parquet", metavar="DIR", help="a folder, or a URI all workers reach")],
    begin: From = None,
    end: To = None,
    append: Annotated[bool, typer.Option("--append", help="add what is newer than the export there")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the export there")] = False,
    variant: Annotated[bool, typer.Option("--variant", help="also a column `parsed` of type VARIANT")] = False,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Write the oplogs as Parquet, by member, day and namespace. The folder is a MEMBER for the other commands."""
    require_spark("export", engine)
    if append and overwrite:
        raise BadValueError("--append or --overwrite, not both")
    shown = form_of(form, as_json)
    if shown is Format.HTML:
        raise BadValueError("export has no page: --format table or json")
    span = span_of(begin, end)
    with running("export", members, engine=engine, master=master, form=shown) as run:
        from spark.render import documents
        from spark.reports import export as work

        mode = work.Mode.APPEND if append else work.Mode.OVERWRITE if overwrite else work.Mode.NEW
        files = work.export(run.session, run.oplogs, parquet, mode=mode, span=span, variant=variant)
        run.show(documents.export(files, parquet), {})


@app.command()
def tail(
    members: Members,
    ns: Namespaces = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="an optime, a time, or `now`: what comes from now on")
    ] = "now",
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="remember there how far it came, and go on from there")
    ] = None,
    skip_trimmed: Annotated[
        bool, typer.Option("--skip-trimmed", help="go on behind what a capped oplog gave up; else that is an error")
    ] = False,
    engine: EngineOption = Engine.SPARK,
    master: Master = None,
    form: FormatOption = Format.TABLE,
    as_json: AsJson = False,
) -> int:
    """Count entries by second while they come, until Ctrl-C. --json: one document a line."""
    require_spark("tail", engine)
    shown = form_of(form, as_json)
    if shown is Format.HTML:
        raise BadValueError("tail has no page: --format table or json")
    if begin != "now":
        point_of(begin, "--from")
    with running("tail", members, engine=engine, master=master, form=shown) as run:
        from spark.reports.tail import tail_stream
        from spark.source import register

        register(run.session)
        options = {"paths": json.dumps(members), "columns": "member,ts,op,ns", "from": begin}
        if ns:
            options["ns"] = json.dumps(ns)
        if skip_trimmed:
            options["onTrimmed"] = "skip"
        stream = run.session.readStream.format("oplog").options(**options).load()
        telling = TailPrinter(shown is Format.JSON)
        tail_stream(stream, telling.show, checkpoint=checkpoint, stop=telling.stop)
        return telling.status()


class TailPrinter:
    """Prints the seconds of a tail, and ends it when nobody reads them any more."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._unread = False
        self.stop = threading.Event()

    def show(self, seconds: Sequence[Second]) -> None:
        """Called from Spark's thread, where an error would come home as Spark's."""
        from spark.reports.tail import line_of

        try:
            for second in seconds:
                print(json.dumps(second_document(second)) if self._as_json else readable(line_of(second)))
            sys.stdout.flush()
        except BrokenPipeError:
            self._unread = True
            self.stop.set()

    def status(self) -> int:
        """130 after Ctrl-C, which is how a tail ends."""
        if self._unread:
            raise BrokenPipeError
        return 130


def second_document(second: Second) -> dict[str, Any]:
    return {
        "time": f"{second.time}Z",
        "member": second.member,
        "entries": second.entries,
        "operations": second.by_op,
        "namespaces": second.by_ns,
    }


def require_spark(command: str, engine: Engine) -> None:
    if engine is not Engine.SPARK:
        raise BadValueError(f"{command} needs --engine spark (local does diff, summary and verify)")


def form_of(form: Format, as_json: bool) -> Format:
    return Format.JSON if as_json else form
