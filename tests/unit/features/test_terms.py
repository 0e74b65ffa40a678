"""A command whose primary steps down before it is answered: it leads again meanwhile, or another one takes over."""

from __future__ import annotations

from typing import Any

import pytest

from replset.core.member_state import MemberState
from replset.features.crud.write_batch import GROUP_STATEMENTS
from tests.rig import Client, Rig, a_set, note_waits

MANY = GROUP_STATEMENTS + 3


@pytest.mark.parametrize(
    ("command", "statements"),
    [
        ({"insert": "many"}, {"documents": [{"_id": number} for number in range(MANY)]}),
        ({"update": "many"}, {"updates": [{"q": {"_id": n}, "u": {"n": n}, "upsert": True} for n in range(MANY)]}),
    ],
)
def test_what_is_left_is_not_written_in_a_later_term(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch, command: dict[str, Any], statements: Any
) -> None:
    """Between the groups it stepped down, rolled the first one back, and won again: the later groups alone would be
    committed, and the whole command acknowledged.
    """
    first, term, waited = rig.member().write, rig.member().node.term, note_waits(monkeypatch)

    async def write(operation: Any) -> Any:
        result = await first(operation)
        if rig.member().node.term == term:
            await rig.lead_again()
        return result

    monkeypatch.setattr(rig.member(), "write", write)
    reply = client.run({**command, "writeConcern": {"w": "majority"}}, **statements)
    assert reply["ok"] == 0.0
    assert reply["code"] == 189
    assert 0 < reply["n"] < MANY
    written = [entry for entry in client.entries() if entry["op"] == "i"]
    assert (len(written), {entry["t"] for entry in written}) == (reply["n"], {term})
    assert waited == []


@pytest.mark.parametrize("command", [{"insert": "c", "documents": [{"_id": 1}]}, {"create": "d"}])
def test_a_majority_write_is_met_although_its_primary_steps_down(command: dict[str, Any]) -> None:
    """It waits for the others' disks when another member takes over, which commits it: no client is told 189."""
    with a_set(3) as rig:
        client = rig.client()
        client.ok({"insert": "c", "documents": [{"_id": 0}], "writeConcern": {"w": "majority"}})
        stopped = {}
        for name in "bc":
            rig.stop_disk(name)
            stopped[name] = rig._stopped
        writing = client.begin({**command, "writeConcern": {"w": "majority"}})
        rig.wait(0.5)
        assert not writing.done()
        stepping = client.begin({"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10}, "admin")
        rig.until(lambda: rig.member().node.state is MemberState.SECONDARY)
        assert not writing.done()
        for name, disk in stopped.items():
            rig.do(disk.__aexit__(None, None, None), name)
        reply = client.decoded(writing)
        assert (reply["ok"], "writeConcernError" in reply) == (1.0, False), reply
        assert client.decoded(stepping)["ok"] == 1.0
