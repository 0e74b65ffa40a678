"""Sessions: which fields of a command go together, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import Binary, Int64, RawDocument, encode
from replset.errors import ReplError
from replset.features.crud.retryable import statement_ids
from replset.operations.session_request import NOBODY, parse_session, session_id
from tests.rig import Client

UUID = bytes(range(16))
LSID = {"id": Binary(UUID, 4)}


def session_of(given: dict[str, Any], *, is_retryable: bool = True, ends_transaction: bool = False) -> Any:
    body = RawDocument(encode({"insert": "c", **given}))
    return parse_session(body, "insert", is_retryable=is_retryable, ends_transaction=ends_transaction)


@pytest.mark.parametrize(
    ("given", "txn_number", "starts", "autocommit"),
    [
        ({"lsid": LSID}, None, False, None),
        ({"lsid": {**LSID, "uid": NOBODY}, "txnNumber": Int64(0)}, 0, False, None),
        ({"lsid": LSID, "txnNumber": Int64(7), "autocommit": False}, 7, False, False),
        ({"lsid": LSID, "txnNumber": Int64(7), "autocommit": False, "startTransaction": True}, 7, True, False),
    ],
)
def test_a_session_is_read(
    given: dict[str, Any], txn_number: int | None, starts: bool, autocommit: bool | None
) -> None:
    session = session_of(given)
    assert (session.key, session.lsid) == session_id(UUID)
    assert session.lsid.decode() == {"id": Binary(UUID, 4), "uid": NOBODY}
    assert (session.txn_number, session.start_transaction, session.autocommit) == (txn_number, starts, autocommit)
    assert session.is_retryable_write == (txn_number is not None and autocommit is None)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"txnNumber": Int64(1)}, 72),
        ({"lsid": LSID, "txnNumber": Int64(-1)}, 72),
        ({"lsid": LSID, "txnNumber": 1}, 14),
        ({"lsid": LSID, "autocommit": False}, 72),
        ({"lsid": LSID, "txnNumber": Int64(1), "autocommit": True}, 72),
        ({"lsid": LSID, "txnNumber": Int64(1), "autocommit": 0}, 14),
        ({"lsid": LSID, "txnNumber": Int64(1), "startTransaction": True}, 72),
        ({"startTransaction": True}, 72),
        ({"lsid": LSID, "txnNumber": Int64(1), "autocommit": False, "startTransaction": False}, 72),
        ({"lsid": 1}, 14),
        ({"lsid": {}}, 40414),
        ({"lsid": {"id": 1}}, 14),
        ({"lsid": {"id": Binary(UUID)}}, 14),
        ({"lsid": {"id": Binary(UUID[:15], 4)}}, 14),
        ({"lsid": {**LSID, "more": 1}}, 40415),
        ({"lsid": {**LSID, "uid": Binary(bytes(32))}}, 13),
        ({"lsid": {**LSID, "txnUUID": Binary(UUID, 4)}}, 72),
    ],
)
def test_what_does_not_go_together(client: Client, given: dict[str, Any], code: int) -> None:
    assert client.code({"insert": "c", "documents": [{}], **given}) == code
    assert client.entries() == []


def test_a_transaction_number_is_for_writes_and_transactions(client: Client) -> None:
    assert client.code({"find": "c", "lsid": LSID, "txnNumber": Int64(1)}) == 50768
    assert client.code({"find": "c", "lsid": LSID, "stmtId": 1}) == 40415
    with pytest.raises(ReplError) as refused:
        session_of(
            {"lsid": LSID, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}, ends_transaction=True
        )
    assert refused.value.code == 263


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"stmtId": 5}, [5, 6, 7]),
        ({"stmtIds": [4, 9, Int64(2)]}, [4, 9, 2]),
        ({"stmtId": 5, "stmtIds": [1, 2, 3]}, 72),
        ({"stmtIds": [1, 2]}, 16),
        ({"stmtIds": [1, 2, 1 << 31]}, 72),
        ({"stmtId": (1 << 31) - 3}, 51024),
        ({"stmtIds": 1}, 14),
    ],
)
def test_the_numbers_of_statements(given: dict[str, Any], expected: list[int] | int) -> None:
    body = RawDocument(encode({"insert": "c", **given}))
    if isinstance(expected, list):
        assert list(statement_ids(body, "insert", 3)) == expected
        return
    with pytest.raises(ReplError) as refused:
        statement_ids(body, "insert", 3)
    assert refused.value.code == expected


ENDS = [
    ({"endSessions": [LSID]}, [True, False, False]),
    ({"killSessions": [LSID]}, [True, False, False]),
    ({"refreshSessions": [LSID]}, [False, False, False]),
    ({"killAllSessions": []}, [True, True, False]),
    ({"killAllSessions": [{"user": "u", "db": "d"}]}, [False, False, False]),
    ({"killAllSessionsByPattern": []}, [True, True, False]),
    ({"killAllSessionsByPattern": [{"lsid": {**LSID, "uid": NOBODY}}]}, [True, False, False]),
    ({"killAllSessionsByPattern": [{"uid": NOBODY}]}, [True, True, False]),
    ({"killAllSessionsByPattern": [{"users": [{"user": "u", "db": "d"}]}]}, [False, False, False]),
]


@pytest.mark.parametrize(("command", "closed"), ENDS)
def test_the_end_of_a_session_ends_its_cursors(client: Client, command: dict[str, Any], closed: list[bool]) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    owners: list[dict[str, Any]] = [{"lsid": LSID}, {"lsid": client.ok({"startSession": 1})["id"]}, {}]
    cursors = [client.ok({"find": "c", "batchSize": 1, **owner})["cursor"]["id"] for owner in owners]
    client.ok(command)
    for cursor, owner, is_closed in zip(cursors, owners, closed, strict=True):
        reply = client.run({"getMore": cursor, "collection": "c", **owner})
        assert reply.get("code") == (43 if is_closed else None)


@pytest.mark.parametrize("name", sorted({next(iter(command)) for command, _ in ENDS}))
def test_what_is_no_session(client: Client, name: str) -> None:
    assert client.code({name: 1}) == 14
    assert client.code({name: [1]}) == 14
    if not name.startswith("killAll"):
        assert client.code({name: [{}]}) == 40414


def test_a_killed_session_gives_up_who_waits_for_it(client: Client) -> None:
    async def scenario() -> None:
        sessions = client.dispatcher.sessions
        key, _ = session_id(UUID)
        await sessions.check_out(key, None)
        first, second = (asyncio.ensure_future(sessions.check_out(key, None)) for _ in range(2))
        await asyncio.sleep(0)
        sessions.end({key}.__contains__)
        for waiting in (first, second):
            with pytest.raises(ReplError, match="killed"):
                await waiting
        sessions.check_in(key)
        assert not sessions.is_checked_out(key)

    client.rig.do(scenario())


def test_a_turn_that_nobody_takes_goes_to_the_next(client: Client) -> None:
    async def scenario() -> None:
        sessions = client.dispatcher.sessions
        await sessions.check_out(b"s", None)
        first, second = (asyncio.ensure_future(sessions.check_out(b"s", None)) for _ in range(2))
        await asyncio.sleep(0)
        sessions.check_in(b"s")
        first.cancel()
        await asyncio.wait([first])
        await second
        sessions.check_in(b"s")
        assert not sessions.is_checked_out(b"s")

    client.rig.do(scenario())
