"""The history of a document is what was written to it: by the oplog's entries, and by the undo where that is kept."""

from __future__ import annotations

from typing import Any, cast

import pytest

from replset.bson import Binary, DateTime, Timestamp
from replset.features.history import document_history
from replset.ids import OPTIME_NULL, OpTime
from replset.member.member import RunningMember
from replset.oplog_row import OplogRow
from replset.storage.txn import write_meta
from tests.rig import Client, Rig
from tests.unit.features.test_event_reader import transaction
from tests.unit.features.test_users import make_secure, user_with


def history(client: Client, id_: object = 1, **more: object) -> dict[str, Any]:
    return client.ok({"replSetDocumentHistory": "test.items", "id": id_, **more}, "admin")


def shown(reply: dict[str, Any]) -> list[tuple[str, object]]:
    return [(row["operation"], row.get("document", "unknown")) for row in reply["versions"]]


def insert(client: Client, *documents: dict[str, object]) -> None:
    client.ok({"insert": "items", "documents": list(documents)})


def update(client: Client, change: dict[str, object], **more: object) -> None:
    client.ok({"update": "items", "updates": [{"q": {"_id": 1}, "u": change}], **more})


def delete(client: Client) -> None:
    client.ok({"delete": "items", "deletes": [{"q": {"_id": 1}, "limit": 1}]})


def forget_undo(member: RunningMember) -> None:
    """As after `snapshotHistorySecs`: what is told then comes from the entries alone."""
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM undo")
        write_meta(txn.connection, "pruned_through", member.store.last_applied.ts)
    member.store.reload()


def trim(member: RunningMember, through: int) -> None:
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through,))
        write_meta(txn.connection, "trimmed_through", through)
    member.store.reload()


def write_much(client: Client) -> None:
    insert(client, {"_id": 1, "a": 1, "b": {"c": [1, 2]}}, {"_id": 2, "a": 9})
    update(client, {"$set": {"a": 2, "b.c.1": 5}})
    update(client, {"$unset": {"a": ""}})
    client.ok({"update": "items", "updates": [{"q": {"_id": 2}, "u": {"$set": {"a": 8}}}]})
    update(client, {"x": "new"})
    delete(client)
    insert(client, {"_id": 1, "again": True})


WRITTEN = [
    ("insert", {"_id": 1, "a": 1, "b": {"c": [1, 2]}}),
    ("update", {"_id": 1, "a": 2, "b": {"c": [1, 5]}}),
    ("update", {"_id": 1, "b": {"c": [1, 5]}}),
    ("replace", {"_id": 1, "x": "new"}),
    ("delete", None),
    ("insert", {"_id": 1, "again": True}),
]


@pytest.mark.parametrize("has_undo", [True, False])
def test_every_version_is_told_with_what_changed(client: Client, member: RunningMember, has_undo: bool) -> None:
    write_much(client)
    if not has_undo:
        forget_undo(member)
    reply = history(client)
    assert shown(reply) == WRITTEN
    assert reply["next"] is None
    changes = [row.get("changes") for row in reply["versions"]]
    assert changes[1] == [{"field": "a", "from": 1, "to": 2}, {"field": "b.c.1", "from": 2, "to": 5}]
    assert changes[2] == [{"field": "a", "from": 2, "removed": True}]
    assert {(row["field"], "to" in row) for row in changes[3]} == {("b", False), ("x", True)}
    assert all(row["committed"] and isinstance(row["collection"], Binary) for row in reply["versions"])


@pytest.mark.parametrize(("field", "left_out"), [("b.c", {2}), ("a", {3}), ("b.c.0", {1, 2})])
def test_of_a_field_only_what_changed_it_is_told(client: Client, field: str, left_out: set[int]) -> None:
    write_much(client)
    expected = [row for number, row in enumerate(WRITTEN) if number not in left_out]
    assert shown(history(client, field=field)) == expected


def test_of_a_field_and_a_moment_what_changed_it_last_is_told(client: Client) -> None:
    write_much(client)
    versions = history(client)["versions"]
    _, seconds, increment = versions[2]["optime"].split(":")
    (then,) = history(client, field="b.c", at=Timestamp(int(seconds), int(increment)))["versions"]
    assert then == versions[1]


def test_of_a_moment_the_version_of_then_is_told(client: Client) -> None:
    write_much(client)
    for row in history(client)["versions"]:
        _, seconds, increment = row["optime"].split(":")
        (then,) = history(client, at=Timestamp(int(seconds), int(increment)))["versions"]
        assert then == row
    assert history(client, at=DateTime(0))["versions"] == []
    assert client.code({"replSetDocumentHistory": "test.items", "id": 1, "at": "soon"}, "admin") == 2


def test_what_the_oplog_lost_is_not_made_up(client: Client, member: RunningMember) -> None:
    insert(client, {"_id": 1, "a": 1})
    update(client, {"$set": {"b": 1}})
    through = member.store.last_applied.ts
    update(client, {"$set": {"a": 2}})
    trim(member, through)
    update(client, {"$set": {"a": 3}})
    forget_undo(member)
    reply = history(client)
    assert shown(reply) == [("update", "unknown"), ("update", {"_id": 1, "a": 3, "b": 1})]
    assert [row["changes"] for row in reply["versions"]] == [[{"field": "a", "to": 2}], [{"field": "a", "to": 3}]]
    update(client, {"y": 1})
    forget_undo(member)
    assert history(client)["versions"][-1]["changesUnknown"] is True


def test_a_transaction_is_told_with_its_session(client: Client, member: RunningMember) -> None:
    insert(client, {"_id": 1, "a": 1})
    transaction(
        client,
        1,
        {"update": "items", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]},
        {"insert": "items", "documents": [{"_id": 3}]},
        {"update": "items", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 3}}}]},
    )
    for _ in range(2):
        reply = history(client)
        assert [document["a"] for _, document in cast("list[tuple[str, Any]]", shown(reply))] == [1, 2, 3]
        first, *others = reply["versions"]
        assert "inTransaction" not in first
        assert all(row["inTransaction"] and row["txnNumber"] == 1 and row["lsid"] for row in others)
        assert shown(history(client, 3)) == [("insert", {"_id": 3})]
        forget_undo(member)


def test_a_collection_that_was_dropped_and_made_anew(client: Client) -> None:
    insert(client, {"_id": 1, "a": 1})
    client.ok({"drop": "items"})
    insert(client, {"_id": 1, "a": 2})
    reply = history(client)
    assert shown(reply) == [("insert", {"_id": 1, "a": 1}), ("drop", None), ("insert", {"_id": 1, "a": 2})]
    first, _, last = reply["versions"]
    assert first["collection"] != last["collection"]


def test_pages_join(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with slices that are smaller than what lies between two versions."""
    monkeypatch.setattr(document_history, "SLICE", 2)
    monkeypatch.setattr(document_history, "MOST_LOOKED", 3)
    monkeypatch.setattr(document_history, "PLACES", 2)
    write_much(client)
    for limit in (1, 2, 100):
        found, after, pages = list[tuple[str, object]](), dict[str, object](), 0
        while True:
            reply = history(client, limit=limit, **after)
            assert len(reply["versions"]) <= limit
            found += shown(reply)
            pages += 1
            if reply["next"] is None:
                break
            after = {"after": reply["next"]}
        assert found == WRITTEN
        assert pages > 1


def test_a_large_document_is_told_by_the_names_of_its_fields(client: Client) -> None:
    insert(client, {"_id": 1, "text": "x" * (5 << 18), "n": 1})
    update(client, {"$set": {"n": 2}})
    first, second = history(client)["versions"]
    assert first["documentBytes"] == second["documentBytes"] > 5 << 18
    assert second["changes"] == [{"field": "n"}]


def test_an_answer_has_a_size(client: Client) -> None:
    insert(client, {"_id": 1})
    for number in range(6):
        update(client, {"text": str(number) * (200 << 10)})
    reply = history(client)
    assert [row["operation"] for row in reply["versions"]] == ["insert", "replace", "replace", "replace"]
    assert len(history(client, after=reply["next"])["versions"]) == 3


def test_what_is_not_committed_is_told_so(client: Client, rig: Rig) -> None:
    insert(client, {"_id": 1})
    rig.stop_disk()
    update(client, {"$set": {"a": 1}}, writeConcern={"w": 1})
    assert [row["committed"] for row in history(client)["versions"]] == [True, False]


def test_a_document_that_nobody_wrote_has_no_history(client: Client) -> None:
    insert(client, {"_id": 2})
    reply = history(client)
    assert (reply["versions"], reply["next"]) == ([], None)


class OwnArchive:
    """Older entries, as the archive gives them."""

    def __init__(self, rows: list[OplogRow]) -> None:
        self.rows = rows

    @property
    def oldest(self) -> OpTime | None:
        return self.rows[0].optime

    @property
    def missing_through(self) -> int:
        return 0

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        return [row for row in self.rows if row.ts > position.ts][:3]


def test_the_archive_goes_on_where_the_oplog_ends(client: Client, member: RunningMember) -> None:
    write_much(client)
    rows = member.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 20)
    trim(member, rows[-3].ts)
    forget_undo(member)
    assert len(history(client)["versions"]) == 2
    assert "archivedSince" not in history(client)
    member.history.older = OwnArchive(rows[:-2])
    assert history(client)["archivedSince"] == str(rows[0].optime)
    assert len(history(client)["versions"]) == 2
    assert shown(history(client, archive=True)) == WRITTEN
    member.history.older = OwnArchive(rows[:4])
    joined = shown(history(client, archive=True))
    assert joined[0] == WRITTEN[0]
    assert joined[-2:] == WRITTEN[-2:], "behind a gap what is live goes on"


def test_who_may_read_the_collection_sees_its_history(client: Client) -> None:
    root = make_secure(client)
    insert(root, {"_id": 1})
    assert len(history(user_with(root, "read"))["versions"]) == 1
    command = {"replSetDocumentHistory": "test.items", "id": 1}
    assert user_with(root, {"role": "read", "db": "other"}, name="v").code(command, "admin") == 13
    assert root.code({"replSetDocumentHistory": "admin.system.users", "id": "test.u"}, "admin") == 13


def test_a_member_that_serves_no_reads_refuses(client: Client, member: RunningMember) -> None:
    insert(client, {"_id": 1})
    client.ok({"replSetStepDown": 60, "force": True}, "admin")
    client.ok({"replSetMaintenance": True}, "admin")
    assert client.code({"replSetDocumentHistory": "test.items", "id": 1}, "admin") == 13436


def test_a_place_that_is_trimmed_away_is_passed_over(client: Client, member: RunningMember) -> None:
    """Also where an archive is asked for and there is none: an answer that goes on nowhere would be asked for ever."""
    write_much(client)
    first = history(client, limit=1)["next"]
    forget_undo(member)
    trim(member, member.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 20)[-3].ts)
    for more in ({"after": first}, {"archive": True}, {}):
        reply = history(client, **more)
        assert (shown(reply), reply["next"]) == (WRITTEN[-2:], None)
