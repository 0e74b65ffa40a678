"""`replset follow`: after a failed switch-over only one set takes writes; --missing lists all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.cli import calls, follow
from replset.cli.main import main
from replset.errors import CappedPositionLostError, HostUnreachableError
from replset.features.follower.follow_source import SourceSet
from replset.ids import OpTime
from replset.oplog_entry import insert_entry
from replset.optime import optime_document

AT = OpTime(3, 70 << 32)
STATUS = {
    "mode": "following",
    "hosts": ["a:1", "a:2"],
    "setName": "site1",
    "consumer": "c",
    "position": optime_document(AT),
}


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[tuple[str, object]]]:
    """The steps that fail, and what was asked."""
    failing: list[str] = []
    asked: list[tuple[str, object]] = []

    def on_primary(host: str, command: dict[str, Any], *_args: object, **_more: object) -> dict[str, Any]:
        if "replSetFollow" in command:
            asked.append((host, command["replSetFollow"]))
            if command["replSetFollow"] in failing:
                raise HostUnreachableError("cut off")
            if "Ctrl-C at stop" in failing and command["replSetFollow"] == "stop":
                raise KeyboardInterrupt
        return {**STATUS, "opTime": optime_document(AT)}

    def on_source(source: SourceSet, command: dict[str, Any]) -> RawDocument:
        return RawDocument(encode(on_primary(",".join(source.hosts), command)))

    monkeypatch.setattr(calls, "on_primary", on_primary)
    monkeypatch.setattr(SourceSet, "command", on_source)
    monkeypatch.setattr(calls, "ask", lambda *_args, **_more: {"hosts": ["b:1"], "setName": "site2"})
    return failing, asked


@pytest.mark.parametrize(
    ("failing", "asked", "says"),
    [
        (["find"], ["close", "open"], ""),
        (["Ctrl-C"], ["close", "open"], ""),
        (["close"], ["close", "open"], ""),
        (["close", "open"], ["close", "open"], "may take no writes now"),
        (["stop"], ["close", "stop"], "site1 takes no writes meanwhile"),
        (["Ctrl-C at stop"], ["close", "stop"], "site1 takes no writes meanwhile"),
    ],
)
def test_a_switch_over_that_fails_opens_the_source_only_before_the_follower_may_take_writes(
    fails: tuple[list[str], list[tuple[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: list[str],
    asked: list[str],
    says: str,
) -> None:
    def newest(*_args: object) -> OpTime:
        if "find" in failing:
            raise HostUnreachableError("cut off")
        if "Ctrl-C" in failing:
            raise KeyboardInterrupt
        return AT

    monkeypatch.setattr(follow, "_newest_entry", newest)
    fails[0].extend(failing)
    assert main(["follow", "--switch-over", "--host", "b:1"]) != 0
    assert [step for _, step in fails[1]] == asked
    printed = capsys.readouterr().err
    assert says in printed
    assert ("no writes" in printed) == bool(says)
    assert fails[1][0][0] == "a:1,a:2", "any of the source's members may be gone"


def test_what_is_missing_is_not_listed_where_the_beginning_of_it_is_gone(
    fails: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trimmed(_self: SourceSet, _at: OpTime) -> list[bytes]:
        raise CappedPositionLostError("gone")

    monkeypatch.setattr(SourceSet, "entries_after", trimmed)
    assert main(["follow", "a:1", "--missing", "--host", "b:1"]) != 0
    printed = capsys.readouterr()
    assert "has no entries as old as" in printed.err
    assert "are not here" not in printed.out


def test_what_came_from_this_set_is_not_missing_here(
    fails: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def entry(number: int, **more: object) -> bytes:
        made = insert_entry("app.c", bytes(16), encode({"_id": number}), OpTime(4, AT.ts + number), 0)
        return encode({**RawDocument(made).decode(), **more})

    mine, anothers = ({"from": {**optime_document(AT), "set": name}} for name in ("site2", "site3"))
    pages = [[entry(1, **mine), entry(2), entry(3, **anothers)], []]
    monkeypatch.setattr(SourceSet, "entries_after", lambda *_: pages.pop(0))
    monkeypatch.setattr(calls, "ask", lambda *_args, **_more: {"setName": "site2"})
    assert main(["follow", "a:1", "--missing", "--host", "b:1"]) == 1
    *listed, last = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in listed] == ['{"_id":2}', '{"_id":3}']
    assert last.startswith("2 operations of site1")
