"""Fail points: when they are hit, and what a command does then."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64
from replset.ids import HostPort
from replset.member.member import RunningMember
from tests.rig import Client

PING = ["ping"]


def set_point(client: Client, mode: object, name: str = "failCommand", **data: object) -> int:
    command = {"configureFailPoint": name, "mode": mode, "data": data}
    return int(client.ok(command, "admin")["count"])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"configureFailPoint": "nonsense", "mode": "alwaysOn"}, 222),
        ({"configureFailPoint": "failCommand"}, 4),
        ({"configureFailPoint": "failCommand", "mode": "sometimes"}, 2),
        ({"configureFailPoint": "failCommand", "mode": 1}, 14),
        ({"configureFailPoint": "failCommand", "mode": {"often": 1}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"times": -1}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"times": float("inf")}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"skip": float("nan")}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"times": "x"}}, 14),
        ({"configureFailPoint": "failCommand", "mode": {"skip": 1.5}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"activationProbability": 2}}, 2),
        ({"configureFailPoint": "failCommand", "mode": "off", "data": 1}, 14),
        ({"configureFailPoint": 1, "mode": "off"}, 14),
    ],
)
def test_refusals(client: Client, command: dict[str, object], code: int) -> None:
    assert client.code(command, "admin") == code


def test_only_with_test_commands(client: Client, member: RunningMember) -> None:
    member.test_commands = False
    assert client.code({"configureFailPoint": "failCommand", "mode": "off"}, "admin") == 59


@pytest.mark.parametrize(
    ("mode", "failed"),
    [
        ("alwaysOn", [1, 1, 1, 1]),
        ("off", [0, 0, 0, 0]),
        ({"times": 2}, [1, 1, 0, 0]),
        ({"times": Int64(1)}, [1, 0, 0, 0]),
        ({"skip": 2}, [0, 0, 1, 1]),
        ({"activationProbability": 0.0}, [0, 0, 0, 0]),
        ({"activationProbability": 1.0}, [1, 1, 1, 1]),
    ],
)
def test_modes(client: Client, mode: object, failed: list[int]) -> None:
    set_point(client, mode, failCommands=PING, errorCode=91)
    assert [int(client.run({"ping": 1})["ok"] == 0.0) for _ in failed] == failed
    assert set_point(client, "off") == sum(failed)


def test_other_commands_do_not_use_it_up(client: Client, member: RunningMember) -> None:
    set_point(client, {"times": 1}, failCommands=["insert"], errorCode=10107)
    client.ok({"buildInfo": 1})
    reply = client.run({"insert": "c", "documents": [{"_id": 1}]})
    assert (reply["code"], reply["codeName"]) == (10107, "NotWritablePrimary")
    assert reply["errmsg"] == "Failing command due to 'failCommand' failpoint"
    assert reply["topologyVersion"]["counter"] == member.topology.counter
    client.ok({"insert": "c", "documents": [{"_id": 1}]})


def test_only_a_change_of_the_member_is_told_as_one(client: Client, member: RunningMember) -> None:
    set_point(client, "alwaysOn", failCommands=["ping"], errorCode=91)
    assert "topologyVersion" not in client.run({"ping": 1})
    member.shutting_down = True
    assert client.run({"ping": 1})["topologyVersion"]["counter"] == member.topology.counter
    member.shutting_down = False
    set_point(client, "alwaysOn", failCommands=["insert"], writeConcernError={"code": 189, "errmsg": "moved"})
    assert (
        client.run({"insert": "c", "documents": [{"_id": 1}]})["topologyVersion"]["counter"] == member.topology.counter
    )


@pytest.mark.parametrize(
    ("data", "is_hit"),
    [
        ({"failCommands": ["ping"]}, True),
        ({"failCommands": ["hello"]}, False),
        ({"failAllCommands": True}, True),
        ({"failCommands": ["ping"], "appName": "mine"}, True),
        ({"failCommands": ["ping"], "appName": "other"}, False),
        ({"failCommands": ["ping"], "threadName": "conn1"}, False),
        ({"failCommands": ["ping"], "namespace": "test.c"}, False),
        ({"failCommands": "ping"}, False),
    ],
)
def test_whom_it_hits(client: Client, data: dict[str, Any], is_hit: bool) -> None:
    client.connection.app_name = "mine"
    set_point(client, "alwaysOn", **data, errorCode=6)
    assert client.run({"ping": 1})["ok"] == (0.0 if is_hit else 1.0)


def test_it_is_known_by_an_alias_and_never_hits_itself(client: Client) -> None:
    set_point(client, "alwaysOn", failCommands=["isMaster", "configureFailPoint"], errorCode=91)
    assert client.code({"hello": 1}) == 91
    assert client.code({"ismaster": 1}) == 91
    set_point(client, "off")
    client.ok({"hello": 1})


def test_the_first_hello_has_a_name(client: Client) -> None:
    set_point(client, "alwaysOn", failCommands=["hello"], appName="shell", errorCode=91)
    client.ok({"hello": 1})
    assert client.code({"hello": 1, "client": {"application": {"name": "shell"}}}) == 91
    assert client.code({"hello": 1}) == 91


@pytest.mark.parametrize(
    ("command", "namespace"),
    [({"find": "c"}, "test.c"), ({"getMore": Int64(5), "collection": "c"}, "test.c"), ({"ping": 1}, "test")],
)
def test_namespace(client: Client, command: dict[str, object], namespace: str) -> None:
    set_point(client, "alwaysOn", failCommands=[next(iter(command))], namespace=namespace, errorCode=112)
    assert client.code(command) == 112
    set_point(client, "alwaysOn", failCommands=[next(iter(command))], namespace="test.other", errorCode=112)
    assert client.run(command).get("code") != 112


def test_members_are_left_alone_unless_named(client: Client) -> None:
    client.connection.member = HostPort("b:1")
    set_point(client, "alwaysOn", failCommands=PING, errorCode=6)
    client.ok({"ping": 1})
    set_point(client, "alwaysOn", failCommands=PING, errorCode=6, failInternalCommands=True)
    assert client.code({"ping": 1}) == 6


@pytest.mark.parametrize("labels", [[], ["RetryableWriteError"]])
def test_labels_replace_all_others(client: Client, labels: list[str]) -> None:
    set_point(client, "alwaysOn", failCommands=PING, errorCode=462, errorLabels=labels)
    assert client.run({"ping": 1}).get("errorLabels", []) == labels
    assert "errorLabels" not in client.ok({"buildInfo": 1})


def test_extra_info_is_part_of_the_reply(client: Client) -> None:
    set_point(client, "alwaysOn", failCommands=PING, errorCode=9, errorExtraInfo={"why": "so"})
    assert client.run({"ping": 1})["why"] == "so"


def test_close_comes_before_the_error(client: Client) -> None:
    set_point(client, {"times": 1}, failCommands=PING, errorCode=9, closeConnection=True)
    assert client.code({"ping": 1}) == 50985
    assert client.connection.is_to_close


def test_block(client: Client) -> None:
    set_point(client, "alwaysOn", failCommands=PING, blockConnection=True, blockTimeMS=30)
    before = client.rig.cluster.loop.time()
    client.ok({"ping": 1})
    assert client.rig.cluster.loop.time() - before >= 0.03
    assert client.code({"ping": 1, "maxTimeMS": 5}) == 50
    set_point(client, "alwaysOn", failCommands=PING, blockConnection=True, blockTimeMS=1, errorCode=91)
    assert client.code({"ping": 1}) == 91


@pytest.mark.parametrize("data", [{}, {"blockTimeMS": -1}])
def test_block_needs_a_time(client: Client, data: dict[str, Any]) -> None:
    set_point(client, "alwaysOn", failCommands=PING, blockConnection=True, **data)
    assert client.code({"ping": 1}) == 72


def test_write_concern_error_stands_for_the_wait(client: Client) -> None:
    error = {"code": 91, "errmsg": "shutting down"}
    set_point(client, {"times": 1}, failCommands=["insert"], writeConcernError=error, errorLabels=["A"])
    reply = client.ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": "majority"}})
    assert (reply["n"], reply["writeConcernError"], reply["errorLabels"]) == (1, error, ["A"])
    assert client.ok({"count": "c"})["n"] == 1
    assert "writeConcernError" not in client.ok({"insert": "c", "documents": [{"_id": 2}]})


def test_a_get_more_fails_and_ends_its_cursor(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    more = {"getMore": client.ok({"find": "c", "batchSize": 2})["cursor"]["id"], "collection": "c"}
    set_point(client, {"times": 1}, "failGetMoreAfterCursorCheckout", errorCode=104, closeConnection=False)
    assert client.code(more) == 104
    assert not client.connection.is_to_close
    assert client.code(more) == 43


def test_max_time_always_or_never_runs_out(client: Client) -> None:
    set_point(client, "alwaysOn", "maxTimeAlwaysTimeOut")
    assert client.code({"ping": 1, "maxTimeMS": 10_000}) == 50
    client.ok({"ping": 1})
    set_point(client, "off", "maxTimeAlwaysTimeOut")
    set_point(client, "alwaysOn", "maxTimeNeverTimeOut")
    client.ok({"ping": 1, "maxTimeMS": 1})


def test_over_http_the_same_errors_come(client: Client) -> None:
    set_point(client, "alwaysOn", failCommands=PING, errorCode=91)
    assert client.run({"ping": 1}, source="http")["code"] == 91
    assert client.run({"ping": 1}, source="internal")["ok"] == 1.0
