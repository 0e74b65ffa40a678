"""Builders give MongoDB's entries byte for byte; the view reads them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import (
    Binary,
    DateTime,
    Int64,
    InvalidBSONError,
    RawDocument,
    Timestamp,
    decode,
    encode,
    encode_key,
    validate,
)
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import (
    InsertReader,
    OplogEntry,
    command_entry,
    delete_entry,
    extra_fields,
    insert_entries,
    insert_entry,
    noop_entry,
    operation_of,
    transaction_entry,
    update_entry,
)

UI = bytes(range(16))
AT = OpTime(3, pack_ts(1_700_000_000, 7))
WALL = 1_700_000_000_123
TAIL = {"ts": Timestamp(1_700_000_000, 7), "t": Int64(3), "v": 2, "wall": DateTime(WALL)}
DOC = encode({"_id": 1, "a": "x"})
ID = encode({"_id": 1})

IN_C = {"ns": "db.c", "ui": Binary(UI, 4)}
INSERTED = {"op": "i", **IN_C, "o": {"_id": 1, "a": "x"}, **TAIL}
CASES = [
    pytest.param(insert_entry("db.c", UI, DOC, AT, WALL), INSERTED, id="insert"),
    pytest.param(
        update_entry("db.c", UI, ID, encode({"$v": 2, "diff": {"u": {"a": 1}}}), AT, WALL),
        {"op": "u", **IN_C, "o": {"$v": 2, "diff": {"u": {"a": 1}}}, "o2": {"_id": 1}, **TAIL},
        id="update",
    ),
    pytest.param(delete_entry("db.c", UI, ID, AT, WALL), {"op": "d", **IN_C, "o": {"_id": 1}, **TAIL}, id="delete"),
    pytest.param(
        command_entry("db", UI, {"create": "c"}, AT, WALL, o2={"before": 1}),
        {"op": "c", **IN_C, "ns": "db.$cmd", "o": {"create": "c"}, "o2": {"before": 1}, **TAIL},
        id="command",
    ),
    pytest.param(
        command_entry("db", None, {"dropDatabase": 1}, AT, WALL),
        {"op": "c", "ns": "db.$cmd", "o": {"dropDatabase": 1}, **TAIL},
        id="command-without-collection",
    ),
    pytest.param(
        noop_entry({"msg": "new primary"}, AT, WALL),
        {"op": "n", "ns": "", "o": {"msg": "new primary"}, **TAIL},
        id="noop",
    ),
    pytest.param(
        insert_entry("db.c", UI, DOC, AT, WALL, extra_fields({"txnNumber": Int64(4), "stmtId": 0})),
        {**INSERTED, "txnNumber": Int64(4), "stmtId": 0},
        id="extra-fields-at-the-end",
    ),
]


@pytest.mark.parametrize(("entry", "expected"), CASES)
def test_builders_give_the_bytes_of_the_codec_and_the_view_reads_them(
    entry: bytes, expected: dict[str, object]
) -> None:
    validate(entry)
    assert entry == encode(expected)
    assert list(decode(entry)) == list(expected)
    view = OplogEntry(entry)
    assert (view.raw, view.op, view.ns, view.optime, view.wall_ms) == (entry, expected["op"], expected["ns"], AT, WALL)
    assert view.ui == (UI if "ui" in expected else None)
    assert view.o.decode() == expected["o"]
    assert (view.o2.decode() if view.o2 else None) == expected.get("o2")
    assert view.key() == (encode_key(1) if view.op in "iud" else None)
    assert view.get("stmtId") == expected.get("stmtId")
    assert view.database == ("db" if view.op != "n" else "")


@given(
    term=st.integers(0, 2**62),
    seconds=st.integers(0, 2**32 - 1),
    inc=st.integers(0, 2**31 - 1),
    wall=st.integers(0, 2**53),
    text=st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)
def test_any_optime_and_name_come_back(term: int, seconds: int, inc: int, wall: int, text: str) -> None:
    optime = OpTime(term, pack_ts(seconds, inc))
    view = OplogEntry(insert_entry(f"db.{text}", UI, DOC, optime, wall))
    assert (view.optime, view.wall_ms, view.ns, view.o) == (optime, wall, f"db.{text}", RawDocument(DOC))


def test_other_documents_are_no_entries() -> None:
    whole = {"op": "i", "ns": "", "ts": Timestamp(1, 1), "t": 1}
    without_term = {name: value for name, value in whole.items() if name != "t"}
    for document in ({}, {**whole, "op": 1}, {**whole, "ts": 5}, without_term):
        with pytest.raises(InvalidBSONError, match="no oplog entry"):
            OplogEntry(encode(document))
    for entry, lacking in (
        (delete_entry("db.c", UI, encode({}), AT, WALL), "_id"),
        (encode({**whole, "op": "u", "o": {}}), "o2"),
    ):
        with pytest.raises(InvalidBSONError, match=lacking):
            OplogEntry(entry).key()
    with pytest.raises(InvalidBSONError, match="applyOps"):
        OplogEntry(command_entry("admin", None, {"applyOps": 1}, AT, WALL)).operations  # noqa: B018


def test_a_run_of_inserts_reads_what_the_long_way_reads() -> None:
    run = InsertReader.of(insert_entry("shop.orders", UI, ID, OpTime(3, pack_ts(10, 1)), 5))
    assert (run.ns, run.ui) == ("shop.orders", UI)
    optime = OpTime(4, pack_ts(2**32 - 1, 9))
    for number in (2, -7, "x" * 300):
        doc = encode({"_id": number, "v": [1, 2]})
        for extra in (b"", extra_fields({"stmtId": 1})):
            raw = insert_entry("shop.orders", UI, doc, optime, -3, extra)
            entry = OplogEntry(raw)
            assert run.read(raw) == (doc, optime.ts, 4, -3, extra)
            assert (entry.o.raw, entry.optime, entry.wall_ms) == (doc, optime, -3)


def test_a_run_of_inserts_leaves_every_other_entry_alone() -> None:
    optime = OpTime(3, pack_ts(10, 1))
    good = insert_entry("shop.orders", UI, ID, optime, 5)
    run = InsertReader.of(good)
    assert run.read(good) is not None
    others = [
        insert_entry("shop.other", UI, ID, optime, 5),
        insert_entry("shop.orders", bytes(16), ID, optime, 5),
        delete_entry("shop.orders", UI, ID, optime, 5),
        noop_entry({"msg": "x"}, optime, 5),
        good[:-1] + b"\x01",
        *(good[:cut] for cut in range(len(good))),
    ]
    for other in others:
        assert run.read(other) is None
    without_ui = {"op": "i", "ns": "shop.orders", "o": {"_id": 1}, "ts": Timestamp(1, 1), "t": Int64(1)}
    long_name = bytearray(good)
    long_name[19:23] = b"\xff\xff\xff\x7f"
    no_text = bytearray(good)
    no_text[23] = 0xFF
    cut_short = (good[:cut] for cut in range(60))
    for other in (*others[2:4], encode(without_ui), bytes(long_name), bytes(no_text), *cut_short):
        assert InsertReader.of(other) is None


def test_entries_of_many_inserts_are_those_of_each() -> None:
    documents = [encode({"_id": number, "v": "x" * number}) for number in range(5)]
    extras = [extra_fields({"stmtId": number}) for number in range(5)]
    made = insert_entries("app.a", UI, documents, AT, WALL, extras)
    alone = [
        (AT.ts + n, insert_entry("app.a", UI, doc, OpTime(AT.term, AT.ts + n), WALL, extras[n]))
        for n, doc in enumerate(documents)
    ]
    assert made == alone


def test_the_entry_of_a_transaction_holds_its_operations() -> None:
    entries = [
        insert_entry("app.a", UI, DOC, AT, WALL),
        update_entry("app.a", UI, ID, encode({"$v": 2, "diff": {"u": {"a": "y"}}}), AT, WALL),
        delete_entry("app.b", UI, ID, AT, WALL),
    ]
    lsid = {"id": Binary(UI, 4), "uid": Binary(bytes(32))}
    session = {"lsid": lsid, "txnNumber": Int64(4), "prevOpTime": {"ts": Timestamp(0, 0), "t": Int64(-1)}}
    raw = transaction_entry([operation_of(entry) for entry in entries], AT, WALL, extra_fields(session))
    validate(raw)
    ui, diff = Binary(UI, 4), {"$v": 2, "diff": {"u": {"a": "y"}}}
    operations = [
        {"op": "i", "ns": "app.a", "ui": ui, "o": {"_id": 1, "a": "x"}},
        {"op": "u", "ns": "app.a", "ui": ui, "o": diff, "o2": {"_id": 1}},
        {"op": "d", "ns": "app.b", "ui": ui, "o": {"_id": 1}},
    ]
    assert decode(raw) == {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": operations}, **TAIL, **session}
    entry = OplogEntry(raw)
    assert entry.key() is None
    found = entry.operations
    places = [("i", "app.a"), ("u", "app.a"), ("d", "app.b")]
    assert [(one.op, one.ns, one.key()) for one in found] == [(*place, encode_key(1)) for place in places]
    assert {(one.optime, one.wall_ms, one.get("txnNumber")) for one in found} == {(AT, WALL, 4)}
    assert [one.operations for one in found] == [[one] for one in found]
