"""Each update operator on operands and values that mostly fit it: nothing handed in changes, `_id` stays, and the
result comes back through the oplog entry, also when the entry is applied twice.

test_query.py draws updates of any form; few of those get as far as changing a document.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replset.bson import DateTime, Decimal128, Int64, Regex, Timestamp, compare, decode, encode
from replset.errors import ReplError
from replset.query.diff import apply_update_object, update_entry_object
from replset.query.match import compile_filter
from replset.query.update import compile_update

Doc = dict[str, object]

NUMBERS = st.sampled_from(
    [
        *(0, 1, 2, -1, (1 << 31) - 1, 1.5, -0.0, float("nan"), float("inf")),
        *(Int64(1), Int64((1 << 63) - 1), Int64(-1 << 63)),
        *(Decimal128("1.5"), Decimal128("NaN"), Decimal128("1E+6000")),
    ]
)
SCALARS = st.one_of(NUMBERS, st.sampled_from(["", "x", None, True, Regex("x"), DateTime(1)]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=5,
)
ARRAYS = st.lists(VALUES, max_size=4)
PUSHES = st.fixed_dictionaries(
    {"$each": st.one_of(ARRAYS, SCALARS)},
    optional={"$position": NUMBERS, "$slice": NUMBERS, "$sort": st.sampled_from([1, -1, 2, {"a": 1}, {"a.b": -1}])},
)
RANGES = st.dictionaries(st.sampled_from(["$gt", "$lte", "$ne"]), NUMBERS, min_size=1)
OPERANDS: dict[str, st.SearchStrategy[object]] = {
    "$set": VALUES,
    "$setOnInsert": VALUES,
    "$unset": SCALARS,
    "$inc": NUMBERS,
    "$mul": NUMBERS,
    "$min": VALUES,
    "$max": VALUES,
    "$bit": st.dictionaries(st.sampled_from(["and", "or", "xor"]), st.sampled_from([1, 6, Int64(-1)]), min_size=1),
    "$currentDate": st.sampled_from([True, {"$type": "timestamp"}, {"$type": "x"}]),
    "$rename": st.sampled_from(["a", "b", "a.b", "_id", "c"]),
    "$push": st.one_of(VALUES, PUSHES),
    "$addToSet": st.one_of(VALUES, ARRAYS.map(lambda items: {"$each": items})),
    "$pull": st.one_of(VALUES, RANGES),
    "$pullAll": ARRAYS,
    "$pop": st.sampled_from([1, -1, 2]),
}
PATHS = st.one_of(st.just("a"), st.sampled_from(["b", "a.b", "a.0", "a.1", "a.0.b", "a.5", "_id", "a.$[]", "a.$"]))


@pytest.mark.parametrize("name", OPERANDS)
@settings(max_examples=80, deadline=None)
@given(st.data(), st.one_of(NUMBERS, ARRAYS, VALUES), st.booleans())
def test_an_update_comes_back_through_its_oplog_entry(
    name: str, data: st.DataObject, value: object, is_insert: bool
) -> None:
    doc: Doc = {"_id": 1, "a": value}
    update: Doc = {name: data.draw(st.dictionaries(PATHS, OPERANDS[name], min_size=1, max_size=2))}
    before = encode(doc), encode(update)
    try:
        after = compile_update(update).apply(
            doc,
            now=DateTime(1),
            timestamp=Timestamp(1, 1),
            is_insert=is_insert,
            matcher=compile_filter({"a": {"$ne": "nothing"}}),
        )
    except ReplError:
        return
    finally:
        assert (encode(doc), encode(update)) == before
    assert compare(after["_id"], 1) == 0
    entry = update_entry_object(doc, after)
    assert (entry is None) == (encode(after) == before[0])
    if entry is not None:
        wire = decode(encode(entry))
        once = apply_update_object(doc, wire)
        assert encode(once) == encode(after)
        assert encode(apply_update_object(once, wire)) == encode(after)


NAMES = st.text("0129-a", min_size=1, max_size=5).filter(lambda name: name[0] not in "129" or name.isdigit())


@settings(max_examples=100, deadline=None)
@given(st.lists(NAMES, unique=True))
def test_new_fields_come_in_the_order_of_their_names(names: list[str]) -> None:
    update = compile_update({"$set": dict.fromkeys(names, 1)})
    after = update.apply({"_id": 1}, now=DateTime(1), timestamp=Timestamp(1, 1))
    assert sorted(after) == sorted(["_id", *names])
    for one, following in pairwise(list(after)[1:]):
        if all(name.isdigit() and str(int(name)) == name for name in (one, following)):
            assert int(one) < int(following)
        else:
            assert one < following
