"""What a set that follows another one asks of its primary."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.commands.streams.follow_source import SourceSet
from replset.errors import ReplError


class Connection:
    """Answers every command in the same way."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply
        self.is_open = True

    def ask(self, database: str, document: dict[str, object]) -> RawDocument:
        return RawDocument(encode(self.reply))

    def close(self) -> None:
        self.is_open = False


def asked(reply: dict[str, Any]) -> tuple[SourceSet, Connection]:
    source, connection = SourceSet(["a:1"], "site1"), Connection(reply)
    source._client = connection  # type: ignore[assignment]
    return source, connection


def test_an_answer_keeps_the_connection() -> None:
    source, connection = asked({"ok": 1.0, "n": 5})
    assert source.command({"ping": 1}).get("n") == 5
    assert connection.is_open


@pytest.mark.parametrize(("code", "expected"), [(13, 13), (None, 1)])
def test_a_refusal_ends_the_connection_and_says_whose_it_is(code: int | None, expected: int) -> None:
    source, connection = asked({"ok": 0.0, "errmsg": "no"} | ({} if code is None else {"code": code}))
    with pytest.raises(ReplError, match="site1: no") as refusal:
        source.command({"ping": 1})
    assert (refusal.value.code, connection.is_open) == (expected, False)
