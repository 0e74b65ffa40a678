"""Oplog differences over random documents: exact, small, and free to be applied again from any earlier entry on."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Int64, decode, encode
from replset.query.diff import apply_diff, apply_update_object, compute_diff, update_entry_object
from tests.examples import examples

Doc = dict[str, object]

EXAMPLES = examples(200)
NAMES = st.sampled_from(["a", "b", "c", "d", "0", "1", "diff", "$v", "u", "i", "s", ""])
SCALARS = st.one_of(
    st.none(),
    st.integers(0, 2),
    st.integers(0, 2).map(Int64),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.sampled_from(["", "x", "y" * 40]),
    st.booleans(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=6)


@EXAMPLES
@given(DOCUMENTS, DOCUMENTS)
def test_the_entry_gives_the_new_document_and_is_never_the_longer_form(before: Doc, after: Doc) -> None:
    before, after = {"_id": 1, **before}, {"_id": 1, **after}
    entry, diff = update_entry_object(before, after), compute_diff(before, after)
    assert (encode(before if diff is None else apply_diff(before, decode(encode(diff))))) == encode(after)
    assert (diff is None) == (entry is None) == (encode(before) == encode(after))
    if entry is not None:
        wire = decode(encode(entry))
        assert encode(apply_update_object(before, wire)) == encode(after)
        assert entry is after or len(encode(entry)) < len(encode(after)) or after.get("$v") == 2


@st.composite
def changed(draw: st.DrawFn, value: object) -> object:
    """`value` with one small change in it, at any depth."""
    if isinstance(value, dict) and value:
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.sampled_from(["into", "into", "drop", "add", "move", "replace"])):
            case "into":
                return {**value, name: draw(changed(value[name]))}
            case "drop":
                return {other: kept for other, kept in value.items() if other != name}
            case "add":
                return {**value, draw(NAMES): draw(VALUES)}
            case "move":
                return {**{other: kept for other, kept in value.items() if other != name}, name: value[name]}
    if isinstance(value, list) and value:
        index = draw(st.integers(0, len(value) - 1))
        match draw(st.sampled_from(["into", "into", "cut", "append", "replace"])):
            case "into":
                return [*value[:index], draw(changed(value[index])), *value[index + 1 :]]
            case "cut":
                return value[:index]
            case "append":
                return [*value, draw(VALUES)]
    return draw(VALUES)


@st.composite
def histories(draw: st.DrawFn) -> list[Doc]:
    """The states of one document, most of them a small change of the one before."""
    states: list[Doc] = [draw(DOCUMENTS)]
    for _ in range(draw(st.integers(1, 6))):
        value = draw(changed(states[-1]))
        states.append(value if isinstance(value, dict) else draw(DOCUMENTS))
    return [{"_id": 1, **state} for state in states]


@EXAMPLES
@given(histories(), st.data())
def test_entries_applied_again_in_order_give_the_same_document(states: list[Doc], data: st.DataObject) -> None:
    """From any entry on, over any later state: the final document. Each entry twice in a row: as once."""
    if data.draw(st.booleans(), label="always as differences"):
        diffs = [compute_diff(before, after) for before, after in pairwise(states)]
        entries = [None if diff is None else {"$v": 2, "diff": diff} for diff in diffs]
    else:
        entries = [update_entry_object(before, after) for before, after in pairwise(states)]
    start = data.draw(st.integers(0, len(entries) - 1), label="first entry applied again")
    doc = states[data.draw(st.integers(start, len(entries)), label="state that is already reached")]
    for entry in entries[start:]:
        if entry is not None:
            doc = apply_update_object(doc, decode(encode(entry)))
            assert encode(apply_update_object(doc, entry)) == encode(doc)
    assert encode(doc) == encode(states[-1])
