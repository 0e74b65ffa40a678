"""Linearizable reads on real processes, over the wire port and over HTTP: a cut-off primary answers none of them."""

from __future__ import annotations

from typing import Any

from replset.cli.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import DATABASE, cut, heal, insert, run, same_everywhere, state
from tests.integration.test_http import act
from tests.integration.test_set import lost_entries

LINEARIZABLE: dict[str, object] = {"level": "linearizable"}


def read(member: LocalMember, **more: object) -> dict[str, Any]:
    command: dict[str, object] = {
        "find": "orders",
        "filter": {"_id": 1},
        "readConcern": LINEARIZABLE,
        "$readPreference": {"mode": "secondaryPreferred"},
    }
    return member.command({**command, **more}, DATABASE, timeout_s=30)


def set_n(member: LocalMember, n: int, w: object = "majority") -> None:
    statement = {"q": {"_id": 1}, "u": {"$set": {"n": n}}}
    reply = run(member, {"update": "orders", "updates": [statement], "writeConcern": {"w": w, "wtimeout": 20_000}})
    assert "writeConcernError" not in reply, reply


def test_a_cut_off_primary_answers_no_linearizable_read(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=4_000)
    old = local.wait_for_primary()
    rest = [member for member in local.members if member is not old]
    insert(old, 1)
    assert read(old)["cursor"]["firstBatch"] == [{"_id": 1, "n": 1}]
    status, _, found = act(old, "findOne", filter={"_id": 1}, readConcern=LINEARIZABLE)
    assert (status, found["document"]) == (200, {"_id": 1, "n": 1})
    for member in rest:
        assert read(member)["code"] == 10107
        status, _, refused = act(
            member, "findOne", filter={"_id": 1}, readConcern=LINEARIZABLE, readPreference={"mode": "nearest"}
        )
        assert (status, refused["code"]) == (503, 10107)

    cut(old, rest)
    set_n(old, 2, w=1)  # nobody else has it: it will be rolled back
    assert read(old, readConcern={"level": "local"})["cursor"]["firstBatch"] == [{"_id": 1, "n": 2}]
    refused = read(old, maxTimeMS=300)
    assert (refused["ok"], refused["code"], refused["codeName"]) == (0.0, 50, "MaxTimeMSExpired")
    status, headers, refused = act(old, "countDocuments", readConcern=LINEARIZABLE, maxTimeMS=300)
    assert (status, refused["code"]) == (503, 50)
    assert headers["retry-after"]
    refused = read(old)  # without a limit it ends with the stepdown, or (187) once the others count as down
    assert refused["code"] in (187, 189, 10107), refused

    new = local.wait_for_primary(among=rest)
    set_n(new, 3)
    assert read(new)["cursor"]["firstBatch"] == [{"_id": 1, "n": 3}]
    assert read(old)["code"] == 10107
    heal(old)
    wait_until(lambda: lost_entries(old), 40, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", 40, "the old primary to be SECONDARY")
    assert same_everywhere(local) == [{"_id": 1, "n": 3}]
