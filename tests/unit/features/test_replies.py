"""Replies as bytes: what is read from them is what was written."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64, RawDocument, encode
from replset.ids import OpTime, pack_ts
from replset.operations.replies import (
    decode_only_batch,
    decode_write_reply,
    encode_only_batch,
    encode_write_reply,
    finish,
)

WRITTEN = OpTime(4, pack_ts(1_700_000_009, 3))


@pytest.mark.parametrize("counters", [(("n", 1),), (("n", -1), ("nModified", 1 << 30)), ()])
def test_a_write_reply_is_read_as_it_was_written(counters: tuple[tuple[str, int], ...]) -> None:
    reply = encode_write_reply(counters, WRITTEN, 4)
    whole = RawDocument(reply).decode()
    names = [*dict(counters), "ok", "operationTime"]
    assert decode_write_reply(reply) == {name: whole[name] for name in names}


@pytest.mark.parametrize("document", [None, {}, {"_id": 1, "a": [{"b": "c"}]}])
def test_a_find_reply_is_read_as_it_was_written(document: dict[str, Any] | None) -> None:
    reply = encode_only_batch(None if document is None else encode(document), "a.b", WRITTEN.ts)
    found = decode_only_batch(reply)
    rows = [] if document is None else [RawDocument(encode(document))]
    assert found is not None
    assert found["cursor"] == {"firstBatch": rows, "id": 0, "ns": "a.b"}
    assert encode(found) == reply


def test_other_find_replies_are_left_to_others() -> None:
    cursors: list[dict[str, Any]] = [
        {"firstBatch": [{"a": 1}, {"a": 2}], "id": 0, "ns": "a.b"},
        {"firstBatch": [{"a": 1}], "id": Int64(5), "ns": "a.b"},
        {"firstBatch": [5], "id": Int64(0), "ns": "a.b"},
        {"nextBatch": [], "id": Int64(0), "ns": "a.b"},
    ]
    for cursor in cursors:
        for reply in ({"cursor": cursor, "ok": 1.0}, {"cursor": cursor, "errmsg": "x", "ok": 0.0}):
            assert decode_only_batch(encode(finish({**reply}, WRITTEN.ts))) is None
            assert decode_only_batch(encode(reply)) is None
    assert decode_only_batch(encode({"cursor": {"firstBatch": [], "id": Int64(0), "ns": "a.b"}})) is None
    assert decode_only_batch(encode({})) is None
    assert decode_only_batch(encode_write_reply((("n", 1),), WRITTEN, 4)) is None


def test_other_replies_are_left_to_others() -> None:
    reply = encode_write_reply((("n", 1),), WRITTEN, 4)
    whole = RawDocument(reply).decode()
    others = [
        {"n": 1, "writeErrors": [{"index": 0}], **whole},
        {**whole, "writeConcernError": {"code": 64}},
        {**whole, "ok": 0.0},
        finish({"n": 1, "ok": 1.0}, WRITTEN.ts),
        {},
    ]
    for other in others:
        assert decode_write_reply(encode(other)) is None
