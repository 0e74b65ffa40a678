"""Requests that a web page of another site may have sent are refused."""

from __future__ import annotations

import pytest

from replset.bson import RawDocument, encode
from replset.ids import HostPort
from tests.unit.api.kit import Api, refused

COMMAND = "/v1/command/shop"
INSERT = {"insert": "a", "documents": [{"_id": 1}]}
BARE = ["/stepDown", "/resync", "/initiate", "/freeze", "/members", "/rollbacks/x/ack", "/rollbacks/x/restore"]


@pytest.mark.parametrize("path", [COMMAND, "/v1/action/insertOne", *(f"/v1/replset{path}" for path in BARE)])
@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize("content", [b"", b"{}"])
def test_what_a_form_can_send_is_refused(api: Api, path: str, content_type: str, content: bytes) -> None:
    response = api.request("POST", path, content=content, headers={"content-type": content_type})
    refused(response, 415, 9, "content type")
    assert api.requests == []


PAGES = {
    "another-site": "https://example.com",
    "another-port": "http://127.0.0.1:3000",
    "no-port": "http://localhost",
    "a-file": "null",
    "nothing": "",
    "a-name-that-begins-alike": "http://127.0.0.1:28017.example.com",
    "a-user": "http://127.0.0.1:28017@example.com",
    "another-scheme": "file://127.0.0.1:28017",
}


@pytest.mark.parametrize("origin", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_pages_of_others_are_refused(api: Api, method: str, origin: str) -> None:
    response = api.request(method, "/v1/replset/members/127.0.0.1:27019", headers={"origin": origin})
    refused(response, 403, 13, "--allowed-hosts")
    assert api.requests == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(("dest", "status"), [("image", 403), ("iframe", 403), ("empty", 403), ("document", 200)])
def test_a_page_of_another_site_may_link_here_and_hold_no_part(api: Api, site: str, dest: str, status: int) -> None:
    """Browsers send no Origin with the request of an image or a frame, so they could hold all streams of events."""
    headers = {"sec-fetch-site": site, "sec-fetch-dest": dest}
    assert api.get("/", headers=headers).status_code == status
    assert api.get("/", headers={**headers, "sec-fetch-site": "same-origin"}).status_code == 200


def test_a_page_of_another_site_may_not_link_to_a_consumers_events(api: Api) -> None:
    """Whoever opens them becomes a reader: others would wait."""
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    refused(api.get("/v1/consumers/mailer/events?reader=a", headers=headers), 403, 13, "links")
    assert api.requests == []


@pytest.mark.parametrize(
    "host",
    [
        *("example.com", "127.0.0.1.example.com:28017", "10.0.0.1:28017", "a b", "[::2]"),
        *(
            "[::1].evil.example",
            "[::1]evil.example:28017",
            "[::1",
            "::1]",
            "localhost:28017:1",
            "localhost:x",
            "a@localhost",
        ),
        *("localhost/x", "localhost?x", "localhost#x", "evil.example\\localhost", "", ":28017", "[localhost]"),
    ],
)
def test_other_hosts_are_refused(api: Api, host: str) -> None:
    """A page whose name is made to lead here would be of this origin."""
    for method, path in (("POST", COMMAND), ("GET", "/v1/replset/oplog"), ("DELETE", "/v1/replset/members/a:1")):
        refused(api.request(method, path, headers={"host": host}), 403, 13, "host")
    assert api.requests == []


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:28017", "http://127.0.0.1:28017"),
        ("localhost:28017", "http://localhost:28017"),
        ("LOCALHOST", None),
        ("127.3.2.1:9", None),
        ("[::1]:28017", "http://[::1]:28017"),
        ("127.0.0.1:28018", "http://127.0.0.1:28018"),
        ("127.0.0.1:28017", "http://localhost:28017"),
        ("db.example.com", "https://db.example.com"),
        ("127.0.0.1:28017", "https://admin.example.com:8443"),
    ],
)
def test_own_names_and_allowed_ones_are_served(
    api: Api, monkeypatch: pytest.MonkeyPatch, host: str, origin: str | None
) -> None:
    api = Api(api.rig, monkeypatch, allowed_hosts=("db.example.com", "ADMIN.example.com"))
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    assert api.post(COMMAND, INSERT, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("db1.local", {"db1.local:28017": 200, "db2.local:28017": 403}),
        ("fd00::5", {"[fd00::5]:28017": 200, "[fd00::6]:28017": 403, "a b:x:y": 403, "": 403}),
        ("[fd00::5]", {"[fd00::5]:28017": 200, "[fd00::6]:28017": 403}),
    ],
)
def test_the_advertised_names_are_own_ones(
    api: Api, monkeypatch: pytest.MonkeyPatch, name: str, hosts: dict[str, int]
) -> None:
    monkeypatch.setattr(api.member, "host", HostPort(f"{name}:27017"))
    monkeypatch.setattr(api.member, "http_address", f"{name}:28017")
    api = Api(api.rig, monkeypatch)
    for host, status in hosts.items():
        assert api.post(COMMAND, {"ping": 1}, headers={"host": host}).status_code == status, host


def test_two_hosts_are_both_looked_at(api: Api) -> None:
    headers = [("host", "127.0.0.1"), ("host", "example.com"), ("content-type", "application/json")]
    refused(api.request("GET", "/v1/replset/status", headers=headers), 403, 13)


PRIVATE = [
    "replSetHeartbeat",
    "replSetRequestVotes",
    "replSetUpdatePosition",
    "replSetOplogFetch",
    "replSetOplogProbe",
    "replSetSnapshot",
    "replSetGetRBID",
]


@pytest.mark.parametrize("name", PRIVATE)
def test_commands_between_members_are_unknown_over_http(api: Api, name: str) -> None:
    refused(api.post("/v1/command/admin", {name: 1}), 404, 59, "no such command")
    assert api.requests[-1].source == "http"


def test_bodies_in_bson_are_read_by_routes_and_actions(api: Api) -> None:
    headers = {"content-type": "application/bson", "accept": "application/bson"}
    api.answers["replSetFreeze"] = {"ok": 1.0}
    response = api.post("/v1/replset/freeze", encode({"seconds": 5}), headers=headers)
    assert (response.status_code, api.command) == (200, {"replSetFreeze": 5})
    assert RawDocument(response.content).get("ok") == 1.0
    body = {"database": "shop", "collection": "orders", "document": {"_id": 1}}
    assert api.post("/v1/action/insertOne", encode(body), headers=headers).status_code == 201
