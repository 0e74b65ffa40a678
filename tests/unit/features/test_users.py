"""Users, what they may do, and what is never shown of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from replset.auth.roles import ADMIN_ROLES, DATABASE_ROLES, Action, Grants, Role
from replset.auth.scram import FEWEST_ITERATIONS, ClientExchange, Credentials
from replset.auth.users import USERS_NS
from replset.bson import Binary, RawDocument, encode
from replset.core.member_state import MemberState
from replset.errors import OverloadedError
from replset.features.all import COMMANDS
from replset.ids import HostPort
from replset.key_file import Keys
from replset.operations.audit_trail import AuditTrail
from replset.operations.request import ConnectionContext
from replset.operations.user_directory import MOST_ASKED, UserDirectory
from tests.rig import Client, Rig, a_set

PASSWORD = "correct horse"
MEMBER = HostPort("b:27017")


@pytest.fixture(autouse=True)
def _few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/unit/test_scram.py` has the number of those that are made."""
    monkeypatch.setattr(Credentials.of.__func__, "__defaults__", (FEWEST_ITERATIONS,))  # type: ignore[attr-defined]


@pytest.fixture
def secured(client: Client) -> Client:
    """A member that asks for logins, with a root user, whose connection `client` is."""
    return make_secure(client)


def make_secure(client: Client) -> Client:
    client.member.users.required = True
    client.ok({"createUser": "root", "pwd": PASSWORD, "roles": ["root"]}, "admin")
    login(client, "root", "admin")
    return client


@pytest.fixture
def audited(rig: Rig) -> list[str]:
    """The lines of the audit log."""
    lines: list[str] = []
    rig.member()[AuditTrail]._write = lines.append
    return lines


def other(client: Client, **context: Any) -> Client:
    """Another connection to the same member."""
    made = client.rig.client(client.name)
    made.proves = False
    made.connection = ConnectionContext(6, "127.0.0.1:6666", **context)
    return made


def login(client: Client, user: str, db: str, password: str = PASSWORD, **options: Any) -> dict[str, Any]:
    """The last reply of the exchange."""
    exchange = ClientExchange(user, password, b"n" * 24)
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(exchange.first()), **options}
    begun = client.ok(start, db)
    step = {"saslContinue": 1, "conversationId": begun["conversationId"], "payload": exchange.final(begun["payload"])}
    reply = client.run({**step, "payload": Binary(step["payload"])}, db)
    if reply["ok"]:
        exchange.check(reply["payload"])
        if not reply["done"]:
            reply = client.ok({"saslContinue": 1, "conversationId": 1, "payload": Binary(b"")}, db)
    return reply


def user_with(root: Client, *roles: Any, db: str = "test", name: str = "u") -> Client:
    """A connection of a new user with these roles."""
    root.ok({"createUser": name, "pwd": PASSWORD, "roles": list(roles)}, db)
    made = other(root)
    login(made, name, db)
    return made


# --- logging in ----------------------------------------------------------------------------------------------------


def test_a_login_with_and_without_the_empty_exchange(secured: Client) -> None:
    for options in ({}, {"options": {"skipEmptyExchange": True}}):
        made = other(secured)
        assert made.code({"find": "c"}) == 13
        assert login(made, "root", "admin", **options)["done"]
        assert made.ok({"find": "c"})
        status = made.ok({"connectionStatus": 1, "showPrivileges": True})["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "root", "db": "admin"}]
        assert status["authenticatedUserRoles"] == [{"role": "root", "db": "admin"}]
        assert status["authenticatedUserPrivileges"]
        made.ok({"logout": 1}, "test")
        assert made.ok({"find": "c"})
        made.ok({"logout": 1}, "admin")
        assert made.code({"find": "c"}) == 13


def test_the_roles_of_the_user_are_a_variable(secured: Client) -> None:
    secured.ok({"insert": "c", "documents": [{"_id": 1, "for": "read"}, {"_id": 2, "for": "dbAdmin"}]})
    mine = {"$expr": {"$in": ["$for", "$$USER_ROLES.role"]}}
    secured.ok({"create": "v", "viewOn": "c", "pipeline": [{"$match": mine}]})
    reader = user_with(secured, "read", {"role": "dbAdmin", "db": "x"})
    for command, ids in (({"find": "v"}, [1, 2]), ({"find": "c", "filter": mine, "limit": 1}, [1])):
        assert [doc["_id"] for doc in reader.ok(command)["cursor"]["firstBatch"]] == ids
    assert secured.ok({"find": "v"})["cursor"]["firstBatch"] == []
    roles = reader.ok({"find": "c", "limit": 1, "projection": {"_id": 0, "r": "$$USER_ROLES"}})
    assert roles["cursor"]["firstBatch"][0]["r"] == [
        {"_id": f"{db}.{role}", "role": role, "db": db} for role, db in (("dbAdmin", "x"), ("read", "test"))
    ]


def test_a_login_that_begins_with_hello(secured: Client) -> None:
    made, exchange = other(secured), ClientExchange("root", PASSWORD, b"n" * 24)
    begin = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(exchange.first()), "db": "admin"}
    begin["options"] = {"skipEmptyExchange": True}
    hello = made.ok({"hello": 1, "saslSupportedMechs": "admin.root", "speculativeAuthenticate": begin})
    assert hello["saslSupportedMechs"] == ["SCRAM-SHA-256"]
    final = exchange.final(hello["speculativeAuthenticate"]["payload"])
    assert made.ok({"saslContinue": 1, "conversationId": 1, "payload": Binary(final)}, "admin")["done"]
    for wrong in ({**begin, "payload": Binary(b"x")}, {**begin, "mechanism": "PLAIN"}, {"saslStart": 1}, {"x": 1}):
        assert "speculativeAuthenticate" not in made.ok({"hello": 1, "speculativeAuthenticate": wrong})


def test_nothing_tells_a_wrong_name_from_a_wrong_password(secured: Client) -> None:
    made = other(secured)
    wrong = {login(made, name, "admin", "wrong")["errmsg"] for name in ("root", "nobody")}
    assert wrong == {"Authentication failed."}
    first = [
        made.ok({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=%s,r=x" % name)}, "admin")
        for name in (b"root", b"nobody", b"nobody")
    ]
    salts = [row["payload"].split(b",")[1:] for row in first]
    assert salts[1] == salts[2], "the same salt each time, as of a user"
    users = secured.member.users
    assert users.decoy("nobody", "admin").salt != users.decoy("nobody", "test").salt, "another one, as of two users"
    secured.member.keys = Keys(["c2VjcmV0"])
    salt = users.decoy("nobody", "admin").salt
    assert UserDirectory(secured.member, required=True).decoy("nobody", "admin").salt == salt, "on each member"
    assert len(salts[0][0]) == len(salts[1][0])
    assert made.ok({"hello": 1, "saslSupportedMechs": "admin.nobody"})["saslSupportedMechs"] == ["SCRAM-SHA-256"]


def test_steps_out_of_order(secured: Client) -> None:
    made = other(secured)
    assert made.code({"saslContinue": 1, "conversationId": 1, "payload": Binary(b"x")}, "admin") == 17
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=root,r=x")}
    made.ok(start, "admin")
    assert made.code({"saslContinue": 1, "conversationId": 2, "payload": Binary(b"x")}, "admin") == 17
    made.ok(start, "admin")
    for payload in (b"", b"c=biws,r=x,p=AAAA"):
        assert made.code({"saslContinue": 1, "conversationId": 1, "payload": Binary(payload)}, "admin") in (17, 18)
    assert made.code({**start, "mechanism": "SCRAM-SHA-1"}, "admin") == 334
    assert made.code({**start, "payload": 5}, "admin") == 2
    assert made.code({"find": "c"}) == 13


# --- roles ---------------------------------------------------------------------------------------------------------


def test_without_a_login_only_open_commands_run(secured: Client) -> None:
    """Whatever the command needs beside a login, it says 13 first."""
    for name, command in COMMANDS.items():
        stranger = other(secured)
        stranger.connection.peer = "10.0.0.9:1"
        reply = stranger.run({name: 1}, "admin")
        if command.needs is not Action.OPEN:
            assert reply.get("code") == 13, (name, reply)
        else:
            assert name in OPEN_TO_ALL


OPEN_TO_ALL = {"hello", "ping", "buildInfo", "whatsmyuri", "connectionStatus", "saslStart", "saslContinue", "logout"}
OPEN_TO_ALL |= {"replSetProve", "testDeprecation", "testVersion2", "testVersions1And2"}

ALLOWED = [
    ("read", {"find": "c"}, True),
    ("read", {"aggregate": "c", "pipeline": [], "cursor": {}}, True),
    ("read", {"count": "c"}, True),
    ("read", {"distinct": "c", "key": "a"}, True),
    ("read", {"listCollections": 1}, True),
    ("read", {"explain": {"find": "c"}}, True),
    ("read", {"insert": "c", "documents": [{}]}, False),
    ("read", {"delete": "c", "deletes": [{"q": {}, "limit": 0}]}, False),
    ("read", {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}, False),
    ("read", {"findAndModify": "c", "query": {}, "remove": True}, False),
    ("read", {"create": "d"}, False),
    ("readWrite", {"insert": "c", "documents": [{}]}, True),
    ("readWrite", {"findAndModify": "c", "query": {}, "remove": True}, True),
    ("readWrite", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}, True),
    ("readWrite", {"drop": "c"}, True),
    ("readWrite", {"dropDatabase": 1}, False),
    ("readWrite", {"collMod": "c"}, False),
    ("readWrite", {"createUser": "v", "pwd": "p", "roles": []}, False),
    ("dbAdmin", {"find": "c"}, False),
    ("dbAdmin", {"insert": "c", "documents": [{}]}, False),
    ("dbAdmin", {"dropDatabase": 1}, True),
    ("dbAdmin", {"collMod": "c"}, True),
    ("userAdmin", {"createUser": "v", "pwd": "p", "roles": ["read"]}, True),
    ("userAdmin", {"createUser": "v", "pwd": "p", "roles": [{"role": "root", "db": "admin"}]}, False),
    ("userAdmin", {"createUser": "v", "pwd": "p", "roles": [{"role": "read", "db": "other"}]}, False),
    ("userAdmin", {"find": "c"}, False),
]


@pytest.mark.parametrize(("role", "command", "allowed"), ALLOWED)
def test_what_a_role_of_one_database_allows(
    secured: Client, role: str, command: dict[str, object], allowed: bool
) -> None:
    secured.ok({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
    user = user_with(secured, role)
    assert user.run(command).get("code", 0) == (0 if allowed else 13)
    assert user.run(command, "other").get("code") == 13, "of no other database"


CLUSTER = [
    ("clusterMonitor", {"replSetGetStatus": 1}, True),
    ("clusterMonitor", {"replSetWhatIf": 1, "deed": "kill", "host": "a:27017", "plays": 1}, True),
    ("readAnyDatabase", {"replSetWhatIf": 1, "deed": "kill", "host": "a:27017", "plays": 1}, False),
    ("clusterMonitor", {"serverStatus": 1}, True),
    ("clusterMonitor", {"replSetFreeze": 1}, False),
    ("clusterMonitor", {"find": "c"}, False),
    ("clusterAdmin", {"replSetFreeze": 1}, True),
    ("clusterAdmin", {"setParameter": 1, "logLevel": 0}, True),
    ("clusterAdmin", {"find": "c"}, False),
    ("clusterAdmin", {"createUser": "v", "pwd": "p", "roles": []}, False),
    ("backup", {"replSetFreeze": 1}, False),
    ("backup", {"replSetBackup": 1}, True),
    ("clusterMonitor", {"replSetBackup": 1}, False),
    ("readAnyDatabase", {"replSetBackup": 1}, False),
    ("readAnyDatabase", {"find": "c"}, True),
    ("readWriteAnyDatabase", {"insert": "c", "documents": [{}]}, True),
    ("dbAdminAnyDatabase", {"insert": "c", "documents": [{}]}, False),
    ("userAdminAnyDatabase", {"createUser": "v", "pwd": "p", "roles": ["root"]}, True),
    ("userAdminAnyDatabase", {"find": "c"}, False),
    ("root", {"replSetHeartbeat": "rs0"}, False),
]


@pytest.mark.parametrize(("role", "command", "allowed"), CLUSTER)
def test_what_a_role_of_the_set_allows(secured: Client, role: str, command: dict[str, object], allowed: bool) -> None:
    user = user_with(secured, role, db="admin")
    code = user.run(command, "admin").get("code", 0)
    assert (code != 13) == allowed, code


@pytest.mark.parametrize(("role", "sees"), [("readAnyDatabase", False), ("backup", True), ("root", True)])
def test_the_oplog_is_for_few_and_shows_no_keys(secured: Client, role: str, sees: bool) -> None:
    user = user_with(secured, role, db="admin")
    assert (user.run({"find": "oplog.rs"}, "local").get("code") != 13) == sees
    secured.ok({"updateUser": "u", "pwd": "new"}, "admin")
    for query in ({"find": "oplog.rs"}, {"find": "oplog.rs", "hint": {"$natural": -1}}):
        found = secured.ok({**query, "filter": {"ns": USERS_NS}}, "local")["cursor"]["firstBatch"]
        assert len(found) == 3
        assert "storedKey" not in str(found)
    by_key = {"find": "oplog.rs", "filter": {"o.credentials": {"$exists": True}}}
    assert secured.ok(by_key, "local")["cursor"]["firstBatch"] == []


def test_roles_add_up_and_an_unknown_one_gives_nothing() -> None:
    both = Grants([Role("read", "a"), Role("readWrite", "b"), Role("clusterMonitor", "admin"), Role("root", "a")])
    assert both.allow(Action.FIND, "a")
    assert not both.allow(Action.INSERT, "a")
    assert both.allow(Action.INSERT, "b")
    assert not both.allow(Action.FIND, "c")
    assert both.allow(Action.SET_STATUS)
    assert not any(Grants([Role(name, "admin")]).allow(Action.INTERNAL) for name in [*ADMIN_ROLES, *DATABASE_ROLES])


def test_databases_and_operations_of_others_are_not_shown(secured: Client) -> None:
    secured.ok({"insert": "c", "documents": [{}]}, "mine")
    secured.ok({"insert": "c", "documents": [{}]}, "theirs")
    user = user_with(secured, "read", db="mine")
    names = [row["name"] for row in user.ok({"listDatabases": 1, "nameOnly": True}, "admin")["databases"]]
    assert names == ["mine"]
    assert user.code({"currentOp": 1}, "admin") == 13
    assert len(user.ok({"currentOp": 1, "$ownOps": True}, "admin")["inprog"]) == 1
    assert user.code({"killOp": 1, "op": 1}, "admin") == 13


def test_a_cursor_is_for_who_opened_it(secured: Client) -> None:
    secured.ok({"insert": "c", "documents": [{}, {}, {}]})
    cursor = secured.ok({"find": "c", "batchSize": 1})["cursor"]["id"]
    user = user_with(secured, "read")
    assert user.code({"getMore": cursor, "collection": "c"}) == 13
    assert len(secured.ok({"getMore": cursor, "collection": "c"})["cursor"]["nextBatch"]) == 2


def test_an_open_cursor_ends_with_the_role(secured: Client) -> None:
    secured.ok({"insert": "c", "documents": [{}, {}, {}]})
    user = user_with(secured, "read")
    cursor = user.ok({"find": "c", "batchSize": 1})["cursor"]["id"]
    secured.ok({"revokeRolesFromUser": "u", "roles": ["read"]})
    assert user.code({"getMore": cursor, "collection": "c"}) == 13


def test_a_session_is_its_users_own(secured: Client) -> None:
    lsid = secured.ok({"startSession": 1}, "admin")["id"]
    user = user_with(secured, "readWrite")
    cursor = {"find": "c", "batchSize": 1, "lsid": lsid}
    secured.ok({"insert": "c", "documents": [{}, {}], "lsid": lsid})
    opened = secured.ok(cursor)["cursor"]["id"]
    assert user.code({"getMore": opened, "collection": "c", "lsid": lsid}) == 13
    user.ok({"endSessions": [lsid]}, "admin")
    assert secured.ok({"getMore": opened, "collection": "c", "lsid": lsid})
    uid = secured.connection.login.uid if secured.connection.login else b""
    assert user.code({"find": "c", "lsid": {**lsid, "uid": uid}}) == 13


def test_sessions_of_users_are_killed_by_name_and_uid(secured: Client) -> None:
    secured.ok({"insert": "c", "documents": [{}, {}]})
    users = [user_with(secured, "read", name=name) for name in ("u", "v")]
    lsid = secured.ok({"startSession": 1}, "admin")["id"]
    uid = users[0].connection.login.uid if users[0].connection.login else b""
    for command in (
        {"killAllSessions": [{"user": "u", "db": "test"}]},
        {"killAllSessionsByPattern": [{"uid": uid}]},
        {"killAllSessionsByPattern": [{"lsid": {**lsid, "uid": uid}}]},
    ):
        find = {"find": "c", "batchSize": 1, "lsid": lsid}
        cursors = [user.ok(find)["cursor"]["id"] for user in users]
        secured.ok(command, "admin")
        more = [u.run({"getMore": c, "collection": "c", "lsid": lsid}) for u, c in zip(users, cursors, strict=True)]
        assert [reply.get("code") for reply in more] == [43, None]
    for wrong in ("u", "u" * len(uid), Binary(b"u")):
        assert secured.code({"killAllSessionsByPattern": [{"uid": wrong}]}, "admin") == 2


@pytest.mark.parametrize(
    ("role", "stage", "allowed"),
    [
        ("clusterMonitor", {"$currentOp": {"allUsers": True}}, True),
        ("readAnyDatabase", {"$currentOp": {"allUsers": True}}, False),
        ("readAnyDatabase", {"$currentOp": {}}, True),
        ("dbAdminAnyDatabase", {"$collStats": {"count": {}}}, True),
        ("dbAdminAnyDatabase", {"$match": {}}, False),
        ("clusterMonitor", {"$match": {}}, False),
    ],
)
def test_a_pipeline_needs_what_its_first_stage_does(
    secured: Client, role: str, stage: dict[str, Any], allowed: bool
) -> None:
    secured.ok({"insert": "c", "documents": [{}]}, "admin")
    user = user_with(secured, role, db="admin")
    reply = user.run({"aggregate": 1 if "$currentOp" in stage else "c", "pipeline": [stage], "cursor": {}}, "admin")
    assert reply.get("code") == (None if allowed else 13)


@pytest.mark.parametrize(
    ("role", "stages", "allowed"),
    [
        ("clusterMonitor", [{"$collStats": {}}, {"$unionWith": "c"}], False),
        ("clusterMonitor", [{"$collStats": {}}, {"$facet": {"a": [{"$lookup": {"from": "c", "as": "x"}}]}}], False),
        ("readAnyDatabase", [{"$unionWith": "c"}], True),
        ("readAnyDatabase", [{"$out": "d"}], False),
        ("readAnyDatabase", [{"$merge": "d"}], False),
        ("readAnyDatabase", [{"$listLocalSessions": {"allUsers": True}}], False),
        ("readAnyDatabase", [{"$listLocalSessions": {}}], True),
        ("readWriteAnyDatabase", [{"$out": {"db": "other", "coll": "d"}}], True),
        ("readWriteAnyDatabase", [{"$merge": {"into": "d", "whenMatched": "replace"}}], True),
    ],
)
def test_a_pipeline_needs_the_rights_of_all_its_stages(
    secured: Client, role: str, stages: list[dict[str, Any]], allowed: bool
) -> None:
    secured.ok({"insert": "c", "documents": [{}]}, "admin")
    user = user_with(secured, role, db="admin")
    over = 1 if "$listLocalSessions" in stages[0] else "c"
    reply = user.run({"aggregate": over, "pipeline": stages, "cursor": {}}, "admin")
    assert reply.get("code") == (None if allowed else 13)


# --- users ---------------------------------------------------------------------------------------------------------


def test_users_change(secured: Client) -> None:
    user = user_with(secured, "read")
    assert secured.code({"createUser": "u", "pwd": "x", "roles": []}) == 51003
    secured.ok({"grantRolesToUser": "u", "roles": ["readWrite"]})
    assert user.ok({"insert": "c", "documents": [{}]})
    secured.ok({"revokeRolesFromUser": "u", "roles": ["readWrite", "read"]})
    assert user.code({"find": "c"}) == 13
    secured.ok({"updateUser": "u", "roles": [{"role": "read", "db": "test"}], "customData": {"team": 3}})
    assert user.ok({"find": "c"})
    found = secured.ok({"usersInfo": "u"})["users"][0]
    assert (found["customData"], found["roles"]) == ({"team": 3}, [{"role": "read", "db": "test"}])
    secured.ok({"dropUser": "u"})
    assert user.code({"find": "c"}) == 13
    assert user.connection.is_to_close
    for command in ({"dropUser": "u"}, {"updateUser": "u", "pwd": "x"}, {"grantRolesToUser": "u", "roles": ["read"]}):
        assert secured.code(command) == 11


def test_a_new_password_ends_logins(secured: Client) -> None:
    user = user_with(secured, "read")
    secured.ok({"updateUser": "u", "pwd": "another"})
    assert user.code({"find": "c"}) == 13
    assert user.connection.is_to_close
    again = other(secured)
    assert login(again, "u", "test")["code"] == 18
    assert login(again, "u", "test", "another")["ok"] == 1


def test_users_change_their_own_password_and_custom_data_and_nothing_else(secured: Client) -> None:
    """As with MongoDB's changeOwnPassword and changeOwnCustomData; here each user has them."""
    user = user_with(secured, "read")
    secured.ok({"createUser": "v", "pwd": "x", "roles": []})
    secured.ok({"createUser": "u", "pwd": "x", "roles": []}, "admin")
    for command, database in (
        ({"updateUser": "v", "pwd": "mine"}, "test"),
        ({"updateUser": "u", "pwd": "mine"}, "admin"),
        ({"updateUser": "nobody", "pwd": "mine"}, "test"),
        ({"updateUser": "u", "roles": ["readWrite"]}, "test"),
        ({"updateUser": "u", "pwd": "mine", "roles": []}, "test"),
    ):
        assert user.code(command, database) == 13, command
    user.ok({"updateUser": "u", "customData": {"team": 4}})
    user.ok({"updateUser": "u", "pwd": "mine"})
    assert secured.ok({"usersInfo": "u"})["users"][0]["customData"] == {"team": 4}
    assert user.code({"find": "c"}) == 13, "its logins end"
    again = other(secured)
    assert login(again, "u", "test", "mine")["ok"] == 1
    assert again.ok({"find": "c"})
    assert other(secured).code({"updateUser": "u", "pwd": "theirs"}) == 13


def test_a_user_that_another_member_changed_counts_within_a_second(secured: Client) -> None:
    user = user_with(secured, "read")
    assert user.ok({"find": "c"})
    known = dict(secured.member.users._known)
    secured.ok({"dropUser": "u"})
    secured.member.users._known |= known  # as on a member that only applies the entry
    assert user.ok({"find": "c"})
    secured.rig.wait(1)
    assert user.code({"find": "c"}) == 13


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"createUser": "v", "pwd": "p", "roles": ["nonesuch"]}, 31),
        ({"createUser": "v", "pwd": "p", "roles": [{"role": "clusterAdmin", "db": "test"}]}, 31),
        ({"createUser": "v", "pwd": "", "roles": []}, 2),
        ({"createUser": "", "pwd": "p", "roles": []}, 2),
        ({"createUser": "v", "pwd": "\u0007", "roles": []}, 2),
        ({"createUser": "v", "roles": []}, 40414),
        ({"createUser": "v", "pwd": "p"}, 40414),
        ({"createUser": "v", "pwd": "p", "roles": [5]}, 2),
        ({"createUser": "v", "pwd": "p", "roles": [], "mechanisms": ["SCRAM-SHA-1"]}, 2),
        ({"createUser": "v", "pwd": "p", "roles": [], "digestPassword": False}, 2),
        ({"createUser": "v", "pwd": "p", "roles": [], "authenticationRestrictions": [{"clientSource": ["::1"]}]}, 238),
        ({"updateUser": "root"}, 2),
        ({"usersInfo": "root", "showCredentials": True}, 13),
        ({"usersInfo": 5}, 2),
        ({"createRole": "r", "privileges": [], "roles": []}, 238),
    ],
)
def test_what_is_refused(secured: Client, command: dict[str, object], code: int) -> None:
    assert secured.code(command, "test") == code


def test_who_sees_whom(secured: Client) -> None:
    user = user_with(secured, "read")
    everybody = secured.ok({"usersInfo": {"forAllDBs": True}}, "admin")["users"]
    assert [row["_id"] for row in everybody] == ["admin.root", "test.u"]
    assert "credentials" not in str(everybody)
    assert user.ok({"usersInfo": "u"})["users"][0]["user"] == "u"
    for query in ("other", 1, {"user": "root", "db": "admin"}, {"forAllDBs": True}, ["u", "other"]):
        assert user.code({"usersInfo": query}) == 13
    roles = secured.ok({"rolesInfo": 1, "showBuiltinRoles": True, "showPrivileges": True}, "admin")["roles"]
    assert {row["role"] for row in roles} == {*ADMIN_ROLES, *DATABASE_ROLES}


@pytest.mark.parametrize(
    "command",
    [
        {"aggregate": "system.users", "pipeline": [], "cursor": {}},
        {"count": "system.users"},
        {"distinct": "system.users", "key": "credentials"},
        {"explain": {"find": "system.users"}},
        {"insert": "system.users", "documents": [{}]},
        {"update": "system.users", "updates": [{"q": {}, "u": {"$set": {"roles": []}}}]},
        {"delete": "system.users", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "system.users", "query": {}, "remove": True},
        {"drop": "system.users"},
        {"dropDatabase": 1},
        {"create": "system.users"},
        {"collMod": "system.users"},
        {"createIndexes": "system.users", "indexes": [{"key": {"a": 1}, "name": "a"}]},
        {"listIndexes": "system.users"},
        {"validate": "system.users"},
        {"collStats": "system.users"},
        {"renameCollection": "admin.system.users", "to": "admin.x"},
        {"renameCollection": "admin.x", "to": "admin.system.users"},
        {"applyOps": [{"op": "d", "ns": "admin.system.users", "o": {"_id": "admin.root"}}]},
        {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"drop": "system.users"}}]},
        {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"dropDatabase": 1}}]},
    ],
)
def test_no_other_command_reads_or_writes_users(secured: Client, command: dict[str, object]) -> None:
    secured.ok({"create": "x"}, "admin")
    reply = secured.run(command, "admin")
    assert reply["ok"] == 0 or "writeErrors" in reply or "applied" in reply  # applyOps passes over it
    assert [row["_id"] for row in secured.ok({"usersInfo": 1}, "admin")["users"]] == ["admin.root"]
    assert "system.users" not in str(secured.ok({"listCollections": 1}, "admin"))


def test_users_are_not_written_by_the_uuid_of_their_collection(secured: Client) -> None:
    users = secured.member.store.collection(USERS_NS)
    assert users is not None
    forged = {"_id": "test.forged", "user": "forged", "db": "test"}
    for op in ("i", "d"):
        o = forged if op == "i" else {"_id": "admin.root"}
        secured.run({"applyOps": [{"op": op, "ns": "test.c", "ui": Binary(users.uuid, 4), "o": o}]}, "admin")
    assert [row["_id"] for row in secured.ok({"usersInfo": {"forAllDBs": True}}, "admin")["users"]] == ["admin.root"]


def test_a_member_with_old_users_gives_none(secured: Client) -> None:
    peer = other(secured, member=MEMBER)
    ask = {"usersInfo": {"user": "root", "db": "admin"}, "showCredentials": True}
    state = secured.member.node._state
    state.state = MemberState.RECOVERING
    assert peer.code(ask, "admin") == 13436
    state.state = MemberState.PRIMARY
    assert peer.ok(ask, "admin")["users"]


def test_members_see_keys_and_act_for_clients(secured: Client) -> None:
    user_with(secured, "read")
    peer = other(secured, member=MEMBER)
    shown = peer.ok({"usersInfo": {"user": "u", "db": "test"}, "showCredentials": True}, "admin")["users"]
    assert "storedKey" in str(shown)
    insert: dict[str, object] = {"insert": "c", "documents": [{}]}
    assert peer.code({**insert, "$replsetForwarded": {"user": "u", "db": "test"}}) == 13
    assert peer.ok({**insert, "$replsetForwarded": {"user": "root", "db": "admin"}})
    assert other(secured).code({**insert, "$replsetForwarded": {"user": "root", "db": "admin"}}) == 13


# --- the first user -------------------------------------------------------------------------------------------------


def test_the_first_user_is_made_on_the_same_machine(client: Client) -> None:
    client.member.users.required = True
    create = {"createUser": "root", "pwd": PASSWORD, "roles": ["root"]}
    for peer in ("10.0.0.9:5", "", "[::ffff:10.0.0.9]:5"):
        stranger = other(client)
        stranger.connection.peer = peer
        assert stranger.code(create, "admin") == 13
    over_http = other(client)
    over_http.connection.id = 0
    assert over_http.code(create, "admin") == 13
    assert client.code({"find": "c"}) == 13
    assert client.code(create, "test") == 13
    assert client.code({**create, "roles": [{"role": "read", "db": "test"}]}, "admin") == 13
    client.member.users.required = False
    client.rig.step_down(1)
    client.member.users.required = True
    assert client.code({"replSetFreeze": 0}, "admin") == 13
    client.rig.lead()
    client.ok(create, "admin")
    assert client.code({**create, "createUser": "second"}, "admin") == 13


def test_without_auth_users_can_be_made_before(client: Client) -> None:
    client.ok({"createUser": "app", "pwd": PASSWORD, "roles": ["read"]})
    assert login(client, "app", "test")["ok"] == 1
    assert client.ok({"insert": "c", "documents": [{}]}), "nobody is asked who he is yet"


# --- the audit log --------------------------------------------------------------------------------------------------


def test_what_is_written_down(audited: list[str], secured: Client) -> None:
    made = other(secured)
    login(made, "root", "admin", "wrong")
    made.run({"drop": "c"})
    secured.ok({"find": "c"})
    secured.ok({"dropUser": "root"}, "admin")
    rows = [json.loads(line) for line in audited]
    shown = [(row["what"], row.get("command"), row["user"], row["code"]) for row in rows]
    assert shown == [
        ("command", "createUser", None, 0),
        ("failedLogin", None, None, 18),
        ("refused", "drop", None, 13),
        ("command", "dropUser", "root@admin", 0),
    ]
    assert rows[1]["claimedUser"] == "root@admin"
    assert PASSWORD not in "".join(audited)


def test_a_password_is_shown_nowhere(audited: list[str], secured: Client) -> None:
    create = {"createUser": "v", "pwd": "hush" * 9, "roles": []}
    shown = secured.ok({"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}}, "admin")
    assert shown["cursor"]["firstBatch"]
    secured.ok(create)
    assert "hush" not in str(secured.entries())
    assert "hush" not in "".join(audited)
    assert "createUser" in audited[-1]


def test_strangers_do_not_fill_the_disk(audited: list[str], secured: Client) -> None:
    made = other(secured)
    before = len(audited)
    for _ in range(50):
        made.run({"find": "c"})
    assert len(audited) == before + 20
    secured.rig.wait(1)
    made.run({"find": "c"})
    assert json.loads(audited[-1])["leftOut"] == 30


# --- members without documents --------------------------------------------------------------------------------------


def note_questions(client: Client) -> list[HostPort]:
    """From now on, whom the member asks for users."""
    asked, peer = [], client.member.peer
    call = peer.call

    async def noted(host: HostPort, command: Mapping[str, object], **more: Any) -> RawDocument:
        if "usersInfo" in command:
            asked.append(host)
        return await call(host, command, **more)

    peer.call = noted  # type: ignore[method-assign]
    return asked


def test_an_arbiter_asks_the_others_for_users() -> None:
    with a_set(2, arbiters=1) as rig:
        secured = make_secure(rig.client())
        client = rig.client("x")
        client.member.users.required = True
        asked = note_questions(client)
        status = {"getLog": "global"}
        assert client.code(status, "admin") == 13
        for tries, name in enumerate(("root", "nobody", "root", "nobody"), start=1):
            assert login(client, name, "admin", "wrong")["code"] == 18
            assert len(asked) == tries, "whether there is such a user: the time must not tell"
        assert login(client, "root", "admin")["ok"] == 1
        assert client.ok(status, "admin")
        known = len(asked)
        assert client.ok(status, "admin")
        assert len(asked) == known, "what it was told counts for a second"
        rig.cluster.cut(["x"])
        rig.wait(1)
        assert client.ok(status, "admin"), "it goes on with what it knew"
        rig.cluster.heal()
        secured.ok({"dropUser": "root"}, "admin")
        rig.wait(3)  # until it tries the others again
        assert client.code(status, "admin") == 13
        assert client.connection.is_to_close


def test_strangers_cannot_make_a_member_ask_without_end(secured: Client) -> None:
    asked, answer = [], asyncio.Event()

    async def slow(host: HostPort, command: Mapping[str, object], **_: Any) -> RawDocument:
        asked.append(host)
        await answer.wait()
        return RawDocument(encode({"ok": 1.0, "users": []}))

    async def begin_many() -> list[object]:
        tasks = [asyncio.ensure_future(users.find(f"u{number}", "admin")) for number in range(100)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        answer.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    users = secured.member.users
    secured.rig.use_config({"members": [{"_id": n, "host": f"{name}:27017"} for n, name in enumerate("ab")]})
    secured.member.node._state.state = MemberState.RECOVERING
    secured.member.peer.call = slow  # type: ignore[method-assign]
    found = secured.rig.do(begin_many())
    assert (len(asked), found.count(None)) == (MOST_ASKED, MOST_ASKED)
    assert {type(one) for one in found if one is not None} == {OverloadedError}


def test_a_delayed_member_does_not_trust_its_old_documents(rig: Rig, secured: Client) -> None:
    user = user_with(secured, "read")
    rows = [{"_id": 0, "host": "a:27017", "priority": 0, "secondaryDelaySecs": 60}, {"_id": 1, "host": MEMBER}]
    shown = other(secured, member=MEMBER).ok({"usersInfo": "u", "showCredentials": True})
    rig.use_config({"members": rows})
    asked = rig.answer_peers({MEMBER: shown})
    secured.member.users.forget()
    assert user.ok({"find": "c"})
    assert [(host, "usersInfo" in command) for host, command, _ in asked] == [(MEMBER, True)]


def test_consumers_take_rights_on_what_they_follow(secured: Client) -> None:
    secured.ok({"create": "c"})
    may_read = user_with(secured, "read", name="reader")
    may_write = user_with(secured, "readWrite", name="writer")
    elsewhere = user_with(secured, "readWrite", db="shop", name="elsewhere")
    create, listed = {"replSetConsumerCreate": "a", "ns": "test.c"}, {"replSetConsumers": 1}
    read = {"replSetConsumerRead": "a", "reader": "r"}
    assert may_read.code(create, "admin") == elsewhere.code(create, "admin") == 13
    may_write.ok(create, "admin")
    assert may_write.code({"replSetConsumerCreate": "all", "ns": ""}, "admin") == 13, "of every database"
    secured.ok({"replSetConsumerCreate": "all", "ns": ""}, "admin")
    generation = may_read.ok(read, "admin")["generation"]
    token = may_read.ok(listed, "admin")["consumers"][0]["position"]
    may_read.ok({"replSetConsumerAck": "a", "generation": generation, "token": token}, "admin")
    here = {"replSetConsumerReadHere": "a", "reader": "r", "generation": generation, "after": token}
    may_read.ok(here, "admin")
    assert elsewhere.code(here, "admin") == 13
    for refused in ({"replSetConsumerSeek": "a", "to": "now"}, {"replSetConsumerRemove": "a"}):
        assert may_read.code(refused, "admin") == 13
    assert elsewhere.code(read, "admin") == may_write.code({**read, "replSetConsumerRead": "all"}, "admin") == 13
    assert [len(one.ok(listed, "admin")["consumers"]) for one in (secured, may_read, elsewhere)] == [2, 1, 0]


# --- dumps ---------------------------------------------------------------------------------------------------------


def found(client: Client, name: str, query: dict[str, object], db: str = "admin") -> list[dict[str, Any]]:
    return list(client.ok({"find": name, "filter": query}, db)["cursor"]["firstBatch"])


def dump_users(client: Client, db: str) -> list[dict[str, Any]]:
    """mongodump --db DB --dumpDbUsersAndRoles: what it asks beside the collections."""
    assert client.ok({"getParameter": 1, "authSchemaVersion": 1}, "admin")["authSchemaVersion"] == 5
    count = [{"$match": {"_id": "authSchema"}}, {"$group": {"_id": 1, "n": {"$sum": 1}}}]
    counted = client.ok({"aggregate": "system.version", "pipeline": count, "cursor": {}}, "admin")
    assert counted["cursor"]["firstBatch"] == [{"_id": 1, "n": 1}]
    assert found(client, "system.roles", {"db": db}) == []
    assert found(client, "system.version", {})[0] == {"_id": "authSchema", "currentVersion": 5}
    return found(client, "system.users", {"db": db})


def restore_users(client: Client, users: list[dict[str, Any]], db: str, *, drop: bool) -> dict[str, Any]:
    """mongorestore --restoreDbUsersAndRoles."""
    for name, documents in (("tempusers", users), ("temproles", [])):
        client.ok({"create": name}, "admin")
        if documents:
            client.ok({"insert": name, "documents": documents}, "admin")
    temporary = {"tempUsersCollection": "admin.tempusers", "tempRolesCollection": "admin.temproles"}
    reply = client.run({"_mergeAuthzCollections": 1, **temporary, "drop": drop, "db": db}, "admin")
    for name in ("tempusers", "temproles"):
        client.ok({"drop": name}, "admin")
    return reply


def test_users_go_out_and_in_again(secured: Client) -> None:
    user_with(secured, "readWrite", name="ann")
    user_with(secured, "read", name="bob", db="else")
    users = dump_users(secured, "test")
    assert [user["_id"] for user in users] == ["test.ann"]
    secured.ok({"updateUser": "ann", "pwd": "other"}, "test")
    user_with(secured, "read", name="carol")
    assert restore_users(secured, users, "test", drop=False)["ok"] == 1.0
    assert dump_users(secured, "test")[0] == users[0]
    assert login(other(secured), "ann", "test")["ok"] == 1.0
    assert restore_users(secured, users, "test", drop=True)["ok"] == 1.0
    assert [user["_id"] for user in found(secured, "system.users", {})] == ["admin.root", "else.bob", "test.ann"]


def test_a_dump_of_many_users_has_several_batches(secured: Client) -> None:
    user_with(secured, "read", name="ann")
    users = [{**dump_users(secured, "test")[0], "_id": f"test.u{n}", "user": f"u{n}"} for n in range(250)]
    assert restore_users(secured, users, "test", drop=False)["ok"] == 1.0
    first = secured.ok({"find": "system.users", "filter": {"db": "test"}}, "admin")["cursor"]
    rest = secured.ok({"getMore": first["id"], "collection": "system.users"}, "admin")["cursor"]
    assert len(first["firstBatch"]) + len(rest["nextBatch"]) == 251


def test_users_are_dumped_by_who_makes_backups_and_restored_by_who_may_make_them(secured: Client) -> None:
    user_with(secured, "read", name="ann")
    users = dump_users(secured, "test")
    backup = user_with(secured, "backup", db="admin", name="backup")
    assert dump_users(backup, "test") == users
    reader = user_with(secured, "readWriteAnyDatabase", "userAdminAnyDatabase", db="admin", name="reader")
    assert reader.code({"find": "system.users"}, "admin") == 13
    assert reader.code({"_mergeAuthzCollections": 1}, "admin") == 13
    restorer = user_with(secured, "restore", db="admin", name="restorer")
    assert restore_users(restorer, users, "test", drop=True)["code"] == 13
    secured.ok({"grantRolesToUser": "restorer", "roles": ["userAdminAnyDatabase"]}, "admin")
    assert restore_users(restorer, users, "test", drop=True)["ok"] == 1.0
    odd = {**users[0], "roles": [{"role": "none", "db": "test"}]}
    assert restore_users(secured, [odd], "test", drop=False)["code"] == 31
    assert restore_users(secured, [{"_id": 1}], "test", drop=False)["code"] == 2
    for field in ("tempUsersCollection", "tempRolesCollection"):
        assert secured.code({"_mergeAuthzCollections": 1, field: "config.consumers"}, "admin") == 73
    secured.ok({"insert": "roles", "documents": [{"_id": 1}]}, "admin")
    assert secured.code({"_mergeAuthzCollections": 1, "tempRolesCollection": "admin.roles"}, "admin") == 238
