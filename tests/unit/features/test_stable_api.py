"""apiVersion, apiStrict and apiDeprecationErrors; and what a getMore must have in common with its find."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, Int64, RawDocument, encode
from replset.errors import ReplError
from replset.member.member import RunningMember
from replset.operations.stable_api import check_api
from tests.rig import Client

V1: dict[str, Any] = {"apiVersion": "1"}
STRICT: dict[str, Any] = {**V1, "apiStrict": True}
ERRORS: dict[str, Any] = {**V1, "apiDeprecationErrors": True}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"ping": 1, **V1}, None),
        ({"ping": 1, **STRICT}, None),
        ({"ping": 1, "apiVersion": "2"}, 322),
        ({"ping": 1, "apiVersion": 1}, 14),
        ({"ping": 1, "apiStrict": True}, 4886600),
        ({"ping": 1, "apiDeprecationErrors": False}, 4886600),
        ({"hello": 1, **STRICT}, None),
        ({"isMaster": 1, **STRICT}, 323),
        ({"isMaster": 1, **V1}, None),
        ({"distinct": "c", "key": "a", **STRICT}, 323),
        ({"distinct": "c", "key": "a", **V1, "apiStrict": False}, None),
        ({"serverStatus": 1, **STRICT}, 323),
        ({"buildInfo": 1, **STRICT}, 323),
        ({"find": "c", "filter": {}, **STRICT}, None),
        ({"find": "c", "tailable": True, **STRICT}, 323),
        ({"find": "c", "noCursorTimeout": True, **STRICT}, 323),
        ({"find": "c", "noCursorTimeout": True, **V1}, None),
        ({"create": "d", "capped": True, "size": 4096, **STRICT}, 323),
        ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "sparse": True}], **STRICT}, 323),
        ({"testDeprecation": 1, **STRICT}, None),
        ({"testDeprecation": 1, **ERRORS}, 324),
        ({"testVersion2": 1, **V1}, None),
        ({"testVersion2": 1, **STRICT}, 323),
        ({"testVersions1And2": 1, **STRICT, **ERRORS}, None),
    ],
)
def test_what_is_in_version_1(client: Client, command: dict[str, object], code: int | None) -> None:
    assert client.run(command).get("code") == code


def test_stages_that_are_not_in_version_1() -> None:
    pipeline: list[dict[str, object]] = [{"$match": {}}, {"$listLocalSessions": {}}]
    check_api(RawDocument(encode({"aggregate": 1, "pipeline": pipeline[:1], **STRICT})), "aggregate")
    check_api(RawDocument(encode({"aggregate": 1, "pipeline": pipeline, **V1})), "aggregate")
    with pytest.raises(ReplError, match="listLocalSessions is not allowed") as refused:
        check_api(RawDocument(encode({"aggregate": 1, "pipeline": pipeline, **STRICT})), "aggregate")
    assert refused.value.code == 323


def test_the_test_commands_are_for_tests(client: Client, member: RunningMember) -> None:
    member.test_commands = False
    assert client.code({"testVersion2": 1}) == 59


SESSION: dict[str, Any] = {"lsid": {"id": Binary(bytes(16), 4)}}
OTHER: dict[str, Any] = {"lsid": {"id": Binary(bytes(15) + b"\1", 4)}}


@pytest.mark.parametrize(
    ("opened", "asks", "code"),
    [
        (SESSION, SESSION, None),
        (STRICT, STRICT, None),
        ({}, SESSION, 50736),
        (SESSION, {}, 50737),
        (SESSION, OTHER, 50738),
        (V1, {}, 364),
        ({}, V1, 364),
        (V1, STRICT, 364),
        ({}, {"maxTimeMS": 100}, 2),
        ({}, {"maxTimeMS": 0}, 2),
    ],
)
def test_a_get_more_is_like_its_find(
    client: Client, opened: dict[str, object], asks: dict[str, object], code: int | None
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    cursor_id = client.ok({"find": "c", "batchSize": 2, **opened})["cursor"]["id"]
    more = {"getMore": Int64(cursor_id), "collection": "c", "batchSize": 1}
    assert client.run({**more, **asks}).get("code") == code
    assert len(client.ok({**more, **opened})["cursor"]["nextBatch"]) == 1, "a refusal leaves the cursor open"


def test_all_batches_share_the_time_of_find(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    cursor_id = client.ok({"find": "c", "batchSize": 2, "maxTimeMS": 1000})["cursor"]["id"]
    more = {"getMore": Int64(cursor_id), "collection": "c", "batchSize": 1}
    client.ok(more)
    point = {"configureFailPoint": "maxTimeAlwaysTimeOut", "mode": "alwaysOn"}
    client.ok(point, "admin")
    assert client.code(more) == 50
    assert client.code(more) == 43


def test_max_time_for_operations_only(client: Client) -> None:
    client.ok({"configureFailPoint": "maxTimeAlwaysTimeOut", "mode": "alwaysOn"}, "admin")
    assert client.code({"ping": 1, "maxTimeMSOpOnly": 5}) == 50
    client.ok({"ping": 1, "maxTimeMSOpOnly": 0})
