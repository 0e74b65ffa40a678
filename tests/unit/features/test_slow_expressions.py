"""Commands with slow regular expressions: others get their turn, and what would take for ever is refused (51156)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replset.bson import Regex
from replset.query import regex
from tests.rig import Client
from tests.unit.query.regex_clock import SlowExpressions

SLOW = Regex("^(?:x+x+)+y")
DOCUMENTS = 60
TEXT = "xxxzy"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SlowExpressions:
    return SlowExpressions(monkeypatch)


def run(client: Client, clock: SlowExpressions, command: dict[str, object], db: str) -> tuple[dict[str, Any], float]:
    """The reply, and the longest time that passed between two turns of the loop."""
    task, longest, before = client.begin(command, db), 0.0, clock.now

    def look() -> None:
        nonlocal longest, before
        longest, before = max(longest, clock.now - before), clock.now

    client.rig.cluster.on_step.append(look)
    return client.decoded(task), longest


Command = dict[str, object]
WORKS: dict[str, tuple[Callable[[], Command], str]] = {
    "find": (lambda: {"find": "c", "filter": {"a": SLOW}}, "test"),
    "by-id": (lambda: {"find": "c", "filter": {"_id": {"$in": list(range(DOCUMENTS))}, "a": SLOW}}, "test"),
    "sorted": (lambda: {"find": "c", "filter": {"a": SLOW}, "sort": {"a": 1}}, "test"),
    "count": (lambda: {"count": "c", "query": {"a": SLOW}}, "test"),
    "distinct": (lambda: {"distinct": "c", "key": "a", "query": {"a": SLOW}}, "test"),
    "update": (
        lambda: {"update": "c", "updates": [{"q": {"a": SLOW}, "u": {"$set": {"b": 1}}, "multi": True}]},
        "test",
    ),
    "pull": (
        lambda: {"update": "c", "updates": [{"q": {}, "u": {"$pull": {"list": {"$regex": SLOW}}}, "multi": True}]},
        "test",
    ),
    "statements": (
        lambda: {
            "delete": "c",
            "deletes": [{"q": {"_id": number, "a": SLOW}, "limit": 1} for number in range(DOCUMENTS)],
        },
        "test",
    ),
    "oplog": (lambda: {"find": "oplog.rs", "filter": {"o.a": SLOW}}, "local"),
    "oplog-backwards": (lambda: {"find": "oplog.rs", "filter": {"o.a": SLOW}, "sort": {"$natural": -1}}, "local"),
}


@pytest.mark.parametrize("name", WORKS)
def test_others_get_their_turn_while_an_expression_is_slow(client: Client, clock: SlowExpressions, name: str) -> None:
    make, db = WORKS[name]
    client.ok({"insert": "c", "documents": [{"_id": n, "a": TEXT, "list": [TEXT]} for n in range(DOCUMENTS)]})
    clock.search_s = regex.SLICE_S * 0.3
    began = clock.now
    reply, longest = run(client, clock, make(), db)
    assert reply["ok"] == 1.0, reply
    assert "writeErrors" not in reply
    assert (clock.now - began) / clock.search_s > DOCUMENTS - 1, "each document was searched"
    assert longest < 1.01 * (regex.SLICE_S + clock.search_s)


@pytest.mark.parametrize("name", WORKS)
def test_what_takes_for_ever_is_refused(client: Client, clock: SlowExpressions, name: str) -> None:
    make, db = WORKS[name]
    client.ok({"insert": "c", "documents": [{"_id": n, "a": TEXT, "list": [TEXT]} for n in range(5)]})
    clock.search_s = 1_000_000.0
    began = clock.now
    reply, _ = run(client, clock, make(), db)
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert error["code"] == 51156
    assert error["errmsg"] == f"Regular expression takes too long to match: {SLOW.pattern}"
    assert clock.now - began < 1.01 * regex.LIMIT_S
    assert client.ok({"ping": 1})
