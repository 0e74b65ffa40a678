"""Who may send which request where members were started with --auth."""

from __future__ import annotations

import pytest

from api.login import NEEDS, is_public
from replset.commands.user_directory import UserDirectory
from tests.unit.api.kit import Api

ACTIONS = "/v1/action/"


@pytest.fixture
def api() -> Api:
    made = Api()
    made.member.users = UserDirectory()
    return made


@pytest.mark.parametrize(
    "path", [path for path in sorted(Api().get("/openapi.json").json()["paths"]) if not path.startswith(ACTIONS)]
)
def test_every_route_says_what_it_needs(path: str) -> None:
    assert path in NEEDS or is_public(path), "write down in api/login.py what this route needs"


@pytest.mark.parametrize("path", ["/health", "/ready", "/primary", "/secondary", "/arbiter"])
def test_health_checks_need_no_login(api: Api, path: str) -> None:
    assert api.get(path).status_code in (200, 503)


@pytest.mark.parametrize(
    "path", [*sorted(NEEDS), "/openapi.json", "/v1/action/find", "/nowhere", "/health/x", "/Health"]
)
def test_all_else_asks_for_one(api: Api, path: str) -> None:
    for answer in (api.get(path), api.post(path, {})):
        assert (answer.status_code, answer.json()["code"]) == (401, 13)
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert api.command_names() == []
