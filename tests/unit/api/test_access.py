"""Who may send which request where members were started with --auth."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from api.access import NEEDS, is_public
from api.idempotency import KeyedWrite
from api.tokens import LIFETIME_S
from tests.unit.api.kit import Api, routes

ACTIONS = "/v1/action/"


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


NO_LOGINS = [
    basic("ann:wrong"),
    basic("bob:right"),
    basic("shop/ann:right"),
    basic("ann"),
    basic(""),
    {"authorization": "Basic %%"},
    {"authorization": "Basic"},
    {"authorization": "Basic " + "A" * 9000},
    {"authorization": "Digest x"},
    bearer(""),
    bearer("a.b"),
    bearer("." * 3000),
    bearer("W10=." + "A" * 44),
]


def test_an_idempotency_key_is_its_users_own() -> None:
    """Two users who happen to take one key must not get each other's answers."""
    sessions = {str(KeyedWrite(b"k", "insertOne", b"{}", user).fields_of(0)["lsid"]) for user in ("", "ann", "bob")}
    assert len(sessions) == 3


def set_user(api: Api, *roles: tuple[str, str]) -> None:
    """ann, whose password is `right`, has these roles now; without any she is gone."""
    required = [api.rig.member(name).users for name in api.rig.cluster.machines]
    for directory in required:
        directory.required = False
    client = api.rig.client()
    client.run({"dropUser": "ann"}, "admin")
    if roles:
        rows = [{"role": role, "db": db} for role, db in roles]
        client.ok({"createUser": "ann", "pwd": "right", "roles": rows, "writeConcern": {"w": len(required)}}, "admin")
    for directory in required:
        directory.required = True


@pytest.fixture
def api(api: Api) -> Iterator[Api]:
    """Its member was started with --auth; ann is root."""
    yield from secured(api)


def secured(api: Api) -> Iterator[Api]:
    set_user(api, ("root", "admin"))
    yield api
    for name in api.rig.cluster.machines:
        api.rig.member(name).users.required = False


@pytest.fixture
def secured_secondary(secondary: Api) -> Iterator[Api]:
    yield from secured(secondary)


def token_of(api: Api, **more: str) -> str:
    answer = api.post("/v1/login", {"user": "ann", "password": "right", **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])


@pytest.mark.parametrize("path", [path for path in sorted(routes().openapi()["paths"]) if not path.startswith(ACTIONS)])
def test_every_route_says_what_it_needs(path: str) -> None:
    assert path in NEEDS or is_public(path), "write down in api/access.py what this route needs"


@pytest.mark.parametrize("path", ["/health", "/ready", "/primary", "/secondary", "/arbiter", "/"])
def test_health_checks_and_the_page_need_no_login(api: Api, path: str) -> None:
    assert api.get(path).status_code in (200, 503)


@pytest.mark.parametrize(
    "path", [*sorted(NEEDS), "/v1/action/find", "/nowhere", "/health/x", "/Health", "/page/../metrics"]
)
def test_all_else_asks_for_one(api: Api, path: str) -> None:
    for answer in (api.get(path), api.post(path, {})):
        assert (answer.status_code, answer.json()["code"]) == (401, 13)
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert api.command_names() == []


@pytest.mark.parametrize("name", ["ann:right", "admin/ann:right"])
def test_name_and_password(api: Api, name: str) -> None:
    assert api.get("/v1/replset/status", headers=basic(name)).status_code == 200
    sender = api.requests[-1].connection
    assert str(sender.login) == "ann@admin"
    assert not sender.id, "so the localhost exception is not for HTTP"


@pytest.mark.parametrize("headers", NO_LOGINS)
def test_what_is_no_login(api: Api, headers: dict[str, str]) -> None:
    assert api.get("/v1/replset/status", headers=headers).status_code == 401
    assert api.command_names() == []


def test_a_token_ends_with_time_and_with_its_user(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    token = token_of(api, db="admin")

    def status() -> int:
        return api.get("/v1/replset/status", headers=bearer(token)).status_code

    assert status() == 200
    set_user(api)
    assert status() == 401
    set_user(api, ("root", "admin"))
    assert status() == 401, "another user of that name"
    token = token_of(api)
    assert status() == 200
    later = api.member.clock.wall_ms() + LIFETIME_S * 1000
    monkeypatch.setattr(api.member.clock, "wall_ms", lambda: later)
    assert status() == 401


def test_a_changed_token_is_none(api: Api) -> None:
    token = token_of(api)
    forged = base64.urlsafe_b64encode(b'["ann","admin","' + b"31" * 16 + b'",9999999999]').decode()
    wrong = [token[:-1], token + "x", token + "=", forged + token[token.index(".") :], token.replace(".", ""), forged]
    wrong += [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token))]
    for other in wrong:
        if other != token:
            assert api.get("/v1/replset/status", headers=bearer(other)).status_code == 401, other


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"user": "ann"}, 400),
        ({"user": "ann", "password": 5}, 400),
        ({"user": "ann", "password": "right", "db": None}, 400),
        ({"user": "ann", "password": "right", "more": 1}, 400),
        ({"user": "ann", "password": "wrong"}, 401),
        ({"user": "ann", "password": "right", "db": "shop"}, 401),
        ({"user": "ann", "password": "r" * (64 << 10)}, 413),
    ],
)
def test_a_login_that_fails(api: Api, fields: dict[str, Any], status: int) -> None:
    assert api.post("/v1/login", fields).status_code == status


def test_a_large_body_of_an_action_is_not_read(api: Api) -> None:
    answer = api.post("/v1/replset/stepDown", {"x": "y" * (256 << 10)}, headers=basic("ann:right"))
    assert answer.status_code == 413, answer.text


ROUTES_BY_ROLE = [
    ("read", "/v1/replset/oplog", False),
    ("read", "/metrics", False),
    ("read", "/v1/replset/rollbacks/x/verify", False),
    ("clusterMonitor", "/metrics", True),
    ("clusterMonitor", "/v1/replset/oplog", False),
    ("clusterMonitor", "/v1/replset/oplog/info", True),
    ("clusterAdmin", "/v1/replset/rollbacks/x/y", False),
    ("backup", "/v1/replset/rollbacks/x/y", True),
    ("read", "/docs", True),
    ("read", "/openapi.json", True),
]


@pytest.mark.parametrize(("role", "path", "allowed"), ROUTES_BY_ROLE)
def test_routes_without_a_command_ask_for_roles_too(api: Api, role: str, path: str, allowed: bool) -> None:
    set_user(api, (role, "admin"))
    answer = api.get(path, headers=basic("ann:right"))
    assert (answer.status_code == 403) != allowed, answer.text


def test_a_write_is_forwarded_with_its_user(secured_secondary: Api) -> None:
    api = secured_secondary
    answer = api.act("insertOne", document={"_id": 1}, headers=basic("ann:right"))
    assert (answer.status_code, answer.headers["x-replset-forwarded-to"]) == (201, "a:27017")
    assert api.forwarded[-1][1]["$replsetForwarded"] == {"user": "ann", "db": "admin"}
    set_user(api, ("read", "shop"))
    refused = api.act("insertOne", document={"_id": 1}, headers=basic("ann:right"))
    assert (refused.status_code, refused.json()["code"]) == (403, 13)
    assert len(api.forwarded) == 1
