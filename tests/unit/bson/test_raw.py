"""Raw documents: the fields that they find, what they do not check, and their errors."""

from __future__ import annotations

from functools import partial

import pytest

from replset.bson import Int64, InvalidBSONError, RawDocument, RawDocuments, Regex, decode, documents_of, encode, walk
from replset.bson.decoding import decode_fields, names_by_bytes

DOCUMENT: dict[str, object] = {
    "_id": 7,
    "s": "text",
    "d": {"x": {"y": 1}},
    "l": [1, {"z": 2}],
    "r": Regex("a", "i"),
    "n": None,
    "i": Int64(5),
    "é": True,
}
DATA = encode(DOCUMENT)


def test_walk_returns_positions() -> None:
    assert [name for name, _, _, _ in walk(DATA)] == list(DOCUMENT)
    assert [kind for _, kind, _, _ in walk(DATA)] == [0x10, 2, 3, 4, 0x0B, 0x0A, 0x12, 8]
    assert [end for _, _, _, end in walk(DATA)][-1] == len(DATA) - 1
    for name, kind, start, end in walk(DATA):
        if kind == 3:
            assert DATA[start:end] == encode(DOCUMENT[name])
    assert walk(encode({})) == []


@pytest.mark.parametrize("wanted", [(), ("s",), ("é", "l", "none"), tuple(DOCUMENT)])
def test_decode_some_fields(wanted: tuple[str, ...]) -> None:
    doubled = DATA[:4] + DATA[4:-1] * 2 + b"\0"
    for data in (DATA, len(doubled).to_bytes(4, "little") + doubled[4:]):
        found = decode_fields(data, names_by_bytes(wanted))
        assert found == {name: value for name, value in decode(data).items() if name in wanted}
    assert decode_fields(DATA, names_by_bytes(wanted, None)) == DOCUMENT


def test_raw_document() -> None:
    raw = RawDocument(DATA)
    assert raw.raw is DATA
    assert raw.keys() == list(DOCUMENT)
    assert dict(raw.items()) == DOCUMENT == raw.decode()
    assert {name: raw.get(name) for name in DOCUMENT} == DOCUMENT
    assert type(raw.get("i")) is Int64
    assert raw.get("absent") is None
    assert raw.get("absent", 3) == 3
    assert raw.get("n", 3) is None
    assert "s" in raw
    assert "x" not in raw
    assert raw.first_key == "_id"
    assert raw.type_of("d") == 3
    assert raw.type_of("absent") is None


def test_get_string() -> None:
    raw = RawDocument(encode({"s": "text", "l": ["text"], "n": 1}))
    assert [raw.get_string(name) for name in ("s", "l", "n", "absent")] == ["text", None, None, None]


def test_get_raw() -> None:
    raw = RawDocument(DATA)
    assert raw.get_raw("d") == encode({"x": {"y": 1}})
    assert decode(raw.get_raw("l") or b"") == {"0": 1, "1": {"z": 2}}
    assert raw.get_raw("s") is None
    assert raw.get_raw("absent") is None


def test_fields_are_counted_no_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = RawDocument(encode({"a": 1, "b": {"x": 1}, "c": 3}))
    assert [raw.has_at_most(most) for most in (0, 2, 3, 4)] == [False, False, True, True]
    assert not raw.has_at_most(2), "also once all are indexed"
    assert raw.get("c") == 3
    same = b"\x10a\0\1\0\0\0" * 3
    twice = RawDocument((len(same) + 5).to_bytes(4, "little") + same + b"\0")
    assert not twice.has_at_most(2), "each of one name counts"
    damaged = RawDocument(encode({"a": 1, "b": 2})[:-6] + b"\xff\xff\xff\xff\xff\0")
    assert not damaged.has_at_most(1), "what is not looked at is not refused"
    assert RawDocument(encode({})).has_at_most(0)


def test_empty() -> None:
    raw = RawDocument(encode({}))
    assert raw.keys() == []
    assert raw.first_key is None
    assert raw.get("a") is None
    assert "a" not in raw


def test_equal_by_bytes() -> None:
    assert RawDocument(DATA) == RawDocument(memoryview(DATA))
    assert RawDocument(DATA) != RawDocument(encode({}))
    assert RawDocument(DATA) != DOCUMENT
    assert len({RawDocument(DATA), RawDocument(bytes(DATA))}) == 1
    assert "RawDocument(" in repr(RawDocument(DATA))


@pytest.mark.parametrize("data", [b"", b"\x05\0\0\0", b"\x06\0\0\0\0", b"\x05\0\0\0\x01", b"\x05\0\0\0\0\0"])
def test_construction_checks_the_outside(data: bytes) -> None:
    with pytest.raises(InvalidBSONError):
        RawDocument(data)


def test_nested_values_are_not_checked_until_they_are_read() -> None:
    inner = b"\x08\0\0\0\x22a\0\0"
    data = encode({"ok": 1, "bad": RawDocument(inner)})
    raw = RawDocument(data)
    assert raw.get("ok") == 1
    assert raw.get_raw("bad") == inner
    assert walk(data)[1][0] == "bad"
    with pytest.raises(InvalidBSONError, match=f"unknown type 0x22 at offset {data.index(inner) + 4}"):
        raw.get("bad")


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        pytest.param(b"\x22a\0", 4, id="unknown type"),
        pytest.param(b"\x10a\0\x01\0\0", 7, id="int32 cut"),
        pytest.param(b"\x02a\0\xff\0\0\0b\0", 7, id="string too long"),
        pytest.param(b"\x02a\0\0\0\0\0", 7, id="string length zero"),
        pytest.param(b"\x02a\0\x01\0", 7, id="string length cut"),
        pytest.param(b"\x0ba\0b\0i", 9, id="regex options without an end"),
        pytest.param(b"\x0ba\0b", 7, id="regex pattern without an end"),
        pytest.param(b"\x10a", 5, id="name without an end"),
    ],
)
def test_malformed_top_level(body: bytes, offset: int) -> None:
    data = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    raw = RawDocument(data)
    read_none = partial(decode_fields, data, {})
    for read in (lambda: walk(data), read_none, raw.keys, lambda: raw.get("a"), lambda: "a" in raw, raw.decode):
        with pytest.raises(InvalidBSONError) as caught:
            read()
        assert caught.value.offset == offset


def test_names_that_are_not_utf8() -> None:
    raw = RawDocument(b"\x08\0\0\0\x0a\xff\0\0")
    assert raw.get("a") is None
    for read in (raw.keys, lambda: raw.first_key, lambda: walk(raw.raw), lambda: list(raw.items())):
        with pytest.raises(InvalidBSONError, match="UTF-8 at offset 5"):
            read()


def test_values_that_are_not_utf8() -> None:
    raw = RawDocument(encode({"s": "xy"}).replace(b"xy", b"x\xff"))
    with pytest.raises(InvalidBSONError, match="UTF-8 at offset 12"):
        raw.get("s")


@pytest.mark.parametrize("number", [0, 1, 11, 1003])
def test_documents_go_into_an_array_and_out_of_it_as_their_bytes(number: int) -> None:
    documents = [encode({"n": n, "text": "x" * (n % 50)}) for n in range(number)]
    raw = encode({"a": RawDocuments(documents), "b": 1})
    assert raw == encode({"a": [RawDocument(document) for document in documents], "b": 1})
    array = RawDocument(raw).get_raw("a")
    assert array is not None
    assert documents_of(array) == documents


def test_the_top_level_keeps_documents_as_bytes() -> None:
    document = {"n": 1, "d": {"a": {"b": 2}}, "list": [{"a": 1}, {}], "other": [{"a": 1}, 2], "none": []}
    shallow = RawDocument(encode(document)).top_level()
    assert encode(shallow) == encode(document)
    assert [type(value) for value in shallow.values()] == [int, RawDocument, RawDocuments, list, RawDocuments]


def test_an_array_that_is_none_of_documents_is_refused() -> None:
    good = RawDocument(encode({"a": [{"b": 1}, {}]})).get_raw("a") or b""
    other = RawDocument(encode({"a": [{"b": 1}, 2]})).get_raw("a") or b""
    bad_length = bytearray(good)
    bad_length[7] += 1
    cuts = [good[:cut] for cut in range(len(good))]
    shorter = [(cut).to_bytes(4, "little") + good[4 : cut - 1] + b"\0" for cut in range(6, 20)]
    for bad in (other, bytes(bad_length), *cuts, *shorter):
        with pytest.raises(InvalidBSONError):
            documents_of(bad)
