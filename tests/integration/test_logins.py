"""Members that ask for logins: real drivers, HTTP, the command lines, an arbiter, and what ends a login."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pymongo
import pytest
from pymongo.errors import OperationFailure

from replset.cli.calls import asks_for_logins
from replset.local_set import LocalMember, wait_until
from tests.integration.clients.install import installed, node
from tests.integration.conftest import FAST, next_ports
from tests.integration.forked import ForkedSet, run_program, running_set
from tests.integration.talk import a_secondary, all_counted

ROOT = {"REPLSET_USER": "root", "REPLSET_PASSWORD": "correct horse"}
CLI = "replset.cli.main"


NOBODY = {"REPLSET_USER": ""}


def tool(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as root, or with another environment."""
    return run_program(*arguments, environment=environment or ROOT)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedSet]:
    """Two members with data and an arbiter, with a root user."""
    folder = tmp_path_factory.mktemp("logins")
    with running_set(folder / "set") as made, pytest.MonkeyPatch.context() as patch:
        for number, port in enumerate(next_ports(3)):
            made.add(port, flags=["--auth", "--audit-log", str(folder / f"audit{number}")], arbiter=number == 2)
        made.initiate(FAST)
        primary = made.wait_for_primary()
        (folder / "password").write_text(ROOT["REPLSET_PASSWORD"] + "\n")
        password = ("--new-password-file", folder / "password")
        added = tool(CLI, "user", "add", "root", "--role", "root", "--host", primary.host, *password, **NOBODY)
        assert (added.returncode, added.stderr) == (0, "")
        for name, value in ROOT.items():
            patch.setenv(name, value)
        add = ("user", "add", "app", "--db", "shop", "--role", "readWrite", "--role", "clusterMonitor@admin")
        added = tool(CLI, *add, "--host", primary.host, *password)
        assert (added.returncode, added.stderr) == (0, "")
        all_counted(made)
        yield made


def uri(local: ForkedSet, user: str = "app", password: str = "correct%20horse", source: str = "shop") -> str:
    hosts = ",".join(member.host for member in local.members if not member.arbiter)
    return f"mongodb://{user}:{password}@{hosts}/?authSource={source}&replicaSet={local.name}"


def http(member: LocalMember, path: str, body: object = None, authorization: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"authorization": authorization} if authorization else {}
    answer = httpx.request(
        "GET" if body is None else "POST", member.http + path, json=body, headers=headers, timeout=30
    )
    return answer.status_code, answer.json() if answer.text[:1] == "{" else {}


def basic(name: str, password: str = "correct horse") -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def token_of(member: LocalMember, password: str = "correct horse") -> str:
    status, answer = http(member, "/v1/login", {"user": "app", "password": password, "db": "shop"})
    assert status == 200, answer
    return f"Bearer {answer['token']}"


def code_of(client: pymongo.MongoClient[dict[str, Any]], database: str) -> int | None:
    with pytest.raises(OperationFailure) as failure:
        client[database].c.find_one()
    return failure.value.code


def test_pymongo_through_a_failover(local: ForkedSet) -> None:
    with pymongo.MongoClient(uri(local), serverSelectionTimeoutMS=20_000) as client:
        majority = pymongo.WriteConcern("majority", wtimeout=20_000)
        orders = client.shop.get_collection("orders", write_concern=majority)
        orders.insert_one({"_id": 1})
        with client.start_session() as session, session.start_transaction():
            orders.insert_one({"_id": 2}, session=session)
        assert code_of(client, "other") == 13
        done = tool(CLI, "step-down", "--seconds", "5", "--host", local.wait_for_primary().host)
        assert (done.returncode, done.stderr) == (0, "")
        orders.insert_one({"_id": 3})
        assert [row["_id"] for row in orders.find().sort("_id", 1)] == [1, 2, 3]
    for wrong in (uri(local, password="wrong"), uri(local, user="nobody"), uri(local, source="admin")):
        with pymongo.MongoClient(wrong, serverSelectionTimeoutMS=20_000) as client:
            assert code_of(client, "shop") == 18
    with pymongo.MongoClient(local.members[0].host, directConnection=True) as client:
        assert code_of(client, "shop") == 13


@pytest.mark.in_turns
def test_the_node_driver(local: ForkedSet) -> None:
    program = installed() / "login.mjs"
    shutil.copy(Path(__file__).parent / "clients" / "login.mjs", program)

    def run(address: str) -> dict[str, Any]:
        done = subprocess.run([node(), program, address], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert run(uri(local)) == {"read": {"_id": "node"}, "refused": 13}
    assert run(uri(local, password="wrong")) == {"failed": 18}


def test_http_on_every_member(local: ForkedSet) -> None:
    primary, secondary, arbiter = local.wait_for_primary(), a_secondary(local), local.members[2]
    insert = {"database": "shop", "collection": "http", "document": {"a": 1}}
    token = token_of(secondary)
    for member in local.members:
        assert http(member, "/v1/replset/status")[0] == 401
        assert http(member, "/v1/replset/status", authorization=basic("shop/app"))[0] == 200
        assert http(member, "/metrics", authorization=token)[0] == 200, "an arbiter asks the others"
        assert http(member, "/v1/replset/oplog", authorization=token)[0] == 403
    assert http(secondary, "/v1/action/insertOne", insert, token)[0] == 201, "forwarded"
    assert http(secondary, "/v1/action/insertOne", {**insert, "database": "other"}, token)[0] == 403
    assert http(primary, "/v1/replset/freeze", {"seconds": 0}, token)[0] == 403
    assert http(arbiter, "/v1/login", {"user": "app", "password": "wrong", "db": "shop"})[0] == 401


def test_the_command_lines(local: ForkedSet, tmp_path: Path) -> None:
    """The page logins.md has the rest."""
    addresses = [member.http for member in local.members[:2]]
    assert tool(CLI, "status", "--host", local.members[2].host).returncode == 0, "an arbiter asks the others"
    assert asks_for_logins(local.members[0].host), "so that add-arbiter --start gives its process --auth"
    for command in (
        ("spark.cli", "diff", *addresses, "--engine", "local"),
        ("rollback_tools.main", "list", addresses[0]),
    ):
        assert [tool(*command).returncode, tool(*command, **NOBODY).returncode] == [0, 2], command


def test_a_new_member_is_added_though_it_knows_no_user_yet(local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    new = local.plan(next_ports(1)[0], flags=["--auth"])
    local.begin(new)
    try:
        added = tool(CLI, "add", new.host, "--host", primary.host, "--wait", 30)
        assert (added.returncode, f"{new.host} is added" in added.stdout) == (0, True), added.stderr
        removed = tool(CLI, "remove", new.host, "--host", primary.host, "--accept")
        assert removed.returncode == 0, removed.stderr
    finally:
        local.kill(new)
        local.members.remove(new)


@pytest.mark.in_turns
def test_what_ends_a_login(local: ForkedSet, tmp_path: Path) -> None:
    """A new password and the end of a user, on all members; the audit log has it."""
    primary = local.wait_for_primary()
    token = token_of(primary)
    with pymongo.MongoClient(uri(local), serverSelectionTimeoutMS=20_000) as client:
        client.shop.c.find_one()
        (tmp_path / "new").write_text("another")
        new = ("--new-password-file", tmp_path / "new")
        done = tool(CLI, "user", "password", "app", "--db", "shop", *new, "--host", primary.host)
        assert (done.returncode, done.stderr) == (0, "")
        assert code_of(client, "shop") == 18, "the connection is closed, and the old password is wrong"
    for member in local.members:
        wait_until(lambda m=member: http(m, "/v1/replset/config", None, token)[0] == 401, 10, "the token's end")
    token = token_of(primary, "another")
    assert http(primary, "/v1/replset/config", None, token)[0] == 200
    dropped = tool(CLI, "user", "drop", "app", "--db", "shop", "--host", primary.host)
    assert dropped.returncode == 0
    for member in local.members:
        wait_until(lambda m=member: http(m, "/v1/replset/config", None, token)[0] == 401, 10, "the token's end")
    audit = local.members.index(primary)
    lines = (local.folder.parent / f"audit{audit}").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {"updateUser", "dropUser"} <= {row.get("command") for row in rows if row["user"] == "root@admin"}
    assert {row["claimedUser"] for row in rows if row["what"] == "failedLogin"} >= {"app@shop"}
    assert "another" not in "".join(lines)
