"""Value types: equality by value and type, order, limits, pickling."""

from __future__ import annotations

import pickle
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from replset.bson import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    Int64,
    InvalidValueError,
    MaxKey,
    MinKey,
    ObjectId,
    ObjectIds,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
)

OID = ObjectId("0123456789abcdeffedcba98")
VALUES: list[object] = [
    Int64(5),
    OID,
    ObjectId(bytes(12)),
    Timestamp(5, 6),
    DateTime(5),
    Binary(b"ab", 0),
    Binary(b"ab", 5),
    Decimal128("5"),
    Decimal128("5.0"),
    Regex("a", "i"),
    Regex("a"),
    Code("a"),
    CodeWithScope("a", {}),
    CodeWithScope("a", {"b": 1}),
    DBPointer("a.b", OID),
    Symbol("a"),
    Undefined(),
    MinKey(),
    MaxKey(),
    "a",
    b"abc",
]


def test_equal_to_itself_and_to_nothing_else() -> None:
    for index, value in enumerate(VALUES):
        copy = pickle.loads(pickle.dumps(value))
        assert copy == value
        assert hash(copy) == hash(value)
        assert type(copy) is type(value)
        assert [other == value for other in VALUES] == [place == index for place in range(len(VALUES))]
        assert repr(value)


def test_plain_values_that_are_equal() -> None:
    assert Int64(5) == 5
    assert hash(Int64(5)) == hash(5)
    assert repr(Int64(5)) == "Int64(5)"
    assert str(Int64(5)) == "5"
    assert Binary(b"ab") == b"ab"
    assert (b"ab" == Binary(b"ab")) is True  # noqa: SIM300 - bytes on the left asks Binary all the same
    assert hash(Binary(b"ab")) == hash(b"ab")
    assert Binary(b"ab", 5) != b"ab"
    assert (b"ab" != Binary(b"ab", 5)) is True  # noqa: SIM300
    assert DateTime(5) != 5
    assert str(Code("a")) == str(Symbol("a")) == "a"


def test_object_id() -> None:
    assert str(OID) == "0123456789abcdeffedcba98"
    assert ObjectId(OID) == OID == ObjectId(OID.binary) == ObjectId("0123456789ABCDEFFEDCBA98")
    assert OID.seconds == 0x01234567
    assert ObjectId(bytes(12)) < OID <= OID
    assert sorted([OID, ObjectId(bytes(12))]) == [ObjectId(bytes(12)), OID]


def test_generated_object_ids() -> None:
    made = ObjectIds(random.Random(1))
    ids = [made.make(1_700_000_000 + number // 500) for number in range(1000)]
    assert ids == sorted(set(ids))
    assert {one.seconds for one in ids} == {1_700_000_000, 1_700_000_001}
    assert len({one.binary[4:9] for one in ids}) == 1
    counters = [int.from_bytes(one.binary[9:], "big") for one in ids]
    assert counters == list(range(counters[0], counters[0] + 1000))
    assert ObjectIds(random.Random(1)).make(5) == ObjectIds(random.Random(1)).make(5)
    assert ObjectIds(random.Random(1)).make(5) != ObjectIds(random.Random(2)).make(5)
    assert made.make((1 << 32) + 5).seconds == 5


def test_the_counter_of_object_ids_begins_again() -> None:
    made = ObjectIds(SimpleNamespace(randbytes=lambda count: b"\xff" * count))
    assert [str(made.make(1)) for _ in range(2)] == ["00000001ffffffffffffffff", "00000001ffffffffff000000"]


def test_dates() -> None:
    assert DateTime.from_datetime(datetime(2020, 1, 1, tzinfo=UTC)) == DateTime(1_577_836_800_000)
    assert DateTime(1_577_836_800_123).to_datetime() == datetime(2020, 1, 1, microsecond=123_000, tzinfo=UTC)
    assert DateTime(-1) < DateTime(0)
    assert Timestamp(1, 9) < Timestamp(2, 0)
    assert Timestamp(1, 2).time == 1
    assert Timestamp(1, 2).inc == 2


def test_uuid() -> None:
    value = uuid.UUID("73ffd264-44b3-4c69-90e8-e7d1dfc035d4")
    assert Binary.from_uuid(value) == Binary(value.bytes, 4)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Int64(2**63), id="int64 too large"),
        pytest.param(lambda: Int64(-(2**63) - 1), id="int64 too small"),
        pytest.param(lambda: ObjectId("0123"), id="object id short"),
        pytest.param(lambda: ObjectId("z" * 24), id="object id no hex"),
        pytest.param(lambda: ObjectId("0123456789abcdef 1234567"), id="object id with a space"),
        pytest.param(lambda: ObjectId(b"x" * 11), id="object id of 11 bytes"),
        pytest.param(lambda: ObjectId(5), id="object id of an int"),
        pytest.param(lambda: Timestamp(-1, 0), id="timestamp negative"),
        pytest.param(lambda: Timestamp(0, 2**32), id="timestamp too large"),
        pytest.param(lambda: DateTime(2**63), id="date too large"),
        pytest.param(lambda: DateTime(2**62).to_datetime(), id="date beyond year 9999"),
        pytest.param(lambda: DateTime.from_datetime(datetime(2020, 1, 1)), id="naive"),  # noqa: DTZ001 - the case
        pytest.param(lambda: Binary(b"", 256), id="subtype too large"),
        pytest.param(lambda: Decimal128(b"x"), id="decimal of one byte"),
    ],
)
def test_limits(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert caught.value.code == 2
