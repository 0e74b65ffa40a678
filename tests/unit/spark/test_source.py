"""The options of format("oplog")."""

from __future__ import annotations

import pytest

from replset.errors import BadValueError
from replset.ids import pack_ts
from spark.columns import SPARK_TYPES
from spark.places import EVERYTHING, Only, PlaceError, Span
from spark.source import MAX_ENTRIES, Options


def test_defaults() -> None:
    options = Options.parse({"path": "/a,b"})
    assert options == Options(texts=("/a,b",))
    assert (options.span, options.only, options.columns) == (EVERYTHING, Only(), tuple(SPARK_TYPES))
    assert (options.max_entries, options.skip_trimmed, options.from_now) == (MAX_ENTRIES, False, False)


def test_every_option() -> None:
    options = Options.parse(
        {
            "PATHS": '["/a", "m=http://h:1"]',
            "member": "a, m",
            "ns": '["shop.a,b"]',
            "op": "i,u",
            "from": "2:100:5",
            "to": "1970-01-01T00:03:20Z",
            "columns": "hash,ts,hash",
            "rowspertask": "10",
            "maxEntriesPerBatch": "20",
            "onTrimmed": "skip",
        }
    )
    assert options == Options(
        texts=("/a", "m=http://h:1"),
        members=("a", "m"),
        only=Only(ns=("shop.a,b",), op=("i", "u")),
        span=Span(pack_ts(100, 5), pack_ts(200, 0)),
        columns=("hash", "ts"),
        rows_per_task=10,
        max_entries=20,
        skip_trimmed=True,
    )
    assert Options.parse({"path": "/a", "from": "now"}).from_now
    assert Options.parse({"path": "/a", "to": "1:100:5"}).span.end_ts == pack_ts(100, 6)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "say what to read"),
        ({"path": "/a", "rowPerTask": "1"}, "has no option rowpertask; it has path, paths"),
        ({"path": "/a", "from": "soon"}, "option from: 'soon'"),
        ({"path": "/a", "columns": "ts,x"}, "there is no column x"),
        ({"path": "/a", "rowsPerTask": "0"}, "option rowsPerTask: '0'"),
        ({"path": "/a", "maxEntriesPerBatch": "many"}, "option maxEntriesPerBatch: 'many'"),
        ({"path": "/a", "onTrimmed": "ignore"}, "is not fail or skip"),
        ({"paths": "[1]"}, "is no array of texts"),
        ({"paths": "[1"}, "is no JSON array"),
    ],
)
def test_what_cannot_be(given: dict[str, str], why: str) -> None:
    with pytest.raises(BadValueError, match=why.replace("[", r"\[")):
        Options.parse(given)


def test_a_member_that_is_not_there() -> None:
    with pytest.raises(PlaceError, match="x: there is no such member; there are a, h:1"):
        Options.parse({"paths": "a=http://h:2,http://h:1", "member": "a,x"}).places()
