"""A document as one self-contained HTML page: the answers, charts, tables and samples. The template is page.html.j2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from replset.text import printable
from spark.render.charts import Chart
from spark.render.content import Content, ContentTable, Document


def page(document: Document, content: Content, charts: Sequence[Chart]) -> str:
    """Return HTML that needs no network. No text of an oplog can become markup in it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value), keep="\n\t"),
    )
    names = ", ".join(member["name"] for member in document["members"])
    rows = [(member["name"], member["oldest"] or "-", member["newest"] or "-") for member in document["members"]]
    columns = ("member", "oldest entry", "newest entry")
    return environment.get_template("page.html.j2").render(
        title=f"{content.title}: {names}",
        document=document,
        content=content,
        charts=charts,
        members=ContentTable("Members", columns, rows, mono=columns[1:]),
    )
