"""replSetConfirmWrites: which of many writes that were acknowledged early are safe, by each member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from replset.core.node import Node
from replset.features.administration import confirm_writes
from replset.ids import OpTime
from tests.rig import Client, Rig, a_set

NAME = "replSetConfirmWrites"
FAR = "9:4000000000:1"


@pytest.fixture(scope="module")
def three() -> Iterator[Rig]:
    with a_set(3) as made:
        yield made


def write(client: Client, *ids: int) -> list[str]:
    found = []
    for number in ids:
        at = client.ok({"insert": "c", "documents": [{"_id": number}], "writeConcern": {"w": 1}})["opTime"]
        found.append(f"{at['t']}:{at['ts'].time}:{at['ts'].inc}")
    return found


def confirm(client: Client, optimes: list[str], **options: object) -> dict[str, Any]:
    return client.ok({NAME: optimes, **options}, "admin")


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("wait", ["majority", "members:3"])
def test_all_members_confirm_what_was_acknowledged_early(three: Rig, name: str, wait: str) -> None:
    first = three.groups() * 100
    optimes = write(three.client(), *range(first, first + 5))
    reply = confirm(three.client(name), [*optimes, *optimes], wait=wait)
    assert (reply["confirmed"], reply["notConfirmed"]) == (5, [])


def test_what_is_not_safe_when_the_time_is_over_is_described() -> None:
    with a_set(3) as rig:
        client = rig.client()
        (safe,) = write(client, 1)
        confirm(client, [safe])
        rig.cluster.cut(["a"])
        (early,) = write(client, 2)
        for wait in ("majority", "members:2"):
            reply = confirm(client, [early, safe], wait=wait, timeoutMS=100)
            assert reply["confirmed"] == 1
            (row,) = reply["notConfirmed"]
            assert (row["optime"], row["state"], row["heldBy"]) == (early, "pending", ["a:27017"])
        rig.until(lambda: rig.cluster.primary() != "a")
        other = rig.client("b")
        other.run({"appendOplogNote": 1, "data": {}}, "admin")
        reply = confirm(other, [early, safe], timeoutMS=30_000)
        assert (reply["confirmed"], reply["notConfirmed"][0]["state"]) == (1, "notInSet")
        rig.cluster.heal()
        rig.until(rig.cluster.converged)
        reply = confirm(client, [early])
        (row,) = reply["notConfirmed"]
        assert [rollback["member"] for rollback in row["rollbacks"]] == ["a:27017"]


def test_a_member_that_is_ahead_in_an_older_term_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads no more, holds what it will roll back, and lacks an entry of a still older term."""
    with a_set(1) as rig:
        (first,) = write(rig.client(), 1)
        rig.step_down(1)
        rig.lead()
        rig.step_down(1)
        rig.lead()
        (last,) = write(rig.client(), 2)
        ahead = OpTime(OpTime.parse(first).term + 1, OpTime.parse(last).ts)
        monkeypatch.setattr(Node, "is_satisfied", lambda _node, _concern, optime: optime <= ahead)
        reply = confirm(rig.client(), [first], wait="members:1", timeoutMS=0)
        assert [row["optime"] for row in reply["notConfirmed"]] == [first]


def test_what_a_cut_off_primary_took_is_not_confirmed_by_the_next_one() -> None:
    with a_set(3) as rig:
        (safe,) = write(rig.client(), 1)
        confirm(rig.client(), [safe], wait="members:3")
        rig.cluster.cut(["a"])
        early = write(rig.client(), *range(2, 6))
        rig.until(lambda: rig.cluster.primary() in ("b", "c"))
        leader = rig.client(rig.cluster.primary() or "")
        assert confirm(leader, [safe], wait="members:2")["confirmed"] == 1
        reply = confirm(leader, [safe], wait="members:3", timeoutMS=200)
        assert [row["optime"] for row in reply["notConfirmed"]] == [safe], "a has it, and has not said so in this term"
        assert confirm(leader, early, wait="members:1", timeoutMS=200)["confirmed"] == 0


def test_a_member_that_follows_no_history_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is about to roll back is still in its oplog."""
    with a_set(1) as rig:
        optimes = write(rig.client(), 1)
        assert confirm(rig.client(), optimes)["confirmed"] == 1
        monkeypatch.setattr(Node, "follows_set", property(lambda _node: False))
        assert confirm(rig.client(), optimes, timeoutMS=0)["confirmed"] == 0


def test_of_many_only_some_are_described(three: Rig) -> None:
    optimes = [f"9:4000000000:{number}" for number in range(1, 31)]
    reply = confirm(three.client(), optimes, timeoutMS=0)
    described = [len(row) > 1 for row in reply["notConfirmed"]]
    assert described == [True] * confirm_writes.EXPLAINED + [False] * (30 - confirm_writes.EXPLAINED)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({NAME: []}, 2),
        ({NAME: ["1:2"]}, 2),
        ({NAME: [7]}, 2),
        ({NAME: "1:2:3"}, 14),
        ({NAME: ["1:2:3"] * 1001}, 2),
        *(({NAME: [FAR], "wait": wait}, 2) for wait in ("", "all", "members", "members:0", "members:51", "members:x")),
        ({NAME: [FAR], "timeoutMS": 60_001}, 51024),
        ({NAME: [FAR], "wait": "members:4"}, 100),
    ],
)
def test_what_is_refused(three: Rig, command: dict[str, object], code: int) -> None:
    assert three.client().code(command, "admin") == code


def test_without_a_primary_only_a_majority_can_be_asked_for() -> None:
    with a_set(2) as rig:
        optimes = write(rig.client(), 1)
        confirm(rig.client("b"), optimes)
        rig.cluster.kill("a")
        rig.until(lambda: rig.member("b").node.primary_host is None)
        assert confirm(rig.client("b"), optimes)["confirmed"] == 1
        assert rig.client("b").code({NAME: optimes, "wait": "members:1"}, "admin") == 10107
