"""Short ways of saying things to members, for the integration tests."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import pymongo

from replset.errors import ReplError
from replset.local_set import LocalMember, LocalSet, wait_until

DATABASE = "shop"
Client = pymongo.MongoClient[dict[str, Any]]


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
    return str(row_of(member)["stateStr"])


def others_of(local: LocalSet, member: LocalMember) -> list[LocalMember]:
    return [other for other in local.members if other is not member]


def a_secondary(local: LocalSet) -> LocalMember:
    primary = local.wait_for_primary()
    return next(member for member in local.members if member is not primary and not member.role_without_data)


def row_of(member: LocalMember, by: LocalMember | None = None) -> dict[str, Any]:
    """The member's row in its own status, or in that of another one, which knows it by heartbeats."""
    return next((row for row in status(by or member)["members"] if row["name"] == member.host), {})


def configuration(local: LocalSet) -> dict[str, Any]:
    found: dict[str, Any] = run(local.wait_for_primary(), {"replSetGetConfig": 1}, "admin")["config"]
    return found


def reconfigure(local: LocalSet, settings: dict[str, Any], members: list[dict[str, Any]] | None = None) -> None:
    """Change settings, or all members; nothing is sent where this is in force already."""
    config = configuration(local)
    wanted = {**config, "settings": {**config["settings"], **settings}, "members": members or config["members"]}
    if wanted != config:
        run(local.wait_for_primary(), {"replSetReconfig": {**wanted, "version": config["version"] + 1}}, "admin")


def connect(local: LocalSet, **options: Any) -> Client:
    """A PyMongo client of the set."""
    hosts = ",".join(member.host for member in local.members)
    return pymongo.MongoClient(
        f"mongodb://{hosts}/?replicaSet={local.name}", serverSelectionTimeoutMS=20_000, **options
    )


def cut(member: LocalMember, others: list[LocalMember], direction: str = "both") -> None:
    run(member, {"replSetTestCut": 1, "hosts": [other.host for other in others], "direction": direction}, "admin")


def heal(member: LocalMember) -> None:
    run(member, {"replSetTestCut": 1, "hosts": []}, "admin")


class Writer(threading.Thread):
    """Inserts {_id: number} one after the other with a majority, into whoever is primary, until the block ends."""

    def __init__(self, local: LocalSet, first: int = 0) -> None:
        super().__init__(name="writer")
        self._local, self._numbers = local, itertools.count(first)
        self._ended = threading.Event()
        self.acknowledged: list[int] = []

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        primary: LocalMember | None = None
        for number in self._numbers:
            if self._ended.wait(0.02):
                return
            primary = primary or self._local.primary()
            if primary is None or not self._insert(primary, number):
                primary = None

    def _insert(self, primary: LocalMember, number: int) -> bool:
        concern = {"w": "majority", "wtimeout": 5_000}
        command = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": concern}
        with contextlib.suppress(ReplError):
            reply = primary.command(command, DATABASE, timeout_s=6)
            if reply.get("ok") == 1.0 and reply.get("n") == 1 and "writeConcernError" not in reply:
                self.acknowledged.append(number)
                return True
        return False

    def wait_for_more(self, count: int = 4) -> None:
        """Wait until the set has taken so many more majority writes."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + count, 60, "majority writes")


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
