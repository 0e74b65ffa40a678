"""What a policy makes of a lost write: every standing, every policy; fields, merges and operators."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64, decode, encode
from replset.features.recovery.lost_writes import LostKind
from replset.features.recovery.policy import (
    MISSING,
    ConflictStatus,
    Policy,
    RestoreAction,
    Side,
    Versions,
    conflict_status,
    decide,
    field_rows,
    merge,
    operators,
    side_of,
)
from replset.ids import OpTime, pack_ts
from replset.query.order import identical

Doc = dict[str, Any]
LOST_LAST = OpTime(1, pack_ts(11, 1))
OLDER, NEWER = OpTime(1, pack_ts(10, 9)), OpTime(2, pack_ts(10, 9))
A, B, C = {"_id": 1, "a": 1}, {"_id": 1, "a": 2}, {"_id": 1, "a": 3}
SIDE = {"_id": 1, "a": 1, "b": 1}


def raw(document: Doc | None) -> bytes | None:
    return None if document is None else encode(document)


def versions(
    before: Doc | None,
    lost: Doc | None,
    live: Doc | None,
    *,
    written_since: bool | None = None,
    live_last: OpTime | None = None,
) -> Versions:
    """As the files tell them: what was there before a lost delete is not on record."""
    kind = LostKind.DELETE if lost is None else LostKind.INSERT if before is None else LostKind.UPDATE
    known = kind is not LostKind.DELETE
    return Versions(
        kind, raw(before) if known else None, known, raw(lost), raw(live), LOST_LAST, written_since, live_last
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(versions(None, A, None), ConflictStatus.CLEAN, id="insert-nothing-there"),
        pytest.param(versions(None, A, A), ConflictStatus.THERE, id="insert-there"),
        pytest.param(versions(None, A, B), ConflictStatus.CONFLICT, id="insert-another-document"),
        pytest.param(versions(A, B, A), ConflictStatus.CLEAN, id="update-unchanged"),
        pytest.param(versions(A, B, B), ConflictStatus.THERE, id="update-there"),
        pytest.param(versions(A, B, C), ConflictStatus.CONFLICT, id="update-changed"),
        pytest.param(versions(A, B, None), ConflictStatus.CONFLICT, id="update-deleted"),
        pytest.param(versions(A, B, {**SIDE, "a": 2}), ConflictStatus.THERE, id="update-there-and-more"),
        pytest.param(versions(A, B, {"a": 2, "_id": 1}), ConflictStatus.THERE, id="update-there-in-another-order"),
        pytest.param(versions(A, {"_id": 1}, {"_id": 1, "b": 1}), ConflictStatus.THERE, id="field-gone-there-too"),
        pytest.param(versions(None, A, {**A, "b": 1}), ConflictStatus.CONFLICT, id="insert-and-more"),
        pytest.param(versions(A, {**A, "a": Int64(1)}, {**A, "a": 1.0}), ConflictStatus.CONFLICT, id="number-types"),
        pytest.param(versions(A, None, None), ConflictStatus.THERE, id="delete-there"),
        pytest.param(versions(A, None, A, written_since=False), ConflictStatus.CLEAN, id="delete-untouched"),
        pytest.param(versions(A, None, A, written_since=True), ConflictStatus.CONFLICT, id="delete-touched"),
        pytest.param(versions(A, None, A), ConflictStatus.CONFLICT, id="delete-not-known"),
    ],
)
def test_conflict_status(found: Versions, expected: ConflictStatus) -> None:
    assert conflict_status(found) is expected


@pytest.mark.parametrize(
    ("policy", "found", "action", "words"),
    [
        (Policy.SKIP, versions(A, B, C), RestoreAction.LEAVE, "the set changed the document"),
        (Policy.SKIP, versions(A, B, None), RestoreAction.LEAVE, "the set deleted the document"),
        (Policy.SKIP, versions(None, B, C), RestoreAction.LEAVE, "the set has another document with this _id"),
        (Policy.SKIP, versions(A, None, A), RestoreAction.LEAVE, "whether the set changed the document is not known"),
        (Policy.OVERWRITE, versions(A, B, C), RestoreAction.WRITE, "the set changed the document; overwritten"),
        (Policy.OVERWRITE, versions(A, None, C, written_since=True), RestoreAction.WRITE, "overwritten"),
        (Policy.OVERWRITE, versions(A, B, None), RestoreAction.WRITE, "the set deleted the document; overwritten"),
        (Policy.KEEP_NEWER, versions(A, B, C, live_last=NEWER), RestoreAction.LEAVE, f"{NEWER} there is newer"),
        (Policy.KEEP_NEWER, versions(A, B, C, live_last=OLDER), RestoreAction.WRITE, f"is newer than {OLDER} there"),
        (
            Policy.KEEP_NEWER,
            versions(A, B, C),
            RestoreAction.LEAVE,
            "its last entry is not in the set's oplog any more",
        ),
        (Policy.MERGE, versions(A, B, C), RestoreAction.LEAVE, "both sides changed a"),
        (Policy.MERGE, versions(A, B, None), RestoreAction.LEAVE, "no three versions"),
        (Policy.MERGE, versions(None, B, C), RestoreAction.LEAVE, "no three versions"),
        (Policy.MERGE, versions(A, None, C, written_since=True), RestoreAction.LEAVE, "no three versions"),
        (Policy.MERGE, versions(A, B, SIDE), RestoreAction.WRITE, "the fields merge"),
    ],
)
def test_in_a_conflict_the_policy_decides(policy: Policy, found: Versions, action: RestoreAction, words: str) -> None:
    decision = decide(policy, found)
    assert (decision.action, decision.status) == (action, ConflictStatus.CONFLICT)
    assert words in decision.reason


def test_conflicting_fields_are_named() -> None:
    found = versions(
        {"_id": 1, "a": {"x": 1, "y": 1}, "b": 1},
        {"_id": 1, "a": {"x": 2, "y": 1}, "b": 2},
        {"_id": 1, "a": {"x": 3, "y": 5}, "b": 3},
    )
    assert decide(Policy.SKIP, found).conflicts == ("a.x", "b")


@pytest.mark.parametrize(
    ("found", "action", "words"),
    [
        (versions(A, B, None), RestoreAction.WRITE, "copied"),
        (versions(A, B, B), RestoreAction.NOTHING, "copied before"),
        (versions(A, B, C), RestoreAction.LEAVE, "another document"),
        (versions(A, None, None), RestoreAction.LEAVE, "a delete has no document"),
    ],
)
def test_copying_to_a_collection(found: Versions, action: RestoreAction, words: str) -> None:
    decision = decide(Policy.TO_COLLECTION, found)
    assert decision.action is action
    assert words in decision.reason


@pytest.mark.parametrize(
    ("before", "lost", "live", "side"),
    [
        (1, 1, 1, None),
        (1, 2, 1, Side.LOST),
        (1, 1, 2, Side.LIVE),
        (1, 2, 2, Side.SAME),
        (1, 2, 3, Side.BOTH),
        (MISSING, 2, MISSING, Side.LOST),
        (1, MISSING, 1, Side.LOST),
        (1, MISSING, MISSING, Side.SAME),
        (1, MISSING, 2, Side.BOTH),
        (1, 1.0, 1, Side.LOST),
    ],
)
def test_who_changed_a_field(before: object, lost: object, live: object, side: Side | None) -> None:
    assert side_of(before, lost, live) is side


def test_field_rows_go_into_documents_and_take_arrays_whole() -> None:
    rows = field_rows(
        versions(
            {"_id": 1, "deep": {"x": 1, "y": 1}, "list": [1, 2]},
            {"_id": 1, "deep": {"x": 2, "y": 1}, "list": [1, 3]},
            {"_id": 1, "deep": {"x": 1, "y": 1}, "list": [1, 2], "new": True},
        )
    )
    assert [(row.path, row.side) for row in rows] == [
        (("deep", "x"), Side.LOST),
        (("list",), Side.LOST),
        (("new",), Side.LIVE),
    ]
    assert field_rows(versions(None, A, None)) == []


@pytest.mark.parametrize(
    ("before", "lost", "live", "expected"),
    [
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"b": 5, "a": 1}, {"b": 5, "a": 2}),
        ({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}),
        ({"a": 1}, {"a": 1, "z": 1, "y": 1}, {"a": 1, "n": 0}, {"a": 1, "n": 0, "z": 1, "y": 1}),
        ({"a": 1}, {"a": 1}, {}, {}),
        ({"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"x": 1, "y": 3}}, {"a": {"x": 2, "y": 3}}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}),
    ],
)
def test_merging(before: Doc, lost: Doc, live: Doc, expected: Doc) -> None:
    found = merge(before, lost, live)
    assert identical(found, expected), found


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (A, B, {"$set": {"a": 2}}),
        (A, {"_id": 1}, {"$unset": {"a": ""}}),
        ({"_id": 1, "d": {"x": 1, "y": 1}}, {"_id": 1, "d": {"y": 2}}, {"$set": {"d.y": 2}, "$unset": {"d.x": ""}}),
        ({"_id": 1, "d": {"x": 1}}, {"_id": 1, "d": {}}, {"$set": {"d": {}}}),
        ({"_id": 1}, {"_id": 1, "a.b": 1}, None),
        ({"_id": 1, "d": {"$x": 1}}, {"_id": 1, "d": {"$x": 2}}, None),
        ({"_id": 1}, {"_id": 1, "": 1}, None),
    ],
)
def test_a_change_as_operators(before: Doc, after: Doc, expected: Doc | None) -> None:
    assert operators(encode(before), encode(after)) == expected


def test_a_merge_that_is_put_back_is_there_the_next_time() -> None:
    first = decide(Policy.MERGE, versions(A, B, SIDE))
    assert first.target is not None
    for policy in (Policy.MERGE, Policy.OVERWRITE, Policy.SKIP):
        again = decide(policy, versions(A, B, decode(first.target)))
        assert (again.action, again.reason) == (RestoreAction.NOTHING, "every lost change is in it")
