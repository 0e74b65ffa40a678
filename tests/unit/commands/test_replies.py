"""Replies as bytes: what is read from them is what was written."""

from __future__ import annotations

import pytest

from replset.bson import RawDocument, encode
from replset.commands.replies import decode_write_reply, encode_write_reply, finish
from replset.ids import OpTime, pack_ts

WRITTEN = OpTime(4, pack_ts(1_700_000_009, 3))


@pytest.mark.parametrize("counters", [(("n", 1),), (("n", -1), ("nModified", 1 << 30)), ()])
def test_a_write_reply_is_read_as_it_was_written(counters: tuple[tuple[str, int], ...]) -> None:
    reply = encode_write_reply(counters, WRITTEN, 4)
    whole = RawDocument(reply).decode()
    names = [*dict(counters), "ok", "operationTime"]
    assert decode_write_reply(reply) == {name: whole[name] for name in names}


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
