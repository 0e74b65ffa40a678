"""No input makes an internal error: every field of every command with values of every type, and odd names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest

from replset.bson import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
)
from replset.core.messages import Done
from replset.features.all import COMMANDS
from replset.operations.command import GENERIC_FIELDS
from tests.rig import Client
from tests.unit.features.test_set import STATUS, shows

VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    1 << 30,
    Int64(1 << 62),
    Int64(-(1 << 63)),
    1.5,
    float("nan"),
    float("inf"),
    -0.0,
    Decimal128("1E+6000"),
    Decimal128("NaN"),
    Decimal128("3"),
    "",
    "c",
    "$x",
    "a\0b",
    "\ud7ff" * 300,
    {},
    {"": 1},
    {"$": 1},
    {"a": {"$in": 5}},
    {"_id": {"$in": [1, None, {"$x": 1}]}},
    {"w": None},
    {"w": float("nan")},
    {"level": "majority"},
    [],
    [1],
    [{}],
    [{"q": {}, "u": {}, "limit": 1}],
    [{"q": {"_id": {}}, "u": {"$set": {"a.b": 1}}, "limit": 0, "upsert": True}],
    [{"q": {"a": [1, {"b": 2}]}, "u": {"$push": {"": 1}}, "limit": float("inf"), "multi": True}],
    [[]],
    Binary(b"x", 4),
    Undefined(),
    ObjectId("0" * 24),
    DateTime(-1),
    Regex("(", "i"),
    DBPointer("a", ObjectId("0" * 24)),
    Code("x"),
    Symbol("c"),
    CodeWithScope("x", {}),
    Timestamp(0, 0),
    Timestamp(4_294_967_295, 4_294_967_295),
    MinKey(),
    MaxKey(),
]
EXTRA = {
    "insert": {"documents": [{"_id": 5}]},
    "update": {"updates": [{"q": {}, "u": {}}]},
    "delete": {"deletes": [{"q": {}, "limit": 1}]},
    "getMore": {"collection": "c"},
    "killCursors": {"cursors": []},
    "distinct": {"key": "a"},
    "createIndexes": {"indexes": []},
    "replSetTestCut": {"hosts": []},
    "replSetTestClock": {"aheadMillis": 0},
}
NAMED = {
    "replSetHeartbeat": ("from", "fromId", "term", "configVersion", "incarnation", "primaryId"),
    "replSetRequestVotes": ("setName", "term", "candidateId", "lastAppliedOpTime", "dryRun"),
    "replSetUpdatePosition": ("senderId", "term", "optimes"),
    "replSetOplogFetch": ("after", "maxBytes", "maxAwaitMS", "term", "knownCommitPoint", "knownRollbackId"),
    "replSetOplogProbe": ("optimes",),
    "replSetSnapshot": ("step", "snapshotId", "offset", "length"),
    "replSetDocuments": ("at", "low", "high", "give"),
    "replSetArchiveLease": ("holder", "through", "archiveId", "start"),
    "hello": ("topologyVersion", "maxAwaitTimeMS", "client", "helloOk"),
    "serverStatus": ("repl",),
    "getParameter": ("logLevel",),
}
GENERIC = (
    "maxTimeMS",
    "writeConcern",
    "readConcern",
    "$readPreference",
    "$clusterTime",
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "apiVersion",
    "comment",
)
T = TypeVar("T")


def fields_of(name: str, values: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """The fields of a command with all values, and the generic ones, which one place reads, with a fifth of them.

    Five commands that stand next to each other in the table of commands have all.
    """
    own = {name, *(COMMANDS[name].fields or ()), *NAMED.get(name, ())}
    turn = sorted(COMMANDS).index(name) % 5
    for field in sorted({*own, *GENERIC}):
        yield field, values if field in own else values[turn::5]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_value_of_any_field_is_an_internal_error(client: Client, name: str) -> None:
    shows(client.member, STATUS)
    client.rig.answer_core(Done())
    command = COMMANDS[name]
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": [1, {"b": 2}]}, {"_id": "x"}]})
    base: dict[str, object] = {name: "c" if "." not in name else 1, **EXTRA.get(name, {})}
    db = "admin" if command.admin_only else "test"
    for field, values in fields_of(name, VALUES):
        for value in values:
            for source in ("wire", "http"):
                reply = client.run({**base, field: value}, db, source=source)  # type: ignore[arg-type]
                assert reply.get("code") != 1, (field, value, reply)


CONFIG_FIELDS = (
    "_id",
    "version",
    "term",
    "members",
    "protocolVersion",
    "writeConcernMajorityJournalDefault",
    "settings",
)
MEMBER_FIELDS = (
    "_id",
    "host",
    "arbiterOnly",
    "hidden",
    "priority",
    "tags",
    "secondaryDelaySecs",
    "votes",
    "buildIndexes",
)
SETTINGS = (
    "chainingAllowed",
    "heartbeatIntervalMillis",
    "heartbeatTimeoutSecs",
    "electionTimeoutMillis",
    "catchUpTimeoutMillis",
    "getLastErrorModes",
    "getLastErrorDefaults",
    "replicaSetId",
)


def test_no_value_in_a_configuration_is_an_internal_error(client: Client) -> None:
    whole = {"_id": 0, "host": "localhost:27017"}
    for value in VALUES:
        documents: list[dict[str, object]] = [{field: value} for field in CONFIG_FIELDS]
        documents += [{"members": [{**whole, field: value}]} for field in MEMBER_FIELDS]
        documents += [{"settings": {field: value}} for field in SETTINGS]
        for document in documents:
            for command in ({"replSetInitiate": document}, {"replSetReconfig": {"_id": "rs0", **document}}):
                assert client.run(command, "admin").get("code") != 1, document
        for field in MEMBER_FIELDS:
            reply = client.run({"replSetAddMember": {"host": "localhost:27025", field: value}}, "admin")
            assert reply.get("code") != 1, (field, value)


def test_all_generic_fields_are_known_by_name() -> None:
    assert set(GENERIC) <= GENERIC_FIELDS


@pytest.mark.parametrize("db", ["", "a b", "\0", "a/b", "x" * 64, "$", "ü", "admin", "local", "config"])
def test_no_database_name_is_an_internal_error(client: Client, db: str) -> None:
    for name in sorted(COMMANDS):
        assert client.run({name: "c", **EXTRA.get(name, {})}, db).get("code") != 1, name
