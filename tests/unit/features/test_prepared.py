"""A command of a shape that its connection has sent before is done as the usual way does it, from its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from struct import pack
from typing import Any

import pytest

from replset.auth.users import Login
from replset.bson import Binary, Int64, InvalidBSONError, ObjectId, Timestamp, decode, encode
from replset.config import ReplSetConfig
from replset.errors import PrimarySteppedDownError, RemoteProtocolError
from replset.member.positions import Positions
from replset.operations import shapes
from replset.operations.shapes import ARRAYS, VARYING, Shape, document_of, shape_of
from replset.operations.write_concern import WaitInVainError
from replset.wire.framing import FrameReader, encode_request
from tests.rig import Client, Rig, a_set

LSID = {"id": Binary(bytes(range(16)), 4)}
CLUSTER = {"clusterTime": Timestamp(5, 1), "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)}}
MAJORITY = {"writeConcern": {"w": "majority"}}


def inline(command: Mapping[str, object], number: int = 1, db: str = "test") -> bytes:
    return encode_request(number, command, db)


def sequence(command: Mapping[str, object], number: int = 1, db: str = "test") -> bytes:
    array = ARRAYS.get(next(iter(command)), "")
    if array not in command:
        return inline(command, number, db)
    rows = [encode(row) for row in command[array]]  # type: ignore[attr-defined]
    rest = {name: value for name, value in command.items() if name != array}
    return encode_request(number, rest, db, (array, rows))


# --- shapes: bytes alone ------------------------------------------------------------------------------------------

COMMANDS: dict[str, dict[str, Any]] = {
    "plain": {"insert": "c", "documents": [{"_id": 1, "a": "x"}]},
    "of a driver": {
        "insert": "c", "documents": [{"_id": ObjectId(bytes(12))}], "ordered": True, "lsid": LSID,
        "txnNumber": Int64(7), **MAJORITY, "$clusterTime": CLUSTER,
    },
    "the session comes first": {
        "insert": "c", "lsid": LSID, "txnNumber": Int64(7), "documents": [{"a": 1}], "comment": {"a": [1]},
    },
    "find": {"find": "c", "filter": {"_id": 1}},
    "find of a driver": {
        "find": "c", "filter": {"_id": ObjectId(bytes(12))}, "limit": 1, "singleBatch": True, "lsid": LSID,
        "$clusterTime": CLUSTER,
    },
}  # fmt: skip
FORMS = [inline, sequence]


def made_of(message: bytes) -> Shape | None:
    (parsed,) = FrameReader().feed(message)
    varying = VARYING[parsed.body.first_key or ""]
    documents = parsed.sequences.get(varying)
    return shape_of(parsed.body.raw, varying, documents[0].raw if documents else None)


def document_in(command: Mapping[str, Any]) -> Any:
    """The only document of a command, or its filter."""
    return command["filter"] if "find" in command else command["documents"][0]


def read(message: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Read the message by the framing and the codec: the fields without the documents, and the only document, or the
    filter.
    """
    try:
        (parsed,) = FrameReader().feed(message)
        fields = parsed.body.decode()
        documents = parsed.sequences.get("documents")
        if "find" in fields:
            raw = None if documents or not fields.pop("filter", None) else parsed.body.get_raw("filter")
            return None if raw is None else (fields, raw)
        array = fields.pop("documents", None)
        if parsed.more_to_come or parsed.exhaust_allowed or parsed.has_checksum or len(parsed.sequences) > 1:
            return None
        if documents is None:
            raw = parsed.body.get_raw("documents") or b""
            return (fields, raw[7:-1]) if isinstance(array, list) and len(array) == 1 else None
        return (fields, documents[0].raw) if array is None and len(documents) == 1 else None
    except (InvalidBSONError, RemoteProtocolError, ValueError):
        return None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_changed_byte_is_noticed_or_belongs_to_what_may_change(name: str, form: Callable[..., bytes]) -> None:
    """What a shape takes is a message whose fields, read the usual way, are the first one's except for the slots."""
    message = form(COMMANDS[name])
    shape = made_of(message)
    assert shape is not None
    assert shape.document_in(message) == encode(document_in(COMMANDS[name]))
    fields, _ = read(message) or ({}, b"")
    fixed = {key: value for key, value in fields.items() if key not in ("lsid", "txnNumber", "$clusterTime")}
    taken = 0
    for at in range(len(message)):
        for byte in {message[at] ^ 1, message[at] ^ 0x80, 0, 3}:
            changed = message[:at] + bytes([byte]) + message[at + 1 :]
            document = shape.document_in(changed)
            if document is None:
                continue
            taken += 1
            found = read(changed)
            if found is None:  # the document is none any more, or its sequence or the $clusterTime: seen before its use
                at_cluster = shape.cluster_time is not None and shape.read(shape.cluster_time, changed)
                is_cluster = at_cluster and at_cluster != shape.read(shape.cluster_time, message)
                assert document != shape.document_in(message) or is_cluster
                continue
            rest, expected = found
            assert document == expected
            assert {key: rest.get(key) for key in fixed} == fixed
            assert rest.keys() == fields.keys()
            for slot in (shape.lsid, shape.number):
                value = None if slot is None else shape.read(slot, changed)
                if slot is shape.lsid and value is not None:
                    assert bytes(rest["lsid"]["id"]) == value
                elif value is not None:
                    assert rest["txnNumber"] == int.from_bytes(value, "little", signed=True)
    assert taken > 8  # the request's id at least


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_message_that_is_cut_or_has_more_is_not_taken(name: str, form: Callable[..., bytes]) -> None:
    message = form(COMMANDS[name])
    shape = made_of(message)
    assert shape is not None
    for size in range(len(message)):
        assert shape.document_in(message[:size]) is None
    assert shape.document_in(message + b"\0") is None
    assert shape.document_in(message + message) is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_documents_of_other_sizes_and_other_slots_are_found(name: str, form: Callable[..., bytes]) -> None:
    shape = made_of(form(COMMANDS[name]))
    assert shape is not None
    other = {"_id": "longer", "rest": ["y" * 300, {"z": None}]}
    changed = {"lsid": {"id": Binary(b"\xff" * 16, 4)}, "txnNumber": Int64(-3), "$clusterTime": {**CLUSTER}}
    varies = {"filter": other} if "find" in COMMANDS[name] else {"documents": [other]}
    command = {key: changed.get(key, value) for key, value in COMMANDS[name].items()} | varies
    message = form(command, 77)
    assert shape.document_in(message) == encode(other)
    if shape.number is not None:
        assert shape.read(shape.number, message) == pack("<q", -3)
    if shape.lsid is not None:
        assert shape.read(shape.lsid, message) == b"\xff" * 16
    if shape.cluster_time is not None:
        assert document_of(shape.read(shape.cluster_time, message)) == encode(CLUSTER)


@pytest.mark.parametrize(
    "more",
    [
        {"stmtId": 3}, {"maxTimeMS": 100}, {"bypassDocumentValidation": True}, {"autocommit": False}, {"unknown": 1},
        {"lsid": {**LSID, "uid": Binary(bytes(32))}}, {"txnNumber": 5}, {"bypassEmptyTsReplacement": True},
    ],
)  # fmt: skip
def test_fields_that_are_not_foreseen_have_no_shape(more: dict[str, Any]) -> None:
    assert made_of(inline({**COMMANDS["plain"], **more})) is None


def test_several_documents_have_no_shape() -> None:
    assert made_of(inline({"insert": "c", "documents": [{"a": 1}, {"a": 2}]})) is None
    assert shape_of(encode({"insert": "c", "$db": "test"}), "documents", None) is None
    double = encode({"insert": "c", "comment": 1, "$db": "test", "commend": 1}).replace(b"commend", b"comment")
    assert shape_of(double, "documents", encode({"a": 1})) is None


# --- on a member: the same answers and entries as the usual way -----------------------------------------------------


class Wire(asyncio.Protocol):
    """One connection to a member's wire port, which a test writes bytes to."""

    def __init__(self, rig: Rig, name: str = "a") -> None:
        self.rig, self.name = rig, name
        self._received = b""
        self.replies: list[dict[str, Any]] = []
        self.is_lost = False
        self.numbers = 0
        before = self._connections()
        port = rig.cluster.client_port()
        self.transport = rig.cluster.run(port.connect(rig.cluster.host(name), lambda: self))
        rig.until(lambda: any(each not in before for each in self._connections()))
        (self.connection,) = [each for each in self._connections() if each not in before]
        """The member's end."""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= max(16, size := int.from_bytes(self._received[:4], "little")):
            self.replies.append(decode(self._received[21:size]))
            self._received = self._received[size:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def write(self, *commands: Mapping[str, object], form: Callable[..., bytes] = inline, db: str = "test") -> None:
        """Send the messages in one piece."""
        self.transport.write(b"".join(form(command, self._next_number(), db) for command in commands))

    def arrive(self, *commands: Mapping[str, object]) -> None:
        """Let the messages arrive in one piece each: the network may cut them, and then no shape is looked at."""
        self.arrive_bytes(*[inline(command, self._next_number()) for command in commands])

    def ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        """Return the reply to a message that arrives in one piece."""
        count = len(self.replies)
        self.arrive(command)
        self.rig.until(lambda: len(self.replies) > count)
        return self.replies[count]

    def arrive_bytes(self, *messages: bytes) -> None:
        async def receive() -> None:
            for message in messages:
                self.connection.data_received(message)

        self.rig.wait(0.01)
        self.rig.do(receive(), self.name)

    def _connections(self) -> list[Any]:
        return [each for each in self.rig.member(self.name)._server.connections if not each.is_member]

    def _next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def send(
        self, command: Mapping[str, object], db: str = "test", form: Callable[..., bytes] = inline
    ) -> dict[str, Any]:
        """Return the reply."""
        count = len(self.replies)
        self.write(command, form=form, db=db)
        self.rig.until(lambda: len(self.replies) > count or self.is_lost)
        return self.replies[count]


class Prepared:
    """Counts the commands that a member takes by their shape."""

    def __init__(self, rig: Rig, name: str = "a") -> None:
        operations, prepared = rig.member(name).dispatcher.operations, rig.member(name).dispatcher.prepared
        begin, answer = operations.begin_prepared, prepared.answer
        self.count = 0

        def counted(write: Any) -> None:
            self.count += 1
            begin(write)

        def answered(*message: Any) -> bytes | None:
            reply = answer(*message)
            self.count += reply is not None
            return reply

        operations.begin_prepared = counted  # type: ignore[method-assign]
        prepared.answer = answered  # type: ignore[method-assign]


def insert(doc: Mapping[str, object], **more: object) -> dict[str, object]:
    return {"insert": "c", "documents": [doc], **more}


def retryable(number: int, doc: Mapping[str, object], **more: object) -> dict[str, object]:
    return insert(doc, lsid=LSID, txnNumber=Int64(number), **more)


FAIL = {
    "configureFailPoint": "failCommand",
    "mode": {"times": 1},
    "data": {"failCommands": ["insert"], "errorCode": 91},
}
Step = tuple[dict[str, object], str]


def on_test(*commands: dict[str, object]) -> list[Step]:
    return [(command, "test") for command in commands]


def update(key: object, change: object, **more: object) -> dict[str, object]:
    return {"update": "c", "updates": [{"q": {"_id": key}, "u": change, **more}]}


def delete(key: object, limit: object = 1, **more: object) -> dict[str, object]:
    return {"delete": "c", "deletes": [{"q": {"_id": key}, "limit": limit}], **more}


def find(key: object, **more: object) -> dict[str, object]:
    return {"find": "c", "filter": {"_id": key}, **more}


FILLED = [insert({"_id": n, "a": 1, "items": [{"k": 1}, {"k": 2}]}) for n in range(6)]
OF_A_SESSION = [{"lsid": LSID, "txnNumber": Int64(n)} for n in (1, 2, 3, 3, 2, 5)]
IN_A_TRANSACTION = {"lsid": LSID, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
REFUSED: list[dict[str, object]] = [
    {"$set": {"a": 2}},
    {"$set": {"_id": 9}},
    {"$inc": {"items": 1}},
    {"$set": {"a": 1, "a.b": 2}},
    {"$no": 1},
    {"_id": 8},
]
CASES: dict[str, list[Step]] = {
    "finds": on_test(*FILLED, *[find(n) for n in range(8)], find("x"), find(1.0), find(ObjectId(bytes(12)))),
    "finds of a driver": on_test(
        *FILLED,
        *[find(n, limit=1, singleBatch=True, lsid=LSID, **{"$clusterTime": CLUSTER}) for n in range(4)],
        find(1, lsid=LSID, **{"$clusterTime": {**CLUSTER, "clusterTime": Timestamp(4_000_000_000, 1)}}),
        find(1, limit=1, singleBatch=True, lsid=LSID,
             **{"$clusterTime": {**CLUSTER, "clusterTime": Timestamp(4_000_000_000, 1)}}),
        find(2, limit=1, singleBatch=True, lsid=LSID, **{"$clusterTime": CLUSTER}),
    ),
    "finds of other kinds": on_test(
        *FILLED, *[find(n) for n in range(2)], find({"$gt": 3}), find([1]), find(None), find({"a": 1}),
        find("y" * 2000),
        {"find": "c", "filter": {"a": 1}}, {"find": "c", "filter": {"_id": 1, "a": 1}}, {"find": "c", "filter": {}},
        find(1, limit=0), find(1, limit=0), find(1, readConcern={"level": "majority"}), find(1, unknown=1), find(1),
        find(1, **IN_A_TRANSACTION), find(1, sort={"a": 1}), find(1, batchSize=0), {"find": "c", "filter": 5},
        {"find": 5, "filter": {"_id": 1}}, find(2),
    ),
    "finds between writes": on_test(
        find(1), find(1), insert({"_id": 1, "a": 1}), find(1), update(1, {"$set": {"a": 2}}), find(1),
        update(1, {"$set": {"a": 3}}), find(1), delete(1), find(1), {"drop": "c"}, find(1),
        {"create": "d"}, {"create": "c", "viewOn": "d", "pipeline": []}, find(1),
    ),
    "finds in other databases": [
        *[(find("x"), db) for db in ("admin", "local", "config") for _ in range(3)], *on_test(find(1), find(1)),
    ],
    "a fail point of finds": [
        *on_test(*FILLED, find(1), find(2)),
        ({**FAIL, "data": {"failCommands": ["find"], "errorCode": 91}}, "admin"), *on_test(find(3), find(3), find(4)),
    ],
    "updates": on_test(*FILLED, *[update(n, {"$inc": {"a": n}, "$set": {"b": "x" * n}}) for n in range(5)]),
    "updates that change nothing": on_test(*FILLED, *[update(n, {"$set": {"a": 1}}) for n in range(4)]),
    "replacements": on_test(*FILLED, *[update(n, {"x": n, "t": Timestamp(0, 0)}) for n in range(4)]),
    "updates of what is not there": on_test(*FILLED, *[update(n, {"$set": {"a": 2}}) for n in (1, 2, 77, 3)]),
    "updates of the time": on_test(
        *FILLED, *[update(n, {"$currentDate": {"d": {"$type": "timestamp"}}, "$set": {"z": n}}) for n in range(4)]
    ),
    "updates that are refused": on_test(*FILLED, *[update(n, change) for n, change in enumerate(REFUSED)]),
    "updates of other kinds": on_test(
        *FILLED, update(1, {"$set": {"a": 5}}), update(1, {"$set": {"a": 6}}),
        update(1, [{"$set": {"a": 7}}]), update(1, {"$set": {"items.1500": 1}}), update(1, {"$set": {"items.$.k": 3}}),
        update(7, {"$set": {"a": 8}}, upsert=True), update(1, {"$set": {"a": 9}}, upsert=False, multi=False),
        update(1, {"$set": {"a": 10}}, multi=True), update({"$gt": 3}, {"$set": {"a": 11}}), update(1, 5),
        update(1, {}),
        update(1, {"$set": {"a": 12}}, upsert=0), update(1, {"$set": {"a": 13}}, hint="_id_"),
    ),
    "retryable updates": on_test(
        *FILLED, *[{**update(1, {"$inc": {"a": 1}}), **session} for session in OF_A_SESSION],
        {"count": "c", "query": {"a": 5}},
    ),
    "deletes": on_test(*FILLED, *[delete(n, **MAJORITY) for n in (0, 1, 2, 77, 3)]),
    "deletes of other kinds": on_test(
        *FILLED, delete(0), *[delete(1, limit) for limit in (0, 1.0, True, 5, Int64(1))], delete({"$in": [2]}),
        delete([3]),
    ),
    "retryable deletes": on_test(
        *FILLED, *[{**delete(n), **session} for n, session in enumerate(OF_A_SESSION)], {"count": "c"}
    ),
    "updates under a unique index and a validator": on_test(
        *FILLED[:2], *[update(n, {"$set": {"u": n}}) for n in range(2)],
        {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": True}]},
        update(0, {"$set": {"u": 1}}), update(0, {"$set": {"u": 5}}),
        {"collMod": "c", "validator": {"a": {"$lt": 3}}}, update(0, {"$set": {"a": 9}}), update(0, {"$set": {"a": 2}}),
        delete(0),
    ),
    "a document that a transaction holds": on_test(
        *FILLED, update(1, {"$set": {"a": 4}}), update(2, {"$set": {"a": 4}}), delete(5),
        {**update(1, {"$set": {"a": 7}}), **IN_A_TRANSACTION}, {**update(1, {"$set": {"a": 4}}), "maxTimeMS": 30},
        update(3, {"$set": {"a": 4}}), {**delete(1), "maxTimeMS": 30}, delete(4),
    ),
    "plain": on_test(*[insert({"_id": n, "a": "x" * n}) for n in range(5)]),
    "without _id, or as the last field": on_test(*[insert({"a": n}) for n in range(3)], insert({"a": 9, "_id": 7})),
    "empty timestamps": on_test(*[insert({"_id": n, "t": Timestamp(0, 0)}) for n in range(3)]),
    "an _id that is there": on_test(*[insert({"_id": n % 2}) for n in range(5)]),
    "an _id that cannot be": on_test(*[insert({"_id": value}) for value in (1, [1], {"$a": 1}, 2)]),
    "majority": on_test(*[insert({"_id": n}, **MAJORITY) for n in range(3)]),
    "w: 1, and on its disk": on_test(*[insert({"_id": n}, writeConcern={"w": 1, "j": True}) for n in range(3)]),
    "w: 0, answered": on_test(*[insert({"_id": n}, writeConcern={"w": 0}) for n in range(3)]),
    "w: 2 of one": on_test(*[insert({"_id": n}, writeConcern={"w": 2}) for n in range(3)]),
    "an unknown mode": on_test(*[insert({"_id": n}, writeConcern={"w": "none"}) for n in range(3)]),
    "with a limit": on_test(*[insert({"_id": n}, writeConcern={"w": "majority", "wtimeout": 50}) for n in range(3)]),
    "retryable": on_test(*[retryable(n, {"_id": n}) for n in (1, 2, 3, 3, 2, 5, 4, 6)]),
    "retryable, with an _id that is there": on_test(*[retryable(n, {"_id": n // 2}) for n in range(6)]),
    "a session without a number": on_test(*[insert({"_id": n}, lsid=LSID) for n in range(3)]),
    "a number without a session": on_test(*[insert({"_id": n}, txnNumber=Int64(n)) for n in range(2)]),
    "a cluster time far ahead": on_test(
        *[insert({"_id": n}, **{"$clusterTime": {**CLUSTER, "clusterTime": Timestamp(at, 1)}})
          for n, at in enumerate((5, 6, 4_000_000_000, 7))]
    ),
    "a collection that is dropped": on_test(
        insert({"_id": 1}), insert({"_id": 2}), {"drop": "c"}, insert({"_id": 3}), insert({"_id": 3})
    ),
    "a unique index": on_test(
        insert({"_id": 1, "u": 1}),
        {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": True}]},
        insert({"_id": 2, "u": 2}), insert({"_id": 3, "u": 2}), insert({"_id": 4, "u": 3}),
    ),
    "a validator": on_test(
        insert({"_id": 1}), {"collMod": "c", "validator": {"n": {"$gt": 1}}},
        insert({"_id": 2, "n": 5}), insert({"_id": 3, "n": 0}), insert({"_id": 4}),
    ),
    "capped": on_test(
        {"create": "c", "capped": True, "size": 4096, "max": 2}, *[insert({"_id": n}) for n in range(5)]
    ),
    "a view comes in its place": on_test(
        insert({"_id": 1}), {"drop": "c"}, {"create": "c", "viewOn": "d", "pipeline": []}, insert({"_id": 2})
    ),
    "the set's default changes": [
        *on_test(insert({"_id": 1}), insert({"_id": 2})),
        ({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1, "wtimeout": 70}}, "admin"),
        *on_test(insert({"_id": 3}), insert({"_id": 4})),
    ],
    "a document of a transaction": [
        *on_test(retryable(1, {"_id": 1})),
        *on_test(insert({"_id": 2}, lsid=LSID, txnNumber=Int64(2), autocommit=False, startTransaction=True)),
        *on_test(retryable(2, {"_id": 3}), retryable(1, {"_id": 3}), retryable(3, {"_id": 2})),
    ],
    "a fail point": [*on_test(insert({"_id": 1}), insert({"_id": 2})), (FAIL, "admin"),
                     *on_test(insert({"_id": 3}), insert({"_id": 3}))],
}  # fmt: skip
MOSTLY_TAKEN = {"updates", "updates that change nothing", "replacements", "updates of the time", "deletes", "plain"}
MOSTLY_TAKEN |= {"finds", "finds of a driver", "finds between writes", "a fail point of finds"}
MOSTLY_TAKEN |= {"empty timestamps", "majority", "w: 1, and on its disk", "a session without a number"}


def without_times(value: Any) -> Any:
    """What does not depend on when it was done."""
    if isinstance(value, dict):
        left_out = ("$clusterTime", "operationTime", "ts", "wall", "ui", "topologyVersion", "processId", "clusterTime")
        return {key: without_times(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, ObjectId | Timestamp):
        return type(value).__name__
    return [without_times(each) for each in value] if isinstance(value, list) else value


def run(steps: list[Step], form: Callable[..., bytes]) -> tuple[list[Any], list[Any], int]:
    """Run the commands on a new member; the replies, its entries, and how many inserts were taken by their shape."""
    with a_set() as rig:
        prepared, wire, entries = Prepared(rig), Wire(rig), rig.client()
        replies = [wire.send(command, db, form) for command, db in steps]
        operations = rig.member().dispatcher.operations
        used = {key: row[0] for key, row in operations.used.items()}
        counts = {name: count for name, count in rig.member().dispatcher.counts.items() if name in VARYING}
        assert not operations.running
        index_uses = [count for _, count in sorted(operations.index_uses.items())]
        found = [*entries.entries(), used, index_uses, counts, operations.failed, rig.member().dispatcher.failures]
        return without_times(replies), without_times(found), prepared.count


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_answers_and_entries_are_those_of_the_usual_way(
    name: str, form: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, entries, taken = run(CASES[name], form)
    monkeypatch.setattr(shapes, "MOST_IN_VAIN", 0)
    usual_replies, usual_entries, none = run(CASES[name], form)
    assert replies == usual_replies
    assert entries == usual_entries
    assert none == 0
    assert taken >= 2 or name not in MOSTLY_TAKEN


@pytest.fixture
def wire(rig: Rig) -> Wire:
    """A connection that has a shape of `insert` with and without a majority."""
    made = Wire(rig)
    made.send(insert({"_id": "first"}))
    made.send(insert({"_id": "second"}, **MAJORITY))
    return made


def ids(client: Client) -> list[object]:
    return [row["_id"] for row in client.ok({"find": "c"})["cursor"]["firstBatch"] if not isinstance(row["_id"], str)]


def test_a_secondary_answers_finds_that_may_be_read_there() -> None:
    with a_set(3) as rig:
        rig.client().ok({**insert({"_id": 1}), "writeConcern": {"w": 3}})
        prepared, wire = Prepared(rig, "b"), Wire(rig, "b")
        anywhere = find(1, **{"$readPreference": {"mode": "nearest"}})
        replies = [wire.ask(command) for command in (anywhere, anywhere, find(1), find(1), anywhere)]
        assert [reply.get("code") for reply in replies] == [None, None, 13435, 13435, None]
        assert prepared.count == 2
        rig.client("b").ok({"replSetMaintenance": True}, "admin")
        assert wire.ask(anywhere)["code"] == 13436
        rig.client("b").ok({"replSetMaintenance": False}, "admin")
        rig.until(lambda: rig.member("b").node.state.name == "SECONDARY")
        leader, sent = Wire(rig), find(1)
        for _ in range(2):
            leader.ask(sent)
        rig.step_down(30)
        rig.until(lambda: rig.member().node.state.name == "SECONDARY")
        assert leader.is_lost or leader.send(sent)["code"] == 13435


def test_finds_leave_the_shapes_of_writes(rig: Rig, wire: Wire) -> None:
    for number in range(40):
        wire.send({"find": f"c{number}", "filter": {"_id": 1}})
    prepared = Prepared(rig)
    wire.ask(insert({"_id": 1}))
    assert prepared.count == 1


def test_what_comes_behind_an_insert_is_answered_behind_it(rig: Rig, wire: Wire) -> None:
    prepared = Prepared(rig)
    wire.arrive(insert({"_id": 1}), {"count": "c"}, insert({"_id": 2}), {"count": "c"})
    rig.until(lambda: len(wire.replies) == 6)
    assert prepared.count == 1
    assert [reply["n"] for reply in wire.replies[2:]] == [1, 3, 1, 4]


def test_an_insert_that_goes_the_usual_way_after_all_stays_the_first(rig: Rig, wire: Wire) -> None:
    prepared = Prepared(rig)
    wire.arrive(insert({"_id": "first"}), {"count": "c"}, insert({"_id": 2}))
    rig.until(lambda: len(wire.replies) == 5)
    assert prepared.count == 1
    assert wire.replies[2]["writeErrors"][0]["code"] == 11000
    assert [reply["n"] for reply in wire.replies[3:]] == [2, 1]


def test_an_insert_is_shown_and_can_be_ended_while_it_waits(rig: Rig, wire: Wire) -> None:
    prepared = Prepared(rig)
    rig.stop_disk()
    wire.arrive(insert({"_id": 1}, **MAJORITY))
    rig.wait(0.3)
    assert prepared.count == 1
    client = rig.client()
    (row,) = [row for row in client.ok({"currentOp": 1}, "admin")["inprog"] if row["op"] == "insert"]
    assert (row["ns"], row["command"]["documents"], row["killPending"]) == ("test.c", [{"_id": 1}], False)
    client.ok({"killOp": 1, "op": row["opid"]}, "admin")
    rig.until(lambda: len(wire.replies) == 3)
    assert wire.replies[2]["code"] == 11601
    assert not [row for row in client.ok({"currentOp": 1}, "admin")["inprog"] if row["op"] == "insert"]
    rig.start_disk()
    assert wire.send(insert({"_id": 2}, **MAJORITY))["n"] == 1
    assert ids(client) == [1, 2]


def test_a_slow_one_is_noted_with_its_reason(rig: Rig, wire: Wire) -> None:
    prepared = Prepared(rig)
    rig.stop_disk()
    wire.arrive(insert({"_id": 1}, **MAJORITY))
    rig.wait(0.4)
    rig.start_disk()
    rig.until(lambda: len(wire.replies) == 3)
    assert prepared.count == 1
    (row,) = [row for row in rig.member().dispatcher.operations.slow.rows if row.command == "insert"]
    assert (row.ns, row.reason.name) == ("test.c", "WRITE_CONCERN")


def test_a_client_that_leaves_while_it_waits_leaves_nothing(rig: Rig, wire: Wire) -> None:
    wire.send(retryable(1, {"_id": 0}, **MAJORITY))
    prepared, operations = Prepared(rig), rig.member().dispatcher.operations
    rig.stop_disk()
    wire.arrive(retryable(2, {"_id": 1}, **MAJORITY))
    rig.wait(0.1)
    assert (prepared.count, len(operations.running)) == (1, 1)
    wire.transport.close()
    rig.wait(0.1)
    assert not operations.running
    rig.start_disk()
    assert ids(rig.client()) == [0, 1]
    other = Wire(rig)
    assert other.send(retryable(3, {"_id": 2}, **MAJORITY))["n"] == 1  # the session is free


def test_a_session_is_used_by_one_insert_at_a_time(rig: Rig, wire: Wire) -> None:
    """A retry on another connection waits until the first try is committed, and is answered as it was."""
    wire.send(retryable(1, {"_id": 0}))
    other = Wire(rig)
    other.send(retryable(2, {"_id": 1}))
    prepared = Prepared(rig)
    rig.member().context.write_queue.pause()
    wire.arrive(retryable(3, {"_id": 2}))
    other.arrive(retryable(3, {"_id": 2}))
    rig.wait(0.05)
    assert prepared.count == 1

    async def resume() -> None:
        rig.member().context.write_queue.resume()

    rig.do(resume())
    rig.until(lambda: len(wire.replies) == 4 and len(other.replies) == 2)
    assert (wire.replies[3]["n"], other.replies[1]["n"]) == (1, 1)
    assert ids(rig.client()) == [0, 1, 2]


def test_a_stepdown_ends_those_that_wait_with_their_labels() -> None:
    with a_set(3) as rig:
        wire = Wire(rig)
        wire.send(retryable(1, {"_id": 0}, **MAJORITY))
        prepared = Prepared(rig)
        rig.cluster.cut(["a"])
        wire.arrive(retryable(2, {"_id": 1}, **MAJORITY))
        rig.until(lambda: len(wire.replies) == 2)
        reply = wire.replies[1]
        assert prepared.count == 1
        assert reply["writeConcernError"]["code"] == 189
        assert (reply["n"], reply["errorLabels"]) == (1, ["RetryableWriteError"])
        assert wire.send(retryable(3, {"_id": 2}, **MAJORITY))["code"] == 10107
        rig.cluster.heal()


def test_members_that_are_down_end_a_wait_in_vain() -> None:
    with a_set(3) as rig:
        wire = Wire(rig)
        wire.send(insert({"_id": 0}, writeConcern={"w": 3}))
        prepared = Prepared(rig)
        rig.cluster.kill("c")
        wire.arrive(insert({"_id": 1}, writeConcern={"w": 3}))
        rig.until(lambda: len(wire.replies) == 2)
        assert prepared.count == 1
        reply = wire.replies[1]
        assert (reply["n"], reply["writeConcernError"]["code"]) == (1, 100)
        began = rig.cluster.loop.now_ms
        for key in (2, 3, 4):  # they do not wait with the first one for the next look at all waits, each second
            assert wire.ask(insert({"_id": key}, writeConcern={"w": 3}))["writeConcernError"]["code"] == 100
        assert rig.cluster.loop.now_ms - began < 500
        rig.cluster.start("c")


def test_a_group_that_fails_answers_the_error(rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(rig)
    monkeypatch.setattr(rig.member().store, "has_disk_space", lambda: False)
    wire.arrive(insert({"_id": 1}))
    rig.until(lambda: len(wire.replies) == 3)
    assert (prepared.count, wire.replies[2]["code"]) == (1, 14031)
    monkeypatch.undo()
    assert wire.send(insert({"_id": 1}))["n"] == 1


def test_a_connection_whose_inserts_never_repeat_makes_no_more_shapes(rig: Rig, wire: Wire) -> None:
    made = 0
    shape_of = rig.member().dispatcher.prepared.shape_of

    def counted(request: Any) -> Any:
        nonlocal made
        made += 1
        return shape_of(request)

    rig.member().dispatcher.prepared.shape_of = counted  # type: ignore[method-assign]
    for n in range(30):
        wire.send(insert({"_id": n}, comment=f"trace {n}"))
    assert made < shapes.MOST_IN_VAIN


@pytest.mark.parametrize("asks", [{"minInSync": 2}, {"durabilityLevels": {"test.c": {"level": 0}}}, None])
def test_nothing_is_taken_where_each_write_is_looked_at(rig: Rig, wire: Wire, asks: dict[str, Any] | None) -> None:
    """By a setting, or by a fail point, which another connection sets."""
    prepared = Prepared(rig)
    wire.arrive(insert({"_id": "taken"}))
    rig.until(lambda: len(wire.replies) == 3)
    if asks is None:
        rig.client().ok(FAIL, "admin")
    else:
        state = rig.member().node._state
        assert state.config is not None
        document = {**state.config.document(), "settings": {**state.config.document()["settings"], **asks}}
        state.config = ReplSetConfig.parse(document)
    wire.arrive(insert({"_id": 1}))
    rig.until(lambda: len(wire.replies) == 4)
    assert prepared.count == 1
    assert (asks is None) == (wire.replies[3].get("code") == 91)


def test_what_a_majority_write_waits_for_is_noted_before_its_page_leaves(rig: Rig, wire: Wire) -> None:
    rig.wait(5)
    assert rig.member()[Positions].awaited == ""
    prepared = Prepared(rig)
    rig.member().context.write_queue.pause()
    wire.arrive(insert({"_id": 1}, **MAJORITY))
    rig.wait(0.1)
    assert (prepared.count, rig.member()[Positions].awaited) == (1, "durable")

    async def resume() -> None:
        rig.member().context.write_queue.resume()

    rig.do(resume())
    waits = rig.member().dispatcher.operations.write_concern_waits
    before = waits.buckets()[-1][1]
    rig.until(lambda: len(wire.replies) == 3)
    assert waits.buckets()[-1][1] == before + 1
    assert waits.total < 60


@pytest.mark.parametrize(
    ("concern", "waits"),
    [({"w": 0}, False), ({"w": 1}, False), ({"w": 1, "j": True}, True), ({"w": "majority"}, True)],
)
def test_only_a_write_that_waits_itself_waits_for_others(rig: Rig, concern: dict[str, object], waits: bool) -> None:
    wires = [Wire(rig), Wire(rig)]
    numbers = iter(range(10))

    def message(wire: Wire) -> bytes:
        return inline(insert({"_id": next(numbers)}, writeConcern=concern), wire._next_number())

    async def arrive(*to: Wire) -> None:
        for wire in to:
            wire.connection.data_received(message(wire))

    async def arrive_alone() -> int:
        await arrive(wires[0])
        await asyncio.sleep(0.001)
        return rig.member().queue_depths()["clients"]

    for wire in wires * 2:
        rig.do(arrive(wire))
        rig.wait(0.5)
    rig.do(arrive(*wires))
    rig.wait(0.5)
    assert rig.do(arrive_alone()) == waits
    rig.do(arrive(wires[1]))
    rig.until(lambda: all(len(wire.replies) == 4 for wire in wires))


def test_rights_are_asked_for_each_time(rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    wire.ask(find("first"))
    prepared, users = Prepared(rig), rig.member().users
    wire.ask(find("first"))
    assert prepared.count == 1
    monkeypatch.setattr(users, "required", True)
    for command in (insert({"_id": 1}), find("first")):
        assert wire.ask(command)["code"] == 13
    assert prepared.count == 1


def test_a_session_of_a_user_is_that_users_where_nobody_has_to_log_in(rig: Rig) -> None:
    """A retry on a new connection goes the usual way: both ways must find the same session, or it is done twice."""
    first, second = Wire(rig), Wire(rig)
    for wire in (first, second):
        wire.connection._context.login = Login("ann", "admin")
    first.ask({**update(1, {"$inc": {"n": 1}}, upsert=True), "lsid": LSID, "txnNumber": Int64(1)})
    prepared = Prepared(rig)
    statement = {**update(1, {"$inc": {"n": 1}}), "lsid": LSID}
    first.ask({**statement, "txnNumber": Int64(2)})
    first.ask({**statement, "txnNumber": Int64(3)})
    assert prepared.count == 1
    second.send({**statement, "txnNumber": Int64(3)})
    assert rig.client().ok({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1, "n": 3}]


async def called(waiting: list[Callable[[], None]]) -> None:
    """Give the only one that waits its turn."""
    (go_on,) = waiting
    go_on()


@pytest.mark.parametrize(("command", "documents"), [(insert({"_id": 1}), 3), (find("known"), 2)])
def test_what_comes_in_a_turn_that_is_full_is_taken_by_its_shape_in_a_later_one(
    rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch, command: dict[str, object], documents: int
) -> None:
    wire.send(find("known"))
    prepared, turns, before = Prepared(rig), rig.member().turns, len(wire.replies)
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(turns, "has_room", lambda: False)
    monkeypatch.setattr(turns, "call", lambda _size, go_on: waiting.append(go_on))
    wire.arrive(command, {"count": "c"})
    rig.wait(0.1)
    assert prepared.count == 0
    assert wire.connection.is_serving
    monkeypatch.undo()
    rig.do(called(waiting))
    rig.until(lambda: len(wire.replies) == before + 2)
    assert prepared.count == 1
    assert wire.replies[-1]["n"] == documents


def test_a_client_that_leaves_while_its_write_waits_for_a_turn(
    rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.send(find("known"))
    prepared, waiting = Prepared(rig), list[Callable[[], None]]()
    monkeypatch.setattr(rig.member().turns, "has_room", lambda: False)
    monkeypatch.setattr(rig.member().turns, "call", lambda _size, go_on: waiting.append(go_on))
    wire.arrive(insert({"_id": 1}))
    rig.wait(0.1)

    async def leave() -> None:
        wire.connection.connection_lost(None)

    rig.do(leave())
    monkeypatch.undo()
    rig.do(called(waiting))
    rig.wait(0.1)
    assert prepared.count == 0
    assert ids(rig.client()) == []


def test_what_waits_for_a_turn_is_refused_where_its_shape_counts_no_more(
    rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.send(find("known"))
    before, waiting = len(wire.replies), list[Callable[[], None]]()
    monkeypatch.setattr(rig.member().turns, "has_room", lambda: False)
    monkeypatch.setattr(rig.member().turns, "call", lambda _size, go_on: waiting.append(go_on))
    wire.arrive(insert({"_id": 1}), {"count": "c"})
    rig.wait(0.1)
    monkeypatch.undo()
    monkeypatch.setattr(rig.member().users, "required", True)
    rig.do(called(waiting))
    rig.until(lambda: len(wire.replies) == before + 2)
    assert [reply["code"] for reply in wire.replies[before:]] == [13, 13]


def test_a_fault_behind_a_wait_for_a_turn_ends_the_connection(
    rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client must not wait for ever."""
    wire.send(find("known"))
    waiting = list[Callable[[], None]]()
    monkeypatch.setattr(rig.member().turns, "has_room", lambda: False)
    monkeypatch.setattr(rig.member().turns, "call", lambda _size, go_on: waiting.append(go_on))
    wire.arrive(insert({"_id": 1}))
    rig.wait(0.1)
    monkeypatch.setattr(rig.member().dispatcher.prepared, "take", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rig.do(called(waiting))
    rig.until(lambda: wire.is_lost)


def test_a_wait_that_ends_twice_is_answered_once(rig: Rig, wire: Wire) -> None:
    """It is found to be in vain, and then the primary steps down, or the entry is committed after all."""
    for ends in ("stepdown", "commit"):
        rig.stop_disk()
        count = len(wire.replies)
        wire.arrive(insert({"_id": ends}, **MAJORITY))
        rig.wait(0.1)
        waiters = rig.member().write_waiters
        (heap,) = waiters._heaps.values()
        ((_, _, waiter),) = heap.rows

        async def end_twice(ends: str = ends, waiter: Any = waiter) -> None:
            waiter.set_exception(WaitInVainError("nobody is there"))
            waiter.set_exception(PrimarySteppedDownError("no")) if ends == "stepdown" else waiter.set_result(None)

        rig.do(end_twice())
        rig.start_disk()
        rig.until(lambda count=count: len(wire.replies) > count)
        rig.wait(0.5)
        assert len(wire.replies) == count + 1
        assert wire.replies[-1]["n"] == 1
        assert waiter._slow_wait.cancelled() or waiter._slow_wait.exception() is None


def test_a_shape_is_remembered_once(rig: Rig, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if writes of that shape have to go the usual way again and again."""
    before = len(wire.connection._writes.shapes)
    monkeypatch.setattr(rig.member().dispatcher.prepared, "may_take", lambda: False)
    for number in range(5):
        wire.send(insert({"_id": number}))
    assert len(wire.connection._writes.shapes) == before == 2


def test_a_malformed_document_is_refused_as_the_usual_way_does(rig: Rig, wire: Wire) -> None:
    wire.arrive(insert({"_id": 1, "a": "x"}))
    message = inline(insert({"_id": 2, "a": "x"})).replace(b"\x02\0\0\0x\0", b"\x03\0\0\0x\0")
    stranger = Wire(rig)  # it has no shape
    for one in (wire, stranger):
        one.arrive_bytes(message)
    rig.until(lambda: len(wire.replies) == 4 and len(stranger.replies) == 1)
    assert wire.replies[3]["code"] == stranger.replies[0]["code"] == 22
    assert wire.replies[3]["errmsg"] == stranger.replies[0]["errmsg"]
    assert ids(rig.client()) == [1]


def test_a_malformed_length_of_the_cluster_time_is_not_taken() -> None:
    message = inline(insert({"_id": 2}, **{"$clusterTime": CLUSTER}))
    at = message.index(b"$clusterTime\0") + len(b"$clusterTime\0")
    shape = made_of(message)
    assert shape is not None
    assert shape.document_in(message) is not None
    assert shape.document_in(message[:at] + bytes([message[at] + 1]) + message[at + 1 :]) is None
