"""`replset undo` asks the primary, shows what was or would be done, and ends with 1 if something is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replset.bson import DateTime, Int64, Timestamp
from replset.cli import undo
from replset.cli.main import main

Capture = pytest.CaptureFixture[str]
LEFT = {"ns": "shop.orders", "_id": 3, "reason": "the set changed the document"}


def reply(*, left: int, applied: bool = True) -> dict[str, Any]:
    rows = [{"ns": "shop.orders", "changed": Int64(2), "unchanged": 1, "left": left}]
    told = ["shop.tags was dropped, and is made again"]
    found = {"applied": applied, "id": "ab" * 16 if applied else None, "to": Timestamp(5, 1), "ok": 1.0}
    return {**found, "collections": rows, "told": told, "left": [LEFT] * min(left, 100)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The commands that are sent; `answers` has what comes back."""
    found: list[dict[str, object]] = []

    def on_primary(_host: str, command: dict[str, object], timeout_s: float) -> dict[str, Any]:
        found.append(command)
        assert timeout_s > 60
        return reply(left=int(str(command.get("match", {"left": 0})["left"])), applied=bool(command["apply"]))  # type: ignore[index]

    monkeypatch.setattr(undo.calls, "on_primary", on_primary)
    return found


def run(*arguments: str) -> int:
    return main(["undo", "--host", "127.0.0.1:1", *arguments])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--from", "1:5:6", "--to", "7:8", "--ns", "shop.orders", "--ns", "app", "--policy", "merge"),
            {"from": "1:5:6", "to": Timestamp(7, 8), "ns": ["shop.orders", "app"], "policy": "merge", "apply": False},
        ),
        (("--from", "2026-11-23T05:00:00Z"), {"from": DateTime(1_795_410_000_000)}),
        (("--redo", "ab", "--apply"), {"redo": "ab", "apply": True}),
    ],
)
def test_the_options_are_the_command(
    asked: list[dict[str, object]], arguments: tuple[str, ...], expected: dict[str, object]
) -> None:
    assert run(*arguments) == 0
    assert asked[0] | expected == asked[0]


def test_a_time_that_is_none_is_refused(asked: list[dict[str, object]], capsys: Capture) -> None:
    assert run("--from", "soon") == 2
    assert (asked, "soon" in capsys.readouterr().err) == ([], True)


@pytest.mark.parametrize(("left", "status"), [(0, 0), (1, 1), (120, 1)])
def test_what_is_shown(asked: list[dict[str, object]], capsys: Capture, left: int, status: int) -> None:
    assert run("--match", json.dumps({"left": left}), "--apply") == status
    head, row, *lines = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert (head, row) == ("collection changed unchanged left as it is", f"shop.orders 2 1 {left}")
    more = ["left: 100 more"] if left > 20 else []
    named = ["left: shop.orders 3: the set changed the document"] * min(left, 20)
    last = f"undone; replset undo --redo {'ab' * 16} takes that back"
    assert lines == ["shop.tags was dropped, and is made again", *named, *more, last]
    assert run("--match", json.dumps({"left": left}), "--json") == status
    shown = json.loads(capsys.readouterr().out)
    assert (shown["applied"], shown["id"], len(shown["left"])) == (False, None, min(left, 100))
