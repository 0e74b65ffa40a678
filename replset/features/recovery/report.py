"""Writes lost writes as JSON for scripts: one document whose rows are written as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from replset.bson import decode
from replset.ejson import to_ejson
from replset.features.recovery.lost_writes import LostDocument
from replset.ids import OPTIME_NULL
from replset.text import printable


def value_json(value: object) -> Any:
    """Turn a BSON value into canonical Extended JSON, made of Python's own types."""
    return json.loads(to_ejson({"": value}, canonical=True))[""]


def document_json(raw: bytes | None) -> Any:
    """Turn the bytes of a document into canonical Extended JSON; None stays None."""
    return None if raw is None else json.loads(to_ejson(decode(raw), canonical=True))


def summary(row: LostDocument) -> dict[str, Any]:
    """The fields of a row that the rollback files alone give."""
    return {
        "ns": row.ns,
        "_id": value_json(row.id),
        "class": row.kind.value if row.kind is not None else None,
        "entries": row.entries,
        "lastEntry": None if row.last == OPTIME_NULL else str(row.last),
        "sessions": [{"id": session.id, "txnNumber": session.txn_number} for session in row.sessions],
    }


class JsonReport:
    """Writes `{head…, "NAME": [row, …], tail…}` to a stream without keeping the rows."""

    def __init__(self, out: TextIO, head: Mapping[str, Any], name: str) -> None:
        self._out = out
        text = _text(head)
        out.write(text[: text.rindex("\n")] + f',\n  "{name}": [')
        self._comma = ""

    def row(self, row: Mapping[str, Any]) -> None:
        self._out.write(f"{self._comma}\n    {printable(json.dumps(row, ensure_ascii=False))}")
        self._comma = ","

    def close(self, tail: Mapping[str, Any]) -> None:
        text = _text(tail)
        self._out.write(("\n  " if self._comma else "") + "]," + text[1:] + "\n")


def _text(document: Mapping[str, Any]) -> str:
    return printable(json.dumps(dict(document), indent=2, ensure_ascii=False), keep="\n")
