"""The HTTP API of real members: forwarding, write concerns, bad input of every kind, and generated requests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replset.bson import RawDocument, encode
from replset.cli.local_set import LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import cut, heal
from tests.programs import run_to_end

JSON = {"content-type": "application/json"}


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects())


def ask(
    member: LocalMember, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON
) -> tuple[int, Mapping[str, str], bytes]:
    request = urllib.request.Request(member.http + path, data=body, headers=dict(headers), method=method)
    try:
        with OPENER.open(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def act(
    member: LocalMember, name: str, query: str = "", *, key: str = "", **fields: object
) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """Run an action. key: an Idempotency-Key."""
    body = json.dumps({"database": "shop", "collection": "orders", **fields}).encode()
    sent = {**JSON, "idempotency-key": key} if key else JSON
    status, headers, answer = ask(member, "POST", f"/v1/action/{name}{query}", body, sent)
    return status, headers, json.loads(answer)


def a_secondary(local: LocalSet) -> LocalMember:
    primary = local.wait_for_primary()
    return next(member for member in local.members if member is not primary and not member.arbiter)


def test_a_write_to_any_member_and_a_read_of_it_anywhere(make_set: MakeSet) -> None:
    local = make_set()
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    status, headers, answer = act(secondary, "insertOne", document={"item": "pen"}, writeConcern={"w": "majority"})
    assert (status, headers["x-replset-forwarded-to"]) == (201, primary.host)
    concern = {"level": "majority", "afterClusterTime": answer["operationTime"]}
    for member in local.members:
        status, _, found = act(
            member, "findOne", filter={"item": "pen"}, readConcern=concern, readPreference={"mode": "nearest"}
        )
        assert (status, found["document"]["_id"]) == (200, answer["insertedId"])
    status, headers, _ = act(secondary, "insertOne", "?forward=false", document={})
    assert (status, headers["location"]) == (307, f"{primary.http}/v1/action/insertOne")
    status, _, refused = act(secondary, "insertOne", document={"_id": 5}, writeConcern={"w": 5})
    assert (status, refused["code"]) == (400, 100)
    assert act(primary, "countDocuments")[2]["count"] == 1, "it was refused before anything was applied"
    status, _, refused = act(secondary, "find")
    assert (status, refused["code"]) == (503, 13435)
    check_metrics(local, primary)


def check_metrics(local: LocalSet, primary: LocalMember) -> None:
    """What Prometheus reads of a real set is documented, and says who leads and who follows."""
    text = ask(primary, "GET", "/metrics")[2].decode()
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    samples = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in documented
        samples |= {(sample.name, *sample.labels.values()): sample.value for sample in family.samples}
    assert samples["replset_writable",] == 1
    assert sum(value for key, value in samples.items() if key[0] == "replset_elections_won_total") >= 1
    assert samples["replset_write_concern_wait_seconds_count",] >= 1
    assert samples["replset_write_group_operations_count",] >= 1
    assert samples["replset_sync_seconds_count",] >= 1
    assert samples["process_resident_memory_bytes",] > 1 << 20
    for member in local.members:
        state = "PRIMARY" if member is primary else "SECONDARY"
        assert samples["replset_member_state", member.host, state] == 1
        assert samples["replset_member_lag_seconds", member.host] < 30
    if shutil.which("promtool") is not None:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_write_without_its_majority_is_applied_and_says_how_far_each_member_is(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=10_000)
    primary = local.wait_for_primary()
    others = [member for member in local.members if member is not primary]
    for other in others:
        local.kill(other)
    concern = {"w": "majority", "wtimeout": 300}
    status, headers, answer = act(primary, "insertOne", document={"_id": 1}, writeConcern=concern)
    assert (status, headers["x-replset-applied"], answer["applied"]) == (504, "true", True)
    assert (answer["code"], answer["insertedId"]) == (64, 1)
    progress = {row["host"]: row for row in answer["writeConcernError"]["errInfo"]["progress"]}
    assert set(progress) == {member.host for member in local.members}
    assert act(primary, "countDocuments")[2]["count"] == 1


def test_a_forwarded_write_whose_primary_falls_silent_is_told_as_unknown(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=4000)
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    others = [member for member in local.members if member is not primary]
    cut(primary, others)
    status, headers, answer = act(secondary, "insertOne", document={"_id": 1}, writeConcern={"w": 1})
    assert (status, headers["x-replset-applied"], answer["applied"]) == (504, "unknown", "unknown"), answer
    assert headers["x-replset-forwarded-to"] == primary.host
    wait_until(lambda: local.primary(among=others), 30, "the others to elect a primary")
    assert act(secondary, "insertOne", document={"_id": 2}, writeConcern={"w": "majority"})[0] == 201
    heal(primary)


def nested(levels: int) -> str:
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def insert_text(document: str, database: str = "shop", collection: str = "orders") -> bytes:
    return f'{{"database":"{database}","collection":"{collection}","document":{document}}}'.encode()


BSON = {"content-type": "application/bson"}
BAD: dict[str, tuple[str, str, bytes | None, Mapping[str, str], int, int]] = {
    "no-json": ("POST", "/v1/action/insertOne", b"{", JSON, 400, 9),
    "no-bson": ("POST", "/v1/action/insertOne", b"\5\0\0", BSON, 400, 22),
    "201-levels": ("POST", "/v1/action/insertOne", insert_text(nested(201)), JSON, 400, 9),
    "17-mib": ("POST", "/v1/action/insertOne", insert_text(json.dumps({"a": "x" * (17 << 20)})), JSON, 413, 10334),
    "a-body-of-49-mb": ("POST", "/v1/action/insertOne", b" " * 49_000_000, JSON, 413, 10334),
    "a-nul-in-a-key": ("POST", "/v1/action/insertOne", insert_text('{"a\\u0000":1}'), JSON, 400, 9),
    "a-nul-in-a-collection": ("POST", "/v1/action/insertOne", insert_text("{}", "a", "b\\u0000c"), JSON, 400, 73),
    "a-nul-in-a-database": ("POST", "/v1/command/a%00b", b'{"find":"c"}', JSON, 400, 73),
    "a-space-in-a-database": ("POST", "/v1/action/insertOne", insert_text("{}", "a b"), JSON, 400, 73),
    "the-oplog": ("POST", "/v1/action/insertOne", insert_text("{}", "local", "oplog.rs"), JSON, 400, 73),
    "a-system-collection": ("POST", "/v1/action/insertOne", insert_text("{}", "a", "system.views"), JSON, 400, 73),
    "an-array-as-id": ("POST", "/v1/action/insertOne", insert_text('{"_id":[1]}'), JSON, 400, 53),
    "a-method": ("PUT", "/v1/action/insertOne", insert_text("{}"), JSON, 405, 59),
    "a-content-type": ("POST", "/v1/action/insertOne", b"a=b", {"content-type": "text/plain"}, 415, 9),
    "a-path": ("GET", "/v1/nothing", None, JSON, 404, 59),
    "a-command": ("POST", "/v1/command/shop", b'{"nothing":1}', JSON, 400, 59),
    "a-document-over-bson": (
        "POST",
        "/v1/action/insertOne",
        encode({"database": "shop", "collection": "orders", "document": {"a": 1}}).replace(b"\x10a\0", b"\x66a\0"),
        BSON,
        400,
        22,
    ),
}
BAD_FIELDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "an-unknown-operator": ("find", {"filter": {"a": {"$almost": 1}}}, 2),
    "an-unknown-modifier": ("updateOne", {"filter": {}, "update": {"$almost": {"a": 1}}}, 9),
    "inc-of-text": ("updateOne", {"filter": {"_id": 1}, "update": {"$inc": {"item": 1}}}, 14),
    "a-change-of-the-id": ("updateOne", {"filter": {"_id": 1}, "update": {"$set": {"_id": 2}}}, 66),
    "a-negative-limit": ("find", {"limit": -1}, 51024),
    "nan-as-limit": ("find", {"limit": {"$numberDouble": "NaN"}}, 2),
    "a-huge-decimal-as-limit": ("find", {"limit": {"$numberDecimal": "1E+6000"}}, 2),
    "an-odd-write-concern": ("deleteOne", {"filter": {}, "writeConcern": {"w": {"dc": 0}}}, 9),
    "tags-that-no-member-has": ("deleteOne", {"filter": {}, "writeConcern": {"w": {"dc": 1}}}, 100),
    "an-infinite-wtimeout": (
        "deleteOne",
        {"filter": {}, "writeConcern": {"w": 1, "wtimeout": {"$numberDouble": "Infinity"}}},
        9,
    ),
    "an-unknown-read-concern": ("find", {"readConcern": {"level": "hopeful"}}, 9),
    "a-bad-sort": ("find", {"sort": {"a": "up"}}, 15974),
    "a-bad-pattern": ("find", {"filter": {"a": {"$regex": "("}}}, 51091),
}


def test_bad_input_is_one_clear_error_each(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    assert act(member, "insertOne", document={"_id": 1, "item": "pen"})[0] == 201
    wrong: list[object] = []
    for name, (method, path, body, headers, status, code) in BAD.items():
        got, _, text = ask(member, method, path, body, headers)
        answer = json.loads(text)
        if (got, answer.get("code")) != (status, code) or not answer["errmsg"] or answer["ok"] != 0:
            wrong.append((name, got, answer))
    for name, (action, fields, code) in BAD_FIELDS.items():
        got, _, answer = act(member, action, **fields)
        if (got, answer.get("code")) != (400, code) or not answer["errmsg"]:
            wrong.append((name, got, answer))
    assert wrong == []
    assert act(member, "countDocuments")[2]["count"] == 1
    status, _, answer = ask(member, "POST", "/v1/action/insertOne", insert_text(nested(200)))
    assert status == 201, answer
    status, _, data = ask(member, "GET", "/v1/replset/oplog", headers={"accept": "application/bson"})
    assert status == 200
    assert str(RawDocument(data[: int.from_bytes(data[:4], "little")]).get("optime")).startswith("1:")


@pytest.mark.night("a search for requests; what it found is in the tables of the unit tests")
@pytest.mark.timeout(240)
def test_generated_requests_find_no_server_error(make_set: MakeSet, tmp_path: Path) -> None:
    """schemathesis over the OpenAPI document. What the schema cannot say (operators, names) may be refused; 503 and 504
    are answers too (maxTimeMS: 1), 500 is none.
    """
    expected = 'expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]'
    (tmp_path / "schemathesis.toml").write_text(f"[checks.not_a_server_error]\n{expected}\n", encoding="utf-8")
    member = make_set(members=1).wait_for_primary()
    paths = "^/v1/(action|command|replset/(oplog|rollbacks|status|config))"
    done = run_to_end(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{member.http}/openapi.json"),
            *("--include-path-regex", paths, "--max-examples", "25", "--seed", "1", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance"),
        ],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert member.is_running()
    assert act(member, "countDocuments")[0] == 200


def test_a_write_under_a_key_is_applied_once_by_whomever(make_set: MakeSet) -> None:
    local = make_set()
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    majority = {"writeConcern": {"w": "majority"}}
    insert = {"documents": [{"n": 1}, {"n": 1}], **majority}
    change = {"filter": {"n": {"$gt": 0}}, "update": {"$inc": {"n": 1}}, **majority}
    rows = [{"insertOne": {"document": {"m": 1}}}, {"updateMany": {"filter": {"m": 1}, "update": {"$inc": {"m": 1}}}}]
    bulk = {"operations": [*rows, {"insertOne": {"document": {"m": 1}}}], **majority}

    def both(member: LocalMember) -> list[Any]:
        answers = [act(member, "insertMany", key="a", **insert), act(member, "updateMany", key="b", **change)]
        answers.append(act(member, "bulkWrite", key="c", **bulk))
        return [(status, answer.get("insertedIds"), answer.get("modifiedCount")) for status, _, answer in answers]

    first = both(secondary)
    assert [(status, modified) for status, _, modified in first] == [(201, None), (200, 2), (200, 1)]
    assert both(primary) == first
    local.kill(primary)
    there = local.wait_for_primary(among=[member for member in local.members if member is not primary])
    assert wait_until(lambda: both(there) == first, 30, "the new primary's answers")
    status, _, refused = act(there, "updateMany", key="b", **{**change, "filter": {}})
    assert (status, refused["code"]) == (422, 225)
    _, _, found = act(there, "find", filter={})
    assert [document.get("n", document.get("m")) for document in found["documents"]] == [2, 2, 2, 1]
