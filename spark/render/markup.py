"""HTML and SVG as trees of the standard library, so that no text of an oplog can become markup.

The page is one file: no script, no font, no image from anywhere; it is dark or light as the reader's system is.
Charts are drawn by hand in `charts.py`: no chart library has a line of time on which members part, and those that give
self-contained output are larger than what they would replace and know nothing of dark and light.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from spark.render.content import readable

Node = ElementTree.Element
Part = Node | str | None

_STYLE = Path(__file__).with_name("page.css")


def tag(name: str, /, *parts: Part | Iterable[Part], **attributes: object) -> Node:
    """An element. Attributes as keywords: `class_` is class, `stroke_width` is stroke-width; None leaves one out."""
    node = ElementTree.Element(name)
    for key, value in attributes.items():
        if value is not None:
            node.set(key.rstrip("_").replace("_", "-") if key != "viewBox" else key, _text(value))
    add(node, *parts)
    return node


def add(node: Node, /, *parts: Part | Iterable[Part]) -> None:
    """Put texts and elements at the end of an element."""
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Node):
            node.append(part)
        elif isinstance(part, str):
            if len(node):
                node[-1].tail = (node[-1].tail or "") + readable(part)
            else:
                node.text = (node.text or "") + readable(part)
        else:
            add(node, *part)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Part]], *, numbers: Iterable[str] = (), mono: Iterable[str] = ()
) -> Node:
    """numbers: the columns to be set right. mono: those set in a fixed width."""
    right, fixed = set(numbers), set(mono)
    kinds = ["n" if name in right else "mono" if name in fixed else None for name in columns]
    head = tag("tr", [tag("th", name, class_="n" if name in right else None) for name in columns])
    body = [tag("tr", [tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", body))


def document(title: str, parts: Iterable[Part]) -> str:
    """The whole page as text."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", _STYLE.read_text(encoding="utf-8")),
    )
    page = tag("html", head, tag("body", tag("main", parts)), lang="en")
    return "<!doctype html>\n" + ElementTree.tostring(page, encoding="unicode", method="html") + "\n"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else readable(str(value))
