"""Commands with slow regular expressions: others get their turn, and what would take for ever is refused (51156)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from replset.bson import RawDocument, Regex, decode, encode
from replset.commands.ports import CommandRequest
from replset.query import regex
from tests.unit.commands.conftest import Client

SLOW = Regex("^(?:x+x+)+y")
DOCUMENTS = 60
ENDLESS = "x" * 100_000 + "zy"


@pytest.fixture(autouse=True)
def saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "_budget", regex._TimeBudget())


def text_for(seconds: float) -> str:
    """A text on which SLOW takes about so long, of the CPU."""
    search = regex.regex_predicate(SLOW.pattern, "")
    for step in range(60):
        text = "x" * int(50 * 1.2**step) + "zy"
        regex.begin_time_slice()
        began = time.thread_time()
        search(text)
        if time.thread_time() - began > seconds / 2:
            return text
    raise AssertionError("the expression is not slow")


async def longest_turn(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result, and the most CPU time that passed between two turns of the loop."""
    longest = 0.0
    task = asyncio.ensure_future(work)
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    return task.result(), longest


def run(client: Client, command: dict[str, object], db: str = "test") -> tuple[dict[str, Any], float]:
    request = CommandRequest(db, RawDocument(encode({**command, "$db": db})), {}, client.connection)
    reply, longest = client.loop.run_until_complete(longest_turn(client.dispatcher.run(request)))
    return decode(reply if isinstance(reply, bytes) else encode(reply)), longest


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
def test_others_get_their_turn_while_an_expression_is_slow(client: Client, name: str) -> None:
    make, db = WORKS[name]
    text = text_for(0.006)
    client.ok({"insert": "c", "documents": [{"_id": n, "a": text, "list": [text, "x"]} for n in range(DOCUMENTS)]})
    client.ok({"insert": "c", "documents": [{"_id": "y", "a": "xxy", "list": ["xxy"]}]})
    began = time.thread_time()
    reply, longest = run(client, make(), db)
    took = time.thread_time() - began
    assert reply["ok"] == 1.0, reply
    assert "writeErrors" not in reply
    assert took > 5 * regex.SLICE_S, "all of it is slow"
    assert longest < took / 2


@pytest.mark.parametrize("name", WORKS)
def test_what_takes_for_ever_is_refused(client: Client, name: str) -> None:
    make, db = WORKS[name]
    client.ok({"insert": "c", "documents": [{"_id": n, "a": ENDLESS, "list": [ENDLESS]} for n in range(5)]})
    began = time.thread_time()
    reply, longest = run(client, make(), db)
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert error["code"] == 51156
    assert error["errmsg"] == f"Regular expression takes too long to match: {SLOW.pattern}"
    assert longest < 0.5
    assert time.thread_time() - began < 2
    assert client.ok({"ping": 1})
