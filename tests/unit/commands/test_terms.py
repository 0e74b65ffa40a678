"""A command that needs several groups of writes, and a member that leads again before the last of them."""

from __future__ import annotations

from typing import Any

import pytest

from replset.commands.writes.write_batch import GROUP_STATEMENTS
from tests.rig import Client, Rig, note_waits

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
