"""replSetUndo puts documents back as they were before a span, by a policy, and takes its own writes back."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, DateTime, Int64, encode, encode_key
from replset.features.recovery.policy import Policy, RestoreAction
from replset.features.undo import plan, undo
from replset.ids import OpTime
from replset.optime import timestamp
from replset.replication.write_ops import ReplicatedDocument, WriteGroup, do_drop
from replset.storage.txn import write_meta
from tests.rig import Client, Rig, a_set, note_waits
from tests.unit.features.test_event_reader import transaction
from tests.unit.features.test_users import make_secure, user_with

ITEMS = "test.items"
OURS, THEIRS = b"\x01" * 16, b"\x02" * 16


def insert(client: Client, *documents: dict[str, object], coll: str = "items", **more: object) -> None:
    client.ok({"insert": coll, "documents": list(documents), **more})


def update(client: Client, id_: int, change: dict[str, object], **more: object) -> None:
    client.ok({"update": "items", "updates": [{"q": {"_id": id_}, "u": change}], **more})


def delete(client: Client, id_: int) -> None:
    client.ok({"delete": "items", "deletes": [{"q": {"_id": id_}, "limit": 1}]})


def by(session: bytes, number: int) -> dict[str, object]:
    """The fields of a retryable write of a session."""
    return {"lsid": {"id": Binary(session, 4)}, "txnNumber": Int64(number)}


def documents(client: Client, coll: str = "items") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.ok({"find": coll, "sort": {"_id": 1}})["cursor"]["firstBatch"]
    return found


class Past:
    """A span: it begins behind what was written before it was made, and ends at `ends`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.first = self.last = self._next()

    def _next(self) -> str:
        newest = self.client.rig.newest()
        return f"{newest.term}:{newest.seconds}:{newest.increment + 1}"

    def ends(self) -> None:
        self.last = str(self.client.rig.newest())

    def command(self, **more: object) -> dict[str, object]:
        return {"replSetUndo": 1, "from": self.first, "to": self.last, "ns": [ITEMS], "apply": True, **more}

    def undo(self, **more: object) -> dict[str, Any]:
        return self.client.ok(self.command(**more), "admin")


def counts(reply: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {row["ns"]: (row["changed"], row["unchanged"], row["left"]) for row in reply["collections"]}


@pytest.fixture
def past(client: Client) -> Past:
    """A deployment that inserted, changed and deleted."""
    insert(client, {"_id": 1, "a": 1, "b": 1}, {"_id": 2, "a": 2}, {"_id": 3, "a": 3})
    made = Past(client)
    update(client, 1, {"$set": {"a": 9}})
    update(client, 1, {"$set": {"c": 9}})
    delete(client, 2)
    transaction(client, 1, {"insert": "items", "documents": [{"_id": 4}]}, {"insert": "others", "documents": [{}]})
    made.ends()
    return made


BEFORE = [{"_id": 1, "a": 1, "b": 1}, {"_id": 2, "a": 2}, {"_id": 3, "a": 3}]


def test_what_was_written_is_taken_back_and_the_second_time_nothing(past: Past, client: Client) -> None:
    dry = past.undo(apply=False)
    assert (dry["id"], dry["applied"], counts(dry)) == (None, False, {ITEMS: (3, 0, 0)})
    assert documents(client) != BEFORE
    assert counts(past.undo()) == {ITEMS: (3, 0, 0)}
    assert documents(client) == BEFORE
    newest = [entry for entry in client.entries() if entry["ns"] == ITEMS]
    assert counts(past.undo()) == {ITEMS: (0, 3, 0)}
    assert [entry for entry in client.entries() if entry["ns"] == ITEMS] == newest


def test_a_redo_brings_it_back_and_is_undone_itself(past: Past, client: Client) -> None:
    after = documents(client)
    first = past.undo()["id"]
    second = client.ok({"replSetUndo": 1, "redo": first, "apply": True}, "admin")
    assert (counts(second), documents(client)) == ({ITEMS: (3, 0, 0)}, after)
    assert counts(client.ok({"replSetUndo": 1, "redo": first, "apply": True}, "admin")) == {ITEMS: (0, 3, 0)}
    assert counts(client.ok({"replSetUndo": 1, "redo": second["id"], "apply": True}, "admin")) == {ITEMS: (3, 0, 0)}
    assert documents(client) == BEFORE
    assert client.code({"replSetUndo": 1, "redo": "0" * 32}, "admin") == 2
    assert client.code(past.command(redo=first), "admin") == 2


def test_the_record_says_who_took_back_what(past: Past, client: Client) -> None:
    id_ = past.undo(match={"a": {"$gt": 0}}, policy="merge")["id"]
    (record,) = client.ok({"find": "undos"}, "config")["cursor"]["firstBatch"]
    assert (record["_id"], record["ns"], record["policy"]) == (id_, [ITEMS], "merge")
    assert record["match"] == {"a": {"$gt": 0}}
    assert record["begin"]
    assert record["collections"] == [{"ns": ITEMS, "changed": 2, "unchanged": 0, "left": 0}]


@pytest.mark.parametrize(
    ("policy", "left", "expected"),
    [
        ("skip", {1, 2, 4}, [{"_id": 1, "a": 9, "b": 7, "c": 9}, {"_id": 2, "new": 1}, {"_id": 3}, {"_id": 4, "x": 1}]),
        (
            "keep-newer",
            {1, 2, 4},
            [{"_id": 1, "a": 9, "b": 7, "c": 9}, {"_id": 2, "new": 1}, {"_id": 3}, {"_id": 4, "x": 1}],
        ),
        ("overwrite", set(), [*BEFORE[:2], {"_id": 3}]),
        ("merge", {2, 4}, [{"_id": 1, "a": 1, "b": 7}, {"_id": 2, "new": 1}, {"_id": 3}, {"_id": 4, "x": 1}]),
    ],
)
def test_a_later_write_is_treated_by_the_policy(
    past: Past, client: Client, policy: str, left: set[int], expected: list[dict[str, object]]
) -> None:
    update(client, 1, {"$set": {"b": 7}})
    insert(client, {"_id": 2, "new": 1})
    update(client, 4, {"$set": {"x": 1}})
    update(client, 3, {})
    for _ in range(2):
        reply = past.undo(policy=policy)
        assert {row["_id"] for row in reply["left"]} == left
        assert all(row["reason"] for row in reply["left"])
        assert documents(client) == expected


def test_of_a_match_the_version_before_or_behind_counts(past: Past, client: Client) -> None:
    assert counts(past.undo(match={"c": 9}, apply=False)) == {ITEMS: (1, 0, 0)}
    assert counts(past.undo(match={"a": 2})) == {ITEMS: (1, 0, 0)}
    assert [row["_id"] for row in documents(client)] == [1, 2, 3, 4]
    assert client.code(past.command(match={"$no": 1}), "admin") == 2


def test_of_a_session_only_its_own_writes_are_taken_back(client: Client) -> None:
    insert(client, *({"_id": number, "n": 0} for number in (1, 2, 3, 4)))
    past = Past(client)
    update(client, 1, {"$set": {"n": 1}}, **by(OURS, 1))
    update(client, 2, {"$set": {"n": 1}}, **by(THEIRS, 1))
    update(client, 2, {"$set": {"n": 2}}, **by(OURS, 2))
    for number, session in enumerate((OURS, THEIRS, OURS), 3):
        update(client, 3, {"$set": {"n": number}}, **by(session, number))
    update(client, 4, {"$set": {"n": 1}})
    insert(client, {"_id": 5}, **by(OURS, 9))
    past.ends()
    reply = past.undo(session=OURS.hex())
    assert [(row["_id"], row["reason"]) for row in reply["left"]] == [(3, "writes of others lie between the session's")]
    assert [(row["_id"], row["n"]) for row in documents(client)] == [(1, 0), (2, 1), (3, 5), (4, 1)]
    assert counts(past.undo(session=OURS.hex())) == {ITEMS: (0, 3, 1)}
    assert past.undo(session=OURS.hex(), policy="overwrite")["left"] == []
    assert documents(client)[2]["n"] == 0
    assert client.code(past.command(session="0"), "admin") == 2


def test_a_document_that_a_session_wrote_too_often_is_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_WRITES", 2)
    insert(client, {"_id": 1})
    past = Past(client)
    for number in (1, 2, 3):
        update(client, 1, {"$set": {"n": number}}, **by(OURS, number))
    past.ends()
    assert [row["reason"] for row in past.undo(session=OURS.hex())["left"]] == ["it was written more than 2 times"]


def test_a_dropped_collection_is_made_again_with_all_it_had(client: Client) -> None:
    insert(client, *BEFORE)
    client.ok({"createIndexes": "items", "indexes": [{"key": {"a": 1}, "name": "a_1", "unique": True}]})
    client.ok({"collMod": "items", "validationLevel": "off"})
    client.ok({"create": "empty"})
    past = Past(client)
    client.ok({"drop": "items"})
    client.ok({"drop": "empty"})
    insert(client, {"_id": 1, "else": 1}, {"_id": 8}, coll="new")
    past.ends()
    reply = past.undo(ns=["test"])
    assert counts(reply) == {"test.items": (3, 0, 0), "test.empty": (0, 0, 0), "test.new": (2, 0, 0)}
    assert [text.split(",")[0] for text in reply["told"]] == [
        "test.empty was dropped",
        "test.items was dropped",
        "test.new was made",
    ]
    assert (documents(client), documents(client, "new")) == (BEFORE, [])
    rows = client.ok({"listIndexes": "items"})["cursor"]["firstBatch"]
    assert [row["name"] for row in rows] == ["_id_", "a_1"]
    names = [row["name"] for row in client.ok({"listCollections": 1})["cursor"]["firstBatch"]]
    assert "empty" in names
    assert counts(past.undo(ns=["test"])) == {"test.items": (0, 3, 0), "test.empty": (0, 0, 0), "test.new": (0, 2, 0)}
    redone = client.ok({"replSetUndo": 1, "redo": reply["id"], "apply": True}, "admin")
    assert (counts(redone)[ITEMS], documents(client)) == ((3, 0, 0), [])


def test_a_dropped_collection_that_an_older_release_cannot_read_is_not_made_again(client: Client) -> None:
    """The version was lowered behind the drop; a member may run the older release now."""
    client.ok({"create": "items", "collation": {"locale": "sv"}})
    insert(client, *BEFORE)
    past = Past(client)
    client.ok({"drop": "items"})
    past.ends()
    client.ok({"setFeatureCompatibilityVersion": "1.0", "confirm": True}, "admin")
    for apply in (False, True):
        assert client.code(past.command(apply=apply), "admin") == 20
    assert documents(client) == []
    client.ok({"setFeatureCompatibilityVersion": "1.1", "confirm": True}, "admin")
    past.undo()
    assert documents(client) == BEFORE


def test_a_collection_that_was_dropped_and_made_anew_gets_its_documents_back(client: Client) -> None:
    insert(client, *BEFORE)
    past = Past(client)
    client.ok({"drop": "items"})
    insert(client, {"_id": 1, "else": 1}, {"_id": 8})
    past.ends()
    insert(client, {"_id": 2, "later": 1})
    reply = past.undo()
    assert counts(reply) == {ITEMS: (3, 0, 1)}
    assert documents(client) == [BEFORE[0], {"_id": 2, "later": 1}, BEFORE[2]]


@pytest.mark.parametrize(
    ("change", "more", "code", "words"),
    [
        ({"renameCollection": ITEMS, "to": "test.other"}, {}, 20, "was renamed"),
        ({"renameCollection": ITEMS, "to": "test.other"}, {"ns": ["test"]}, 20, "was renamed"),
        ({"drop": "items"}, {"session": OURS.hex()}, 20, "was dropped"),
        (None, {"ns": ["test.none"]}, 26, "no collection"),
        (None, {"ns": ["local"]}, 20, "the member's own"),
        (None, {"ns": ["config.settings"]}, 73, "the member's own"),
        (None, {"ns": [""]}, 73, "Invalid database"),
        (None, {"ns": [1]}, 2, "names"),
        (None, {"ns": []}, 2, "needs from, to and ns"),
        (None, {"from": "1:4000000000:1"}, 2, "before from"),
        (None, {"from": "then"}, 2, "not an optime"),
        (None, {"from": 1}, 2, "an optime, a timestamp or a date"),
        (None, {"policy": "to-collection"}, 2, "none of skip"),
    ],
)
def test_what_cannot_be_undone_is_said_before_anything_is_written(
    past: Past, client: Client, change: dict[str, object] | None, more: dict[str, object], code: int, words: str
) -> None:
    if change is not None:
        client.ok(change, "admin" if "renameCollection" in change else "test")
        past.ends()
    number = len(client.entries())
    reply = client.run(past.command(**more), "admin")
    assert (reply["code"], words in reply["errmsg"]) == (code, True), reply
    assert len(client.entries()) == number


def test_capped_collections_and_views_are_refused(client: Client) -> None:
    client.ok({"create": "capped", "capped": True, "size": 4096})
    past = Past(client)
    insert(client, {"_id": 1}, coll="capped")
    client.ok({"create": "seen", "viewOn": "items", "pipeline": []})
    past.ends()
    for name in ("capped", "seen"):
        assert client.code(past.command(ns=[f"test.{name}"]), "admin") == 20


def test_beyond_the_undo_it_is_refused_with_the_earliest_moment(past: Past, client: Client) -> None:
    store = client.member.store
    through = store.last_applied
    update(client, 1, {"$set": {"a": 10}})
    past.ends()
    with store.maintenance() as txn:
        write_meta(txn.connection, "pruned_through", through.ts)
    store.reload()
    reply = client.run(past.command(), "admin")
    assert reply["code"] == 239
    assert f"from {through.seconds}:{through.increment + 1} on" in reply["errmsg"]
    assert "the earliest" in client.run(past.command(**{"from": str(through)}), "admin")["errmsg"]
    assert counts(past.undo(**{"from": f"1:{through.seconds}:{through.increment + 1}"})) == {ITEMS: (1, 0, 0)}
    assert documents(client)[0]["a"] == 9


def test_a_write_at_the_last_moment_is_not_overwritten(
    past: Past, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client writes the document between the decision and the group."""
    write, late = undo._put_back, encode({"_id": 1, "late": True})

    def written_before(place: Any, rows: Any, id_: Any, group: WriteGroup) -> list[str]:
        ReplicatedDocument(ITEMS, encode_key(1)).put(group, late)
        return write(place, rows, id_, group)

    monkeypatch.setattr(undo, "_put_back", written_before)
    reply = past.undo(policy="overwrite")
    assert [(row["_id"], row["reason"]) for row in reply["left"]] == [
        (1, "it was written meanwhile: run the undo again")
    ]
    assert documents(client) == [{"_id": 1, "late": True}, *BEFORE[1:]]


def test_a_collection_that_is_dropped_at_the_last_moment_is_not_made_again(
    past: Past, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = undo._put_back

    def dropped_before(place: Any, rows: Any, id_: Any, group: WriteGroup) -> list[str]:
        do_drop(group, group.txn.catalog.by_ns[ITEMS])
        return write(place, rows, id_, group)

    monkeypatch.setattr(undo, "_put_back", dropped_before)
    assert counts(past.undo()) == {ITEMS: (0, 0, 3)}
    assert client.member.store.collection(ITEMS) is None


def test_all_members_have_what_was_taken_back() -> None:
    with a_set(3) as rig:
        client = rig.client()
        insert(client, *BEFORE)
        past = Past(client)
        client.ok({"drop": "items"})
        insert(client, {"_id": 1, "else": 1}, coll="others")
        past.ends()
        past.undo(ns=["test"])
        rig.until(rig.cluster.converged)
        hashes = [rig.client(name).ok({"dbHash": 1, "$readPreference": {"mode": "nearest"}})["md5"] for name in "abc"]
        assert (documents(client), len(set(hashes))) == (BEFORE, 1)


def test_each_slice_waits_for_a_majority(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SLICE_DOCUMENTS", 1)
    waits = note_waits(monkeypatch)
    assert counts(past.undo()) == {ITEMS: (3, 0, 0)}
    assert [concern.w for _, concern in waits] == ["majority"] * 5


def test_a_run_that_breaks_off_is_run_again_and_each_is_redone(
    past: Past, client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = documents(client)
    monkeypatch.setattr(plan, "SLICE_DOCUMENTS", 1)
    rig.step_down_after(3)  # the record, and two of three documents
    assert client.code(past.command(), "admin") in (189, 10107)
    rig.lead()
    assert counts(past.undo()) == {ITEMS: (1, 2, 0)}
    assert documents(client) == BEFORE
    broken, whole = client.ok({"find": "undos", "sort": {"begin": 1}}, "config")["cursor"]["firstBatch"]
    assert ("collections" in broken, "collections" in whole) == (False, True)
    redone = [client.ok({"replSetUndo": 1, "redo": one["_id"], "apply": True}, "admin") for one in (whole, broken)]
    assert ([counts(one)[ITEMS] for one in redone], documents(client)) == ([(1, 0, 0), (2, 0, 0)], after)


def test_it_waits_for_a_document_that_a_transaction_holds(past: Past, client: Client) -> None:
    session = {"lsid": {"id": client.ok({"startSession": 1})["id"]["id"]}, "txnNumber": Int64(1), "autocommit": False}
    update(client, 3, {"$set": {"a": 5}}, **session, startTransaction=True)
    past.ends()
    client.ok({"commitTransaction": 1, **session}, "admin")
    past.ends()
    session |= {"txnNumber": Int64(2)}
    update(client, 3, {"$set": {"late": 5}}, **session, startTransaction=True)
    task = client.begin(past.command(policy="overwrite"), "admin")
    client.rig.wait(1)
    assert not task.done()
    client.ok({"commitTransaction": 1, **session}, "admin")
    reply = client.decoded(task)
    assert [row["_id"] for row in reply["left"]] == [3]
    assert documents(client) == [*BEFORE[:2], {"_id": 3, "a": 5, "late": 5}]


def test_the_undo_that_it_needs_is_kept_while_it_runs(past: Past, client: Client, rig: Rig) -> None:
    store = client.member.store
    rig.stop_disk()
    task = client.begin(past.command(), "admin")
    rig.turn(200)
    assert store.oldest_pin is not None
    assert str(OpTime(1, store.oldest_pin.ts + 1)).partition(":")[2] == past.first.partition(":")[2]
    rig.start_disk()
    client.decoded(task)
    assert store.oldest_pin is None


def test_a_collection_that_was_made_anew_since_is_compared_by_its_name(past: Past, client: Client) -> None:
    client.ok({"drop": "items"})
    insert(client, {"_id": 1, "a": 9, "b": 1, "c": 9}, {"_id": 2, "a": 2})
    assert counts(past.undo()) == {ITEMS: (1, 2, 0)}  # 4 is gone, as before the span
    assert documents(client) == BEFORE[:2]


def test_what_came_and_went_within_the_span_is_none_of_it(client: Client) -> None:
    insert(client, {"_id": 1})
    past = Past(client)
    insert(client, {"_id": 2})
    delete(client, 2)
    past.ends()
    insert(client, {"_id": 2, "later": True})
    assert counts(past.undo(policy="overwrite")) == {ITEMS: (0, 0, 0)}
    assert documents(client) == [{"_id": 1}, {"_id": 2, "later": True}]


def test_a_span_ends_with_the_newest_entry(past: Past, client: Client, rig: Rig) -> None:
    newest = rig.newest()
    reply = past.undo(to=DateTime(4_000_000_000_000), apply=False)
    assert (reply["to"], counts(reply)) == (timestamp(newest.ts), {ITEMS: (3, 0, 0)})
    assert past.undo(**{"from": DateTime(3_000_000_000_000), "to": DateTime(4_000_000_000_000)})["collections"] == []


def test_users_are_not_undone(past: Past, client: Client) -> None:
    client.ok({"createUser": "u", "pwd": "secret", "roles": []}, "admin")
    past.ends()
    assert past.undo(ns=["admin"])["collections"] == []
    assert client.code(past.command(ns=["admin.system.users"]), "admin") == 13


def test_a_merge_that_makes_a_document_too_large_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    row = plan.Row(b"", *(encode({"_id": 1, **fields}) for fields in ({"a": 1}, {"a": 2}, {"a": 2, "b": "b"})))
    span = plan.Span(0, 1, (), "", None, Policy.MERGE)
    assert [found.action for _, found in plan.judge([row], span)] == [RestoreAction.WRITE]
    monkeypatch.setattr(plan, "MAX_BSON_SIZE", 20)
    assert [found.action for _, found in plan.judge([row], span)] == [RestoreAction.LEAVE]


def test_a_write_that_fails_leaves_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(client, {"_id": 1, "pad": "x" * 2_000}, {"_id": 2})
    past = Past(client)
    for id_ in (1, 2):
        update(client, id_, {"$set": {"pad": ""}})
    past.ends()
    monkeypatch.setattr("replset.storage.txn.MAX_ENTRY_SIZE", 1_000)
    assert ["is too large" in row["reason"] for row in past.undo()["left"]] == [True]
    assert documents(client) == [{"_id": 1, "pad": ""}, {"_id": 2}]


def test_what_a_unique_index_refuses_is_left(client: Client) -> None:
    insert(client, {"_id": 1, "u": 1}, {"_id": 2, "u": 2})
    for fields in ({"key": {"a": 1}, "name": "a_1"}, {"key": {"u": 1}, "name": "u_1", "unique": True}):
        client.ok({"createIndexes": "items", "indexes": [fields]})
    past = Past(client)
    update(client, 1, {"$set": {"u": 9, "a": 5}})
    update(client, 2, {"$set": {"u": 8}})
    past.ends()
    insert(client, {"_id": 3, "u": 1})
    reply = past.undo()
    assert (counts(reply), [row["_id"] for row in reply["left"]]) == ({ITEMS: (1, 0, 1)}, [1])
    assert "E11000" in reply["left"][0]["reason"]
    assert [row["u"] for row in documents(client)] == [9, 2, 1]
    found = client.ok({"find": "items", "filter": {"a": 5}, "hint": "a_1"})["cursor"]["firstBatch"]
    assert [row["_id"] for row in found] == [1], "what was begun is taken back"


def test_who_may_restore_may_undo(past: Past, client: Client) -> None:
    root = make_secure(client)
    assert user_with(root, "readWrite").code(past.command(), "admin") == 13
    allowed = user_with(root, "restore", db="admin", name="r")
    assert allowed.ok(past.command(), "admin")["applied"]
    (record,) = root.ok({"find": "undos"}, "config")["cursor"]["firstBatch"]
    assert record["by"] == "r@admin"


def test_a_secondary_refuses(past: Past, client: Client, rig: Rig) -> None:
    rig.step_down()
    assert client.code(past.command(), "admin") == 10107
