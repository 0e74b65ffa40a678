"""Reads over HTTP: hidden and stale members pass no old data off as new, and each refusal says who can answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from replset.cli.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import cut, heal
from tests.integration.test_http import act, ask

pytestmark = pytest.mark.slow
READ_FROM = "x-replset-read-from"


def addresses(*members: LocalMember) -> set[str]:
    return {member.http.removeprefix("http://") for member in members}


def named(headers: Mapping[str, str]) -> set[str]:
    return set(headers.get(READ_FROM, "").split(", "))


def check(member: LocalMember, path: str) -> tuple[int, dict[str, Any]]:
    status, _, body = ask(member, "GET", path)
    return status, json.loads(body)


def hide(primary: LocalMember, hidden: LocalMember) -> None:
    found = json.loads(ask(primary, "GET", "/v1/replset/config")[2])
    (row,) = [row for row in found["config"]["members"] if row["host"] == hidden.host]
    row |= {"hidden": True, "priority": 0}
    found["config"]["version"] += 1
    status, _, body = ask(primary, "POST", "/v1/replset/reconfig", json.dumps(found).encode())
    assert status == 200, body


def test_hidden_and_stale_members_refuse_and_name_others(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    hidden, other = (member for member in local.members if member is not primary)
    hide(primary, hidden)
    wait_until(lambda: check(hidden, "/secondary")[0] == 503, 30, "the hidden member to know that it is hidden")
    for path in ("/secondary", "/ready", "/secondary?maxLag=1000"):
        status, answer = check(hidden, path)
        assert (status, answer["why"]) == (503, "it is hidden")
    for preference, readers in {"nearest": (primary, other), "secondary": (other,)}.items():
        status, headers, refused = act(hidden, "find", readPreference=preference)
        assert (status, refused["code"], named(headers)) == (503, 133, addresses(*readers))
    status, headers, _ = act(other, "find")
    assert (status, named(headers)) == (503, addresses(primary))
    status, headers, _ = act(primary, "find", readPreference={"mode": "secondary"})
    assert (status, named(headers)) == (503, addresses(other))

    assert [check(other, path)[0] for path in ("/ready", "/secondary?maxLag=5")] == [200, 200]
    cut(other, [primary, hidden])
    wait_until(lambda: check(other, "/secondary?maxLag=3")[0] == 503, 60, "the cut-off member to count as stale")
    assert "behind" in check(other, "/secondary?maxLag=3")[1]["why"]
    assert check(other, "/secondary?maxLag=3000")[0] == 200
    heal(other)
    wait_until(lambda: check(other, "/secondary?maxLag=3")[0] == 200, 60, "it to catch up")
