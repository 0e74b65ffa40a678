"""The other parts of the runner that need no server."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.conformance import report
from tests.conformance.errors import check_error
from tests.conformance.known import Cause, cause_of
from tests.conformance.matching import Matcher, MismatchError
from tests.conformance.requirements import Server, unmet
from tests.conformance.runner import Result, Status

SERVER = Server((7, 0, 14), {"enableTestCommands": True})
MATCHER = Matcher({}.__getitem__, {}.__getitem__)


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        (None, ""),
        ([], ""),
        ([{"minServerVersion": "4.2"}], ""),
        ([{"minServerVersion": "7.0.14", "maxServerVersion": "7.0.99"}], ""),
        ([{"minServerVersion": "8.0"}], "needs MongoDB 8.0 or newer"),
        ([{"maxServerVersion": "4.2.99"}], "needs MongoDB 4.2.99 or older"),
        ([{"topologies": ["sharded"]}, {"topologies": ["replicaset"]}], ""),
        (
            [{"topologies": ["sharded"]}, {"minServerVersion": "8.0"}],
            "needs the topology sharded or MongoDB 8.0 or newer",
        ),
        ([{"auth": True}], "needs authentication"),
        ([{"auth": False}], ""),
        ([{"serverless": "forbid"}], ""),
        ([{"serverParameters": {"enableTestCommands": True}}], ""),
        ([{"serverParameters": {"requireApiVersion": True}}], "needs the server parameter requireApiVersion: True"),
    ],
)
def test_requirements(alternatives: list[dict[str, Any]] | None, expected: str) -> None:
    assert unmet(SERVER, alternatives) == expected


FAILURE = OperationFailure("nope: no", 112, {"code": 112, "codeName": "WriteConflict", "errorLabels": ["Transient"]})


@pytest.mark.parametrize(
    "expected",
    [
        *({"isClientError": True}, {"errorCode": 1}, {"errorCodeName": "Other"}, {"errorContains": "yes"}),
        *({"errorLabelsContain": ["Other"]}, {"errorLabelsOmit": ["Transient"]}, {"errorResponse": {"code": 1}}),
    ],
)
def test_errors_that_are_not_expected(expected: dict[str, Any]) -> None:
    with pytest.raises(MismatchError):
        check_error(MATCHER, expected, FAILURE)


def test_the_page_and_the_surprises(monkeypatch: pytest.MonkeyPatch) -> None:
    cause, gone = Cause("No streams.", ("crud/stream*",)), Cause("No finds.", ("crud/find*",))
    monkeypatch.setattr("tests.conformance.known.CAUSES", (cause, gone))
    results = [
        Result("crud", "find", "works", Status.PASSED),
        Result("crud", "stream", "opens", Status.FAILED, "boom"),
        Result("crud", "new", "breaks [once]", Status.FAILED, "bang"),
        Result("crud", "shards", "moves", Status.SKIPPED, "needs the topology sharded"),
    ]
    assert cause_of("crud/stream: opens") is cause
    assert report.unexpected(results) == [
        "passes, take it out of known.py: crud/find: works",
        "fails, without a known cause: crud/new: breaks [once]",
    ]
    page = report.page(results, driver="4.0", commit="abc")
    assert "| crud | 1 | 2 | 1 |" in page
    assert "- **No streams.** (1)\n  - crud/stream (all 1)" in page
    assert "- **Needs the topology sharded.** (1)" in page
    assert "- crud: find (1)" in page
