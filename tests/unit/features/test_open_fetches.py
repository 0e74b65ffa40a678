"""A member's fetch is answered on its connection without a task: at once, later, with an error, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import ObjectId, decode
from replset.core.member_state import MemberState
from replset.ids import HostPort
from replset.replication.protocol import FetchRequest
from tests.rig import Rig
from tests.unit.features.test_prepared import Wire

MEMBER = HostPort("b:27017")


@pytest.fixture
def wire(rig: Rig) -> Wire:
    """A connection of another member."""
    made = Wire(rig)
    made.send({"ping": 1})
    (connection,) = rig.member()._server.connections
    connection._context.member = MEMBER
    made.replies.clear()
    return made


def fetch(rig: Rig, max_await_ms: int = 20_000, **changes: object) -> dict[str, Any]:
    """The fetch of a member that has everything."""
    store, node = rig.member().store, rig.member().node
    request = FetchRequest(
        store.last_applied, store.chain, 1 << 20, max_await_ms, node.term, node.commit_point, store.rollback_id
    )
    return {**decode(request.document().raw), **changes}


def send(wire: Wire, command: dict[str, Any]) -> None:
    wire.write(command, db="admin")


def waiting(rig: Rig) -> int:
    return len(rig.member().fetches._waiting)


def test_what_is_new_is_answered_as_it_comes(rig: Rig, wire: Wire) -> None:
    send(wire, fetch(rig))
    rig.wait(1)
    assert (wire.replies, waiting(rig)) == ([], 1)
    rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.until(lambda: len(wire.replies) == 1)
    assert [entry["op"] for entry in wire.replies[0]["batch"]] == ["c", "i"]
    assert waiting(rig) == 0


def test_a_fetch_and_what_comes_behind_it_are_answered_in_order(rig: Rig, wire: Wire) -> None:
    wire.write(fetch(rig), {"ping": 1}, db="admin")
    rig.wait(0.5)
    assert wire.replies == []  # the ping waits behind the fetch
    rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.until(lambda: len(wire.replies) == 2)
    assert ["batch" in reply for reply in wire.replies] == [True, False]


def test_a_fetch_ends_with_its_time(rig: Rig, wire: Wire) -> None:
    send(wire, fetch(rig, 300))
    rig.wait(0.2)
    assert wire.replies == []
    rig.wait(0.2)
    assert wire.replies[0]["batch"] == []


@pytest.mark.parametrize(
    ("change", "code"), [({"term": "x"}, 9), ({"after": 5}, 9), ({"setId": ObjectId(bytes(12))}, 108)]
)
def test_errors_are_those_of_the_usual_way(rig: Rig, wire: Wire, change: dict[str, Any], code: int) -> None:
    send(wire, fetch(rig, **change))
    rig.until(lambda: len(wire.replies) == 1)
    usual = rig.client().run(fetch(rig, **change), "admin")
    assert (wire.replies[0]["code"], wire.replies[0]["errmsg"]) == (code, usual["errmsg"])


def test_a_member_that_serves_no_more_ends_the_wait(rig: Rig, wire: Wire) -> None:
    send(wire, fetch(rig))
    rig.wait(0.1)
    state, before = rig.member().node._state, rig.member().node._state.state

    async def change() -> None:
        state.state = MemberState.ROLLBACK
        rig.member().fetches.on_change()
        await asyncio.sleep(0)
        state.state = before

    rig.do(change())
    rig.until(lambda: len(wire.replies) == 1)
    assert wire.replies[0]["code"] == 13436


def test_a_member_that_leaves_is_waited_for_no_more(rig: Rig, wire: Wire) -> None:
    send(wire, fetch(rig))
    rig.wait(0.1)
    wire.transport.close()
    rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.wait(0.1)
    assert waiting(rig) == 0


def test_an_answer_to_a_member_that_is_cut_off_is_dropped(rig: Rig, wire: Wire) -> None:
    send(wire, fetch(rig))
    rig.wait(0.1)
    rig.member().peer.cut([MEMBER], "out")
    rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.wait(0.5)
    assert wire.replies == []
    rig.member().peer.cut([], "both")
    send(wire, fetch(rig, 0))
    rig.until(lambda: len(wire.replies) == 1)


def test_a_stranger_s_fetch_is_refused(rig: Rig) -> None:
    stranger = Wire(rig)
    assert stranger.send(fetch(rig), "admin")["code"] == 13
