"""What members ask each other, nearly right: to members of a real set that has a primary and goes on meanwhile."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from replset.bson import DateTime, Int64, InvalidBSONError, InvalidValueError, ObjectId, Timestamp, decode, encode
from replset.bson.raw import RawDocument
from replset.core.messages import MAX_TERM, MAX_TERM_JUMP
from replset.member.member import RunningMember
from replset.operations.request import CommandRequest, ConnectionContext
from replset.optime import optime_document
from tests.simulation.kit.cluster import SimCluster
from tools.fuzz.commands import VALUES, copied, places
from tools.fuzz.kit import Check, Target
from tools.fuzz.member import known

NAMES = "abc"
ABSURD = 1 << 45
"""A term above it means a new set: the next inputs are to have room."""
EDGES = [0, 1, -1, 255, 256, (1 << 31) - 1, 1 << 31, MAX_TERM, MAX_TERM + 1, (1 << 63) - 2, (1 << 63) - 1, -(1 << 63)]
STEPS = [1, 2, MAX_TERM_JUMP, MAX_TERM_JUMP + 1]
Change = tuple[int, str, Any]
"""Which place (counted around the document's places), what is done there, with what."""

CHANGES: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.sampled_from(["term", "term", "raise", "raise", "put", "put", "put", "remove"]),
        st.one_of(
            st.sampled_from(STEPS),
            st.sampled_from(EDGES).map(Int64),
            st.sampled_from([Timestamp(0, 0), Timestamp((1 << 32) - 1, (1 << 32) - 1), Timestamp(2_000_000_000, 1)]),
            st.sampled_from([ObjectId(bytes(12)), "", "b:27017", "nobody:1", DateTime(-(1 << 63)), None, True]),
            VALUES,
        ),
    ),
    max_size=3,
)


def changed(document: dict[str, Any], changes: list[Change]) -> dict[str, Any]:
    """A copy with these changes; its first field, which names a command, keeps its name."""
    result: dict[str, Any] = copied(document)
    first = next(iter(result))
    for number, what, value in changes:
        spots = list(places(result))
        if what == "term" and "term" in result:  # what reaches furthest is aimed at
            result["term"] = Int64(EDGES[number % len(EDGES)])
            continue
        *path, last = spots[number % len(spots)]
        inner: Any = result
        for name in path:
            inner = inner[name]
        if what == "remove" and (path or last != first):
            del inner[last]
        elif what == "raise" and isinstance(inner[last], int) and isinstance(value, int):
            inner[last] = Int64(int(inner[last]) + int(value))
        elif what == "put":
            inner[last] = copied(value)
    return result


class ThreeMembers:
    """A set on virtual time, its primary known. `renewed`: how often it had to be made anew."""

    def __init__(self) -> None:
        self.renewed = -1
        self._cluster: SimCluster | None = None
        self.open()

    def open(self) -> None:
        self.close()
        self._cluster = SimCluster(members=3, seed=self.renewed + 1)
        self._cluster.initiate()
        self.renewed += 1
        self.numbers = 0

    def close(self) -> None:
        """What a dead member still had under way is collected while the loop is open, since it closes connections."""
        if self._cluster is not None:
            for name in self._cluster.alive():
                self._cluster.kill(name)
            self._cluster.run_for(1)
            gc.collect()
            self._cluster.close()
            self._cluster = None

    @property
    def cluster(self) -> SimCluster:
        assert self._cluster is not None
        return self._cluster

    def member(self, name: str) -> RunningMember:
        running = self.cluster.machines[name].running
        assert running is not None, f"{name} runs"
        return running

    def term(self) -> int:
        return max(self.member(name).node.term for name in NAMES)

    def ask(self, name: str, body: bytes, sender: int) -> dict[str, Any]:
        """The answer of one member to member number `sender`; it may wait for a while of virtual time."""
        connection = ConnectionContext(1, "127.0.0.1:1", self.cluster.host(NAMES[sender]))
        request = CommandRequest("admin", RawDocument(body), {}, connection, "wire")
        reply = self.cluster.run(self.member(name).dispatcher.run(request))
        return decode(reply if isinstance(reply, bytes) else encode(reply))

    def write(self) -> None:
        """Something for the secondaries to fetch."""
        self.numbers += 1
        primary = self.cluster.primary()
        if primary is not None:
            write = {"insert": "c", "documents": [{"_id": self.numbers}], "writeConcern": {"w": 1}, "$db": "test"}
            request = CommandRequest("test", RawDocument(encode(write)), {}, ConnectionContext(), "wire")
            self.cluster.run(self.member(primary).dispatcher.run(request))

    def is_unbroken(self) -> None:
        """Every member runs, and nothing was left unhandled."""
        assert self.cluster.broken == []
        assert self.cluster.loop.unhandled == []
        for name in NAMES:
            self.member(name)

    def gets_well(self) -> None:
        """A primary takes majority writes again; all are counted."""
        self.cluster.run_until(self.cluster.all_counted, 60, "the set is well again")
        if self.term() > ABSURD:
            self.open()

    def questions(self, sender: int) -> list[dict[str, Any]]:
        """What member number `sender` could ask now."""
        asking = self.member(NAMES[sender])
        node = asking.node
        config = node.config
        assert config is not None
        newest, point = node.position.last_applied, optime_document(node.commit_point)
        here: dict[str, Any] = {"setId": node.set_id, "term": Int64(node.term)}
        version = {"configVersion": Int64(config.version), "configTerm": Int64(config.term)}
        place = {"memberId": sender, "incarnation": node.incarnation}
        times = {"appliedOpTime": optime_document(newest), "durableOpTime": optime_document(newest)}
        walls = {"appliedWallTime": DateTime(1), "durableWallTime": DateTime(1)}
        return [
            {
                **{"replSetHeartbeat": "rs0", "from": str(asking.host), "fromId": sender, "primaryId": -1},
                **{"incarnation": node.incarnation, **here, **version},
            },
            {
                **{"replSetRequestVotes": 1, "setName": "rs0", "candidateId": sender, "dryRun": sender == 0},
                **{"candidateIncarnation": node.incarnation, "lastAppliedOpTime": optime_document(newest)},
                **{"reason": "priorityTakeover", **here, **version},
            },
            {
                "replSetUpdatePosition": 1,
                "senderId": sender,
                "optimes": [{**place, **times, **walls}],
                **here,
                **version,
            },
            {
                **{"replSetOplogFetch": 1, "after": optime_document(newest), "maxBytes": 1000, "maxAwaitMS": 5},
                **{"knownCommitPoint": point, "knownRollbackId": asking.store.rollback_id, **here},
            },
            {"replSetOplogProbe": 1, "optimes": [optime_document(newest), point], **here},
            {"replSetSnapshot": 1, "step": "begin", "id": "", "offset": Int64(0), "length": 10, **here},
            {"replSetSnapshot": 1, "step": "chunk", "id": "x", "offset": Int64(0), "length": 10, **here},
            {"replSetGetRBID": 1},
        ]


ROUNDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 7), CHANGES), min_size=1, max_size=3)


def check(members: ThreeMembers, rounds: list[tuple[int, int, int, list[Change]]]) -> str:
    """No question ends a member, or raises its term beyond the bound; without another term nobody else leads."""
    outcome = ""
    before, primary = members.term(), members.cluster.primary()
    # The question before may have given one member a new term that the primary has not heard of.
    is_settled = primary is not None and members.member(primary).node.term == before
    for target, sender, kind, changes in rounds:
        try:
            question = changed(members.questions(sender)[kind], changes)
            body = encode({**question, "$db": "admin"})
        except (InvalidBSONError, InvalidValueError):
            return "no BSON"
        outcome = f"{next(iter(question))}: {known(members.ask(NAMES[target], body, sender), question)}"
    members.write()
    members.cluster.run_for(0.2)
    members.is_unbroken()
    after = members.term()
    assert after <= min(MAX_TERM, before + len(rounds) * MAX_TERM_JUMP + 3), (before, after)
    if after == before and is_settled:
        assert members.cluster.primary() == primary, (primary, members.cluster.summary())
    members.gets_well()
    return outcome


@contextmanager
def quiet() -> Iterator[ThreeMembers]:
    """A set whose members print nothing of the faults that they survive."""
    logger, members = logging.getLogger("replset"), ThreeMembers()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield members
    finally:
        logger.setLevel(level)
        members.close()


@contextmanager
def opened() -> Iterator[Check]:
    with quiet() as members:
        yield lambda value: check(members, value)


TARGET = Target("members", ROUNDS, opened, 40)
