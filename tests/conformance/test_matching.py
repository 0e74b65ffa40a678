"""The matcher against the rules of the unified test format, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64, ObjectId

from tests.conformance.matching import MISSING, Matcher, MismatchError

ID = ObjectId("64d2f2f4c2a1b3d4e5f60718")
ENTITIES = {"saved": {"x": 1}, "id": ID}
MATCHER = Matcher(ENTITIES.__getitem__, {"session0": {"id": Binary(b"0" * 16, 4)}}.__getitem__)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        pytest.param({"x": 1}, {"x": 1, "y": 2}, id="a-root-document-may-have-more"),
        pytest.param({"x": 1, "y": 1}, {"y": 1, "x": 1}, id="order-of-keys-is-free"),
        pytest.param([{"x": 1}], [{"x": 1, "y": 1}], id="elements-of-a-root-array-are-roots"),
        pytest.param(1, 1.0, id="numbers-by-value"),
        pytest.param(1, Int64(1), id="long-and-int"),
        pytest.param(b"\x01", Binary(b"\x01", 4), id="bytes-and-binary"),
        pytest.param({"x": {"$$exists": True}}, {"x": None}, id="exists-with-null"),
        pytest.param({"x": {"$$exists": False}}, {}, id="exists-not"),
        pytest.param({"a": {"x": {"$$exists": False}, "y": 1}}, {"a": {"y": 1}}, id="exists-not-inside"),
        pytest.param({"x": {"$$type": ["int", "long"]}}, {"x": Int64(5)}, id="one-of-two-types"),
        pytest.param({"x": {"$$type": "object"}}, {"x": {}}, id="type-object"),
        pytest.param({"$$type": "objectId"}, ID, id="type-as-a-whole"),
        pytest.param({"$$matchesEntity": "saved"}, {"x": 1, "y": 2}, id="entity-as-root"),
        pytest.param({"_id": {"$$matchesEntity": "id"}}, {"_id": ID}, id="entity"),
        pytest.param({"$$matchesHexBytes": "12ab"}, b"\x12\xab", id="hex-bytes"),
        pytest.param({"x": {"$$unsetOrMatches": 2}}, {}, id="unset"),
        pytest.param({"x": {"$$unsetOrMatches": {"$$type": "int"}}}, {"x": 7}, id="set-and-matches"),
        pytest.param({"$$unsetOrMatches": {"x": 1}}, {"x": 1, "y": 1}, id="unset-or-root"),
        pytest.param({"lsid": {"$$sessionLsid": "session0"}}, {"lsid": {"id": Binary(b"0" * 16, 4)}}, id="lsid"),
        pytest.param({"x": {"$$lte": 5}}, {"x": 5}, id="at-most"),
        pytest.param({"x": {"$$matchAsRoot": {"y": 1}}}, {"x": {"y": 1, "z": 1}}, id="match-as-root"),
        pytest.param(None, None, id="null"),
    ],
)
def test_matches(expected: Any, actual: Any) -> None:
    MATCHER.match(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        pytest.param({"x": 1, "y": 1}, {"x": 1}, id="a-field-is-missing"),
        pytest.param({"x": {"y": 1}}, {"x": {"y": 1, "z": 1}}, id="more-fields-inside"),
        pytest.param([1, 2], [1, 2, 3], id="more-elements"),
        pytest.param([1, 2], [2, 1], id="order-of-elements"),
        pytest.param({"x": [{"y": 1}]}, {"x": [{"y": 1, "z": 1}]}, id="elements-inside-are-no-roots"),
        pytest.param(1, True, id="a-bool-is-no-number"),
        pytest.param(1, 1.5, id="another-number"),
        pytest.param("1", 1, id="another-type"),
        pytest.param({"x": 1}, None, id="no-document"),
        pytest.param([1], {"0": 1}, id="no-array"),
        pytest.param({"x": {"$$exists": True}}, {}, id="exists"),
        pytest.param({"x": {"$$exists": False}}, {"x": None}, id="exists-not-with-null"),
        pytest.param({"x": {"$$type": "int"}}, {"x": Int64(5)}, id="a-long-is-no-int"),
        pytest.param({"x": {"$$type": "int"}}, {"x": True}, id="a-bool-is-no-int"),
        pytest.param({"x": {"$$type": "int"}}, {}, id="no-value-of-a-type"),
        pytest.param({"x": {"$$unsetOrMatches": 2}}, {"x": 3}, id="set-and-does-not-match"),
        pytest.param({"$$matchesHexBytes": "12ab"}, b"\x12", id="other-bytes"),
        pytest.param({"lsid": {"$$sessionLsid": "session0"}}, {"lsid": {"id": Binary(b"1" * 16, 4)}}, id="lsid"),
        pytest.param({"x": {"$$lte": 5}}, {"x": 6}, id="more-than-at-most"),
    ],
)
def test_does_not_match(expected: Any, actual: Any) -> None:
    with pytest.raises(MismatchError):
        MATCHER.match(expected, actual)


def test_a_message_names_the_place() -> None:
    with pytest.raises(MismatchError, match=r"reply\.a\.0\.b is 2; expected 1"):
        MATCHER.match({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "reply")


def test_an_unknown_operator_is_an_error_of_the_runner() -> None:
    with pytest.raises(NotImplementedError):
        MATCHER.match({"x": {"$$unheardOf": 1}}, {"x": 1})


def test_a_missing_value_is_not_null() -> None:
    with pytest.raises(MismatchError):
        MATCHER.match(None, MISSING)
