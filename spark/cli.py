"""`oplog-spark`: where members' oplogs differ and what they hold. The work of each command is in `spark/reports`."""

from __future__ import annotations

import inspect
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replset.errors import BadValueError
from replset.terminal import echo, refuse, run_app
from spark.command_run import (
    NEEDS,
    PROGRAM,
    CommandRun,
    Engine,
    Format,
    check_target,
    not_installed,
    only_of,
    optime_of,
    point_of,
    span_of,
    tables_of,
)

if TYPE_CHECKING:
    from spark.oplog import Span
    from spark.reports.diff.classify import Diff

app = typer.Typer(
    help="See where members' oplogs differ and what they hold. A MEMBER is a dbpath or its replset.db, a dump of the "
    "oplog by mongodump (.bson, .bson.gz, --archive), a folder of exported Parquet, http://HOST:PORT of a live "
    "member, or mongodb://HOST:PORT of a mongod; NAME=MEMBER gives it a name.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables show a type for flags, which take none
    context_settings={"max_content_width": 110},
)

Members = Annotated[list[str], typer.Argument(metavar="MEMBER", help="oplogs: dbpath, file, folder or http://...")]
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="an oplog: dbpath, file, folder or http://...")]
Namespaces = Annotated[list[str] | None, typer.Option("--ns", metavar="DB.COLL", help="only this namespace (repeat)")]
Samples = Annotated[int, typer.Option("--samples", min=0, metavar="N", help="how many entries to look at closely")]
From = Annotated[str | None, typer.Option("--from", metavar="WHEN", help="optime TERM:SECONDS:INC, or a time")]
To = Annotated[str | None, typer.Option("--to", metavar="WHEN", help="up to this optime, or before this time")]
SHARED = {
    "engine": (
        Annotated[
            Engine,
            typer.Option("--engine", help="local: in this process (diff, summary, verify); auto: what fits"),
        ],
        Engine.AUTO,
    ),
    "master": (Annotated[str | None, typer.Option(metavar="URL", help="Spark's master; without one local[*]")], None),
    "form": (Annotated[Format, typer.Option("--format", help="what standard output gets")], Format.TABLE),
    "as_json": (Annotated[bool, typer.Option("--json", help="as --format json: one document for scripts")], False),
    "html": (
        Annotated[Path | None, typer.Option("--html", metavar="FILE", help="also write a page with charts there")],
        None,
    ),
    "parquet": (
        Annotated[Path | None, typer.Option("--parquet", metavar="DIR", help="also write all rows there")],
        None,
    ),
}
"""The options that commands share, with their defaults."""
Work = Callable[..., int | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Every failure is one line on standard error and status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter stops nothing
    try:
        return run_app(app, PROGRAM, list(sys.argv[1:] if argv is None else argv))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDS:
            raise
        return refuse(PROGRAM, not_installed([str(error.name)]))


def command(*, local: bool = False, page: bool = False, tables: bool = False) -> Callable[[Work], Work]:
    """Make a function a command. The SHARED options follow its own ones; it is given a CommandRun instead.

    local: it can do without Spark. page: it has --html. tables: it has --parquet for all its rows.
    """

    def register(work: Work) -> Work:
        taken = [name for name in SHARED if (name != "html" or page) and (name != "parquet" or tables)]

        def run_command(**given: Any) -> int:
            shared = {name: given.pop(name) for name in taken}
            if shared.pop("as_json"):
                shared["form"] = Format.JSON
            run = CommandRun(work.__name__, **shared)
            if run.engine is Engine.AUTO and (not local or run.needs_spark):
                run.engine = Engine.SPARK
            if run.engine is Engine.LOCAL and not local:
                raise BadValueError(f"{run.command} needs --engine spark (local does diff, summary and verify)")
            if run.form is Format.HTML and not page:
                raise BadValueError(f"{run.command} has no page: --format table or json")
            with run:
                return work(run, **given) or 0

        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=SHARED[name][0], default=SHARED[name][1])
            for name in taken
        ]
        run_command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run_command.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        app.command(work.__name__, help=inspect.getdoc(work))(run_command)
        return work

    return register


@command(local=True, page=True, tables=True)
def diff(
    run: CommandRun,
    members: Members,
    ns: Namespaces = None,
    begin: From = None,
    end: To = None,
    samples: Samples = 10,
    by_bytes: Annotated[
        bool, typer.Option("--bytes", help="compare hashes computed of the entries, not the stored ones")
    ] = False,
    with_documents: Annotated[
        bool,
        typer.Option("--documents", help="also compare the documents of the data files, at the newest common entry"),
    ] = False,
) -> int:
    """Where members differ: common points, and missing, extra, divergent and rolled-back entries.

    Exit status 0: the same; 1: different; 2: could not compare.
    """
    span = span_of(begin, end)
    run.open(members)
    if len(run.oplogs) == 1:
        raise BadValueError(f"{run.oplogs[0].name} is alone: give two members or more to compare")
    from spark.render.report_documents import rows_of
    from spark.reports.diff import report
    from spark.reports.diff.compare import difference
    from spark.reports.diff.documents import check_oplogs, document_diff, newest_common

    if with_documents:
        check_oplogs(run.oplogs)
    found = difference(run.runner, run.oplogs, span=span, only=only_of(ns), by_bytes=by_bytes)
    tables, documents = tables_of(found), None
    if with_documents:
        documents = document_diff(run.runner, run.oplogs, newest_common(rows_of(found.pairs)), ns or ())
        tables["documents_at"] = documents.differing
    document = report.document_of(found, run.oplogs, samples, by_bytes=by_bytes, documents=documents)
    run.show(
        {"ns": ns or None, **document}, tables, report.content, report.charts, lambda: _only_on_page(run, found, span)
    )
    return 0 if document["same"] else 1


def _only_on_page(run: CommandRun, found: Diff[Any], span: Span) -> dict[str, Any]:
    """What only the page of a diff shows: the differences over time, what each member holds, with Spark the lag."""
    from spark.render.report_documents import rows_of
    from spark.reports import lag, summary
    from spark.reports.diff.report import timeline

    known = [bounds for bounds in run.bounds if bounds.rows]
    seconds = max((b.newest.seconds for b in known), default=0) - min((b.oldest.seconds for b in known), default=0)
    width_s = max(1, -(-seconds // 400))
    more: dict[str, Any] = {"timeline": timeline(found.entries, width_s), "timelineSeconds": width_s}
    more["namespacesOfAll"] = rows_of(summary.summary_of(run.runner, run.oplogs, span=span, top=0).namespaces)
    if run.engine is Engine.LOCAL:
        return more
    return {**more, "lag": lag.document_of(lag.lag_of(run.runner, run.oplogs, span=span))["series"]}


@command(local=True, page=True, tables=True)
def verify(run: CommandRun, members: Members, begin: From = None, end: To = None, samples: Samples = 10) -> int:
    """Whether oplogs are sound: hashes, the chain, rising optimes, well-formed entries, idempotence.

    Exit status 0: sound; 1: faults found; 2: could not check.
    """
    span = span_of(begin, end)
    run.open(members)
    from spark.reports.verify import check, report

    found = check.verification(run.runner, run.oplogs, span=span)
    document = report.document_of(found, run.oplogs, samples)
    run.show(document, tables_of(found), report.content)
    return 0 if document["sound"] else 1


@command(page=True, tables=True)
def elections(run: CommandRun, members: Members, samples: Samples = 10) -> None:
    """The terms: who led, how long nobody did, which entries each change cost."""
    run.open(members)
    from spark.reports import elections as finding
    from spark.reports import elections_text as report

    found = finding.elections_of(run.spark_runner, run.oplogs)
    run.show(report.document_of(found, samples), tables_of(found), report.content, report.charts)


@command(page=True, tables=True)
def lag(
    run: CommandRun,
    members: Members,
    begin: From = None,
    end: To = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="a point so often; else some 500 points")
    ] = None,
) -> None:
    """Each member behind the primary over time: from walls, commit points in no-ops, and live status."""
    span = span_of(begin, end)
    run.open(members)
    from spark.reports import lag as report

    found = report.lag_of(run.runner, run.oplogs, span=span, every_ms=None if every is None else int(every * 1000))
    run.show(report.document_of(found), {"lag": found}, report.content, report.charts)


@command(local=True, page=True, tables=True)
def summary(
    run: CommandRun,
    members: Members,
    ns: Namespaces = None,
    begin: From = None,
    end: To = None,
    top: Annotated[int, typer.Option(min=0, help="how many hot documents of each member")] = 20,
) -> None:
    """What the oplogs hold: by namespace, operation, term and minute; sizes, hot documents, the cost of updates."""
    span = span_of(begin, end)
    run.open(members)
    from spark.reports import summary as finding
    from spark.reports import summary_text as report

    found = finding.summary_of(run.runner, run.oplogs, span=span, only=only_of(ns), top=top)
    run.show(report.document_of(found), tables_of(found), report.content, report.charts)


@command(tables=True)
def replay(
    run: CommandRun,
    member: Member,
    ns: Annotated[str, typer.Option("--ns", metavar="DB.COLL", help="whose documents")],
    at: Annotated[str | None, typer.Option(metavar="OPTIME", help="as of this entry; else as of the newest")] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="BASE", help="begin from a dbpath, FILE.bson[@OPTIME] of mongodump, or `empty`"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="write them as .bson there instead")] = None,
) -> None:
    """The documents of a namespace at a point in time, as Extended JSON, one a line, by _id.

    --json: canonical Extended JSON, which shows the type of every value.
    """
    point = None if at is None else optime_of(at, "--at")
    if out is not None and out.exists():
        raise BadValueError(f"--out: {out} is there already")
    check_target(out, "--out")
    run.open([member])
    from spark.reports.replay import replay as report
    from spark.reports.replay.base import open_base

    documents = report.replay(run.session, run.oplogs[0], ns, at=point, base=None if base is None else open_base(base))
    run.write_tables({"documents": documents})
    if out is not None:
        count = report.write_bson(documents, out)
        run.end_work()
        echo(f"{count} documents of {ns} in {out}")
        return
    for line in report.ejson_lines(documents, canonical=run.form is Format.JSON):
        run.end_work()
        echo(line)


@command()
def export(
    run: CommandRun,
    members: Members,
    parquet: Annotated[str, typer.Option("--parquet", metavar="DIR", help="a folder, or a URI all workers reach")],
    begin: From = None,
    end: To = None,
    append: Annotated[bool, typer.Option("--append", help="add what is newer than the export there")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the export there")] = False,
    variant: Annotated[bool, typer.Option("--variant", help="also a column `parsed` of type VARIANT")] = False,
) -> None:
    """Write the oplogs as Parquet, by member, day and namespace. The folder is a MEMBER for the other commands."""
    if append and overwrite:
        raise BadValueError("--append or --overwrite, not both")
    span = span_of(begin, end)
    run.open(members)
    from spark.reports import export as report
    from spark.reports.export_folder import Mode

    mode = Mode.APPEND if append else Mode.OVERWRITE if overwrite else Mode.NEW
    files = report.export(run.session, run.oplogs, parquet, mode=mode, span=span, variant=variant)
    run.show(report.document_of(files, parquet), {}, report.content)


@command()
def tail(
    run: CommandRun,
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
) -> int:
    """Count entries by second while they come, until Ctrl-C. --json: one document a line."""
    if begin != "now":
        point_of(begin, "--from")
    run.open(members)
    from spark.reports.tail import TailPrinter, tail_stream
    from spark.source import register

    register(run.session)
    options = {"paths": json.dumps(members), "columns": "member,ts,op,ns", "from": begin}
    if ns:
        options["ns"] = json.dumps(ns)
    if skip_trimmed:
        options["onTrimmed"] = "skip"
    stream = run.session.readStream.format("oplog").options(**options).load()
    run.end_work()
    printer = TailPrinter(as_json=run.form is Format.JSON)
    tail_stream(stream, printer.show, checkpoint=checkpoint, stop=printer.stop)
    return printer.status()
