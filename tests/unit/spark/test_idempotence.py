"""What an update's `o` may look like, and documents applied once and twice."""

from __future__ import annotations

import pytest

from replset.bson import Int64, InvalidBSONError, encode, encode_key
from spark.reports.verify.idempotence import (
    RUN_ENTRIES,
    Change,
    DocumentStates,
    MalformedDiffError,
    NotIdempotentError,
    read_update,
)

Doc = dict[str, object]
ONE = encode_key(1)


def diff(**sections: object) -> Doc:
    return {"$v": 2, "diff": sections}


@pytest.mark.parametrize(
    "o",
    [
        diff(d={"a": False}, u={"b": 1}, i={"c": 1}, sx={"u": {"y": 1}}),
        diff(sx={"a": True, "l": 2, "u0": 1, "s1": {"sarr": {"a": True, "u3": None}}}),
        diff(),
        diff(u={"b": 1}, s={"d": {"_id": False}}),
        {"$v": Int64(2), "diff": {"u": {"a": 1}}},
        {"_id": 1, "a": {"$inc": 1}},
        {"a": 1, "_id": 1.0},
        {"_id": 1, "$v": 1, "diff": {}},
    ],
)
def test_a_result_is_well_formed(o: Doc) -> None:
    assert read_update(encode(o), ONE) == (o, "diff" in o and o["$v"] == 2)


@pytest.mark.parametrize(
    ("o", "why"),
    [
        (diff(x={}), "an unknown section 'x' of the difference"),
        (diff(a=True, u0=1), "an unknown section 'a'"),
        (diff(u=1), "the section 'u' of the difference is no document"),
        (diff(sx=1), "of the difference at 'x' is no document"),
        (diff(u={"a": 1}, i={"a": 2}), "the field 'a' of the difference is named twice"),
        (diff(u={"a": 1}, sa={"u": {}}), "the field 'a' of the difference is named twice"),
        (diff(sx={"sy": {"d": [1], "q": 1}}), "the section 'd' of the difference at 'x.y' is no document"),
        (diff(sx={"a": True, "l": -1}), "the length of the difference at 'x' is no length"),
        (diff(sx={"a": True, "l": True}), "is no length"),
        (diff(sx={"a": True, "l": 1 << 30}), "is no length"),
        (diff(sx={"a": True, "u01": 1}), "an unknown section 'u01' of the difference at 'x'"),
        (diff(sx={"a": True, "u99999999": 1}), "an unknown section"),
        (diff(sx={"a": True, "d": {}}), "an unknown section 'd'"),
        (diff(sx={"a": True, "u1": 1, "s1": {}}), "the field '1' of the difference at 'x' is named twice"),
        (diff(sx={"a": 1, "u1": 1}), "an unknown section 'a' of the difference at 'x'"),
        (diff(u={"_id": 2}), "the difference changes _id"),
        (diff(s_id={"u": {"a": 1}}), "the difference changes _id"),
        ({"a": 1}, "the replacement has no _id"),
        ({"_id": 2, "a": 1}, "the replacement has another _id"),
        ({"$v": 1, "a": 1}, "neither a document nor"),
        ({"$set": {"a": 1}}, "neither a document nor"),
        ({"$v": 2, "diff": 5}, "neither a document nor"),
    ],
)
def test_what_is_malformed_is_said(o: Doc, why: str) -> None:
    with pytest.raises(MalformedDiffError) as caught:
        read_update(encode(o), ONE)
    assert why in caught.value.message


@pytest.mark.parametrize("o", [{"$inc": {"n": 1}}, {"$v": 1, "$set": {"a": 1}, "$push": {"b": 1}}])
def test_an_operation_is_no_result(o: Doc) -> None:
    with pytest.raises(NotIdempotentError, match="names an operation"):
        read_update(encode(o), ONE)
    with pytest.raises(InvalidBSONError):
        read_update(encode(o)[:-1], ONE)


class History:
    """Changes of document 1, one after the other."""

    def __init__(self) -> None:
        self.documents = DocumentStates()
        self.faults: list[tuple[int, str]] = []
        self._ts = 0

    def then(self, op: str, o: Doc, *, collection: bytes = b"u") -> History:
        self._ts += 1
        raw = encode(o)
        found = self.documents.apply(Change(self._ts, 1, op, collection, ONE, raw, raw))
        self.faults += [(fault.change.ts, fault.detail) for fault in found]
        return self

    def ended(self) -> list[tuple[int, str]]:
        return self.faults + [(fault.change.ts, fault.detail) for fault in self.documents.end()]


# As if the entry between them that inserts `c` were lost: the order of fields then depends on what was there.
MOVES_B, SETS_C = diff(i={"b": 1}), diff(u={"c": 2})
AGAIN = "the document's entries from 1:0:2 on applied again give another document"


INSERTED, MOVED, SET = ("i", {"_id": 1}), ("u", MOVES_B), ("u", SETS_C)
ARRAY = [("u", diff(u={"a": {}})), ("u", diff(sa=MOVES_B["diff"])), ("u", diff(sa=SETS_C["diff"]))]


@pytest.mark.parametrize(
    ("life", "faults"),
    [
        pytest.param([INSERTED, MOVED, SET], [(3, AGAIN)], id="a difference does not fit its document"),
        pytest.param(
            [INSERTED, MOVED, ("u", diff(u={"x": 1})), ("u", diff(i={"y": 1})), SET],
            [(5, AGAIN.replace("1:0:2", "1:0:4"))],
            id="the fault names the entries that disagree",
        ),
        pytest.param([INSERTED, MOVED, ("i", {"_id": 1, "c": 1}), SET], [], id="an insert ends a run"),
        pytest.param([INSERTED, MOVED, ("d", {"_id": 1}), SET], [], id="a delete ends a run"),
        pytest.param([INSERTED, MOVED, ("u", {"_id": 1, "c": 1}), SET], [], id="a replacement ends a run"),
        pytest.param([MOVED, SET], [], id="the order of fields is not known"),
        pytest.param(ARRAY, [], id="nor that of an inner document"),
    ],
)
def test_a_document_applied_twice(life: list[tuple[str, Doc]], faults: list[tuple[int, str]]) -> None:
    history = History()
    for op, o in life:
        history.then(op, o)
    assert history.ended() == faults


def test_another_collection_is_another_document() -> None:
    life = History().then("i", {"_id": 1}).then("u", MOVES_B).then("u", SETS_C, collection=b"v")
    assert life.ended() == []
    assert (life.documents.applied, life.documents.changed) == (2, 2)


def test_in_doubt_the_order_of_fields_does_not_count_until_the_state_is_known_again() -> None:
    life = History().then("i", {"_id": 1})
    assert life.documents.make_uncertain() == []
    assert life.then("u", MOVES_B).then("u", SETS_C).ended() == []
    life.then("i", {"_id": 1}).then("u", MOVES_B).then("u", SETS_C)
    assert [ts for ts, _ in life.ended()] == [6]


def test_a_deleted_document_is_left_alone_but_not_when_in_doubt() -> None:
    life = History().then("i", {"_id": 1}).then("d", {"_id": 1}).then("u", SETS_C).then("u", {"_id": 1})
    assert (life.ended(), life.documents.applied) == ([], 0)
    life.documents.make_uncertain()
    assert life.then("u", SETS_C).documents.applied == 1


def test_a_malformed_change_leaves_its_document_in_doubt() -> None:
    life = History().then("i", {"_id": 1})
    with pytest.raises(MalformedDiffError):
        life.then("u", diff(x=1))
    with pytest.raises(NotIdempotentError):
        life.then("u", {"$inc": {"a": 1}})
    assert life.then("u", MOVES_B).then("u", SETS_C).ended() == []


def test_a_long_life_is_checked_in_runs() -> None:
    """The last of a run and the first of the next one are not compared; memory stays bounded."""
    life = History().then("i", {"_id": 1})
    for _ in range(RUN_ENTRIES - 1):
        life.then("u", diff(u={"n": 1}))
    life.then("u", MOVES_B).then("u", SETS_C)
    assert life.faults == []
    for _ in range(RUN_ENTRIES - 3):
        life.then("u", diff(u={"n": 1}))
    life.then("u", diff(i={"y": 1}))
    life.then("u", diff(u={"z": 1}))
    assert [ts for ts, _ in life.faults] == [2 * RUN_ENTRIES + 1]
