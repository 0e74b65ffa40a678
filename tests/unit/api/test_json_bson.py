"""JSON to BSON in one step gives the bytes of both steps, or leaves the object to them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.json_bson import bson_from_json
from replset.bson import MAX_DEPTH, ExtendedJSONError, InvalidBSONError, encode
from replset.ejson import WRAPPERS, from_ejson_value

OID = {"$oid": "0123456789abcdeffedcba98"}
WRAPPED = [
    OID,
    {"$date": "2012-12-24T12:15:30.501Z"},
    {"$numberLong": "5"},
    {"$numberInt": "x"},
    {"$numberDecimal": "1.5"},
    {"$binary": {"base64": "//8=", "subType": "00"}},
    {"$code": "f", "$scope": {"a": {}}},
    {"$oid": "0"},
    {"$oid": 5},
    {"$oid": None, "a": 1},
]
LEAVES = st.none() | st.booleans() | st.integers(-(1 << 64), 1 << 64) | st.floats() | st.text(max_size=4)
LEAVES |= st.sampled_from(WRAPPED)
NAMES = st.text(max_size=3) | st.sampled_from(["$gt", "$ref", *sorted(WRAPPERS)])
VALUES = st.recursive(LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(NAMES, part, max_size=3))


def in_two_steps(value: dict[str, Any]) -> bytes | None:
    try:
        read = from_ejson_value(value)
        return encode(read) if isinstance(read, dict) else None
    except (ExtendedJSONError, InvalidBSONError):
        return None


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_the_bytes_are_the_same(value: dict[str, Any]) -> None:
    assert bson_from_json(value) in (None, in_two_steps(value))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"_id": OID, "n": 5, "big": 1 << 40, "text": "é", "d": -0.5, "t": True, "f": False, "none": None},
        {"rows": [1, [], {"a": OID}, "x"], "empty": {}, "$gt": 1, "when": {"$date": "2012-12-24T12:15:30Z"}},
    ],
)
def test_usual_documents_need_one_step(value: dict[str, Any]) -> None:
    assert bson_from_json(value) is not None
    assert bson_from_json(value) == in_two_steps(value)


@pytest.mark.parametrize("value", [OID, {"a": 1 << 64}, {"a": {"$code": "f"}}, {"a": {"$oid": 1}}, {"a\0": 1}])
def test_the_rest_is_left_to_both_steps(value: dict[str, Any]) -> None:
    assert bson_from_json(value) is None


def test_the_levels_are_counted() -> None:
    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    assert bson_from_json(nested(MAX_DEPTH)) == in_two_steps(nested(MAX_DEPTH))
    assert bson_from_json(nested(MAX_DEPTH + 1)) is None


@pytest.mark.parametrize("size", [999, 1_000, 1_001, 2_000, 2_500])
def test_many_fields_and_items_are_encoded_in_slices(size: int) -> None:
    value = {"rows": list(range(size)), "fields": {str(number): {"a": OID} for number in range(size)}}
    assert bson_from_json(value) == in_two_steps(value)


def test_a_large_list_takes_few_times_its_bytes_to_encode() -> None:
    """All parts of its items at once took 800 MB for a list of 11 MB."""
    value = {"rows": list(range(100_000))}
    tracemalloc.start()
    try:
        encoded = bson_from_json(value)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert encoded is not None
    assert most < 5 * len(encoded)
