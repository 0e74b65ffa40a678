"""Differences in the oplog: what they look like, what applying one gives, what is refused."""

from __future__ import annotations

import pytest

from replset.bson import Int64, encode
from replset.errors import ReplError
from replset.query.diff import apply_diff, apply_update_object, compute_diff, update_entry_object

Doc = dict[str, object]

LONG = "x" * 60
# id: (before, after, difference)
DIFFERENCES: dict[str, tuple[Doc, Doc, Doc | None]] = {
    "equal": ({"a": 1}, {"a": 1}, None),
    "update and insert": ({"a": 3}, {"a": 4, "b": 9}, {"u": {"a": 4}, "i": {"b": 9}}),
    "delete": ({"a": 3, "b": 1}, {"b": 1}, {"d": {"a": False}}),
    "number type": ({"a": 1}, {"a": 1.0}, {"u": {"a": 1.0}}),
    "int to long": ({"a": 1}, {"a": Int64(1)}, {"u": {"a": Int64(1)}}),
    "minus zero": ({"a": 0.0}, {"a": -0.0}, {"u": {"a": -0.0}}),
    "order of fields": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"i": {"a": 1}}),
    "order in a sub-document": (
        {"s": {"a": 1, "b": 2, "c": LONG}},
        {"s": {"b": 2, "c": LONG, "a": 1}},
        {"ss": {"i": {"a": 1}}},
    ),
    "sub-document": (
        {"owner": {"name": "y", "long": LONG}},
        {"owner": {"name": "x", "long": LONG}},
        {"sowner": {"u": {"name": "x"}}},
    ),
    "array": (
        {"tags": ["p", {"k": 0, "long": LONG}, 3, 4]},
        {"tags": ["q", {"k": 1, "long": LONG}]},
        {"stags": {"a": True, "l": 2, "u0": "q", "s1": {"u": {"k": 1}}}},
    ),
    "array grows": ({"t": [LONG]}, {"t": [LONG, 1]}, {"st": {"a": True, "u1": 1}}),
    "a short value is told whole": ({"t": [1]}, {"t": [2]}, {"u": {"t": [2]}}),
    "type of a value": ({"t": [1]}, {"t": {"0": 1}}, {"u": {"t": {"0": 1}}}),
    "empty name": ({"": {"a": 1, "l": LONG}}, {"": {"a": 2, "l": LONG}}, {"s": {"u": {"a": 2}}}),
}


@pytest.mark.parametrize(("before", "after", "diff"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_compute_diff(before: Doc, after: Doc, diff: Doc | None) -> None:
    assert compute_diff(before, after) == diff
    if diff is not None:
        assert encode(compute_diff(before, after) or {}) == encode(diff)
        assert encode(apply_diff(before, diff)) == encode(after)
        assert encode(apply_diff(after, diff)) == encode(after)


# id: (document, difference, result)
APPLIED: dict[str, tuple[Doc, Doc, Doc]] = {
    "update in place": ({"a": 1, "b": 2}, {"u": {"a": 5}}, {"a": 5, "b": 2}),
    "update of what is absent appends": ({"b": 2}, {"u": {"a": 5}}, {"b": 2, "a": 5}),
    "insert of what is there moves it to the end": ({"a": 1, "b": 2}, {"i": {"a": 5}}, {"b": 2, "a": 5}),
    "delete of what is absent": ({"b": 2}, {"d": {"a": False}}, {"b": 2}),
    "inserts come behind appended updates": ({}, {"i": {"b": 1}, "u": {"a": 2}}, {"a": 2, "b": 1}),
    "sub-difference on a scalar": ({"a": 5}, {"sa": {"u": {"b": 1}}}, {"a": None}),
    "sub-difference on an array": ({"a": [1]}, {"sa": {"u": {"b": 1}}}, {"a": None}),
    "array difference on a document": ({"a": {"0": 1}}, {"sa": {"a": True, "u0": 1}}, {"a": None}),
    "sub-difference on nothing": ({"b": 1}, {"sa": {"u": {"b": 1}}}, {"b": 1}),
    "short array is padded": ({"a": [1]}, {"sa": {"a": True, "u3": 4}}, {"a": [1, None, None, 4]}),
    "short array is padded to its length": ({"a": []}, {"sa": {"a": True, "l": 2}}, {"a": [None, None]}),
    "sub-difference behind the end": ({"a": []}, {"sa": {"a": True, "s1": {"u": {"b": 1}}}}, {"a": [None, None]}),
    "array is cut": ({"a": [1, 2, 3]}, {"sa": {"a": True, "l": 1}}, {"a": [1]}),
    "length before updates": ({"a": [1, 2, 3]}, {"sa": {"a": True, "l": 2, "u1": 7}}, {"a": [1, 7]}),
}


@pytest.mark.parametrize(("doc", "diff", "result"), APPLIED.values(), ids=APPLIED)
def test_apply_diff(doc: Doc, diff: Doc, result: Doc) -> None:
    bytes_before = encode(doc)
    assert encode(apply_diff(doc, diff)) == encode(result)
    assert encode(doc) == bytes_before


REFUSED: dict[str, tuple[Doc, int]] = {
    "twice, in two sections": ({"u": {"a": 1}, "i": {"a": 2}}, 4728000),
    "twice, with a sub-difference": ({"d": {"a": False}, "sa": {"u": {"b": 1}}}, 4728000),
    "twice in an array": ({"sa": {"a": True, "u0": 1, "s0": {"u": {"b": 1}}}}, 4728000),
    "unknown section": ({"x": {"a": 1}}, 9),
    "section that is no document": ({"u": 5}, 9),
    "sub-difference that is no document": ({"sa": 5}, 9),
    "array section without an index": ({"sa": {"a": True, "ux": 1}}, 9),
    "array length that is none": ({"sa": {"a": True, "l": "1"}}, 9),
    "negative array length": ({"sa": {"a": True, "l": -1}}, 9),
    "array difference at the top": ({"a": True, "u0": 1}, 9),
}


@pytest.mark.parametrize(("diff", "code"), REFUSED.values(), ids=REFUSED)
def test_malformed_differences_are_refused(diff: Doc, code: int) -> None:
    with pytest.raises(ReplError) as caught:
        apply_diff({"a": [{"b": 0}]}, diff)
    assert caught.value.code == code


def test_an_entry_is_a_difference_only_where_that_is_smaller() -> None:
    before: Doc = {"_id": 1, "a": 1, "long": LONG}
    assert update_entry_object(before, {**before, "a": 2}) == {"$v": 2, "diff": {"u": {"a": 2}}}
    assert update_entry_object({"_id": 1, "a": 1}, {"_id": 1, "a": 2}) == {"_id": 1, "a": 2}
    assert update_entry_object(before, dict(before)) is None


# A replacement that holds fields named like the parts of a difference stays a replacement.
REPLACEMENTS: list[Doc] = [
    {"_id": 1, "diff": {"u": {"a": 1}}},
    {"_id": 1, "$diff": {"u": {"a": 1}}},
    {"_id": 1, "$v": 1, "diff": {"u": {"a": 1}}},
    {"_id": 1, "$v": True, "diff": {"u": {"a": 1}}},
    {"_id": 1, "$v": "2", "diff": {"u": {"a": 1}}},
    {"_id": 1, "$v": 2, "diff": "no document"},
    {"_id": 1, "$v": 2},
    {"_id": 1, "d": {"a": False}, "u": {"a": 1}, "i": {}, "sa": {}},
]


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=str)
def test_the_value_of_v_distinguishes_a_difference_from_a_replacement(replacement: Doc) -> None:
    assert encode(apply_update_object({"_id": 1, "a": 0}, replacement)) == encode(replacement)


def test_a_document_that_reads_like_a_difference_travels_as_one() -> None:
    before: Doc = {"_id": 1}
    after: Doc = {"_id": 1, "$v": 2, "diff": {"u": {"a": 1}}}
    entry = update_entry_object(before, after)
    assert entry == {"$v": 2, "diff": {"i": {"$v": 2, "diff": {"u": {"a": 1}}}}}
    assert encode(apply_update_object(before, entry or {})) == encode(after)


def test_a_change_too_deep_for_a_difference_goes_as_the_whole_document() -> None:
    def nested(leaf: object) -> Doc:
        doc: Doc = {"leaf": leaf, "long": LONG}
        for _ in range(198):
            doc = {"n": doc}
        return {"_id": 1, **doc}

    after = nested({"x": 2})
    assert update_entry_object(nested({"x": 1}), after) == after
