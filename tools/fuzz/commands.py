"""Commands that are nearly right, to the dispatcher of a real member."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from replset.bson import Int64, InvalidBSONError, InvalidValueError, ObjectId, Timestamp, encode
from replset.bson.raw import RawDocument
from replset.features.all import COMMANDS
from replset.operations.command import GENERIC_FIELDS
from tests.property import test_bson, test_query
from tools.fuzz.kit import Check, Target, kept
from tools.fuzz.member import OneMember, known, one_member

OPTIME = {"ts": Timestamp(1_700_000_000, 1), "t": Int64(1)}
CONFIG: dict[str, Any] = {
    "_id": "rs0",
    "version": 2,
    "members": [{"_id": 0, "host": "a:27017", "priority": 1, "tags": {"dc": "x"}, "votes": 1}],
    "settings": {"electionTimeoutMillis": 2_000, "getLastErrorModes": {"m": {"dc": 1}}},
}
TEMPLATES: list[tuple[str, dict[str, Any]]] = [
    ("test", {"insert": "c", "documents": [{"_id": 1, "a": [1, {"b": "x"}]}, {"a": 2}], "ordered": False}),
    ("test", {"insert": "d", "documents": [{}], "writeConcern": {"w": "majority", "j": True, "wtimeout": 50}}),
    ("test", {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "multi": True, "upsert": True}]}),
    (
        "test",
        {
            "update": "c",
            "updates": [{"q": {}, "u": {"$push": {"a.$[i].b": {"$each": [1]}}}, "arrayFilters": [{"i.b": 1}]}],
        },
    ),
    ("test", {"delete": "c", "deletes": [{"q": {"_id": {"$gt": 1}}, "limit": 0}, {"q": {}, "limit": 1}]}),
    (
        "test",
        {"find": "c", "filter": {"a": {"$gt": 1}}, "sort": {"a": 1}, "projection": {"a": 1}, "limit": 2, "skip": 1},
    ),
    ("test", {"find": "c", "batchSize": 0, "readConcern": {"level": "majority", "afterClusterTime": Timestamp(1, 1)}}),
    (
        "test",
        {"find": "c", "filter": {"_id": {"$in": [1, 2]}}, "readConcern": {"level": "linearizable"}, "maxTimeMS": 9},
    ),
    ("local", {"find": "oplog.rs", "filter": {"ts": {"$gte": Timestamp(1, 1)}}, "tailable": True, "awaitData": True}),
    ("local", {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 3, "filter": {"op": "i"}}),
    ("test", {"getMore": Int64(5), "collection": "c", "batchSize": 2, "maxTimeMS": 10}),
    ("test", {"killCursors": "c", "cursors": [Int64(5)]}),
    ("test", {"count": "c", "query": {"a": {"$exists": True}}, "limit": 1, "skip": 1}),
    ("test", {"distinct": "c", "key": "a.b", "query": {"a": {"$type": "int"}}}),
    ("test", {"create": "e"}),
    ("test", {"create": "e", "capped": True, "size": 4096, "max": 3, "validator": {"a": {"$gt": 1}}}),
    (
        "test",
        {"create": "v", "validator": {"$jsonSchema": {"required": ["a"], "properties": {"a": {"bsonType": "int"}}}}},
    ),
    (
        "test",
        {"collMod": "c", "validator": {"b": {"$ne": 5}}, "validationLevel": "moderate", "validationAction": "warn"},
    ),
    ("test", {"collMod": "c", "index": {"keyPattern": {"a": 1}, "expireAfterSeconds": 5, "hidden": True}}),
    ("admin", {"renameCollection": "test.e", "to": "test.f", "dropTarget": True}),
    (
        "admin",
        {
            "applyOps": [
                {"op": "i", "ns": "test.c", "o": {"_id": 9}},
                {"op": "u", "ns": "test.c", "o": {"$v": 2, "diff": {"u": {"a": 1}}}, "o2": {"_id": 9}},
                {"op": "c", "ns": "test.$cmd", "o": {"applyOps": [{"op": "d", "ns": "test.c", "o": {"_id": 9}}]}},
            ]
        },
    ),
    ("test", {"drop": "e"}),
    ("test", {"dropDatabase": 1}),
    ("test", {"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_"}]}),
    ("test", {"listIndexes": "c", "cursor": {}}),
    ("test", {"listCollections": 1, "filter": {"name": "c"}, "nameOnly": True, "cursor": {"batchSize": 1}}),
    ("admin", {"listDatabases": 1, "filter": {"name": {"$regex": "t"}}}),
    ("admin", {"hello": 1, "topologyVersion": {"processId": "x", "counter": Int64(1)}, "maxAwaitTimeMS": 5}),
    (
        "admin",
        {"hello": 1, "topologyVersion": {"processId": ObjectId(bytes(12)), "counter": Int64(0)}, "maxAwaitTimeMS": 5},
    ),
    (
        "admin",
        {
            "configureFailPoint": "failCommand",
            "mode": {"times": 1},
            "data": {"failCommands": ["find"], "errorCode": 91, "errorLabels": ["x"], "appName": "y"},
        },
    ),
    ("admin", {"currentOp": 1, "$ownOps": True, "$all": True, "command.comment": {"$exists": False}}),
    ("admin", {"killOp": 1, "op": 1}),
    ("admin", {"top": 1}),
    ("test", {"collStats": "c", "scale": 2}),
    ("test", {"dbStats": 1, "scale": 2}),
    ("test", {"dbHash": 1, "collections": ["c"]}),
    ("test", {"validate": "c", "full": True}),
    ("test", {"profile": -1, "slowms": 5}),
    ("admin", {"setParameter": 1, "logComponentVerbosity": {"verbosity": 0}}),
    ("admin", {"getLog": "global"}),
    ("test", {"create": "log", "capped": True, "size": 4096, "max": 3}),
    ("test", {"insert": "log", "documents": [{"a": 1}, {"a": 2}]}),
    ("test", {"find": "log", "tailable": True, "awaitData": True, "batchSize": 1, "noCursorTimeout": True}),
    ("local", {"count": "oplog.rs", "query": {"op": "i"}, "skip": 1, "limit": 5}),
    ("local", {"find": "system.replset", "filter": {"_id": "rs0"}, "projection": {"members": 1}}),
    ("test", {"ping": 1, "apiVersion": "1", "apiStrict": True, "apiDeprecationErrors": True, "maxTimeMSOpOnly": 5}),
    ("admin", {"hello": 1, "client": {"driver": {"name": "x"}}, "hostInfo": "x", "compression": []}),
    ("admin", {"replSetInitiate": CONFIG}),
    ("admin", {"replSetReconfig": CONFIG, "force": True}),
    ("admin", {"replSetReconfig": CONFIG}),
    ("admin", {"replSetAddMember": {"host": "b:27017", "priority": 0, "votes": 0}, "maxTimeMS": 10}),
    ("admin", {"replSetRemoveMember": "b:27017"}),
    ("admin", {"replSetStepDown": 1, "force": True}),
    ("admin", {"replSetFreeze": 1}),
    ("admin", {"replSetGetStatus": 1, "initialSync": 1}),
    ("admin", {"replSetGetConfig": 1, "commitmentStatus": True}),
    ("admin", {"replSetStepUp": 1, "skipDryRun": True}),
    ("admin", {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}, "defaultReadConcern": {"level": "local"}}),
    ("admin", {"getParameter": "*", "logLevel": 1}),
    ("admin", {"appendOplogNote": 1, "data": {"a": 1}}),
    ("admin", {"replSetTestCut": 1, "hosts": ["b:1"], "direction": "in", "delayMillis": 5}),
    ("admin", {"replSetTestClock": 1, "aheadMillis": 100}),
    (
        "admin",
        {
            "replSetHeartbeat": "rs0",
            "from": "b:27017",
            "fromId": 1,
            "term": Int64(1),
            "configVersion": 1,
            "configTerm": 1,
            "incarnation": "x",
            "primaryId": 0,
        },
    ),
    (
        "admin",
        {
            "replSetRequestVotes": 1,
            "setName": "rs0",
            "term": Int64(1),
            "candidateId": 1,
            "configVersion": 1,
            "configTerm": 1,
            "lastAppliedOpTime": OPTIME,
            "dryRun": True,
        },
    ),
    (
        "admin",
        {
            "replSetUpdatePosition": 1,
            "senderId": 0,
            "term": Int64(1),
            "optimes": [{"memberId": 0, "appliedOpTime": OPTIME, "durableOpTime": OPTIME, "cfgver": 1}],
        },
    ),
    ("local", {"replSetOplogFetch": 1, "after": OPTIME, "maxBytes": 1_000, "maxAwaitMS": 5, "term": Int64(1)}),
    ("admin", {"replSetOplogProbe": 1, "optimes": [OPTIME]}),
    ("admin", {"replSetSnapshot": 1, "step": "begin", "snapshotId": "x", "offset": 0, "length": 10}),
    ("admin", {"replSetProve": 1, "member": "b:27017", "address": "a:27017", "nonce": b"x" * 32}),
    ("admin", {"replSetProve": 2, "proofs": [b"x" * 32]}),
    ("admin", {"serverStatus": 1, "repl": 1}),
    ("admin", {"endSessions": [{"id": b"x"}]}),
    *(("admin", {name: 1}) for name in sorted(COMMANDS)),
]
NAMES = st.one_of(
    st.sampled_from(["c", "d", "a.b", "", "$x", "system.x", "oplog.rs", "x" * 300, "a\0", "local", "é", "."]),
    test_bson.C_TEXT,
)
DATABASES = st.one_of(st.sampled_from(["test", "admin", "local", "config", "", "a b", "x" * 70]), st.text(max_size=4))
FIELDS = st.one_of(
    st.sampled_from(sorted(GENERIC_FIELDS)),
    st.sampled_from(sorted({field for command in COMMANDS.values() for field in command.fields or ()})),
    NAMES,
)
VALUES = kept(
    st.one_of(
        test_bson.VALUES,
        test_query.FILTERS,
        test_query.UPDATES,
        test_query.SPECS,
        test_query.DOCUMENTS,
        st.sampled_from(
            [
                0,
                1,
                -1,
                2**31,
                Int64(2**63 - 1),
                Int64(-(2**63)),
                1.5,
                float("inf"),
                float("nan"),
                "majority",
                OPTIME,
                CONFIG,
            ]
        ),
        st.lists(st.fixed_dictionaries({"q": test_query.FILTERS, "u": test_query.UPDATES}), max_size=3),
    ),
    400,
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document something can be put in place of something else."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*path, name)
        yield from places(part, (*path, name))


def copied(value: object) -> Any:
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A command that is right but for up to three places."""
    database, template = draw(st.sampled_from(TEMPLATES))
    command: dict[str, Any] = copied(template)
    for _ in range(draw(st.integers(0, 3))):
        spots = list(places(command))
        if not spots:
            break
        *path, last = draw(st.sampled_from(spots))
        inner: Any = command
        for name in path:
            inner = inner[name]
        match draw(st.integers(0, 4)):
            case 0 | 1:
                inner[last] = copied(draw(VALUES))
            case 2 if len(path) > 0 or last != next(iter(command)):
                del inner[last]
            case 3 if isinstance(inner, dict):
                inner[draw(FIELDS)] = copied(draw(VALUES))
            case _ if isinstance(inner, dict) and (path or last != next(iter(command)) or draw(st.integers(0, 9)) == 0):
                rest = list(inner.items())
                inner.clear()
                inner.update({draw(FIELDS) if name == last else name: value for name, value in rest})
    if draw(st.integers(0, 3)) == 0:
        command[draw(FIELDS)] = draw(VALUES)
    return draw(DATABASES) if draw(st.integers(0, 9)) == 0 else database, command


INPUTS = st.lists(commands(), min_size=1, max_size=3)


def check(one: OneMember, commands: list[tuple[str, dict[str, Any]]]) -> str:
    """Every answer is ok or one documented error, and the member is well afterwards."""
    outcome = ""
    for database, command in commands:
        try:
            body = encode({**command, "$db": database})
        except (InvalidBSONError, InvalidValueError):
            return "no BSON"
        for name in ("documents", "updates", "deletes"):
            rows = command.get(name)
            if len(body) % 3 == 0 and isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
                rest = {field: value for field, value in command.items() if field != name}
                sequences = {name: [RawDocument(encode(row)) for row in rows]}
                reply = one.ask(encode({**rest, "$db": database}), database, sequences)
                break
        else:
            reply = one.ask(body, database, source="http" if len(body) % 5 == 0 else "wire")
        outcome = "not answered in time" if reply is None else known(reply, command)
    one.member.fail_points.active.clear()
    one.is_well()
    return outcome


@contextmanager
def opened() -> Iterator[Check]:
    with one_member() as one:
        yield lambda value: check(one, value)


TARGET = Target("commands", INPUTS, opened, 100)
