"""Reads over HTTP: hidden and stale members pass no old data off as new, and each refusal says who can answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from replset.bson import from_ejson
from replset.cli.local_set import LocalMember, wait_until
from replset.optime import parse_optime
from tests.integration.conftest import MakeSet
from tests.integration.talk import cut, heal, status
from tests.integration.test_http import act, ask

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


def state_of(member: LocalMember, optime: str) -> dict[str, Any]:
    status, answer = check(member, f"/v1/replset/writes/{optime}")
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def written(member: LocalMember, number: int) -> tuple[int, str]:
    """Write with a majority; return the status and the optime that the answer names."""
    body = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": {"w": "majority", "wtimeout": 400}}
    status, _, raw = ask(member, "POST", "/v1/command/shop", json.dumps(body).encode())
    return status, str(parse_optime(from_ejson(raw.decode())["opTime"]))


def test_what_became_of_a_write_that_was_not_as_safe_as_asked(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=5_000)
    old = local.wait_for_primary()
    others = [member for member in local.members if member is not old]
    status, committed = written(old, 1)
    assert status == 200
    wait_until(lambda: all(state_of(m, committed)["state"] == "committed" for m in local.members), 30, "all to know it")
    cut(old, others)
    status, _, answer = act(old, "insertOne", document={"_id": 2}, writeConcern={"w": "majority", "wtimeout": 300})
    assert (status, answer["applied"]) == (504, True)
    doomed = answer["optime"]
    answer = state_of(old, doomed)
    assert (answer["state"], answer["heldBy"], len(answer["unreachable"])) == ("pending", [old.host], 2)
    assert "a majority write needs 2 copies" in answer["why"]
    new = wait_until(lambda: local.primary(among=others), 60, "the others to elect a primary")
    wait_until(lambda: written(new, 3)[0] == 200, 60, "a majority write on the new primary")
    answer = state_of(new, doomed)
    assert (answer["state"], answer["rollbacks"], list(answer["unreachable"])) == ("notInSet", [], [old.host])
    assert state_of(old, committed)["state"] == "committed"
    assert state_of(new, "9:1700000000:1")["state"] == "unknown"
    heal(old)
    wait_until(lambda: state_of(new, doomed)["rollbacks"], 60, "the old primary's rollback")
    for member in local.members:
        answer = state_of(member, doomed)
        (rollback,) = answer["rollbacks"]
        assert (answer["state"], rollback["member"]) == ("notInSet", old.host)
        assert f"http://{rollback['httpAddress']}" == old.http
        assert check(old, f"/v1/replset/rollbacks/{rollback['id']}/writes")[1]["writes"][-1]["optime"] == doomed
    assert ask(new, "GET", "/v1/replset/writes/soon")[0] == 400


@contextlib.contextmanager
def slow(member: LocalMember) -> Iterator[None]:
    """Stop the process for a tenth of a second again and again: its loop is as late as under too much load."""
    ended = threading.Event()

    def pulse() -> None:
        while not ended.wait(0.03):
            os.kill(member.pid, signal.SIGSTOP)
            time.sleep(0.12)
            os.kill(member.pid, signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_reads_move_away_from_an_overloaded_member(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=10_000)
    busy = local.wait_for_primary()
    others = [member for member in local.members if member is not busy]

    def hint(member: LocalMember, preference: str = "nearest") -> set[str]:
        code, headers, _ = act(member, "findOne", readPreference=preference)
        assert code == 200
        return named(headers)

    def shown_as_overloaded() -> bool:
        (row,) = [row for row in status(others[0])["members"] if row["name"] == busy.host]
        return row.get("overloaded") is True

    with slow(busy):
        wait_until(lambda: hint(busy) & addresses(*others), 30, "the busy member to name another one")
        assert hint(busy, "primary") == {""}
        wait_until(shown_as_overloaded, 30, "the others to know it")
        refused = act(others[0], "find", readPreference={"mode": "secondary", "tags": [{"no": "such"}]})
        assert READ_FROM not in refused[1]
    wait_until(lambda: hint(busy) == {""} and not shown_as_overloaded(), 60, "the load to be over")
