"""Retryable writes: what is sent again is answered again and applied once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Binary, Int64, RawDocument, Timestamp, decode, encode
from replset.errors import ErrorCode, NotWritablePrimaryError, ShutdownInProgressError
from replset.ids import OPTIME_NULL
from replset.member.member import RunningMember
from replset.operations import write_concern
from replset.operations.request import CommandRequest
from replset.operations.session_request import KEYED, NOBODY, session_id
from replset.operations.write_concern import WriteConcernFailure
from replset.oplog_entry import extra_fields
from replset.replication.applier import apply_batch
from replset.replication.session_write import SessionWrite, read_extra
from replset.storage.catalog import SESSIONS
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import undo_step
from tests.rig import Client, Rig, a_set, note_waits

LSID = {"id": Binary(bytes(range(16)), 4)}
OTHER = {"id": Binary(bytes(16), 4)}
ONE = [{"_id": 1}]


def numbered(command: Mapping[str, object], number: int = 1, **more: object) -> dict[str, object]:
    return {**command, "lsid": LSID, "txnNumber": Int64(number), **more}


def answer(reply: Mapping[str, Any]) -> dict[str, Any]:
    """What of a reply must be the same again."""
    return {name: reply[name] for name in ("n", "nModified", "upserted", "writeErrors") if name in reply}


def changes(client: Client) -> list[dict[str, Any]]:
    """The oplog without the creation of collections, and without what the set writes of itself."""
    return [entry for entry in client.entries() if entry["op"] != "c" and (entry["op"] != "n" or "stmtId" in entry)]


def record(client: Client) -> dict[str, Any]:
    found = client.ok({"find": "transactions"}, "config")["cursor"]["firstBatch"]
    assert len(found) == 1
    return dict(found[0])


INC = {"$inc": {"n": 1}}
COMMANDS: list[tuple[dict[str, object], int]] = [
    ({"insert": "c", "documents": [{"_id": 5}, {"_id": 6}]}, 2),
    ({"update": "c", "updates": [{"q": {"_id": 1}, "u": INC}, {"q": {"_id": 2}, "u": INC}]}, 2),
    ({"update": "c", "updates": [{"q": {"_id": 7}, "u": INC, "upsert": True}]}, 1),
    ({"update": "c", "updates": [{"q": {"x": 7}, "u": {"x": 7}, "upsert": True}]}, 1),
    ({"update": "c", "updates": [{"q": {"_id": 2}, "u": {"a": 1}}]}, 1),
    ({"delete": "c", "deletes": [{"q": {}, "limit": 1}, {"q": {"_id": 2}, "limit": 1}]}, 2),
]


@pytest.mark.parametrize(("command", "statements"), COMMANDS)
def test_a_retry_gets_the_first_answer(client: Client, command: dict[str, object], statements: int) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]})
    first = client.ok(numbered(command))
    written = client.entries()
    again = client.ok(numbered(command))
    assert client.entries() == written
    assert answer(again) == answer(first)
    assert again["retriedStmtIds"] == list(range(statements))
    assert "retriedStmtIds" not in first
    assert again["opTime"] == first["opTime"], "its write concern covers the first attempt's entries"


UPDATE = {"findAndModify": "c", "query": {"_id": 1}, "update": INC}


@pytest.mark.parametrize(
    "command",
    [
        UPDATE,
        {**UPDATE, "new": True},
        {**UPDATE, "new": True, "fields": {"n": 1, "_id": 0}},
        {**UPDATE, "query": {"_id": 9}, "upsert": True},
        {**UPDATE, "query": {"_id": 9}, "upsert": True, "new": True},
        {"findAndModify": "c", "query": {"_id": {"$gt": 0}}, "sort": {"_id": -1}, "remove": True},
    ],
)
def test_a_retry_of_find_and_modify_gets_the_first_value(
    client: Client, member: RunningMember, command: dict[str, object], tmp_path: Path
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "n": 5}, {"_id": 2}]})
    first = client.ok(numbered(command))
    written = client.entries()
    client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": INC}]})
    again = client.ok(numbered(command))
    assert (again["value"], again["lastErrorObject"]) == (first["value"], first["lastErrorObject"])
    assert client.entries()[:-1] == written
    assert_same_record_on_a_secondary(member, tmp_path)


def test_entries_carry_the_session_and_form_a_chain(client: Client) -> None:
    client.ok(numbered({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}, 4, stmtIds=[7, 3]))
    first, second = changes(client)
    lsid = {"id": LSID["id"], "uid": NOBODY}
    assert [(row["lsid"], row["txnNumber"], row["stmtId"]) for row in (first, second)] == [(lsid, 4, 7), (lsid, 4, 3)]
    assert first["prevOpTime"] == {"ts": Timestamp(0, 0), "t": -1}
    assert second["prevOpTime"] == {"ts": first["ts"], "t": first["t"]}
    assert record(client) == {
        "_id": lsid,
        "txnNum": 4,
        "lastWriteOpTime": {"ts": second["ts"], "t": second["t"]},
        "lastWriteDate": second["wall"],
    }
    client.ok(numbered({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, 5))
    assert changes(client)[-1]["prevOpTime"] == {"ts": Timestamp(0, 0), "t": -1}
    assert record(client)["txnNum"] == 5


@pytest.mark.parametrize("ordered", [True, False])
def test_many_inserts_at_once_form_the_same_chain(client: Client, ordered: bool) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 7}]})
    before = len(changes(client))
    command = {"insert": "c", "documents": [{"_id": number} for number in range(12)], "ordered": ordered}
    first = client.ok(numbered(command, stmtIds=list(range(20, 32))))
    entries = changes(client)[before:]
    done = [*range(7)] if ordered else [*range(7), *range(8, 12)]
    assert [(entry["o"]["_id"], entry["stmtId"]) for entry in entries] == [(number, 20 + number) for number in done]
    previous = [{"ts": Timestamp(0, 0), "t": Int64(-1)}]
    previous += [{"ts": entry["ts"], "t": entry["t"]} for entry in entries]
    assert [entry["prevOpTime"] for entry in entries] == previous[:-1]
    assert record(client)["lastWriteOpTime"] == previous[-1]
    again = client.ok(numbered(command, stmtIds=list(range(20, 32))))
    assert answer(again) == answer(first)
    assert len(changes(client)) == before + len(done)


def test_too_few_in_sync_refuse_what_is_new_and_answer_what_is_applied() -> None:
    with a_set(2, arbiters=1) as rig:
        client = rig.client()
        rig.reconfigure(minInSync=2, inSyncLagSecs=1)
        command = numbered({"insert": "c", "documents": ONE, "writeConcern": {"w": "majority"}})
        first = client.ok(command)
        rig.cluster.kill("b")
        rig.wait(20)
        again = client.ok(command)
        assert (answer(again), again["retriedStmtIds"]) == (answer(first), [0])
        assert client.code({**command, "txnNumber": Int64(2)}) == ErrorCode.NOT_ENOUGH_IN_SYNC


def test_what_failed_or_changed_nothing_is_tried_again(client: Client) -> None:
    client.ok({"insert": "c", "documents": ONE})
    insert = numbered({"insert": "c", "documents": [{"_id": 0}, {"_id": 1}, {"_id": 2}], "ordered": False})
    assert [row["index"] for row in client.ok(insert)["writeErrors"]] == [1]
    client.ok({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    again = client.ok(insert)
    assert (again["n"], again["retriedStmtIds"]) == (3, [0, 2])
    update = numbered({"update": "c", "updates": [{"q": {"_id": 9}, "u": INC}]}, 2)
    assert client.ok(update)["n"] == 0
    client.ok({"insert": "c", "documents": [{"_id": 9}]})
    assert answer(client.ok(update)) == {"n": 1, "nModified": 1}
    assert answer(client.ok(update)) == {"n": 1, "nModified": 1}
    assert client.ok({"find": "c", "filter": {"_id": 9}})["cursor"]["firstBatch"] == [{"_id": 9, "n": 1}]


def test_an_older_number_is_refused_and_other_sessions_are_not(client: Client) -> None:
    client.ok(numbered({"insert": "c", "documents": [{"_id": 1}]}, 5))
    reply = client.run(numbered({"insert": "c", "documents": [{"_id": 2}]}, 4))
    assert (reply["code"], reply["codeName"]) == (225, "TransactionTooOld")
    client.ok({"insert": "c", "documents": [{"_id": 2}], "lsid": OTHER, "txnNumber": Int64(1)})
    client.ok({"insert": "c", "documents": [{"_id": 3}], "lsid": LSID})


@pytest.mark.parametrize(
    "command",
    [
        {"update": "c", "updates": [{"q": {}, "u": INC, "multi": True}]},
        {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    ],
)
def test_a_write_of_many_documents_cannot_be_retried(client: Client, command: dict[str, object]) -> None:
    client.ok({"insert": "c", "documents": ONE})
    assert [row["code"] for row in client.ok(numbered(command))["writeErrors"]] == [72]
    assert len(changes(client)) == 1


def test_a_large_insert_goes_on_where_the_first_attempt_ended(client: Client, rig: Rig) -> None:
    rig.step_down_after(1)
    documents = [{"_id": i} for i in range(1200)]
    reply = client.run(numbered({"insert": "c"}), documents=documents)
    assert (reply["code"], reply["n"], reply["errorLabels"]) == (189, 500, ["RetryableWriteError"])
    rig.lead()
    again = client.ok(numbered({"insert": "c"}), documents=documents)
    assert (again["n"], again["retriedStmtIds"]) == (1200, list(range(500)))
    assert len(changes(client)) == 1200


def test_history_that_is_trimmed_away_is_an_error(client: Client, member: RunningMember) -> None:
    client.ok(numbered({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}))
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts < ?", (member.store.last_applied.ts,))
    both = numbered({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
    assert client.code(both) == 217
    assert client.ok(numbered({"insert": "c", "documents": [{"_id": 2}]}, stmtId=1))["n"] == 1


def test_a_rollback_takes_the_record_back(client: Client, member: RunningMember) -> None:
    client.ok({"create": "c"})
    client.ok(numbered({"insert": "c", "documents": [{"_id": 1}]}, 1))
    kept = record(client)
    common = member.store.last_applied
    client.rig.stop_disk()
    client.ok(numbered({"insert": "c", "documents": [{"_id": 2}, {"_id": 3}], "writeConcern": {"w": 1}}, 2))
    half = member.store.last_applied
    client.ok(numbered({"insert": "c", "documents": [{"_id": 4}], "writeConcern": {"w": 1}}, 3))
    undo_step(member.store, half, stem="a")
    assert record(client)["txnNum"] == 2
    undo_step(member.store, common, stem="b")
    assert record(client) == kept
    again = numbered({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}}, 2)
    assert client.ok(again)["n"] == 1


def test_a_secondary_derives_the_record(client: Client, member: RunningMember, tmp_path: Path) -> None:
    client.ok({"insert": "c", "documents": ONE})
    for number, (command, _) in enumerate(COMMANDS):
        client.ok(numbered(command, number))
    assert_same_record_on_a_secondary(member, tmp_path)


def assert_same_record_on_a_secondary(member: RunningMember, tmp_path: Path, uid: Binary = NOBODY) -> None:
    entries = [row.entry for row in member.store.oplog_after(OPTIME_NULL, limit=1000, max_bytes=1 << 20)]
    secondary = Store.open(RealDisk(), tmp_path / "secondary", StoreOptions(min_free_bytes=0))
    apply_batch(secondary, entries, 0, len(entries), lambda: False)
    key, _ = session_id(bytes(range(16)), uid)
    assert secondary.get(SESSIONS, key) == member.store.get(SESSIONS, key) != None  # noqa: E711
    secondary.close()


def test_inserts_whose_whole_history_is_trimmed_away_are_not_done_again(client: Client, member: RunningMember) -> None:
    both = numbered({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
    client.ok(both)
    client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts < ?", (member.store.last_applied.ts,))
    assert client.code(both) == 217
    assert client.ok({"count": "c"})["n"] == 0


def test_a_retry_waits_for_the_attempt_under_way(client: Client, member: RunningMember) -> None:
    """Two connections send the same write at the same time."""
    body = RawDocument(encode({**numbered({"update": "c", "updates": [{"q": {"_id": 1}, "u": INC}]}), "$db": "test"}))
    client.ok({"insert": "c", "documents": ONE})

    async def both() -> list[Any]:
        requests = [CommandRequest("test", body) for _ in range(3)]
        return await asyncio.gather(*(client.dispatcher.run(request) for request in requests))

    replies = [decode(reply if isinstance(reply, bytes) else encode(reply)) for reply in client.rig.do(both())]
    assert [answer(reply) for reply in replies] == [{"n": 1, "nModified": 1}] * 3
    assert client.ok({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1, "n": 1}]


def test_a_write_ends_a_transaction_that_began_while_it_waited(client: Client) -> None:
    """Both wait for the session. The older transaction must not commit over the record of the newer write."""
    client.ok({"insert": "c", "documents": ONE})
    key, _ = session_id(bytes(range(16)))
    client.rig.do(client.dispatcher.sessions.check_out(key, None))
    inside = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}], "autocommit": False}
    write = numbered({"update": "c", "updates": [{"q": {"_id": 1}, "u": INC}]}, 6)
    bodies = [numbered({**inside, "startTransaction": True}, 5), write]

    async def both() -> list[Any]:
        requests = [CommandRequest("test", RawDocument(encode({**body, "$db": "test"}))) for body in bodies]
        tasks = [asyncio.ensure_future(client.dispatcher.run(request)) for request in requests]
        await asyncio.sleep(0)
        client.dispatcher.sessions.check_in(key)
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    client.rig.do(both())
    assert client.run(numbered({"commitTransaction": 1, "autocommit": False}, 5), "admin")["ok"] == 0
    assert client.ok(write)["retriedStmtIds"] == [0]
    assert client.ok({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1, "n": 1}]


def test_a_retry_waits_no_longer_than_max_time(client: Client) -> None:
    key, _ = session_id(bytes(range(16)))
    client.rig.do(client.dispatcher.sessions.check_out(key, None))
    reply = client.run(numbered({"insert": "c", "documents": ONE}, maxTimeMS=1))
    assert (reply["code"], reply["errorLabels"]) == (50, ["NoWritesPerformed"])
    client.dispatcher.sessions.check_in(key)
    client.ok(numbered({"insert": "c", "documents": ONE}))


def test_labels_say_whether_to_retry(client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write = numbered({"insert": "c", "documents": ONE})
    rig.step_down(1)
    assert client.run(write)["errorLabels"] == ["RetryableWriteError", "NoWritesPerformed"]
    assert "errorLabels" not in client.run({"insert": "c", "documents": ONE, "lsid": LSID})
    rig.lead()
    assert client.run({**write, "ordered": "x"})["errorLabels"] == ["NoWritesPerformed"]
    many = numbered({"insert": "c", "documents": [{"n": n} for n in range(1_500)]}, 2)
    for command in (write, many):  # the second reply is encoded in the thread
        for code, labels in ((91, ["RetryableWriteError"]), (64, None)):
            with monkeypatch.context() as patch:
                note_waits(patch, WriteConcernFailure(code, "it is not met"))
                reply = client.ok({**command, "writeConcern": {"w": 2}})
            assert (reply.get("errorLabels"), reply["writeConcernError"]["code"]) == (labels, code)


def test_a_write_killed_behind_its_commit_is_not_labelled_as_nothing(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_killed(*_: object) -> None:
        for operation in client.dispatcher.operations.running.values():
            operation.is_killed = True
            operation.task.cancel()
        await asyncio.sleep(1)

    monkeypatch.setattr(write_concern, "wait_until_met", is_killed)
    reply = client.run(numbered({"insert": "c", "documents": ONE}, writeConcern={"w": 2}))
    assert (reply["code"], reply.get("errorLabels")) == (11601, None)
    monkeypatch.undo()
    assert client.ok(numbered({"insert": "c", "documents": ONE}))["retriedStmtIds"] == [0]


def test_a_failed_group_leaves_no_record(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = member.write

    async def fails(operation: Any) -> Any:
        def run(group: Any) -> Any:
            operation(group)
            raise NotWritablePrimaryError()

        return await write(run)

    monkeypatch.setattr(member, "write", fails)
    command = numbered({"insert": "c", "documents": ONE})
    assert client.code(command) == 10107
    monkeypatch.undo()
    assert "retriedStmtIds" not in client.ok(command)
    assert client.ok(command)["retriedStmtIds"] == [0]


def test_the_session_of_an_insert_is_read_from_its_place() -> None:
    _, lsid = session_id(bytes(16))
    write = SessionWrite(b"key", lsid.raw, (1 << 62) + 5)
    write.stmt_id = 7
    assert read_extra(write.extra()) == (lsid.raw, (1 << 62) + 5)
    write.image = "preImage"
    assert read_extra(write.extra(has_image=True)) is None
    assert read_extra(extra_fields({"stmtId": 1})) is None
    assert read_extra(b"") is None
    assert read_extra(bytes(len(write.extra()))) is None


KEY = {"id": Binary(bytes(range(16)), 4), "uid": KEYED}


def keyed(command: Mapping[str, object], number: int = 77) -> dict[str, object]:
    return {**command, "lsid": KEY, "txnNumber": Int64(number)}


SEVERAL: list[dict[str, object]] = [
    *(command for command, _ in COMMANDS),
    {"update": "c", "updates": [{"q": {}, "u": INC, "multi": True}]},
    {"update": "c", "updates": [{"q": {"x": 1}, "u": INC, "multi": True, "upsert": True}]},
    {"update": "c", "updates": [{"q": {"_id": 99}, "u": INC}]},
    {"delete": "c", "deletes": [{"q": {"_id": {"$gt": 1}}, "limit": 0}]},
    {"insert": "c", "documents": [{"_id": 8}, {"_id": 1}, {"_id": 9}], "ordered": False},
    {"insert": "c", "documents": [{"_id": 8}, {"_id": 1}, {"_id": 9}]},
]


@pytest.mark.parametrize("command", SEVERAL)
def test_under_an_idempotency_key_every_write_has_one_answer(
    client: Client, member: RunningMember, command: dict[str, object], tmp_path: Path
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]})
    first = client.ok(keyed(command), source="http")
    client.ok({"insert": "c", "documents": [{"_id": 50}, {"_id": 99}]})
    client.ok({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    written = client.entries()
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts < ?", (member.store.last_applied.ts,))
    assert answer(client.ok(keyed(command), source="http")) == answer(first)
    assert client.entries() == written[-1:]
    reply = client.run(keyed(command, 78), source="http")
    assert (reply["code"], reply["errmsg"]) == (225, "this Idempotency-Key was used for another request")
    assert client.run(keyed(command, 76), source="http")["code"] == 225


def test_no_client_names_the_session_of_a_key(client: Client) -> None:
    """It would find what another one's request was answered, or put an answer in its place."""
    assert client.run(keyed({"insert": "c", "documents": ONE}))["code"] == 13
    assert client.entries() == []


def test_a_secondary_derives_the_answer_under_a_key(client: Client, member: RunningMember, tmp_path: Path) -> None:
    client.ok({"insert": "c", "documents": ONE})
    client.ok(keyed(SEVERAL[-1]), source="http")
    assert_same_record_on_a_secondary(member, tmp_path, KEYED)


@pytest.mark.parametrize("name", ["update", "delete"])
def test_an_interrupted_write_of_many_documents_goes_on(client: Client, rig: Rig, name: str) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": i} for i in range(500)])
    rig.step_down_after(1)
    commands: dict[str, dict[str, object]] = {
        "update": {"update": "c", "updates": [{"q": {"n": {"$ne": 5}}, "u": {"$set": {"n": 1}}, "multi": True}]},
        "delete": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    }
    reply = client.run(keyed(commands[name]), source="http")
    assert (reply["code"], 0 < reply["n"] < 500) == (189, True)
    rig.lead()
    client.ok({"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"n": 7}}, "upsert": True}]})
    again = client.ok(keyed(commands[name]), source="http")
    assert again["n"] == 500
    assert client.ok(keyed(commands[name]), source="http")["n"] == 500
    assert client.ok({"find": "c", "filter": {"_id": 0}})["cursor"]["firstBatch"] == [{"_id": 0, "n": 7}]
    touched = [entry["key"] if "key" in entry else entry["o"] for entry in changes(client) if entry["op"] == name[0]]
    assert len(touched) == (501 if name == "update" else 500)


def test_find_and_modify_under_a_key(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "n": 5}]})
    first = client.ok(keyed(UPDATE), source="http")
    assert client.ok(keyed(UPDATE), source="http")["value"] == first["value"]
    assert client.code(keyed(UPDATE, 78), source="http") == 225


def test_each_interrupted_statement_over_many_documents_goes_on_for_itself(
    client: Client, member: RunningMember
) -> None:
    """The second statement is interrupted twice: what it changed after the first time still counts as its own."""
    client.ok({"insert": "c"}, documents=[{"_id": i, "n": 0, "m": 0} for i in range(700)])
    updates = [{"q": {"_id": {"$lt": 5}}, "u": INC, "multi": True}, {"q": {}, "u": {"$inc": {"m": 1}}, "multi": True}]
    command = keyed({"update": "c", "updates": updates})
    for groups in (1, 3):
        client.rig.step_down_after(groups)
        assert client.run(command, source="http")["code"] == 189
        client.rig.lead()
    assert client.ok(command, source="http")["n"] == 705
    found = client.ok({"find": "c", "batchSize": 1000})["cursor"]["firstBatch"]
    assert [(row["n"], row["m"]) for row in found] == [(int(i < 5), 1) for i in range(700)]


def test_an_interrupted_upsert_under_a_key_says_what_it_inserted(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": i} for i in range(500)])
    updates: list[dict[str, object]] = [
        {"q": {"_id": 1000}, "u": INC, "multi": True, "upsert": True},
        {"q": {}, "u": {"$set": {"m": 1}}, "multi": True},
    ]
    client.rig.step_down_after(1)
    assert client.run(keyed({"update": "c", "updates": updates}), source="http")["code"] == 189
    client.rig.lead()
    again = client.ok(keyed({"update": "c", "updates": updates}), source="http")
    assert (again["n"], again["nModified"]) == (502, 501)
    assert again["upserted"] == [{"index": 0, "_id": 1000}]


def test_the_chain_passes_over_a_statement_that_was_taken_back(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "n": 1}, {"_id": 2, "n": "x"}, {"_id": 3, "n": 3}]})
    updates: list[dict[str, object]] = [
        {"q": {"_id": 3}, "u": INC},
        {"q": {}, "u": INC, "multi": True},
        {"q": {"_id": 1}, "u": INC},
    ]
    reply = client.ok(keyed({"update": "c", "updates": updates, "ordered": False}), source="http")
    assert [row["index"] for row in reply["writeErrors"]] == [1]
    rows = changes(client)[-3:]
    assert [row["stmtId"] for row in rows] == [0, 2, -1]
    assert [row["prevOpTime"] for row in rows[1:]] == [{"ts": row["ts"], "t": row["t"]} for row in rows[:-1]]


def test_a_shutdown_in_the_midst_of_a_retryable_write_asks_for_a_retry(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = member.write, []

    async def fails(operation: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ShutdownInProgressError("the member is shutting down")
        return await write(operation)

    monkeypatch.setattr(member, "write", fails)
    documents = [{"_id": i} for i in range(1200)]
    reply = client.run(numbered({"insert": "c"}), documents=documents)
    assert (reply["code"], reply["errorLabels"]) == (91, ["RetryableWriteError"])
    monkeypatch.undo()
    assert client.ok(numbered({"insert": "c"}), documents=documents)["n"] == 1200
