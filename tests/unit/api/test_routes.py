"""The routes of the application: commands, administration, rollbacks, health, metrics, and the OpenAPI page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Binary, DateTime, Int64, RawDocument, Timestamp, encode
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.ids import HostPort
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackFile, RollbackState, acknowledge
from replset.storage.disk import RealDisk
from tests.rig import a_set
from tests.unit.api.kit import NEWEST, Api, plain, refused, routes

# --- /v1/command ------------------------------------------------------------------------------------------------


def test_a_command_is_answered_as_the_wire_port_would(api: Api) -> None:
    api.answers["find"] = {"ok": 1.0, "cursor": {"id": 0, "ns": "shop.a", "firstBatch": [{"_id": 1}]}}
    response = api.post("/v1/command/shop", {"find": "a", "filter": {"n": {"$numberLong": "3"}}})
    assert response.status_code == 200
    assert plain(response) == {"cursor": {"id": 0, "ns": "shop.a", "firstBatch": [{"_id": 1}]}, "ok": 1.0}
    (request,) = api.requests
    assert (request.database, request.source) == ("shop", "http")
    assert list(request.body.keys()) == ["find", "filter"]


def test_a_command_in_bson(api: Api) -> None:
    headers = {"content-type": "application/bson", "accept": "application/bson"}
    response = api.post("/v1/command/admin", encode({"ping": 1}), headers=headers)
    assert RawDocument(response.content).get("ok") == 1.0
    assert api.command == {"ping": 1}


WRITTEN: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "done": ({"ok": 1.0, "n": 1}, 200, None),
    "a-duplicate": ({"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": 11000, "errmsg": ""}]}, 409, None),
    "no-concern": ({"ok": 1.0, "n": 1, "writeConcernError": {"code": 64, "errmsg": ""}}, 504, "true"),
    "too-early": ({"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": 14031, "errmsg": ""}]}, 503, None),
    "partly": ({"ok": 1.0, "n": 2, "writeErrors": [{"index": 2, "code": 14031, "errmsg": ""}]}, 504, "unknown"),
    "refused": ({"ok": 0.0, "code": 73, "errmsg": ""}, 400, None),
    "not-primary": ({"ok": 0.0, "code": 10107, "errmsg": ""}, 503, None),
    "stepped-down": ({"ok": 0.0, "code": 189, "errmsg": ""}, 504, "unknown"),
}


@pytest.mark.parametrize(("reply", "status", "applied"), WRITTEN.values(), ids=WRITTEN)
def test_the_status_of_a_command(api: Api, reply: dict[str, Any], status: int, applied: str | None) -> None:
    api.answers["insert"] = reply
    response = api.post("/v1/command/shop", {"insert": "a", "documents": []})
    assert response.status_code == status
    assert response.headers.get("x-replset-applied") == applied
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)
    assert {name: response.json()[name] for name in reply} == reply


def test_a_command_with_an_idempotency_key_is_refused(api: Api) -> None:
    """A client that sends it expects that the command is never applied twice."""
    response = api.post("/v1/command/shop", {"insert": "a", "documents": []}, headers={"Idempotency-Key": "x"})
    refused(response, 400, 238, "Idempotency-Key")
    assert api.requests == []


@pytest.mark.parametrize("body", ["", "[]", "{", '{"a\\u0000":1}', '{"a":{"$oid":1}}'])
def test_commands_that_cannot_be_parsed(api: Api, body: str) -> None:
    refused(api.post("/v1/command/shop", body), 400, 9)
    assert api.requests == []


def test_a_large_command_is_parsed_in_a_worker(api: Api) -> None:
    assert api.post("/v1/command/shop", {"ping": "x" * 200_000}).status_code == 200
    assert api.worked == 1


# --- /v1/replset ------------------------------------------------------------------------------------------------

MEMBER = {"host": "127.0.0.1:27020", "priority": 0, "votes": 0, "tags": {"dc": "east"}}
CONFIG = {"_id": "rs0", "version": 2, "members": []}
ADMIN: dict[str, tuple[str, str, object, dict[str, Any]]] = {
    "status": ("GET", "status", None, {"replSetGetStatus": 1}),
    "config": ("GET", "config", None, {"replSetGetConfig": 1, "commitmentStatus": False}),
    "config-and-more": ("GET", "config?commitmentStatus=true", None, {"replSetGetConfig": 1, "commitmentStatus": True}),
    "write-state": ("GET", "writes/3:1700000000:5", None, {"replSetGetWriteState": "3:1700000000:5", "all": True}),
    "initiate-alone": ("POST", "initiate", None, {"replSetInitiate": {}}),
    "initiate": ("POST", "initiate", CONFIG, {"replSetInitiate": CONFIG}),
    "reconfig": ("POST", "reconfig", {"config": CONFIG, "maxTimeMS": 5}, {"replSetReconfig": CONFIG, "maxTimeMS": 5}),
    "reconfig-of-an-answer": (
        "POST",
        "reconfig",
        {"config": CONFIG, "ok": 1, "operationTime": 1, "$clusterTime": {}},
        {"replSetReconfig": CONFIG},
    ),
    "force": ("POST", "reconfig", {"config": CONFIG, "force": True}, {"replSetReconfig": CONFIG, "force": True}),
    "step-down": ("POST", "stepDown", None, {"replSetStepDown": 60}),
    "step-down-so": (
        "POST",
        "stepDown",
        {"seconds": 5, "secondaryCatchUpPeriodSecs": 2, "force": True},
        {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2, "force": True},
    ),
    "freeze": ("POST", "freeze", {"seconds": 9}, {"replSetFreeze": 9}),
    "add": ("POST", "members", MEMBER, {"replSetAddMember": MEMBER}),
    "remove": ("DELETE", "members/127.0.0.1:27018", None, {"replSetRemoveMember": "127.0.0.1:27018"}),
}


@pytest.mark.parametrize(("method", "path", "body", "command"), ADMIN.values(), ids=ADMIN)
def test_administration(api: Api, method: str, path: str, body: object, command: dict[str, Any]) -> None:
    api.answers[next(iter(command))] = {"ok": 1.0, "info": "said"}
    content = b"" if body is None else json.dumps(body)
    response = api.request(method, f"/v1/replset/{path}", content=content)
    assert response.status_code == 200
    assert plain(response) == {"ok": 1.0, "info": "said"}
    (request,) = api.requests
    assert (request.database, request.body.decode()) == ("admin", command)


@pytest.mark.parametrize("name", ["reconfig", "add", "remove"])
def test_changes_of_the_set_are_forwarded_to_the_primary(secondary: Api, name: str) -> None:
    method, path, body, command = ADMIN[name]
    secondary.primary = {"ok": 1.0, "info": "said"}
    content = b"" if body is None else json.dumps(body)
    response = secondary.request(method, f"/v1/replset/{path}", content=content)
    assert (response.status_code, response.headers["x-replset-forwarded-to"]) == (200, "a:27017")
    assert plain(response)["info"] == "said"
    ((_, asked, database, _),) = secondary.forwarded
    assert (asked, database) == ({**command, "$replsetForwarded": True}, "admin")
    response = secondary.request(method, f"/v1/replset/{path}?forward=false", content=content)
    assert (response.status_code, response.headers["location"]) == (307, f"http://a:28017/v1/replset/{path}")


@pytest.mark.parametrize("host", ["x%0D%0ASet-Cookie:%20a=b", "%E6%97%A5%E6%9C%AC:1", "a%20b", "a%2525"])
def test_a_redirect_leads_to_the_same_path_whatever_is_in_it(secondary: Api, host: str) -> None:
    """Put into `Location` as it was read, a line break would begin a header of the client's own."""
    response = secondary.request("DELETE", f"/v1/replset/members/{host}?forward=false")
    assert response.status_code == 307
    assert response.headers["location"] == f"http://a:28017/v1/replset/members/{host}"
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("name", ["force", "step-down", "freeze", "initiate"])
def test_what_is_about_this_member_stays_here(secondary: Api, name: str) -> None:
    method, path, body, command = ADMIN[name]
    secondary.answers[next(iter(command))] = {"ok": 1.0}
    secondary.request(method, f"/v1/replset/{path}", content=b"" if body is None else json.dumps(body))
    assert (secondary.command, secondary.forwarded) == (command, [])


BAD_ADMIN: dict[str, tuple[str, str, object, int, str]] = {
    "an-unknown-member-field": ("POST", "members", {"host": "a:1", "colour": 1}, 40415, "'colour'"),
    "no-host": ("POST", "members", {}, 40414, "'host'"),
    "no-config": ("POST", "reconfig", {"force": True}, 40414, "'config'"),
    "a-number-as-config": ("POST", "reconfig", {"config": 1}, 14, "'config'"),
    "an-unknown-reconfig-field": ("POST", "reconfig", {"config": {}, "farce": True}, 40415, "'farce'"),
    "an-array": ("POST", "initiate", [], 9, "JSON object"),
    "a-bad-flag": ("GET", "config?commitmentStatus=perhaps", None, 2, "query commitmentStatus"),
}


@pytest.mark.parametrize(("method", "path", "body", "code", "text"), BAD_ADMIN.values(), ids=BAD_ADMIN)
def test_administration_that_is_refused(api: Api, method: str, path: str, body: object, code: int, text: str) -> None:
    response = api.request(method, f"/v1/replset/{path}", content=b"" if body is None else json.dumps(body))
    refused(response, 400, code, text)
    assert api.requests == []


def test_removing_who_is_no_member(api: Api) -> None:
    response = api.request("DELETE", "/v1/replset/members/x:1")
    assert (response.status_code, response.json()["code"]) == (404, 74)


# --- paths, methods ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/page", "/v1", "/v1/", "/v1/replset", "/v1/replset/nothing", "/v2/action/find", "/V1"]
)
def test_unknown_paths(api: Api, path: str) -> None:
    refused(api.get(path), 404, 59, path)


def test_an_error_has_the_form_of_the_accept_header(api: Api) -> None:
    response = api.get("/nothing", headers={"accept": "application/bson"})
    assert RawDocument(response.content).get("code") == 59


# --- rollbacks --------------------------------------------------------------------------------------------------


def write_rollback(folder: Path, when: str = "2026-01-02T03-04-05.0") -> Manifest:
    name = f"shop.orders.{when}.bson"
    (folder / name).write_bytes(encode({"_id": 1}) + encode({"_id": 2}))
    file = RollbackFile(name, FileKind.DOCUMENTS, "shop.orders", None, 2, 28, "00" * 32)
    manifest = Manifest(
        id=f"rollback-{when}",
        state=RollbackState.FINISHED,
        reason="rollback",
        set_name="rs0",
        member="127.0.0.1:27017",
        when="2026-01-02T03:04:05.000Z",
        source=HostPort("b:27017"),
        common_point=NEWEST,
        first=NEWEST,
        last=NEWEST,
        first_wall_ms=0,
        last_wall_ms=0,
        entries=2,
        operations={"i": 2},
        files=(file,),
    )
    (folder / f"{manifest.id}.json").write_text(json.dumps(manifest.document()), encoding="utf-8")
    return manifest


@pytest.fixture
def folder(api: Api) -> Iterator[Path]:
    made = Path(api.member.context.dbpath) / "rollback"
    api.member.context.disk.make_folder(str(made))
    (made.parent / "secret.bson").write_bytes(b"hidden words")
    (made / "notes.json").write_text("{}", encoding="utf-8")
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("query", "everywhere"), [("", True), ("?local=true", False)])
def test_rollbacks_of_all_members_are_listed_with_the_place_of_their_files(
    secondary: Api, query: str, everywhere: bool
) -> None:
    rows = [{"id": "rollback-1", "member": host, "acknowledged": None} for host in ("c:27017", "x:27017")]
    secondary.answers["replSetGetRollbacks"] = {"rollbacks": rows, "unreachable": {"x:9": "away"}, "ok": 1.0}
    found = plain(secondary.get(f"/v1/replset/rollbacks{query}"))
    assert secondary.command["all"] is everywhere
    assert [row["httpAddress"] for row in found["rollbacks"]] == ["c:28017", None]
    assert found["unreachable"] == {"x:9": "away"}


def test_a_member_without_rollbacks(api: Api) -> None:
    refused(api.get("/v1/replset/rollbacks/rollback-x"), 404, 26)


def lost_entry(number: int, op: str = "i", **more: object) -> bytes:
    at = {"ts": Timestamp(1_700_000_000, number), "t": Int64(3), "v": Int64(2), "wall": DateTime(1_700_000_000_000)}
    about = {"o2": {"_id": number}} if op == "u" else {}
    body: dict[str, object] = {"create": "orders"} if op == "c" else {"$v": 2} if op == "u" else {"_id": number}
    ns = "shop.$cmd" if op == "c" else "shop.orders"
    return encode({"op": op, "ns": ns, "o": body, **about, **at, **more})


@pytest.fixture
def lost(folder: Path) -> Manifest:
    """A rollback of two sessions' writes, a write of none, a no-op and a command."""
    sessions = [{"id": Binary(bytes([number]) * 16, 4), "uid": Binary(b"\0" * 32)} for number in (1, 2)]
    entries = [
        lost_entry(1, "c"),
        lost_entry(2, lsid=sessions[0], txnNumber=Int64(5), stmtId=0),
        lost_entry(3, "n", lsid=sessions[0]),
        lost_entry(4, "u", lsid=sessions[1], txnNumber=Int64(1)),
        lost_entry(5, "d"),
        lost_entry(6, lsid=sessions[0], txnNumber=Int64(6)),
    ]
    (folder / "local.oplog.rs.x.0.bson").write_bytes(b"".join(entries))
    made = write_rollback(folder)
    file = RollbackFile("local.oplog.rs.x.0.bson", FileKind.OPLOG, "local.oplog.rs", None, 6, 0, "00" * 32)
    changed = replace(made, files=(*made.files, file))
    (folder / f"{made.id}.json").write_text(json.dumps(changed.document()), encoding="utf-8")
    return changed


def test_the_lost_writes_of_a_rollback_page_by_page(api: Api, folder: Path, lost: Manifest) -> None:
    path = f"/v1/replset/rollbacks/{lost.id}/writes"
    whole = plain(api.get(path))
    assert whole["next"] is None
    assert [(row["op"], row.get("_id"), row.get("command")) for row in whole["writes"]] == [
        ("c", None, "create"),
        ("i", 2, None),
        ("u", 4, None),
        ("d", 5, None),
        ("i", 6, None),
    ]
    assert whole["writes"][1]["optime"] == "3:1700000000:2"
    assert (whole["writes"][1]["txnNumber"], whole["writes"][1]["stmtId"]) == (5, 0)
    assert "lsid" not in whole["writes"][3]
    found, after = [], 0
    while after is not None:
        page = plain(api.get(f"{path}?limit=2&after={after}"))
        found += page["writes"]
        after = page["next"]
    assert found == whole["writes"]


@pytest.mark.parametrize("lsid", ["01" * 16, "01010101-0101-0101-0101-010101010101"])
def test_the_lost_writes_of_one_session(api: Api, folder: Path, lost: Manifest, lsid: str) -> None:
    found = plain(api.get(f"/v1/replset/rollbacks/{lost.id}/writes?lsid={lsid}"))["writes"]
    assert [(row["_id"], row["txnNumber"]) for row in found] == [(2, 5), (6, 6)]


@pytest.mark.parametrize("query", ["after=3", "after=-1", "limit=0", "lsid=me", "limit=10001"])
def test_wrong_parameters_for_lost_writes(api: Api, folder: Path, lost: Manifest, query: str) -> None:
    refused(api.get(f"/v1/replset/rollbacks/{lost.id}/writes?{query}"), 400, 2)


def test_lost_writes_whose_file_is_missing(api: Api, folder: Path, lost: Manifest) -> None:
    (folder / "local.oplog.rs.x.0.bson").unlink()
    refused(api.get(f"/v1/replset/rollbacks/{lost.id}/writes"), 400, 2)
    refused(api.get("/v1/replset/rollbacks/rollback-x/writes"), 404, 26)
    other = write_rollback(folder, "2026-01-02T03-04-05.1")
    refused(api.get(f"/v1/replset/rollbacks/{other.id}/writes"), 400, 2)


def test_one_rollback_and_its_file(api: Api, folder: Path) -> None:
    manifest = write_rollback(folder)
    assert plain(api.get(f"/v1/replset/rollbacks/{manifest.id}")) == manifest.document()
    response = api.get(f"/v1/replset/rollbacks/{manifest.id}/{manifest.files[0].name}")
    assert response.headers["content-type"] == "application/bson"
    assert response.content == encode({"_id": 1}) + encode({"_id": 2})


@pytest.mark.parametrize(
    "path",
    [
        "{id}/nothing.bson",
        "{id}/{id}.json",
        "{id}/notes.json",
        "{id}/..%2Fsecret.bson",
        "{id}/..%2F..%2Fetc%2Fpasswd",
        "{id}/%2e%2e",
        "{id}/%00",
        "notes",
        "rollback-nothing",
        "..%2Frollback%2F{id}",
        "rollback-%00",
        "rollback-" + "x" * 5000,
    ],
)
def test_only_what_a_manifest_names_is_served(api: Api, folder: Path, path: str) -> None:
    manifest = write_rollback(folder)
    response = api.get(f"/v1/replset/rollbacks/{path.format(id=manifest.id)}")
    assert response.status_code == 404
    assert b"hidden words" not in response.content


def test_a_rollback_is_acknowledged_once(api: Api, folder: Path) -> None:
    manifest = write_rollback(folder)
    first = plain(api.post(f"/v1/replset/rollbacks/{manifest.id}/ack", {"by": "anna"}))
    assert first.pop("acknowledged").startswith("2023-11-14T22:1")
    assert first == {"id": manifest.id, "new": True}
    assert plain(api.post(f"/v1/replset/rollbacks/{manifest.id}/ack"))["new"] is False
    assert json.loads((folder / f"{manifest.id}.ack").read_text())["by"] == "anna"
    assert api.member.rollbacks.unacknowledged == 0


def test_a_damaged_manifest_can_be_acknowledged_and_a_planned_one_cannot(api: Api, folder: Path) -> None:
    planned, damaged = write_rollback(folder), write_rollback(folder, "2026-01-02T03-04-05.1")
    document = {**planned.document(), "state": "planned"}
    (folder / f"{planned.id}.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / f"{damaged.id}.json").write_text("{", encoding="utf-8")
    refused(api.post(f"/v1/replset/rollbacks/{planned.id}/ack"), 400, 20, "planned, not settled")
    assert plain(api.post(f"/v1/replset/rollbacks/{damaged.id}/ack"))["new"] is True
    assert api.member.rollbacks.unacknowledged == 1


@pytest.mark.parametrize(
    ("path", "sent", "status", "code"),
    [
        ("rollback-x/ack", None, 404, 26),
        ("..%2Frollback%2F{id}/ack", None, 404, 59),
        ("{id}/ack", {"who": "anna"}, 400, 40415),
        ("{id}/ack", {"by": 5}, 400, 14),
        ("{id}/ack", b"{", 400, 9),
    ],
)
def test_acknowledgements_that_cannot_be(
    api: Api, folder: Path, path: str, sent: object, status: int, code: int
) -> None:
    manifest = write_rollback(folder)
    refused(api.post(f"/v1/replset/rollbacks/{path.format(id=manifest.id)}", sent), status, code)
    assert list(folder.glob("*.ack")) == []


def test_a_missing_file(api: Api, folder: Path) -> None:
    manifest = write_rollback(folder)
    (folder / manifest.files[0].name).unlink()
    refused(api.get(f"/v1/replset/rollbacks/{manifest.id}/{manifest.files[0].name}"), 404, 26)


# --- health -----------------------------------------------------------------------------------------------------

HEALTH = {
    MemberState.PRIMARY: {"/health", "/ready", "/primary"},
    MemberState.SECONDARY: {"/health", "/ready", "/secondary"},
    MemberState.ARBITER: {"/health", "/arbiter"},
    MemberState.RECOVERING: {"/health"},
    MemberState.STARTUP: {"/health"},
    MemberState.ROLLBACK: {"/health"},
}


@pytest.mark.parametrize("state", HEALTH)
def test_health(api: Api, monkeypatch: pytest.MonkeyPatch, state: MemberState) -> None:
    monkeypatch.setattr(api.member.node._state, "state", state)
    monkeypatch.setattr(api.member.node._state, "writable", state is MemberState.PRIMARY)
    monkeypatch.setattr(api.member.node, "lag_ms", lambda: 0)
    for path in ("/health", "/ready", "/primary", "/secondary", "/arbiter"):
        response, good = api.get(path), path in HEALTH[state]
        assert response.status_code == (200 if good else 503)
        assert response.json() == {"ok": int(good), "state": state.name}
        head = api.request("HEAD", path)
        assert (head.status_code, head.content) == (response.status_code, b"")


READERS: dict[str, tuple[dict[str, Any], int | None, str, str]] = {
    "fresh": ({}, 2_000, "", ""),
    "stale": ({}, 31_000, "", "it may be 31.0 s behind"),
    "as-asked": ({}, 2_000, "?maxLag=1.5", "it may be 2.0 s behind"),
    "generous": ({}, 31_000, "?maxLag=60", ""),
    "no-data": ({}, None, "", "it has no data"),
    "hidden": ({"hidden": True}, 0, "?maxLag=60", "it is hidden"),
    "delayed": ({"secondaryDelaySecs": 60}, 0, "?maxLag=90", "it is 60 s delayed"),
}


@pytest.mark.parametrize(("mine", "lag_ms", "query", "why"), READERS.values(), ids=READERS)
def test_a_secondary_that_readers_should_not_use(
    secondary: Api, monkeypatch: pytest.MonkeyPatch, mine: dict[str, Any], lag_ms: int | None, query: str, why: str
) -> None:
    node = secondary.member.node
    assert node.config is not None
    document = node.config.document()
    document["members"][1] |= mine | {"priority": 0}
    monkeypatch.setattr(node._state, "config", ReplSetConfig.parse(document))
    monkeypatch.setattr(node, "lag_ms", lambda: lag_ms)
    for path in ("/ready", "/secondary"):
        response = secondary.get(path + query)
        assert response.status_code == (503 if why else 200)
        assert response.json() == {"ok": int(not why), "state": "SECONDARY", **({"why": why} if why else {})}


@pytest.mark.parametrize("value", ["-1", "nan", "soon", ""])
def test_a_lag_that_is_no_number(api: Api, value: str) -> None:
    assert api.get(f"/secondary?maxLag={value}").status_code == 400


def test_a_primary_that_drains_accepts_no_writes_yet(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.member.node._state, "writable", False)
    assert api.get("/primary").status_code == 503


def test_a_member_that_shuts_down_is_alive_but_not_ready(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.member, "shutting_down", True)
    assert [api.get(path).status_code for path in ("/health", "/ready", "/primary")] == [200, 503, 503]


def test_metrics_count_rollbacks(api: Api, folder: Path) -> None:
    write_rollback(folder)
    seen = write_rollback(folder, "2026-01-02T03-04-05.1")
    acknowledge(RealDisk(), str(folder), seen.id, wall_ms=0, by="anna")
    response = api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'replset_rollbacks{state="finished"} 2.0' in response.text
    assert "replset_rollbacks_unacknowledged 1.0" in response.text


def test_metrics_of_a_member_without_data_or_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_set(initiates=False) as rig:
        assert "replset_config_version 0.0" in Api(rig, monkeypatch).get("/metrics").text


SERVED = {
    path: {method.upper() for method in methods}
    for path, methods in routes().openapi()["paths"].items()
    if not path.startswith("/v1/action/")
}


@pytest.mark.parametrize(("number", "confirmed"), [(1, True), (0, False)])
def test_a_write_is_waited_for(api: Api, number: int, confirmed: bool) -> None:
    state = {"ok": 1.0, "optime": "3:1700000000:5", "state": "pending"}
    api.answers |= {
        "replSetConfirmWrites": {"ok": 1.0, "confirmed": number, "notConfirmed": []},
        "replSetGetWriteState": state,
    }
    answer = api.get("/v1/writes/3:1700000000:5?wait=members:2&timeoutMS=70").json()
    assert (answer["confirmed"], answer["state"]) == (confirmed, "pending")
    asked = api.requests[0].body.decode()
    assert (asked["replSetConfirmWrites"], asked["wait"], asked["timeoutMS"]) == (["3:1700000000:5"], "members:2", 70)
    assert "confirmed" not in api.get("/v1/writes/3:1700000000:5").json()


@pytest.mark.parametrize(("path", "methods"), SERVED.items(), ids=SERVED)
def test_a_method_that_a_path_does_not_take_is_told_with_one_that_it_takes(
    api: Api, path: str, methods: set[str]
) -> None:
    path = path.replace("{", "").replace("}", "")
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE"} - methods - ({"HEAD"} if "GET" in methods else set()):
        response = api.request(method, path)
        assert response.status_code == 405, method
        assert set(response.headers["allow"].split(", ")) & methods
        if method != "HEAD":
            refused(response, 405, 59, path)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/openapi.json", "/v1/replset/config", "/v1/nothing"])
def test_head_is_answered_as_get_without_the_body(api: Api, path: str) -> None:
    got, head = api.get(path), api.request("HEAD", path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert "content-length" in head.headers


def test_head_of_a_stream_ends(api: Api) -> None:
    cursor = {"id": 7, "ns": "a.b", "firstBatch": [], "nextBatch": [], "postBatchResumeToken": {"_data": "82"}}
    api.answers |= {"aggregate": {"ok": 1.0, "cursor": cursor}, "getMore": {"ok": 1.0, "cursor": cursor}}
    assert api.request("HEAD", "/v1/watch").status_code == 200
    assert api.command_names()[-1] == "killCursors"
