"""Short ways of saying things to members, for the integration tests."""

from __future__ import annotations

from typing import Any

from replset.cli.local_set import LocalMember, LocalSet, wait_until

DATABASE = "shop"


def run(member: LocalMember, document: dict[str, object], database: str = DATABASE) -> dict[str, Any]:
    """Run one command; the reply must say ok: 1."""
    reply: dict[str, Any] = member.command(document, database, timeout_s=120)
    assert reply.get("ok") == 1.0, reply
    return reply


def insert(member: LocalMember, *ids: object, w: object = "majority", j: bool | None = None) -> dict[str, Any]:
    """Insert {_id} documents and expect that the write concern is met."""
    concern: dict[str, object] = {"w": w, "wtimeout": 20_000}
    if j is not None:
        concern["j"] = j
    documents = [{"_id": number, "n": number} for number in ids]
    reply = run(member, {"insert": "orders", "documents": documents, "writeConcern": concern})
    assert reply["n"] == len(ids), reply
    assert "writeConcernError" not in reply, reply
    assert "writeErrors" not in reply, reply
    return reply


def find(member: LocalMember, query: dict[str, object] | None = None, **options: object) -> list[dict[str, Any]]:
    """All documents of shop.orders, by _id, read on this member whatever it is."""
    command: dict[str, object] = {
        "find": "orders",
        "filter": query or {},
        "sort": {"_id": 1},
        "batchSize": 100_000,
        "$readPreference": {"mode": "secondaryPreferred"},
        **options,
    }
    batch: list[dict[str, Any]] = run(member, command)["cursor"]["firstBatch"]
    return batch


def ids(member: LocalMember) -> list[object]:
    return [document["_id"] for document in find(member)]


def status(member: LocalMember) -> dict[str, Any]:
    return run(member, {"replSetGetStatus": 1}, "admin")


def state(member: LocalMember) -> str:
    return next(str(row["stateStr"]) for row in status(member)["members"] if row.get("self"))


def cut(member: LocalMember, others: list[LocalMember], direction: str = "both") -> None:
    run(member, {"replSetTestCut": 1, "hosts": [other.host for other in others], "direction": direction}, "admin")


def heal(member: LocalMember) -> None:
    run(member, {"replSetTestCut": 1, "hosts": []}, "admin")


def all_counted(local: LocalSet, within_s: float = 60) -> None:
    """Wait until a primary counts every member of its configuration, and each of them has its data."""
    wait_until(local.is_complete, within_s, "all members to be counted")


def same_everywhere(local: LocalSet, within_s: float = 30) -> list[dict[str, Any]]:
    """Wait until all data-bearing members that run hold the same documents; return them."""
    holders = [member for member in local.members if member.is_running() and not member.arbiter]

    def same() -> list[list[dict[str, Any]]] | None:
        copies = [find(member) for member in holders]
        return copies if all(copy == copies[0] for copy in copies) else None

    return wait_until(same, within_s, "all copies to be the same")[0]
