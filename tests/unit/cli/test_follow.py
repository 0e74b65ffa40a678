"""`replset follow`: after a failed switch-over only one set takes writes; --missing lists all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from replset.cli import calls, follow
from replset.cli.main import main
from replset.commands.streams.follow_source import SourceSet
from replset.errors import CappedPositionLostError, HostUnreachableError
from replset.ids import OpTime
from replset.optime import optime_document

AT = OpTime(3, 70 << 32)
STATUS = {"mode": "following", "hosts": ["a:1"], "setName": "site1", "consumer": "c", "position": optime_document(AT)}


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
        return {**STATUS, "opTime": optime_document(AT)}

    monkeypatch.setattr(calls, "on_primary", on_primary)
    monkeypatch.setattr(calls, "ask", lambda *_args, **_more: {"hosts": ["b:1"]})
    return failing, asked


@pytest.mark.parametrize(("failing", "asked"), [("find", ["close", "open"]), ("stop", ["close", "stop"])])
def test_a_switch_over_that_fails_opens_the_source_only_before_the_follower_may_take_writes(
    fails: tuple[list[str], list[tuple[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failing: str,
    asked: list[str],
) -> None:
    def newest(*_args: object) -> OpTime:
        if failing == "find":
            raise HostUnreachableError("cut off")
        return AT

    monkeypatch.setattr(follow, "_newest_entry", newest)
    fails[0].append(failing)
    assert main(["follow", "--switch-over", "--host", "b:1"]) != 0
    assert [step for _, step in fails[1]] == asked
    assert ("site1 takes no writes meanwhile" in capsys.readouterr().err) == (failing == "stop")


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
