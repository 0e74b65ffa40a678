"""Sessions: which fields of a command go together, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, Int64, RawDocument, encode
from replset.commands.sessions import NOBODY, parse_session, session_id, statement_ids
from replset.errors import ReplError
from tests.unit.commands.conftest import Client

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
