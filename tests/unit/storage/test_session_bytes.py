"""The records of sessions, as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Binary, DateTime, Int64, Timestamp, decode, encode
from replset.errors import CorruptDataError
from replset.ids import OpTime, pack_ts
from replset.storage.sessions import SessionRecord, encode_record, read_record, txn_number_of

LSID = {"id": Binary(bytes(range(16)), 4), "uid": Binary(bytes(32), 0)}
PLAIN = encode_record(encode(LSID), 7, OpTime(3, pack_ts(1_700_000_000, 5)), 1_700_000_000_123)
MORE: list[dict[str, Any]] = [
    {},
    {"is_committed": True},
    {"image": encode({"_id": 1})},
    {"answer": encode({"ok": 1.0})},
    {"image": encode({}), "answer": encode({}), "is_committed": True},
]


@pytest.mark.parametrize("lsid", [LSID, {"id": Binary(bytes(16), 4)}, {**LSID, "txnNumber": Int64(1)}])
@pytest.mark.parametrize("more", MORE)
@given(
    number=st.integers(0, (1 << 63) - 1),
    term=st.integers(-1, (1 << 63) - 1),
    seconds=st.integers(0, (1 << 32) - 1),
    increment=st.integers(0, (1 << 31) - 1),
    wall_ms=st.integers(0, (1 << 62) - 1),
)
def test_is_the_document_that_config_transactions_shows(
    lsid: dict[str, Any], more: dict[str, Any], number: int, term: int, seconds: int, increment: int, wall_ms: int
) -> None:
    optime = OpTime(term, pack_ts(seconds, increment))
    record = encode_record(encode(lsid), number, optime, wall_ms, **more)
    expected = {
        "_id": lsid,
        "txnNum": Int64(number),
        "lastWriteOpTime": {"ts": Timestamp(seconds, increment), "t": Int64(term)},
        "lastWriteDate": DateTime(wall_ms),
        **({"state": "committed"} if "is_committed" in more else {}),
        **{name: decode(more[name]) for name in ("image", "answer") if name in more},
    }
    assert record == encode(expected)
    assert read_record(record) == SessionRecord(number, optime, wall_ms)
    assert txn_number_of(record) == number


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(PLAIN[:12], id="cut-in-the-size-of-its-id"),
        pytest.param(PLAIN[:90], id="cut-in-its-number"),
        pytest.param(PLAIN.replace(b"txnNum", b"txnNun"), id="another-field"),
        pytest.param(PLAIN[:9] + b"\xff\xff\xff\x7f" + PLAIN[13:], id="a-huge-id"),
        pytest.param(PLAIN[:9] + b"\x00\x00\x00\x80" + PLAIN[13:], id="a-negative-id"),
    ],
)
def test_what_is_damaged_is_an_error(damaged: bytes) -> None:
    for read in (read_record, txn_number_of):
        with pytest.raises(CorruptDataError):
            read(damaged)
