"""Fields of fixed sizes, packed and unpacked in one step."""

import pytest

from replset.bson import (
    DateTime,
    Int64,
    Layout,
    RawDocument,
    Timestamp,
    append_fields,
    array_of,
    decode,
    document_of,
    documents_of,
    encode,
    with_fields,
)
from replset.bson.layout import BOOL, DATE, INT32, INT64, TIMESTAMP

LAYOUT = Layout(
    {"ok": 1.0, "at": {"ts": TIMESTAMP, "inner": {"t": INT64, "name": "x"}, "n": INT32}, "is": BOOL, "day": DATE}
)
VALUES = (5 << 32 | 7, -1, 9, True, -3)
DOCUMENT = {
    "ok": 1.0,
    "at": {"ts": Timestamp(5, 7), "inner": {"t": Int64(-1), "name": "x"}, "n": 9},
    "is": True,
    "day": DateTime(-3),
}


def test_the_bytes_are_those_of_encode() -> None:
    packed = LAYOUT.pack(*VALUES)
    assert len(packed) == LAYOUT.size
    assert document_of(packed) == encode(DOCUMENT)
    assert document_of(packed, encode({"more": 1})[4:-1]) == encode({**DOCUMENT, "more": 1})


def test_the_values_come_back_from_any_place() -> None:
    assert LAYOUT.unpack(encode(DOCUMENT), 4) == VALUES
    first = encode({"first": "a"})[4:-1]
    assert LAYOUT.unpack(document_of(first, LAYOUT.pack(*VALUES)), 4 + len(first)) == VALUES


@pytest.mark.parametrize(
    "other",
    [
        {},
        {**DOCUMENT, "ok": 0.0},
        {**DOCUMENT, "day": Int64(-3)},
        {**DOCUMENT, "is": 1},
        {"at": DOCUMENT["at"], **DOCUMENT},
        {**DOCUMENT, "at": {"ts": Timestamp(5, 7), "inner": {"t": Int64(-1), "name": "y"}, "n": 9}},
    ],
)
def test_other_fields_are_not_taken_for_these(other: dict[str, object]) -> None:
    assert LAYOUT.unpack(encode(other), 4) is None


def test_a_cut_document_is_not_read_beyond_its_end() -> None:
    whole = encode(DOCUMENT)
    for size in range(len(whole) - 1):
        assert LAYOUT.unpack(whole[:size], 4) is None


def test_each_slot_needs_its_value() -> None:
    with pytest.raises(ValueError, match="attempt to assign"):
        LAYOUT.pack(*VALUES, 1)


@pytest.mark.parametrize("number", [0, 1, 3, 1001])
def test_an_array_of_documents(number: int) -> None:
    documents = [encode({"n": index}) for index in range(number)]
    assert decode(document_of(b"\x04rows\0", array_of(documents))) == {
        "rows": [{"n": index} for index in range(number)]
    }
    assert documents_of(array_of(documents)) == documents


def test_fields_are_added_behind_those_of_a_document() -> None:
    document = RawDocument(encode({"a": 1}))
    assert (
        with_fields(document, {"b": "c"})
        == with_fields({"a": 1}, {"b": "c"})
        == RawDocument(encode({"a": 1, "b": "c"}))
    )
    assert with_fields({"a": 1}, {"a": 2}).decode() == {"a": 2}
    assert append_fields(document, b"") == document.raw
