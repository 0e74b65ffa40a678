"""The matcher refuses what the unified test format does not allow. What it allows, the specifications' tests show."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64

from tests.conformance.matching import MISSING, Matcher, MismatchError

MATCHER = Matcher({"saved": {"x": 1}}.__getitem__, {"session0": {"id": Binary(b"0" * 16, 4)}}.__getitem__)


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
        pytest.param({"$$matchesEntity": "saved"}, {"x": 2, "y": 2}, id="another-entity"),
        pytest.param({"x": {"$$matchAsRoot": {"y": 1}}}, {"x": {"y": 2, "z": 1}}, id="match-as-root"),
        pytest.param(None, MISSING, id="a-missing-value-is-not-null"),
    ],
)
def test_does_not_match(expected: Any, actual: Any) -> None:
    with pytest.raises(MismatchError):
        MATCHER.match(expected, actual)


def test_a_message_names_the_place() -> None:
    with pytest.raises(MismatchError, match=r"reply\.a\.0\.b is 2; expected 1"):
        MATCHER.match({"a": [{"b": 1}]}, {"a": [{"b": 2}], "more": 1}, "reply")
    with pytest.raises(NotImplementedError):
        MATCHER.match({"x": {"$$unheardOf": 1}}, {"x": 1})
