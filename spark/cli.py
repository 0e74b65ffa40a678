"""`oplog-spark`: where members' oplogs differ and what they hold. Each command's work stands in a module of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.errors import BadValueError
from replset.terminal import run_app
from spark.running import PROGRAM, Engine, Format, only_of, optime_of, running, span_of, tables_of

app = typer.Typer(
    help="See where members' oplogs differ and what they hold. A MEMBER is a dbpath or its replset.db, a mongodump "
    "oplog.bson, a folder of exported Parquet, or http://HOST:PORT of a live member; NAME=MEMBER gives it a name.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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
    return run_app(app, PROGRAM, list(sys.argv[1:] if argv is None else argv))


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
    only_spark("elections", engine)
    with running(
        "elections", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark import elections as audit
        from spark.render import documents

        found = audit.elections(run.session, run.places)
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
    only_spark("lag", engine)
    span = span_of(begin, end)
    with running(
        "lag", members, engine=engine, master=master, form=form_of(form, as_json), html=html, parquet=parquet
    ) as run:
        from spark import lag as audit
        from spark.render import documents

        found = audit.lag(run.session, run.places, span=span, every_ms=None if every is None else int(every * 1000))
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
        from spark import summary as audit
        from spark.render import documents

        only = only_of(ns)
        found: audit.Summary[Any]
        if engine is Engine.LOCAL:
            found = audit.local_summary(run.places, span=span, only=only, top=top)
        else:
            found = audit.summary(run.session, run.places, span=span, only=only, top=top)
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
    only_spark("replay", engine)
    shown = form_of(form, as_json)
    if shown is Format.HTML:
        raise BadValueError("replay prints documents: --format table or json")
    point = None if at is None else optime_of(at, "--at")
    if out is not None and out.exists():
        raise BadValueError(f"--out: {out} is there already")
    with running("replay", [member], engine=engine, master=master, form=shown, parquet=parquet) as run:
        from spark import replay as work
        from spark.replay_base import open_base

        start = None if base is None else open_base(base)
        documents = work.replay(run.session, run.places[0], ns, at=point, base=start)
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
    only_spark("export", engine)
    if append and overwrite:
        raise BadValueError("--append or --overwrite, not both")
    shown = form_of(form, as_json)
    if shown is Format.HTML:
        raise BadValueError("export has no page: --format table or json")
    span = span_of(begin, end)
    with running("export", members, engine=engine, master=master, form=shown) as run:
        from spark import export as work
        from spark.render import documents

        mode = work.Mode.APPEND if append else work.Mode.OVERWRITE if overwrite else work.Mode.NEW
        files = work.export(run.session, run.places, parquet, mode=mode, span=span, variant=variant)
        run.show(documents.export(files, parquet), {})


def only_spark(command: str, engine: Engine) -> None:
    if engine is not Engine.SPARK:
        raise BadValueError(f"{command} needs --engine spark (local does diff, summary and verify)")


def form_of(form: Format, as_json: bool) -> Format:
    return Format.JSON if as_json else form
