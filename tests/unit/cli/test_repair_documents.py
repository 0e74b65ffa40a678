"""`replset repair DB.COLLECTION` goes on with the other members when one cannot be asked, and says what was done."""

from __future__ import annotations

from typing import Any

import pytest

from replset.cli import calls, check
from replset.errors import ErrorCode, HostUnreachableError

DONE: dict[str, Any] = {"corrected": [], "undecided": [], "skipped": [], "notCompared": [], "records": []}
FOUND = {"ns": "shop.orders", "_id": 3, "members": [{"member": "m1:1", "hash": "1"}, {"member": "m3:1", "hash": "2"}]}


class Members:
    """Answers for three members. fails: what a member answers instead, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: dict[str, Exception] = {}
        self.asked: list[str] = []
        rows = [{"name": f"m{number}:1", "stateStr": "PRIMARY" if number == 1 else "SECONDARY"} for number in (1, 2, 3)]
        monkeypatch.setattr(calls, "ask_status", lambda _: ("m1:1", {"members": rows}))
        monkeypatch.setattr(calls, "ask", self.ask)

    def ask(self, host: str, command: dict[str, object]) -> dict[str, Any]:
        if "replSetGetConfig" in command:
            return {"config": {"members": [{"host": f"m{number}:1"} for number in (1, 2, 3)]}}
        self.asked.append(host)
        if host in self.fails and (host != "m1:1" or "after" in command):
            raise self.fails[host]
        if host == "m1:1" and "after" not in command:
            return {**DONE, "corrected": [FOUND], "records": ["rollback-1"], "next": b"key"}
        return DONE


@pytest.mark.parametrize(
    ("down", "says"),
    [
        ("m2:1", ["m1:1: 1 documents of shop.orders corrected", "m2:1: not repaired to the end: m2:1 is down"]),
        ("m1:1", ["what was there: rollback-1", "m1:1: not repaired to the end: m1:1 is down"]),
    ],
)
def test_a_member_that_is_down_keeps_neither_the_others_from_it_nor_what_was_done_from_being_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], down: str, says: list[str]
) -> None:
    members = Members(monkeypatch)
    members.fails[down] = HostUnreachableError(f"{down} is down")
    assert check.repair_documents("shop.orders", None, None) == check.DIFFERENT
    assert members.asked == ["m1:1", "m1:1", "m2:1", "m3:1"]
    text = capsys.readouterr().out
    assert [part for part in [*says, "m3:1: nothing to do"] if part not in text] == []


def test_what_the_first_member_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch)
    refusal = calls.CommandFailedError("m2:1 has no collection 'no.such'", code=ErrorCode.NAMESPACE_NOT_FOUND)
    members.fails["m2:1"] = refusal
    with pytest.raises(calls.CommandFailedError, match="no collection"):
        check.repair_documents("no.such", None, "m1:1")
    assert members.asked == ["m2:1"]
