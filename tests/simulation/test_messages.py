"""How many messages between members a write costs, in a set without faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from replset.bson import Document, RawDocument, encode
from replset.ids import HostPort
from replset.member.net.transport import Transport
from tests.simulation.kit.scenarios import scenario_run

WRITES = 40


@pytest.mark.parametrize(("concern", "most"), [("majority", 2.6), ("w1", 4.2), ("two", 4.2)])
def test_each_secondary_sends_one_message_for_a_write(
    concern: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch carries its position, and the page the commit point. `w: 2` waits for what is only applied, so that is
    reported before the sync is.
    """
    asked: Counter[tuple[HostPort, str]] = Counter()
    real = Transport.call

    async def call(self: Transport, host: HostPort, command: Document, **rest: Any) -> Any:
        asked[host, RawDocument(encode(command)).first_key or ""] += 1
        return await real(self, host, command, **rest)

    monkeypatch.setattr(Transport, "call", call)
    with scenario_run(seed=1) as scenario:
        scenario.write(scenario.primary, concern=concern)
        asked.clear()
        for _ in range(WRITES):
            assert scenario.write(scenario.primary, concern=concern).outcome == "ok"
        primary = scenario.cluster.host(scenario.primary)
        rows = {
            name: number for (host, name), number in asked.items() if host == primary and name != "replSetHeartbeat"
        }
        assert sum(rows.values()) / WRITES <= most, rows
        assert rows["replSetOplogFetch"] >= WRITES, "the secondaries did follow"
