"""Inserts that wait for one group are run as one: replies, entries and sessions are those of one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replset.bson import Binary, Int64, ObjectId
from replset.ids import OpTime
from replset.operations import prepared
from replset.operations.prepared import PreparedWrite
from tests.rig import Rig, a_set
from tests.unit.features.test_prepared import Wire, without_times

CONNECTIONS = 7
KEYS = st.sampled_from([1, 2, 3, 4, 5, "x", 1.5, ObjectId(bytes(12)), None])
COLLECTIONS = st.sampled_from(["plain"] * 6 + ["other", "capped", "indexed", "checked"])
SESSIONS = st.sampled_from([None] * 3 + [0, 1, 2])
NUMBERS = st.sampled_from([1, 2, 2, 3])
WRITES = st.lists(
    st.tuples(COLLECTIONS, KEYS, SESSIONS, NUMBERS, st.sampled_from(["insert"] * 8 + ["update", "delete"])),
    min_size=2,
    max_size=CONNECTIONS,
)
Runs = list[int]


def command_of(collection: str, key: object, session: int | None, number: int, kind: str) -> dict[str, Any]:
    retried = {} if session is None else {"lsid": {"id": Binary(bytes([session] * 16), 4)}, "txnNumber": Int64(number)}
    if kind == "update":
        return {"update": collection, "updates": [{"q": {"_id": key}, "u": {"$set": {"u": 1}}}], **retried}
    if kind == "delete":
        return {"delete": collection, "deletes": [{"q": {"_id": key}, "limit": 1}], **retried}
    return {"insert": collection, "documents": [{"_id": key, "n": 1}], **retried}


class Clients:
    """Some connections that have sent one write of each shape before."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.wires = [Wire(rig) for _ in range(CONNECTIONS)]
        rig.client().ok({"create": "capped", "capped": True, "size": 4096, "max": 3})
        rig.client().ok({"createIndexes": "indexed", "indexes": [{"key": {"n": 1}, "name": "n", "unique": True}]})
        rig.client().ok({"create": "checked", "validator": {"n": {"$gt": 1}}})
        for at, wire in enumerate(self.wires):  # a connection remembers four shapes
            special = ("capped", "indexed", "checked")[at % 3]
            for name, session in (("plain", None), ("plain", 100 + at), ("other", None), (special, None)):
                first = command_of(name, f"first {at} {session}", session, 1, "insert")
                first["documents"][0]["n"] = 100 + at
                wire.ask(first)

    def in_one_group(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send one command on each connection, in this order, and return the replies."""
        queue = self.rig.member().context.write_queue
        before = [len(wire.replies) for wire in self.wires]
        self.rig.wait(0.01)

        async def pause() -> None:
            queue.pause()

        async def resume() -> None:
            queue.resume()

        self.rig.do(pause())
        for wire, command in zip(self.wires, commands, strict=False):
            wire.arrive(command)
        self.rig.wait(0.05)
        self.rig.do(resume())
        used = list(zip(self.wires, before, strict=True))[: len(commands)]
        self.rig.until(lambda: all(len(wire.replies) > count for wire, count in used))
        return [wire.replies[count] for wire, count in used]


def outcome(groups: list[list[dict[str, Any]]], runs: Runs | None) -> list[Any]:
    """Replies, entries and records of sessions. runs: gets the lengths of what was run as one; None: nothing is."""
    together = PreparedWrite.run_together

    def counted(*given: Any) -> list[OpTime]:
        done = [] if runs is None else together(*given)
        if runs is not None:
            runs.append(len(done))
        return done

    with pytest.MonkeyPatch.context() as patch, a_set() as rig:
        clients = Clients(rig)
        patch.setattr(PreparedWrite, "run_together", staticmethod(counted))
        replies = [clients.in_one_group(group) for group in groups]
        shown = [[{**reply, "operationTime": 0, "$clusterTime": 0} for reply in group] for group in replies]
        records = rig.client().ok({"find": "transactions"}, "config")["cursor"]["firstBatch"]
        documents = [
            rig.client().ok({"find": name})["cursor"]["firstBatch"] for name in ("plain", "other", "capped", "indexed")
        ]
        return [
            shown,
            without_times(rig.client().entries()),
            [{**row, "lastWriteDate": 0} for row in records],
            documents,
        ]


@settings(max_examples=20)
@given(st.lists(WRITES, min_size=1, max_size=3))
def test_it_is_as_one_after_the_other(groups: list[list[tuple[str, Any, Any, int, str]]]) -> None:
    commands = [[command_of(*write) for write in group] for group in groups]
    assert outcome(commands, []) == outcome(commands, None)


def plain(key: object, session: int | None = None, number: int = 1) -> dict[str, Any]:
    return command_of("plain", key, session, number, "insert")


@pytest.mark.parametrize(
    ("commands", "runs"),
    [
        ([plain(1), plain(2), plain(3)], [3]),
        ([plain(1), plain(2, 7), plain(3, 8)], [3]),
        ([plain(1), plain(2), plain(1), plain(3), plain(4)], [2, 0, 2]),
        ([plain(1), plain(2), command_of("other", 1, None, 1, "insert")], [2, 0]),
        ([plain(1), command_of("plain", 1, None, 1, "update"), plain(2), plain(3)], [0, 0, 2]),
        ([plain(1)], [0]),
    ],
)
def test_what_is_run_as_one(commands: list[dict[str, Any]], runs: Runs) -> None:
    found: Runs = []
    outcome([commands], found)
    assert [length for length in found if length or 0 in runs][: len(runs)] == runs


def test_a_retry_among_them_is_not_done_again() -> None:
    """Its document is gone meanwhile, so that it could be inserted once more."""
    found: Runs = []
    groups = [
        [plain(1, 1)],
        [command_of("plain", 1, None, 1, "delete")],
        [plain(6), plain(2), plain(3, 2), plain(1, 1), plain(4), plain(5)],
    ]
    replies, _, _, (documents, *_) = outcome(groups, found)
    assert [reply["n"] for reply in replies[2]] == [1] * 6
    assert [row["_id"] for row in documents if isinstance(row["_id"], int)] == [6, 2, 3, 4, 5]
    assert found.count(2) == 2


@pytest.mark.parametrize(("name", "most"), [("MAX_RUN", 2), ("RUN_BYTES", 30)])
def test_a_run_has_an_end(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(prepared, name, most)
    found: Runs = []
    outcome([[plain(n) for n in range(6)]], found)
    assert max(found) == 2
