"""Properties of the BSON package: round trips, bad bytes, key order against a naive comparator, pymongo as oracle."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import bson as pymongo_bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import (
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
    encode_key,
    validate,
    walk,
)
from replset.bson.decoding import decode_fields, names_by_bytes
from replset.ejson import from_ejson, to_ejson
from replset.query.alike import FieldsReader
from tests.examples import examples
from tests.keys import compare

EXAMPLES = examples(150)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
C_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
OIDS = st.binary(min_size=12, max_size=12).map(ObjectId)
DECIMALS = st.one_of(
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.builds(
        lambda digits, exponent: Decimal128(f"{digits}E{exponent}"),
        st.integers(-(10**34) + 1, 10**34 - 1),
        st.one_of(st.integers(-40, 40), st.integers(-6176, 6111)),
    ),
)
NUMBERS = st.one_of(
    *(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1), INT64.map(Int64), st.integers(-(2**54), 2**54).map(Int64)),
    *(st.floats(), st.integers(-3, 3).map(float), DECIMALS),
)
OF_PYMONGO_TOO = st.one_of(
    *(NUMBERS, TEXT, st.none(), st.booleans(), OIDS, INT64.map(DateTime), st.builds(Timestamp, UINT32, UINT32)),
    st.builds(Binary, st.binary(max_size=8), st.integers(0, 255)),
    st.builds(Regex, C_TEXT, st.sampled_from(["", "i", "im"])),
    *(st.builds(Code, TEXT), st.just(MinKey()), st.just(MaxKey())),
)
SCALARS = st.one_of(OF_PYMONGO_TOO, st.builds(Symbol, TEXT), st.builds(DBPointer, TEXT, OIDS), st.just(Undefined()))


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(C_TEXT, inner, max_size=4),
            st.builds(CodeWithScope, TEXT, st.dictionaries(C_TEXT, inner, max_size=2)),
        ),
        max_leaves=8,
    )


VALUES = nested(SCALARS)
DOCUMENTS = st.dictionaries(C_TEXT, VALUES, max_size=6)


@EXAMPLES
@given(DOCUMENTS)
def test_decode_gives_back_what_was_encoded(document: dict[str, object]) -> None:
    data = encode(document)
    validate(data)
    decoded = decode(data)
    # Bytes and repr, since NaN is not equal to itself and 1 is equal to 1.0.
    assert encode(decoded) == data
    assert repr(decoded) == repr(document)
    assert list(decoded) == list(document)


@EXAMPLES
@given(DOCUMENTS)
def test_raw_views_agree_with_decode(document: dict[str, object]) -> None:
    data = encode(document)
    raw = RawDocument(data)
    assert repr(dict(raw.items())) == repr(decode(data))
    assert [name for name, _, _, _ in walk(data)] == raw.keys() == list(document)
    assert encode({"in": raw, "list": [raw]}) == encode({"in": document, "list": [document]})


def as_in_json(data: bytes) -> bytes:
    """The document without what Extended JSON does not keep: the bits of a NaN."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(field) for name, field in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, CodeWithScope):
            return CodeWithScope(value.code, plain(value.scope))
        if isinstance(value, float) and math.isnan(value):
            return math.nan
        if isinstance(value, Decimal128):
            return Decimal128(str(value))
        return value

    return encode(plain(decode(data)))


@EXAMPLES
@given(DOCUMENTS.filter(lambda document: "$" not in repr(document)))
def test_canonical_extended_json_round_trip(document: dict[str, object]) -> None:
    data = encode(document)
    assert encode(from_ejson(to_ejson(document, canonical=True))) == as_in_json(data)
    relaxed = from_ejson(to_ejson(document))
    assert compare(relaxed, decode(as_in_json(data))) == 0  # only the width of numbers may differ
    assert encode(from_ejson(to_ejson(relaxed, canonical=True))) == as_in_json(encode(relaxed))


def offset_of_error(read: Callable[[bytes], object], data: bytes) -> int | None:
    """None when `data` can be read; -1 for an offset that is none."""
    try:
        read(data)
    except InvalidBSONError as error:
        return error.offset if error.offset is not None and error.offset <= len(data) else -1
    return None


def refused_or_read(data: bytes) -> None:
    """Nothing but InvalidBSONError comes out, with an offset inside the bytes; all readers agree."""
    outcome = offset_of_error(decode, data)
    assert outcome == offset_of_error(validate, data)
    assert outcome != -1
    if outcome is None:
        again = encode(decode(data))  # names of array items and duplicate fields may differ, once
        assert encode(decode(again)) == again
        assert set(RawDocument(data).keys()) == set(decode(data))
    with contextlib.suppress(InvalidBSONError):
        walk(data)
    with contextlib.suppress(InvalidBSONError):
        raw = RawDocument(data)
        assert raw.first_key is None or isinstance(raw.first_key, str)
        dict(raw.items())


@EXAMPLES
@given(st.binary(max_size=60), st.booleans())
def test_random_bytes(body: bytes, framed: bool) -> None:
    refused_or_read(struct.pack("<i", len(body) + 5) + body + b"\0" if framed else body)


@EXAMPLES
@given(DOCUMENTS, st.data())
def test_mutated_documents(document: dict[str, object], data: st.DataObject) -> None:
    mutated = bytearray(encode(document))
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    refused_or_read(bytes(mutated))
    cut = data.draw(st.integers(0, len(mutated)))
    refused_or_read(bytes(mutated[:cut]))
    refused_or_read(struct.pack("<i", max(cut, 4) + 1) + bytes(mutated[4:cut]) + b"\0")


# ---- key order against a comparator that follows MongoDB's rules value by value

RANKS: dict[type, int] = {
    **{MinKey: -1, Undefined: 0, type(None): 5, int: 10, Int64: 10, float: 10, Decimal128: 10, str: 15, Symbol: 15},
    **{dict: 20, list: 25, Binary: 30, ObjectId: 35, bool: 40, DateTime: 45, Timestamp: 47, Regex: 50, DBPointer: 55},
    **{Code: 60, CodeWithScope: 65, MaxKey: 127},
}


ALIKE = (
    *(st.integers(-5, 5), INT64.map(Int64), st.floats(), TEXT, st.sampled_from(["", "a", "a\0\x10b\0....", "é"])),
    *(st.booleans(), st.none(), OIDS, INT64.map(DateTime), st.builds(Timestamp, UINT32, UINT32), DECIMALS),
    *(st.builds(Binary, st.binary(max_size=4), st.sampled_from([0, 2])), st.builds(Regex, C_TEXT, st.just("i"))),
    *(st.builds(Symbol, TEXT), st.builds(Code, TEXT), st.just(Undefined()), st.just(MinKey())),
    *(st.lists(st.integers(0, 3), max_size=3), st.builds(DBPointer, TEXT, OIDS)),
    *(st.lists(TEXT, max_size=12), st.lists(st.sampled_from(["", "a", "\0\x021\0..."]), max_size=3)),
    st.dictionaries(C_TEXT, st.integers(0, 3), max_size=2),
)


@st.composite
def documents_alike(draw: st.DrawFn) -> list[bytes]:
    """Documents with mostly the same fields of the same types, some of them damaged or with fields twice."""
    kinds = draw(st.dictionaries(st.one_of(st.sampled_from("abcd"), C_TEXT), st.sampled_from(ALIKE), max_size=6))
    other = st.sampled_from([*kinds, "x"])
    raws = []
    for _ in range(draw(st.integers(14, 40))):
        document = {name: draw(kind) for name, kind in kinds.items()}
        match draw(st.integers(0, 12)):
            case 0:
                document[draw(other)] = draw(st.one_of(*ALIKE))
            case 1:
                document.pop(draw(other), None)
        raw = encode(document)
        match draw(st.integers(0, 30)):
            case 0:
                raw = (2 * len(raw) - 5).to_bytes(4, "little") + raw[4:-1] * 2 + b"\0"
            case 1:
                place = draw(st.integers(0, len(raw) - 1))
                raw = raw[:place] + draw(st.binary(min_size=1, max_size=1)) + raw[place + 1 :]
        raws.append(raw)
    return raws


def until_an_error(documents: Iterator[dict[str, object]]) -> list[object]:
    """Return what comes, as bytes, and the text of the error that ends it."""
    found: list[object] = []
    try:
        found += map(encode, documents)
    except InvalidBSONError as error:
        found.append(str(error))
    return found


@EXAMPLES
@given(st.lists(documents_alike(), min_size=1, max_size=3), st.one_of(st.none(), st.sets(st.sampled_from("abcdx"))))
def test_documents_that_are_alike_are_decoded_like_others(pages: list[list[bytes]], wanted: set[str] | None) -> None:
    names = names_by_bytes(wanted)
    reader = FieldsReader(names)
    for raws in pages:
        one_by_one = until_an_error(decode_fields(raw, names) for raw in raws)
        assert until_an_error(reader.documents(raws)) == one_by_one


def sign(a: Any, b: Any) -> int:
    return (a > b) - (a < b)


def number(value: Any) -> tuple[int, Fraction]:
    """NaN, minus infinity, finite, infinity, in this order."""
    if isinstance(value, Decimal128):
        kind, negative, coefficient, exponent = value.fields()
        if kind == "finite":
            return 2, (-1 if negative else 1) * coefficient * Fraction(10) ** exponent
        value = math.nan if kind == "nan" else -math.inf if negative else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if math.isnan(value) else 1 if value < 0 else 3, Fraction(0)
    return 2, Fraction(value)


def naive_fields(a: dict[str, Any], b: dict[str, Any]) -> int:
    for (name_a, value_a), (name_b, value_b) in zip(a.items(), b.items(), strict=False):
        ranks = RANKS[type(value_a)], RANKS[type(value_b)]
        if step := sign(*ranks) or sign(name_a.encode(), name_b.encode()) or naive(value_a, value_b):
            return step
    return sign(len(a), len(b))


def naive(a: Any, b: Any) -> int:
    rank = RANKS[type(a)]
    if rank != RANKS[type(b)]:
        return sign(rank, RANKS[type(b)])
    if rank == 10:
        return sign(number(a), number(b))
    if rank in (15, 60):
        return sign(str(a).encode(), str(b).encode())
    if rank in (20, 25):
        return naive_fields(
            *(one if rank == 20 else {str(index): item for index, item in enumerate(one)} for one in (a, b))
        )
    if rank == 30:
        return sign((len(a), a.subtype, bytes(a)), (len(b), b.subtype, bytes(b)))
    if rank == 50:
        return sign((a.pattern.encode(), a.options), (b.pattern.encode(), b.options))
    if rank == 55:
        return sign(*((len(one.ns.encode()), one.ns.encode(), one.oid.binary) for one in (a, b)))
    if rank == 65:
        return sign(a.code.encode(), b.code.encode()) or naive_fields(a.scope, b.scope)
    if rank in (35, 40, 45, 47):
        return sign(a, b)
    return 0


def check_order(a: object, b: object) -> None:
    expected = naive(a, b)
    key_a, key_b = encode_key(a), encode_key(b)
    assert sign(key_a, key_b) == expected
    assert compare(a, b) == expected
    assert key_a == key_b or not (key_a.startswith(key_b) or key_b.startswith(key_a))


@examples(400)
@given(NUMBERS, NUMBERS)
def test_order_of_numbers(a: object, b: object) -> None:
    check_order(a, b)


@examples(300)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-2, 2))
def test_order_of_neighbours(value: float, step: int) -> None:
    """Decimals of 34 digits beside a double, and integers beside large ones."""
    near = Decimal128(f"{value:.33E}") if value else Decimal128("0")
    check_order(value, near)
    check_order(near, math.nextafter(value, math.copysign(math.inf, step)))
    if abs(value) < 2**62:
        check_order(Int64(int(value) + step), value)
        check_order(Int64(int(value) + step), near)


@examples(300)
@given(VALUES, VALUES)
def test_order_of_values(a: object, b: object) -> None:
    check_order(a, b)


@examples(200)
@given(
    st.recursive(
        st.sampled_from([1, 2.0, "", "a", "a\0", "\1", None]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        max_leaves=5,
    ),
    st.data(),
)
def test_order_of_values_that_are_alike(a: object, data: st.DataObject) -> None:
    small = st.sampled_from([a, [a], [a, a], {"a": a}, {"b": a}, {"a": a, "b": a}, 1.0, 2, "a"])
    b, c = data.draw(small), data.draw(small)
    check_order(a, b)
    check_order(b, c)
    check_order([b, a], [c, a])


@EXAMPLES
@given(st.lists(VALUES, max_size=8))
def test_sorting_by_key(values: list[object]) -> None:
    by_key = sorted(values, key=encode_key)
    assert [repr(value) for value in by_key] == [repr(value) for value in sorted(values, key=cmp_to_key(naive))]


# ---- pymongo as an independent oracle

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def to_pymongo(value: Any) -> Any:
    """The same value in pymongo's types; it has none for the deprecated ones."""
    simple: dict[type, Callable[[Any], Any]] = {
        dict: lambda value: {name: to_pymongo(field) for name, field in value.items()},
        list: lambda value: [to_pymongo(item) for item in value],
        ObjectId: lambda value: pymongo_bson.ObjectId(value.binary),
        Int64: pymongo_bson.Int64,
        Timestamp: lambda value: pymongo_bson.Timestamp(value.time, value.inc),
        DateTime: lambda value: pymongo_bson.DatetimeMS(value.ms),
        Binary: lambda value: pymongo_bson.Binary(bytes(value), value.subtype),
        Decimal128: lambda value: pymongo_bson.Decimal128.from_bid(value.bid),
        Regex: lambda value: pymongo_bson.Regex(value.pattern, value.options),
        CodeWithScope: lambda value: pymongo_bson.Code(value.code, to_pymongo(value.scope)),
        Code: lambda value: pymongo_bson.Code(value.code),
        MinKey: lambda _: pymongo_bson.MinKey(),
        MaxKey: lambda _: pymongo_bson.MaxKey(),
    }
    return simple.get(type(value), lambda value: value)(value)


SHARED = nested(OF_PYMONGO_TOO.filter(lambda value: not isinstance(value, Binary) or value.subtype != 9))


@EXAMPLES
@given(st.dictionaries(C_TEXT.filter("_id".__ne__), SHARED, max_size=6))  # PyMongo puts an _id in front
def test_bytes_are_those_of_pymongo(document: dict[str, object]) -> None:
    data = encode(document)
    assert data == pymongo_bson.encode(to_pymongo(document))
    assert pymongo_bson.encode(pymongo_bson.decode(data, OPTIONS)) == data


@EXAMPLES
@given(st.dictionaries(C_TEXT.map(lambda name: name.replace("$", "_")).filter("_id".__ne__), SHARED, max_size=6))
def test_pymongo_reads_our_extended_json(document: dict[str, object]) -> None:
    if "$" in repr(document):
        return
    options = json_util.JSONOptions(
        json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS
    )
    text = to_ejson(document, canonical=True)
    assert pymongo_bson.encode(json_util.loads(text, json_options=options)) == as_in_json(encode(document))
    theirs = json_util.dumps(to_pymongo(document), json_options=options)
    assert encode(from_ejson(theirs)) == as_in_json(encode(document))
