"""Requests to the HTTP API of a real member: actions, commands and administration with bodies that are nearly right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote_plus

from hypothesis import strategies as st

from replset.bson import decode, encode
from replset.ejson import from_ejson
from replset.errors import LONGEST_MESSAGE
from tests.property import test_query
from tools.fuzz import ejson
from tools.fuzz.commands import TEMPLATES, copied, places
from tools.fuzz.kit import Check, Target, damaged, kept
from tools.fuzz.member import KNOWN_CODES, Http, OneMember, one_member

BASE = {"database": "test", "collection": "c"}
BODIES: dict[str, dict[str, Any]] = {
    "findOne": {**BASE, "filter": {"a": 1}, "projection": {"a": 1}},
    "find": {**BASE, "filter": {"a": {"$gt": 1}}, "sort": {"a": 1}, "limit": 2, "skip": 1, "readConcern": "majority"},
    "countDocuments": {**BASE, "filter": {}},
    "distinct": {**BASE, "key": "a", "filter": {}},
    "insertOne": {**BASE, "document": {"_id": {"$oid": "0" * 24}, "a": {"$numberLong": "1"}}},
    "insertMany": {**BASE, "documents": [{"a": 1}, {"_id": 1}], "ordered": False, "writeConcern": {"w": 1}},
    "updateOne": {**BASE, "filter": {"a": 1}, "update": {"$set": {"b": 1}}, "upsert": True},
    "updateMany": {**BASE, "filter": {}, "update": {"$inc": {"a.$[i]": 1}}, "arrayFilters": [{"i": 1}]},
    "replaceOne": {**BASE, "filter": {"a": 1}, "replacement": {"b": 1}},
    "deleteOne": {**BASE, "filter": {"_id": 1}},
    "deleteMany": {**BASE, "filter": {"a": {"$regex": "x"}}},
    "findOneAndUpdate": {**BASE, "filter": {"a": 1}, "update": {"$set": {"b": 2}}, "returnDocument": "after"},
    "findOneAndReplace": {**BASE, "filter": {"a": 1}, "replacement": {"b": 1}},
    "findOneAndDelete": {**BASE, "filter": {"a": 1}},
    "bulkWrite": {**BASE, "operations": [{"insertOne": {"document": {}}}, {"deleteOne": {"filter": {}}}]},
    "aggregate": {**BASE, "pipeline": [{"$match": {}}]},
}
ROLES = ("/health", "/ready", "/primary", "/secondary", "/arbiter")
"""They answer 200 or 503 with the state, for load balancers."""
PLAIN = [
    *(f"/v1/replset/{name}" for name in ("status", "config", "oplog", "oplog/info", "rollbacks", "rollbacks/x")),
    *("/v1/replset/rollbacks/x/writes", "/v1/replset/rollbacks/x/test.c.bson", "/v1/replset/rollbacks/../x"),
    *("/v1/replset/rollbacks/x/verify", "/v1/replset/rollbacks/x/diff"),
    *(*ROLES, "/metrics", "/docs", "/openapi.json", "/", "//"),
]
POSTS = [
    *("initiate", "reconfig", "stepDown", "freeze", "members", "syncFrom", "maintenance"),
    *("rollbacks/x/ack", "rollbacks/x/restore"),
]
QUERIES = st.dictionaries(
    st.sampled_from(["forward", "from", "after", "before", "limit", "follow", "db", "ns", "op", "canonical", "x"]),
    st.one_of(st.sampled_from(["", "0", "-1", "true", "1:1:1", "9" * 30, "1:4294967296:1", "x"]), st.text(max_size=5)),
    max_size=3,
)
EVIL_HOST = b"[::1].evil.example"
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"accept", b"content-type", b"x-replset-forwarded", b"accept-encoding", b"origin", b"host", b"range"]
        ),
        st.sampled_from(
            [
                b"application/json",
                b"application/ejson",
                b"application/ejson; canonical=true",
                b"application/bson",
                b"application/x-ndjson",
                b"text/event-stream",
                b"*/*",
                b"\xff",
                b"http://[",
                b"http://example.com:x",
                EVIL_HOST,
                b"",
                b"1",
            ]
        ),
    ),
    max_size=2,
)
VALUES = kept(st.one_of(ejson.JSON, test_query.SPECS.map(repr), st.sampled_from([[], {}, None, "", 0, -1, 1e300])), 300)
NAMES = st.sampled_from(
    sorted({name for body in BODIES.values() for name in body} | {"hint", "let", "x", "maxTimeMS", "w"})
)


@st.composite
def bodies(draw: st.DrawFn, template: dict[str, Any]) -> Any:
    body: dict[str, Any] = copied(template)
    for _ in range(draw(st.integers(0, 2))):
        spots = list(places(body))
        if not spots:
            break
        *path, last = draw(st.sampled_from(spots))
        inner: Any = body
        for name in path:
            inner = inner[name]
        if draw(st.integers(0, 3)):
            inner[last] = copied(draw(VALUES))
        else:
            del inner[last]
    if draw(st.integers(0, 3)) == 0:
        body[draw(NAMES)] = copied(draw(VALUES))
    return body


def in_bytes(body: Any) -> bytes:
    return json.dumps(body, default=repr).encode(errors="replace")


def with_key_twice(body: bytes) -> bytes:
    """The first key of the document is there twice, which is refused."""
    key, colon, _ = body.partition(b":")
    return key + colon + b"1," + body[1:] if colon and body.startswith(b'{"') else body


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]:
    """Method, path, query, headers, body."""
    headers = draw(HEADERS)
    if draw(st.integers(0, 5)):
        headers = [(b"content-type", b"application/json"), *headers]
    kind = draw(st.integers(0, 9))
    method, body = "POST", b""
    if kind < 5:
        name = draw(st.sampled_from(sorted(BODIES)))
        path = f"/v1/action/{name}"
        body = in_bytes(draw(bodies(BODIES[name])))
    elif kind < 7:
        database, command = draw(st.sampled_from(TEMPLATES))
        path = f"/v1/command/{database}"
        if draw(st.booleans()):
            body, headers = encode(command), [*headers, (b"content-type", b"application/bson")]
        else:
            body = in_bytes(draw(bodies(json.loads(json.dumps(command, default=repr)))))
    elif kind == 7:
        path = f"/v1/replset/{draw(st.sampled_from(POSTS))}"
        body = in_bytes(draw(VALUES))
    else:
        path = draw(st.one_of(st.sampled_from(PLAIN), st.text(max_size=8).map(lambda text: f"/v1/{text}")))
        method = draw(st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS"]))
        if method == "DELETE":
            path = f"/v1/replset/members/{draw(st.sampled_from(['b:1', 'x', '', 'a..b', 'a:27017']))}"
    if draw(st.integers(0, 9)) == 0:
        body = with_key_twice(body)
    elif draw(st.integers(0, 4)) == 0:
        body = draw(damaged(st.just(body)))
    query = "&".join(f"{name}={quote_plus(value, errors='replace')}" for name, value in draw(QUERIES).items())
    return method, path.encode(errors="replace").decode(), query.encode(), headers, body


def judged(answer: Http, path: str, what: object) -> str:
    """A word for the answer; AssertionError when it is no clear one."""
    if answer.status == 0:
        return "no answer in time"
    assert answer.status != 500, (what, answer.body[:2_000])
    kind = answer.headers.get("content-type", "")
    if answer.status < 400 or not answer.body or path in ROLES:
        return f"status {answer.status}"
    if kind.startswith("application/bson"):
        document: dict[str, Any] = decode(answer.body)
    else:
        assert "json" in kind, (what, kind)
        document = from_ejson(answer.body)
    if document.get("ok") == 1.0:  # a command's reply as it is, whose statements failed
        errors = document.get("writeErrors") or [document["writeConcernError"]]
        assert {error["code"] for error in errors} <= KNOWN_CODES, (what, document)
        return f"status {answer.status}"
    assert document["code"] in KNOWN_CODES, (what, document)
    assert document["codeName"]
    assert 0 < len(document["errmsg"]) <= LONGEST_MESSAGE
    return f"status {answer.status}"


def check(one: OneMember, request: tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]) -> str:
    answer = one.http(*request)
    outcome = judged(answer, request[1], request)
    if (b"host", EVIL_HOST) in request[3]:
        assert answer.status in (0, 403), request
    assert not (request[0] == "HEAD" and answer.body), request
    one.is_well()
    health = one.http("GET", "/health", b"", [], b"")
    assert health.status == 200, health.body
    return outcome


@contextmanager
def opened() -> Iterator[Check]:
    with one_member() as one:
        yield lambda value: check(one, value)


TARGET = Target("http", requests(), opened, 100)
