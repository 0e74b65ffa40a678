"""Encoding and decoding, type by type, from the BSON specification's grammar: bytes written out by hand."""

from __future__ import annotations

import enum
import math
import struct
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import pytest

from replset.bson import (
    MAX_DEPTH,
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    Int64,
    InvalidBSONError,
    MaxKey,
    MinKey,
    ObjectId,
    RawDocument,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    decode,
    encode,
    validate,
    walk,
)

OID = ObjectId("0123456789abcdeffedcba98")
OID_HEX = "0123456789abcdeffedcba98"
UUID = uuid.UUID("73ffd264-44b3-4c69-90e8-e7d1dfc035d4")
HEX_EMPTY = "0500000000"


def document(kind: int, value: str) -> bytes:
    """A document of one field named a. kind: type byte. value: hex."""
    body = bytes((kind,)) + b"a\0" + bytes.fromhex(value)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


# id: (type byte, value in hex, what it decodes to)
VALID: dict[str, tuple[int, str, object]] = {
    "double 1.0": (0x01, "000000000000f03f", 1.0),
    "double -0.0": (0x01, "0000000000000080", -0.0),
    "double inf": (0x01, "000000000000f07f", math.inf),
    "double -inf": (0x01, "000000000000f0ff", -math.inf),
    "double least": (0x01, "0100000000000000", 5e-324),
    "string empty": (0x02, "0100000000", ""),
    "string ascii": (0x02, "0400000061626300", "abc"),
    "string utf-8": (0x02, "03000000c3a900", "é"),
    "string four bytes": (0x02, "05000000f09f988000", "\U0001f600"),
    "string with nul": (0x02, "0400000061006200", "a\0b"),
    "document empty": (0x03, HEX_EMPTY, {}),
    "document empty name": (0x03, "0b000000" + "100001000000" + "00", {"": 1}),
    "document nested": (0x03, "10000000" + "037800" + "08000000" + "0a7900" + "00" + "00", {"x": {"y": None}}),
    "array empty": (0x04, HEX_EMPTY, []),
    "array of two": (0x04, "0d000000" + "08300001" + "08310000" + "00", [True, False]),
    "binary empty": (0x05, "0000000000", Binary(b"", 0)),
    "binary generic": (0x05, "0200000000ffff", Binary(b"\xff\xff", 0)),
    "binary function": (0x05, "0200000001ffff", Binary(b"\xff\xff", 1)),
    "binary old": (0x05, "060000000202000000ffff", Binary(b"\xff\xff", 2)),
    "binary old empty": (0x05, "040000000200000000", Binary(b"", 2)),
    "binary uuid": (0x05, "1000000004" + UUID.hex, Binary(UUID.bytes, 4)),
    "binary user": (0x05, "0200000080ffff", Binary(b"\xff\xff", 0x80)),
    "undefined": (0x06, "", Undefined()),
    "object id": (0x07, OID_HEX, OID),
    "true": (0x08, "01", True),
    "false": (0x08, "00", False),
    "date epoch": (0x09, "0000000000000000", DateTime(0)),
    "date negative": (0x09, "ffffffffffffffff", DateTime(-1)),
    "date most": (0x09, "ffffffffffffff7f", DateTime(2**63 - 1)),
    "null": (0x0A, "", None),
    "regex": (0x0B, "616200697800", Regex("ab", "ix")),
    "regex empty": (0x0B, "0000", Regex("", "")),
    "db pointer": (0x0C, "020000006200" + OID_HEX, DBPointer("b", OID)),
    "code": (0x0D, "020000006200", Code("b")),
    "symbol": (0x0E, "020000006200", Symbol("b")),
    "code with scope": (0x0F, "0f000000" + "020000006200" + HEX_EMPTY, CodeWithScope("b", {})),
    "code with full scope": (
        0x0F,
        "16000000" + "020000006200" + "0c0000001078000100000000",
        CodeWithScope("b", {"x": 1}),
    ),
    "int32 1": (0x10, "01000000", 1),
    "int32 least": (0x10, "00000080", -(2**31)),
    "int32 most": (0x10, "ffffff7f", 2**31 - 1),
    "timestamp": (0x11, "2a00000015cd5b07", Timestamp(123456789, 42)),
    "timestamp most": (0x11, "ffffffffffffffff", Timestamp(0xFFFFFFFF, 0xFFFFFFFF)),
    "int64 1": (0x12, "0100000000000000", Int64(1)),
    "int64 least": (0x12, "0000000000000080", Int64(-(2**63))),
    "int64 most": (0x12, "ffffffffffffff7f", Int64(2**63 - 1)),
    "decimal 1": (0x13, "01000000000000000000000000004030", Decimal128("1")),
    "decimal not canonical": (0x13, "ff" * 12 + "ffff006c", Decimal128(bytes.fromhex("ff" * 12 + "ffff006c"))),
    "min key": (0xFF, "", MinKey()),
    "max key": (0x7F, "", MaxKey()),
}
CASES = [pytest.param(*case, id=name) for name, case in VALID.items()]
READERS: list[Callable[[bytes], object]] = [decode, validate]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
def test_each_type_both_ways(kind: int, value: str, expected: object) -> None:
    data = document(kind, value)
    decoded = decode(data)
    assert decoded == {"a": expected}
    assert type(decoded["a"]) is type(expected)
    assert repr(decoded["a"]) == repr(expected)  # tells -0.0 from 0.0
    validate(data)
    assert encode(decoded) == data
    assert encode({"a": expected}) == data
    assert walk(data) == [("a", kind, 7, 7 + len(value) // 2)]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
@pytest.mark.parametrize("read", READERS)
def test_cut_at_every_byte(kind: int, value: str, expected: object, read: Callable[[bytes], object]) -> None:
    data = document(kind, value)
    for size in range(len(data)):
        with pytest.raises(InvalidBSONError) as caught:
            read(data[:size])
        assert caught.value.offset == 0  # the length says more than there is


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
@pytest.mark.parametrize("read", READERS)
def test_cut_inside_with_a_fitting_outer_length(
    kind: int, value: str, expected: object, read: Callable[[bytes], object]
) -> None:
    """The value loses its end, and the document's length is made to fit, so that only the value can tell."""
    whole = bytes.fromhex(value)
    for size in range(len(whole)):
        with pytest.raises(InvalidBSONError) as caught:
            read(document(kind, whole[:size].hex()))
        assert caught.value.offset is not None
        assert caught.value.offset >= 7
        assert f"at offset {caught.value.offset}" in str(caught.value)


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
@pytest.mark.parametrize("read", READERS)
def test_trailing_byte_and_bad_terminator(
    kind: int, value: str, expected: object, read: Callable[[bytes], object]
) -> None:
    data = document(kind, value)
    with pytest.raises(InvalidBSONError, match="length says"):
        read(data + b"\0")
    for last in (1, 0x70, 0xFF):
        with pytest.raises(InvalidBSONError, match=f"offset {len(data) - 1}"):
            read(data[:-1] + bytes((last,)))


@pytest.mark.parametrize(
    ("kind", "value", "offset", "reason"),
    [
        pytest.param(0x02, "0000000000", 7, "string length 0", id="string length zero"),
        pytest.param(0x02, "ffffffff00", 7, "string length -1", id="string length negative"),
        pytest.param(0x02, "0500000061626300", 7, "string length 5", id="string length beyond the document"),
        pytest.param(0x02, "ffffff7f61626300", 7, "string length 2147483647", id="string length huge"),
        pytest.param(0x02, "0300000061626300", 13, "zero byte", id="string length short"),
        pytest.param(0x02, "0400000061626364", 14, "zero byte", id="string without its zero byte"),
        pytest.param(0x02, "0300000061ff00", 12, "UTF-8", id="string not utf-8"),
        pytest.param(0x02, "04000000eda08000", 11, "UTF-8", id="string with a surrogate"),
        pytest.param(0x02, "03000000c08000", 11, "UTF-8", id="string overlong"),
        pytest.param(0x03, "0400000000", 7, "document length 4", id="document length too small"),
        pytest.param(0x03, "0000000000", 7, "document length 0", id="document length zero"),
        pytest.param(0x03, "ffffffff00", 7, "document length -1", id="document length negative"),
        pytest.param(0x03, "0600000000", 7, "document length 6", id="document length beyond the outer"),
        pytest.param(0x03, "0500000001", 11, "zero byte", id="document bad terminator"),
        pytest.param(0x03, "070000000a6100", 12, "without an end", id="document name runs into the terminator"),
        pytest.param(0x04, "0400000000", 7, "document length 4", id="array length too small"),
        pytest.param(0x04, "0500000001", 11, "zero byte", id="array bad terminator"),
        pytest.param(0x04, "0800000022300000", 11, "unknown type 0x22", id="array unknown type"),
        pytest.param(0x04, "070000000a3000", 12, "without an end", id="array name runs into the terminator"),
        pytest.param(0x04, "080000000aff0000", 12, "UTF-8", id="array name not utf-8"),
        pytest.param(0x05, "ffffffff00", 7, "binary length -1", id="binary length negative"),
        pytest.param(0x05, "0300000000ffff", 7, "binary length 3", id="binary length beyond the document"),
        pytest.param(0x05, "060000000203000000ffff", 12, "inner length", id="old binary inner length long"),
        pytest.param(0x05, "060000000201000000ffff", 12, "inner length", id="old binary inner length short"),
        pytest.param(0x05, "0600000002ffffffffffff", 12, "inner length", id="old binary inner length negative"),
        pytest.param(0x05, "0300000002000000", 12, "inner length", id="old binary without inner length"),
        pytest.param(0x08, "02", 7, "boolean", id="bool 2"),
        pytest.param(0x08, "ff", 7, "boolean", id="bool 255"),
        pytest.param(0x0B, "61ff006900", 8, "UTF-8", id="regex pattern not utf-8"),
        pytest.param(0x0B, "6100ff00", 9, "UTF-8", id="regex options not utf-8"),
        pytest.param(0x0C, "03000000620000" + OID_HEX[2:], 14, "truncated", id="db pointer short"),
        pytest.param(0x0C, "000000006200" + OID_HEX, 7, "string length 0", id="db pointer length zero"),
        pytest.param(0x0D, "0000000000", 7, "string length 0", id="code length zero"),
        pytest.param(0x0E, "0000000000", 7, "string length 0", id="symbol length zero"),
        pytest.param(0x0F, "0d000000" + "0100000000" + "0500000000", 7, "code with scope", id="scope length small"),
        pytest.param(0x0F, "10000000" + "020000006200" + HEX_EMPTY, 7, "code with scope", id="scope length large"),
        pytest.param(0x0F, "0e000000" + "020000006200" + HEX_EMPTY, 17, "", id="scope length cuts the scope"),
        pytest.param(0x0F, "10000000" + "020000006200" + HEX_EMPTY + "00", 17, "ends before", id="scope ends early"),
        pytest.param(0x00, "", 4, "zero byte ends the document", id="type 0"),
        pytest.param(0x14, "", 4, "unknown type 0x14", id="type 20"),
        pytest.param(0x7E, "", 4, "unknown type 0x7e", id="type 126"),
        pytest.param(0x80, "", 4, "unknown type 0x80", id="type 128"),
        pytest.param(0xFE, "", 4, "unknown type 0xfe", id="type 254"),
    ],
)
@pytest.mark.parametrize("read", READERS)
def test_malformed(kind: int, value: str, offset: int, reason: str, read: Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidBSONError) as caught:
        read(document(kind, value))
    assert caught.value.code == 22
    assert caught.value.code_name == "InvalidBSON"
    assert reason in str(caught.value)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("", 0),
        ("05", 0),
        ("05000000", 0),
        ("0000000000", 0),
        ("0400000000", 0),
        ("0500000001", 4),
        ("ffffffff00", 0),
        ("0600000000", 0),
        ("050000000000", 0),
        ("070000000a6100", 5),  # a name that only the terminator ends
        ("080000000aff0000", 5),  # a name that is not UTF-8
        ("06000000ff00", 5),  # a type byte and nothing after it
        ("060000002000", 4),  # an unknown type and nothing after it
    ],
)
@pytest.mark.parametrize("read", [decode, validate, walk])
def test_malformed_outside(data: str, offset: int, read: Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidBSONError) as caught:
        read(bytes.fromhex(data))
    assert caught.value.offset == offset


def test_bad_text_is_found_behind_an_equal_binary() -> None:
    """The offset is that of the string, not of the same bytes in a binary before it."""
    data = encode({"b": Binary(b"\xff\xfe\0", 0), "s": "xy"}).replace(b"xy", b"\xff\xfe")
    with pytest.raises(InvalidBSONError) as caught:
        decode(data)
    assert caught.value.offset == data.rindex(b"\xff\xfe")


def test_order_kept_and_last_duplicate_wins() -> None:
    body = b"\x10b\0\x01\0\0\0" + b"\x10a\0\x02\0\0\0" + b"\x10b\0\x03\0\0\0"
    data = struct.pack("<i", len(body) + 5) + body + b"\0"
    assert list(decode(data).items()) == [("b", 3), ("a", 2)]
    assert RawDocument(data).get("b") == 3


@pytest.mark.parametrize("names", [("1", "0"), ("0", "0"), ("x", ""), ("00", "01")])
def test_array_names_do_not_matter(names: tuple[str, str]) -> None:
    body = b"".join(b"\x0a" + name.encode() + b"\0" for name in names)
    inner = struct.pack("<i", len(body) + 5) + body + b"\0"
    assert decode(document(4, inner.hex())) == {"a": [None, None]}


def test_memoryview_and_empty() -> None:
    assert decode(memoryview(encode({"a": 1}))) == {"a": 1}
    assert decode(encode({})) == {}


@pytest.mark.parametrize("payload", ["120000000000f87f", "010000000000f47f", "000000000000f8ff"])
def test_nan_keeps_its_bits(payload: str) -> None:
    data = document(1, payload)
    assert encode(decode(data)) == data


def nested(levels: int, wrap: Callable[[object], object]) -> dict[str, object]:
    """A document of `levels` levels, itself counted."""
    value: object = {}
    for _ in range(levels - 2):
        value = wrap(value)
    return {"a": value}


def nested_bytes(levels: int) -> bytes:
    data = b"\x05\0\0\0\0"
    for _ in range(levels - 1):
        data = struct.pack("<i", len(data) + 8) + b"\x03a\0" + data + b"\0"
    return data


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda value: {"a": value}, id="documents"),
        pytest.param(lambda value: [value], id="arrays"),
        pytest.param(lambda value: (value,), id="tuples"),
        pytest.param(lambda value: OrderedDict(a=value), id="mappings"),
    ],
)
def test_nesting_limit(wrap: Callable[[object], object]) -> None:
    at_limit = nested(MAX_DEPTH, wrap)
    data = encode(at_limit)
    assert encode(decode(data)) == data
    validate(data)
    with pytest.raises(InvalidBSONError, match="more than 200 levels"):
        encode(nested(MAX_DEPTH + 1, wrap))


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5000])
@pytest.mark.parametrize("read", READERS)
def test_nesting_limit_on_reading(levels: int, read: Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidBSONError, match="more than 200 levels") as caught:
        read(nested_bytes(levels))
    assert caught.value.offset == 200 * 7


def test_scopes_count_as_levels() -> None:
    document: dict[str, object] = {}
    for _ in range(MAX_DEPTH - 1):
        document = {"a": CodeWithScope("f", document)}
    assert decode(encode(document)) == document
    with pytest.raises(InvalidBSONError, match="levels"):
        encode({"a": CodeWithScope("f", document)})


class Colour(enum.IntEnum):
    RED = 3


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(2**31, Int64(2**31), id="int beyond 32 bits"),
        pytest.param(-(2**31) - 1, Int64(-(2**31) - 1), id="int below 32 bits"),
        pytest.param(b"ab", Binary(b"ab", 0), id="bytes"),
        pytest.param(UUID, Binary(UUID.bytes, 4), id="uuid"),
        pytest.param(datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), DateTime(1000), id="datetime"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), DateTime(-1), id="datetime before 1970"),
        pytest.param(
            datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), DateTime(0), id="datetime in a zone"
        ),
        pytest.param((1, 2), [1, 2], id="tuple"),
        pytest.param(MappingProxyType({"x": 1}), {"x": 1}, id="mapping"),
        pytest.param(RawDocument(encode({"x": 1})), {"x": 1}, id="raw document"),
        pytest.param([RawDocument(encode({"x": 1}))], [{"x": 1}], id="raw document in a list"),
        pytest.param(Colour.RED, 3, id="int enum"),
        pytest.param(Name("n"), "n", id="str subclass"),
        pytest.param(list(range(1200)), list(range(1200)), id="long array"),
    ],
)
def test_what_else_encodes(value: object, expected: object) -> None:
    decoded = decode(encode({"a": value}))["a"]
    assert decoded == expected
    assert type(decoded) is type(expected)


def test_raw_document_goes_through_as_it_is() -> None:
    raw = RawDocument(b"\x08\0\0\0\x22a\0\0")  # an unknown type inside: nobody looks
    assert encode({"r": raw, "l": [raw]}).count(raw.raw) == 2
    assert encode(raw) is raw.raw


@pytest.mark.parametrize(
    ("document", "reason", "path"),
    [
        pytest.param({"a": {1, 2}}, "type set", "a", id="unknown type"),
        pytest.param({"a": {"b": [0, object()]}}, "type object", "a.b.1", id="path"),
        pytest.param({"a": 2**63}, "64 bits", "a", id="int too large"),
        pytest.param({"a": -(2**63) - 1}, "64 bits", "a", id="int too small"),
        pytest.param({"a\0b": 1}, "zero byte", "a\0b", id="nul in a name"),
        pytest.param({"x": {"a\0": 1}}, "zero byte", "x.a\0", id="nul in an inner name"),
        pytest.param({"a": Regex("x\0", "")}, "zero byte", "a", id="nul in a pattern"),
        pytest.param({"a": Regex("x", "i\0")}, "zero byte", "a", id="nul in options"),
        pytest.param({"a": "\ud800"}, "surrogate", "a", id="surrogate"),
        pytest.param({"a": ["\ud800"]}, "surrogate", "a.0", id="surrogate in an array"),
        pytest.param({"\ud800": 1}, "surrogate", "\\ud800", id="surrogate in a name"),
        pytest.param({"a": datetime(2020, 1, 1)}, "time zone", "a", id="naive datetime"),  # noqa: DTZ001 - the case
        pytest.param({"a": {1: 2}}, "field name is a string, not int", "a", id="name no string"),
    ],
)
def test_what_does_not_encode(document: dict[str, object], reason: str, path: str) -> None:
    with pytest.raises(InvalidBSONError) as caught:
        encode(document)
    assert reason in str(caught.value)
    assert caught.value.path == path
    assert "\0" not in str(caught.value)


def test_a_long_path_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidBSONError) as caught:
        encode({"x" * 100_000: object()})
    assert len(str(caught.value)) < 400


def test_the_options_of_a_regular_expression_come_back_sorted() -> None:
    data = bytes.fromhex("0e0000000b6100610073786900" + "00")
    assert decode(data) == {"a": Regex("a", "isx")}
    assert encode(decode(data)) == bytes.fromhex("0e0000000b6100610069737800" + "00")
    assert encode({"a": RawDocument(data)})[7:-1] == data
