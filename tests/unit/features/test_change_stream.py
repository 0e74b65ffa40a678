"""Change streams: what a cursor gives, where it goes on, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from replset.bson import MAX_BSON_SIZE, Int64, Timestamp, decode, encode
from replset.errors import ReplError
from replset.features.change_streams import change_stream
from replset.features.change_streams.event_reader import EventOptions, EventReader
from replset.ids import OpTime, pack_ts
from replset.member.member import RunningMember
from replset.operations import cursors, replies
from replset.operations.admission import MAX_BYTES_IN_USE
from replset.query.change_events import Watched
from replset.query.change_tokens import Kind, Token, behind
from replset.query.stages.changes import split_event
from replset.storage.txn import write_meta
from tests.rig import Client, Rig

LARGE, MOST = 9 << 10, 16 << 10


class Stream:
    """A change stream as a driver uses it."""

    def __init__(
        self, client: Client, target: str | int = "items", *stages: dict[str, Any], db: str = "test", **options: Any
    ) -> None:
        self.client, self.db = client, db
        reply = client.ok({"aggregate": target, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}, db)
        self.cursor = reply["cursor"]
        self.first = self.cursor["firstBatch"]
        self.token = self.cursor["postBatchResumeToken"]

    def more(self, **options: Any) -> list[dict[str, Any]]:
        self.cursor = self.client.ok(self._get_more(**options), self.db)["cursor"]
        self.token = self.cursor["postBatchResumeToken"]
        batch: list[dict[str, Any]] = self.cursor["nextBatch"]
        return batch

    def several(self, number: int) -> list[dict[str, Any]]:
        """So many events: a batch holds 16 MB, and what came within a few milliseconds."""
        events = list(self.first)
        while len(events) < number:
            events += self.more()
        return events

    def fails(self) -> dict[str, Any]:
        reply = self.client.run(self._get_more(), self.db)
        assert reply["ok"] == 0
        return reply

    def _get_more(self, **options: Any) -> dict[str, Any]:
        collection = self.cursor["ns"].partition(".")[2]
        return {"getMore": Int64(self.cursor["id"]), "collection": collection, "maxTimeMS": 1, **options}


def refusal(
    client: Client, target: str | int = "items", *stages: dict[str, Any], db: str = "test", **options: Any
) -> int:
    return client.code({"aggregate": target, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}, db)


@pytest.fixture
def items(client: Client) -> Client:
    client.ok({"insert": "items", "documents": [{"_id": 0, "a": 1}]})
    return client


def insert(client: Client, *ids: int, collection: str = "items", db: str = "test") -> None:
    client.ok({"insert": collection, "documents": [{"_id": number} for number in ids]}, db)


def update(client: Client, change: object, number: int = 0) -> None:
    client.ok({"update": "items", "updates": [{"q": {"_id": number}, "u": change}]})


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["operationType"] for event in events]


def test_a_stream_gives_what_happens_after_it_was_opened(items: Client) -> None:
    stream = Stream(items)
    assert stream.first == []
    insert(items, 1)
    update(items, {"$set": {"a": 2}})
    update(items, {"a": 3})
    items.ok({"delete": "items", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    insert(items, 5, collection="others")
    events = stream.more()
    assert kinds(events) == ["insert", "update", "replace", "delete"]
    assert events[1]["updateDescription"] == {"updatedFields": {"a": 2}, "removedFields": [], "truncatedArrays": []}
    assert events[2]["fullDocument"] == {"_id": 0, "a": 3}
    assert stream.more() == []


def test_only_committed_events_are_given(items: Client, rig: Rig) -> None:
    stream = Stream(items)
    rig.stop_disk()
    items.ok({"insert": "items", "documents": [{"_id": 1}], "writeConcern": {"w": 1}})
    assert items.ok(stream._get_more())["cursor"]["nextBatch"] == []
    rig.start_disk()
    assert kinds(stream.more()) == ["insert"]


def test_every_batch_says_where_the_stream_is(items: Client) -> None:
    stream = Stream(items)
    before = stream.token["_data"]
    insert(items, 1, collection="others")
    stream.more()
    behind_others = stream.token["_data"]
    assert behind_others > before, "the stream passes what does not concern it"
    insert(items, 1, 2, 3)
    first = stream.more(batchSize=2)
    assert stream.token == first[-1]["_id"]
    assert [event["_id"]["_data"] for event in first] == sorted(event["_id"]["_data"] for event in first)
    (third,) = stream.more()
    assert third["documentKey"] == {"_id": 3}
    assert stream.token["_data"] >= third["_id"]["_data"]


def test_an_event_does_not_wait_for_those_behind_it(items: Client, member: RunningMember) -> None:
    stream = Stream(items)
    cursor = items.dispatcher.cursors.take(stream.cursor["id"], "test.items")
    insert(items, 1)

    async def pause() -> None:
        raise AssertionError("the event waits while others work, for what they may commit")

    (event,) = items.rig.do(cursor.batch(pause, None, 1_000))
    assert decode(event)["documentKey"] == {"_id": 1}


def test_a_batch_ends_before_it_is_too_large(items: Client) -> None:
    stream = Stream(items)
    cursor = items.dispatcher.cursors.take(stream.cursor["id"], "test.items")
    insert(items, 1, 2, 3)

    async def pause() -> None:
        pass

    (event,) = items.rig.do(cursor.batch(pause, 1, 0))
    cursor.batch_bytes = 2 * (len(event) + 16) - 1
    assert [decode(raw)["documentKey"]["_id"] for raw in items.rig.do(cursor.batch(pause, None, 0))] == [2]


def test_an_event_that_comes_during_the_wait_is_in_its_answer(items: Client) -> None:
    stream = Stream(items)
    waiting = items.begin(stream._get_more(maxTimeMS=60_000))
    items.rig.wait(1)
    assert not waiting.done()
    insert(items, 1)
    assert kinds(items.decoded(waiting)["cursor"]["nextBatch"]) == ["insert"]


def test_a_batch_of_none_gives_the_place_alone(items: Client) -> None:
    insert(items, 1)
    pipeline = [{"$changeStream": {}}]
    cursor = items.ok({"aggregate": "items", "pipeline": pipeline, "cursor": {"batchSize": 0}})["cursor"]
    assert cursor["firstBatch"] == []
    assert cursor["postBatchResumeToken"]


@pytest.mark.parametrize("how", ["resumeAfter", "startAfter"])
def test_a_stream_goes_on_behind_any_token_without_gap_or_repeat(items: Client, how: str) -> None:
    stream = Stream(items)
    start = stream.token
    insert(items, 1, 2)
    insert(items, 9, collection="others")
    insert(items, 3)
    whole = stream.more()
    assert [event["documentKey"]["_id"] for event in whole] == [1, 2, 3]
    assert Stream(items, **{how: start}).first == whole
    for number, event in enumerate(whole):
        assert Stream(items, **{how: event["_id"]}).first == whole[number + 1 :]
    assert Stream(items, **{how: stream.token}).first == []


def test_a_stream_begins_at_a_time_inclusively(items: Client, member: RunningMember) -> None:
    insert(items, 1)
    at = member.store.last_applied
    insert(items, 2)
    stream = Stream(items, startAtOperationTime=Timestamp(at.seconds, at.increment))
    assert [event["documentKey"]["_id"] for event in stream.first] == [1, 2]
    later = Timestamp(at.seconds + 100, 0)
    stream = Stream(items, startAtOperationTime=later)
    insert(items, 3)
    assert stream.more() == []
    assert stream.token["_data"] >= "82" + f"{later.time:08X}"


def test_a_database_and_the_deployment_are_followed(items: Client) -> None:
    database, deployment = Stream(items, 1), Stream(items, 1, db="admin", allChangesForCluster=True)
    insert(items, 1)
    insert(items, 1, collection="others")
    insert(items, 1, db="second")
    items.ok({"createUser": "u", "pwd": "p", "roles": []}, "admin")
    assert [event["ns"]["coll"] for event in database.more()] == ["items", "others"]
    assert [event["ns"]["db"] for event in deployment.more()] == ["test", "test", "second"]


def test_a_dropped_collection_ends_its_stream(items: Client) -> None:
    stream, database = Stream(items), Stream(items, 1)
    insert(items, 1)
    items.ok({"drop": "items"})
    insert(items, 2)
    events = stream.more()
    assert kinds(events) == ["insert", "drop", "invalidate"]
    assert stream.cursor["id"] == 0
    assert kinds(database.more()) == ["insert", "drop", "insert"]
    assert refusal(items, resumeAfter=events[-1]["_id"]) == 260
    after = Stream(items, startAfter=events[-1]["_id"])
    assert [event["documentKey"]["_id"] for event in after.first] == [2]
    again = Stream(items, resumeAfter=events[1]["_id"])
    assert kinds(again.first) == ["invalidate"]


def test_a_renamed_collection_ends_its_stream(items: Client) -> None:
    stream, target = Stream(items), Stream(items, "new")
    items.ok({"renameCollection": "test.items", "to": "test.new"}, "admin")
    events = stream.more()
    assert kinds(events) == kinds(target.more()) == ["rename", "invalidate"]
    assert events[0]["to"] == {"db": "test", "coll": "new"}


def test_a_dropped_database_ends_its_stream(items: Client) -> None:
    database, deployment = Stream(items, 1), Stream(items, 1, db="admin", allChangesForCluster=True)
    items.ok({"dropDatabase": 1})
    assert kinds(database.more()) == ["drop", "dropDatabase", "invalidate"]
    assert kinds(deployment.more()) == ["drop", "dropDatabase"]


def test_expanded_events_tell_of_collections_and_indexes(items: Client) -> None:
    client = items
    stream = Stream(client, "new", showExpandedEvents=True)
    insert(client, 1, collection="new")
    client.ok({"createIndexes": "new", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    client.ok({"collMod": "new", "validator": {"a": {"$ne": 5}}})
    client.ok({"dropIndexes": "new", "index": "a_1"})
    events = stream.more()
    assert kinds(events) == ["create", "insert", "createIndexes", "modify", "dropIndexes"]
    assert all("collectionUUID" in event for event in events)
    assert events[2]["operationDescription"]["indexes"][0]["name"] == "a_1"


def test_a_transaction_is_told_in_its_order(items: Client) -> None:
    stream = Stream(items)
    session = {"lsid": {"id": items.ok({"startSession": 1})["id"]["id"]}, "txnNumber": Int64(1), "autocommit": False}
    for number in (1, 2):
        more = {"startTransaction": True} if number == 1 else {}
        items.ok({"insert": "items", "documents": [{"_id": number}], **session, **more})
    items.ok({"commitTransaction": 1, **session}, "admin")
    one, two = stream.more()
    assert (one["documentKey"]["_id"], two["documentKey"]["_id"]) == (1, 2)
    assert one["clusterTime"] == two["clusterTime"]
    assert one["txnNumber"] == 1
    assert one["lsid"]
    assert Stream(items, resumeAfter=one["_id"]).first == [two]


# --- images -----------------------------------------------------------------------------------------------------


def test_update_lookup_gives_the_document_as_it_is_now(items: Client) -> None:
    stream = Stream(items, fullDocument="updateLookup")
    update(items, {"$set": {"a": 2}})
    update(items, {"$set": {"a": 3}})
    assert [event["fullDocument"]["a"] for event in stream.more()] == [3, 3]
    update(items, {"$set": {"a": 4}})
    items.ok({"delete": "items", "deletes": [{"q": {"_id": 0}, "limit": 1}]})
    assert stream.more()[0]["fullDocument"] is None


def test_images_of_the_moment_come_from_the_undo(items: Client) -> None:
    stream = Stream(items, fullDocument="required", fullDocumentBeforeChange="required")
    for number in (2, 3):
        update(items, {"$set": {"a": number}})
    update(items, {"a": 4})
    items.ok({"delete": "items", "deletes": [{"q": {"_id": 0}, "limit": 1}]})
    insert(items, 7)
    events = stream.more()
    assert [event["fullDocumentBeforeChange"]["a"] for event in events[:4]] == [1, 2, 3, 4]
    assert [event["fullDocument"]["a"] for event in events[:3]] == [2, 3, 4]
    assert "fullDocument" not in events[3]
    assert "fullDocumentBeforeChange" not in events[4]


def test_images_within_one_transaction(items: Client) -> None:
    stream = Stream(items, fullDocument="whenAvailable", fullDocumentBeforeChange="whenAvailable")
    session = {"lsid": {"id": items.ok({"startSession": 1})["id"]["id"]}, "txnNumber": Int64(1), "autocommit": False}
    for number in (2, 3):
        more = {"startTransaction": True} if number == 2 else {}
        items.ok({"update": "items", "updates": [{"q": {"_id": 0}, "u": {"$set": {"a": number}}}], **session, **more})
    items.ok({"commitTransaction": 1, **session}, "admin")
    events = stream.more()
    assert [event["fullDocumentBeforeChange"]["a"] for event in events] == [1, 2]
    assert [event["fullDocument"]["a"] for event in events] == [2, 3]


@pytest.mark.parametrize("kept_bytes", [0, 700, 1 << 20])
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("stages", [(), ({"$match": {"operationType": {"$ne": "delete"}}},)])
def test_what_is_kept_between_two_batches_is_counted_and_limited(
    items: Client, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, has_room: bool, stages: tuple[dict[str, Any], ...]
) -> None:
    """What is not kept is read again: no event is left out or comes twice, to the end of the collection."""
    monkeypatch.setattr(change_stream, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(items.dispatcher.cursors, "has_room", lambda _cursor, size: has_room or not size)
    stream = Stream(items, "items", *stages)
    insert(items, *range(1, 12))
    items.ok({"drop": "items"})
    (cursor,) = items.dispatcher.cursors._open.values()
    assert isinstance(cursor, change_stream.ChangeStreamCursor)
    found: list[dict[str, Any]] = []
    sizes: list[int] = []
    while stream.cursor["id"]:
        assert cursor.memory_bytes == cursor._reader.kept_bytes + sum(len(raw) for _, raw in cursor._waiting)
        (event,) = stream.more(batchSize=1)
        assert stream.token == event["_id"]
        found.append(event)
        sizes.append(cursor.memory_bytes)
    assert kinds(found) == ["insert"] * 11 + ["drop", "invalidate"]
    assert [event["documentKey"]["_id"] for event in found[:11]] == list(range(1, 12))
    if not has_room or not kept_bytes:
        assert max(sizes) == 0
    else:
        assert 0 < max(sizes) <= kept_bytes


def test_images_are_kept_a_few_at_a_time(items: Client, member: RunningMember) -> None:
    text, page_bytes = "x" * (3 << 10), 4 << 10
    items.ok({"insert": "items", "documents": [{"_id": 9, "text": text}]})
    options = EventOptions(Watched("test", "items"), full_document="updateLookup", before_change="whenAvailable")
    at, reader = behind(member.store.last_applied), EventReader(member, options)
    found: list[int] = []
    for number in range(6):
        update(items, {"$set": {"n": number}}, 9)
    while told := (page := items.rig.do(reader.read(at, max_bytes=page_bytes)))[0]:
        at = page[1]
        assert sum(len(event.raw) for event in told) < 3 * page_bytes
        found += [decode(event.raw)["updateDescription"]["updatedFields"]["n"] for event in told]
    assert found == list(range(6))


def test_stages_fill_no_more_than_a_batch(items: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 16 << 10
    items.dispatcher.member.admission.add(MAX_BYTES_IN_USE)  # type: ignore[attr-defined]
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", most)
    stage = {"$addFields": {"text": {"$literal": "x" * (most // 16)}}}
    stream = Stream(items, "items", stage)
    insert(items, *range(100, 164))
    found: list[int] = []
    while len(found) < 64:
        found += [event["documentKey"]["_id"] for event in stream.more()]
        (cursor,) = items.dispatcher.cursors._open.values()
        assert isinstance(cursor, change_stream.ChangeStreamCursor)
        assert sum(len(raw) for _, raw in cursor._waiting) < 2 * most
    assert found == list(range(100, 164))


@pytest.mark.parametrize(
    ("option", "image"), [("fullDocument", "post-image"), ("fullDocumentBeforeChange", "pre-image")]
)
def test_images_that_are_gone(items: Client, member: RunningMember, option: str, image: str) -> None:
    available, required = (Stream(items, **{option: how}) for how in ("whenAvailable", "required"))
    update(items, {"$set": {"a": 2}})
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM undo")
        write_meta(txn.connection, "pruned_through", member.store.last_applied.ts)
    (event,) = available.more()
    assert event[option] is None
    refused = required.fails()
    assert (refused["code"], image in refused["errmsg"]) == (47, True)


# --- stages -----------------------------------------------------------------------------------------------------


def test_stages_look_at_each_event(items: Client) -> None:
    stages = [{"$match": {"operationType": "insert"}}, {"$addFields": {"twice": {"$add": ["$documentKey._id", 1]}}}]
    stream = Stream(items, "items", *stages, {"$project": {"twice": 1}})
    insert(items, 1)
    update(items, {"$set": {"a": 2}})
    insert(items, 2)
    assert [event["twice"] for event in stream.more()] == [2, 3]
    update(items, {"$set": {"a": 3}})
    before = stream.token["_data"]
    assert stream.more() == []
    assert stream.token["_data"] > before


@pytest.mark.parametrize("stage", [{"$project": {"_id": 0}}, {"$set": {"_id": 1}}, {"$replaceWith": {"a": 1}}])
def test_a_stage_may_not_touch_the_token(items: Client, stage: dict[str, Any]) -> None:
    stream = Stream(items, "items", stage)
    insert(items, 1)
    reply = stream.fails()
    assert reply["code"] == 280
    assert reply["errorLabels"] == [replies.NOT_RESUMABLE]


@pytest.mark.parametrize("stage", [{"$group": {"_id": None}}, {"$sort": {"a": 1}}, {"$limit": 1}, {"$count": "n"}])
def test_stages_over_several_events_are_refused(items: Client, stage: dict[str, Any]) -> None:
    assert refusal(items, "items", stage) == 20


def test_large_events_are_cut_and_resumed_within(items: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "split_event", partial(split_event, most=MOST))
    monkeypatch.setattr(change_stream, "MAX_INTERNAL_SIZE", MOST)
    items.ok({"update": "items", "updates": [{"q": {"_id": 0}, "u": {"_id": 0, "pad": "x" * LARGE}}]})
    options = {"fullDocumentBeforeChange": "required"}
    stream = Stream(items, "items", {"$changeStreamSplitLargeEvent": {}}, **options)
    whole = Stream(items, **options)
    update(items, {"pad": "y" * LARGE})
    insert(items, 1)
    first, second, last = stream.several(3)
    assert (first["splitEvent"], second["splitEvent"]) == ({"fragment": 1, "of": 2}, {"fragment": 2, "of": 2})
    assert {**first, **second}["operationType"] == "replace"
    assert last["operationType"] == "insert"
    split = {"$changeStreamSplitLargeEvent": {}}
    assert Stream(items, "items", split, resumeAfter=first["_id"], **options).first[0] == second
    assert Stream(items, "items", split, resumeAfter=second["_id"], **options).several(1) == [last]
    assert refusal(items, resumeAfter=first["_id"]) == 280
    assert whole.fails()["code"] == 10334


def test_the_largest_value_that_is_set_is_shown_as_an_update(items: Client) -> None:
    value = "x" * (MAX_BSON_SIZE - len(encode({"_id": 0, "a": 1, "pad": ""})))
    stream, with_document = Stream(items), Stream(items, fullDocument="updateLookup")
    update(items, {"$set": {"pad": value}})
    (event,) = stream.several(1)
    assert event["operationType"] == "update"
    assert event["updateDescription"]["updatedFields"] == {"pad": value}
    assert with_document.fails()["code"] == 10334


def test_a_field_that_is_too_large_is_not_cut() -> None:
    token = Token(1, 0, Kind.EVENT)
    small = encode({"_id": token.document(), "a": 1})
    assert split_event(small, token) == [(token, small)]
    assert client_code(lambda: split_event(encode({"_id": 1, "a": "x" * 2000, "b": 1}), token, 1000)) == 10334


def client_code(run: Any) -> int:
    with pytest.raises(ReplError) as error:
        run()
    return error.value.code


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"wrong": 1}, 40415),
        ({"fullDocument": "wrong"}, 2),
        ({"fullDocument": 1}, 14),
        ({"showExpandedEvents": 1}, 14),
        ({"showSystemEvents": True}, 238),
        ({"resumeAfter": 1}, 14),
        ({"resumeAfter": {}}, 40647),
        ({"resumeAfter": {"_data": "00"}}, 260),
        ({"startAtOperationTime": 1}, 14),
        ({"startAtOperationTime": Timestamp(1, 1), "resumeAfter": {"_data": "00"}}, 40674),
        ({"startAfter": {"_data": "00"}, "resumeAfter": {"_data": "00"}}, 50674),
        ({"allChangesForCluster": True}, 72),
    ],
)
def test_options_that_are_refused(items: Client, options: dict[str, Any], code: int) -> None:
    assert refusal(items, **options) == code


def test_places_that_are_refused(items: Client) -> None:
    for database in ("admin", "config", "local"):
        assert refusal(items, 1, db=database) == 73
    assert refusal(items, "system.views") == 73
    assert (
        items.code({"aggregate": "items", "pipeline": [{"$match": {}}, {"$changeStream": {}}], "cursor": {}}) == 40602
    )
    assert items.code({"aggregate": "items", "pipeline": [{"$changeStreamSplitLargeEvent": {}}], "cursor": {}}) == 20
    command = {"aggregate": "items", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    assert items.code({**command, "readConcern": {"level": "local"}}) == 72
    items.ok({"create": "view", "viewOn": "items", "pipeline": []})
    assert refusal(items, "view") == 166


def test_a_token_of_another_stream_is_refused(items: Client, member: RunningMember) -> None:
    others = Stream(items, "others")
    insert(items, 1, collection="others")
    (event,) = others.more()
    assert refusal(items, resumeAfter=event["_id"]) == 280
    token = Token.parse(event["_id"]["_data"])
    assert refusal(items, "others", resumeAfter=token._replace(term=9).document()) == 280
    ahead = token._replace(ts=token.ts + pack_ts(1000, 0))
    assert Stream(items, "others", resumeAfter=ahead.document()).first == [], "the entry may still come to this member"


def test_history_that_is_gone_is_said_with_the_oldest_token(items: Client, member: RunningMember) -> None:
    stream = Stream(items)
    token = stream.token
    insert(items, 1, 2)
    through = OpTime(1, member.store.last_applied.ts - 1)
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through.ts,))
        write_meta(txn.connection, "trimmed_through", through.ts)
    member.store.reload()
    lost = stream.fails()
    assert lost["code"] == 286
    assert refusal(items, resumeAfter=token) == 286
    assert refusal(items, startAtOperationTime=Timestamp(1, 1)) == 286
    too_early = [{"$changeStream": {"startAtOperationTime": Timestamp(1, 1)}}]
    assert items.code({"aggregate": "items", "pipeline": too_early, "cursor": {"batchSize": 0}}) == 286, (
        "before it reads"
    )
    found = Stream(items, resumeAfter=lost["oldestToken"])
    assert [event["documentKey"]["_id"] for event in found.first] == [2]


def test_errors_that_a_driver_resumes_after_have_the_label(items: Client, rig: Rig) -> None:
    stream = Stream(items)
    rig.step_down()
    items.ok({"replSetMaintenance": True}, "admin")
    assert stream.fails()["errorLabels"] == [replies.RESUMABLE]
    command = {"aggregate": "items", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    assert items.run(command)["errorLabels"] == [replies.RESUMABLE]
    assert "errorLabels" not in items.run({"find": "items"})
