"""A long list of an $in has one interval for all of its values: it finds the same documents, from an index too."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import MaxKey, MinKey, Regex
from replset.features.crud import filters
from replset.query import bounds
from tests.rig import Client

VALUES: tuple[Any, ...] = (*range(12), "a", "b", "zz", None, [3, 40], [], {"a": 1}, True, MinKey(), MaxKey(), 2.5)


@pytest.fixture(autouse=True)
def _documents(client: Client) -> None:
    client.ok({"createIndexes": "c"}, indexes=[{"key": {"n": 1}, "name": "n_1"}])
    rows = [{"_id": number, "n": value} for number, value in enumerate(VALUES)]
    client.ok({"insert": "c"}, documents=[*rows, {"_id": 100}])


@pytest.mark.parametrize("field", ["n", "_id"])
@pytest.mark.parametrize(
    "values",
    [
        [3, 7, 5, 900],
        ["zz", "a", 4, 4],
        [None, 2, 3, 11],
        [[3, 40], 40, "b", True],
        [[], {"a": 1}, MinKey(), MaxKey()],
        [Regex("^a"), Regex("z$"), 1, 2],
        [100, -5, 0, 2.5],
    ],
)
def test_a_long_list_finds_what_its_values_find(
    client: Client, monkeypatch: pytest.MonkeyPatch, field: str, values: list[Any]
) -> None:
    query = {field: {"$in": values}}

    def found() -> list[list[Any]]:
        """By the plan that is chosen, in an order, and by reading all."""
        options: list[dict[str, Any]] = [{}, {"sort": {field: -1, "_id": 1}}, {"hint": {"$natural": 1}}]
        rows = [client.ok({"find": "c", "filter": query, **each})["cursor"]["firstBatch"] for each in options]
        chosen, *others = [[row["_id"] for row in each] for each in rows]
        return [sorted(chosen), *others]

    of_each = found()
    for module in (bounds, filters):
        monkeypatch.setattr(module, "MOST_VALUES", 3)
    assert found() == of_each
    assert client.ok({"count": "c", "query": query})["n"] == len(of_each[0])


def test_one_interval_has_them_all(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_VALUES", 3)
    plan = client.ok({"explain": {"find": "c", "filter": {"n": {"$in": [9, 1, 5, 7]}}}})["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["indexBounds"] == {"n": ["[1, 9]"]}


def test_a_list_at_the_bound_has_an_interval_for_each_value(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_VALUES", 3)
    find = {"find": "c", "filter": {"n": {"$in": [1, 5, 9]}}}
    plan = client.ok({"explain": find})["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["indexBounds"] == {"n": ["[1, 1]", "[5, 5]", "[9, 9]"]}
