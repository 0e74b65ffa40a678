"""The difference of an update by operators names what the operators named, however short the values are."""

from __future__ import annotations

from typing import Any

import pytest

from replset.query import diff as diff_module
from replset.query.diff import apply_diff, compute_diff, targets_of, update_entry_object


@pytest.mark.parametrize(
    ("before", "after", "paths", "diff"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"], {"sa": {"u": {"b": 2}}}),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a"], {"u": {"a": {"b": 2}}}),
        ({"a": [{"1": 1}]}, {"a": [{"1": 2}]}, ["a.0.1"], {"sa": {"a": True, "s0": {"u": {"1": 2}}}}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ["a.$[].b"], {"sa": {"a": True, "s0": {"u": {"b": 2}}}}),
        ({"a": [1]}, {"a": [1, 2]}, ["a"], {"sa": {"a": True, "u1": 2}}),
    ],
)
def test_a_value_above_a_changed_path_is_not_written_whole(
    before: dict[str, Any], after: dict[str, Any], paths: list[str], diff: dict[str, Any]
) -> None:
    assert compute_diff(before, after, targets_of(path.split(".") for path in paths)) == diff
    assert apply_diff(before, diff) == after


def test_the_form_tells_a_replacement_from_an_update() -> None:
    before, after = {"_id": 1, "a": 1, "pad": "x" * 100}, {"_id": 1, "a": 2, "pad": "x" * 100}
    assert update_entry_object(before, after, is_replacement=True) is after
    assert update_entry_object({"a": 1}, {"a": 2}, is_replacement=False) == {"$v": 2, "diff": {"u": {"a": 2}}}
    assert update_entry_object({"a": 1}, {"a": 2}) == {"a": 2}


def test_what_operators_did_is_a_difference_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = {"_id": 1}, {"_id": 1, "a": "x" * (100 << 10)}
    entry = {"$v": 2, "diff": {"i": {"a": after["a"]}}}
    assert update_entry_object(before, after, is_replacement=False) == entry
    assert update_entry_object(before, after) is after
    monkeypatch.setattr(diff_module, "LARGEST_DIFF", 100 << 10)
    assert update_entry_object(before, after, is_replacement=False) is after, "no entry could hold the difference"
