"""A member of a newer release adds fields to all that it sends. The older ones ignore them, and the set works."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Document, RawDocument, decode, encode
from replset.ids import HostPort
from replset.member.net.transport import Transport
from replset.member.peers.member_commands import COMMANDS
from tests.simulation.kit.scenarios import scenario_run

LATER = {"later": {"a": [1]}}


def test_fields_of_a_newer_release_in_each_message_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question between members and each answer has one, from the first heartbeat on."""
    sent: set[str] = set()
    real = Transport.call

    async def call(self: Transport, host: HostPort, command: Any, **rest: Any) -> Any:
        question: Document = decode(encode(command))
        sent.add(next(iter(question)))
        answer = await real(self, host, RawDocument(encode({**question, **LATER})), **rest)
        return RawDocument(encode({**decode(encode(answer)), **LATER}))

    monkeypatch.setattr(Transport, "call", call)
    with scenario_run(seed=1) as scenario:
        first = scenario.primary
        assert scenario.write(first, concern="majority").outcome == "ok"
    assert {"replSetHeartbeat", "replSetRequestVotes", "replSetOplogFetch", "replSetUpdatePosition"} <= sent


def test_no_command_between_members_names_the_fields_that_it_takes() -> None:
    assert {command.name for command in COMMANDS if command.private and command.fields is not None} == set()
