"""The routes that check, compare and put back a rollback, on files of a rollback and a set in memory."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import rollback_jobs, streaming
from api.routes import recovery
from replset.errors import BadValueError, HostUnreachableError, ReplError
from replset.recovery import compare
from replset.recovery.audit import AuditLog
from replset.recovery.live_set import Write
from replset.replication.rollback_manifest import RollbackState
from rollback_tools import diff, main, restore
from tests.unit.api.kit import ME, Api, plain, refused
from tests.unit.rollback_tools.kit import ORDERS, Doc, FakeSet, LostHistory, live_at

JSON_BODY = {"content-type": "application/json"}
BEFORE: dict[int, Doc] = {number: {"_id": number, "a": 1, "b": 1} for number in range(1, 5)}


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    """The set in which, meanwhile, 3 got another `a`."""
    found = FakeSet({ORDERS: BEFORE.values()})
    found.put(ORDERS, {**BEFORE[3], "a": 9}, live_at(1))
    for module in (diff, restore, recovery):
        monkeypatch.setattr(module, "LiveSet", lambda host, set_name: found)
    return found


def history() -> LostHistory:
    """Lost: insert 10, updates of `a` in 2 and 3, a delete of 4."""
    lost = LostHistory(BEFORE)
    lost.insert({"_id": 10, "text": "\u00fc"})
    for number in (2, 3):
        lost.update({**BEFORE[number], "a": 2})
    lost.delete(4)
    return lost


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return history().write(tmp_path)


@pytest.fixture
def api(manifest: Path) -> Api:
    """The API of the member that holds it."""
    return Api(str(manifest.parent))


def url_of(manifest: Path, what: str) -> str:
    return f"/v1/replset/rollbacks/{manifest.stem}/{what}"


def tool_output(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the tool prints."""
    main.main([*map(str, arguments), "--json"])
    return capsys.readouterr().out


def restored(api: Api, manifest: Path, **wanted: object) -> dict[str, Any]:
    response = api.post(url_of(manifest, "restore"), wanted)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def records(manifest: Path) -> list[Path]:
    return sorted(manifest.parent.glob("restore.*"))


# --- verify -------------------------------------------------------------------------------------------------------


def test_verify_answers_as_the_tool_does(api: Api, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plain(api.get(url_of(manifest, "verify")))
    assert found == json.loads(tool_output(capsys, "verify", manifest))
    assert found["ok"] is True
    file = next(manifest.parent.glob("shop.orders.*.bson"))
    file.write_bytes(file.read_bytes()[:-1])
    found = plain(api.get(url_of(manifest, "verify")))
    assert found == json.loads(tool_output(capsys, "verify", manifest))
    assert found["ok"] is False


# --- diff ---------------------------------------------------------------------------------------------------------


def test_diff_answers_as_the_tool_does(
    api: Api, live: FakeSet, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    response = api.get(url_of(manifest, "diff"), headers={"accept": "application/bson"})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.text == tool_output(capsys, "diff", manifest)
    assert response.json()["counts"] == {"there": 0, "clean": 3, "conflict": 1}


def test_an_answer_comes_in_pieces(
    api: Api, live: FakeSet, manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "CHUNK_CHARS", 1)
    pieces = exchange(api, "GET", url_of(manifest, "diff"))
    assert len(pieces) == 4 + 1
    assert b"".join(pieces).decode() == tool_output(capsys, "diff", manifest)


def exchange(api: Api, method: str, path: str, take: Callable[[bytes], bool] = lambda body: True) -> list[bytes]:
    """The pieces of the answer. take: False as soon as the client goes away, before the next piece is made."""
    pieces: list[bytes] = []
    ended: list[bool] = []

    async def run() -> None:
        gone = asyncio.Event()
        is_read = False

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": b""}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] != "http.response.body":
                return
            if not message.get("more_body"):
                ended.append(True)
                return
            pieces.append(message["body"])
            if not take(message["body"]):
                gone.set()
                await asyncio.sleep(0)

        headers = [(name.encode(), value.encode()) for name, value in JSON_BODY.items()]
        scope = {"type": "http", "path": path, "method": method, "headers": headers, "query_string": b""}
        await api.app(scope, receive, send)

    asyncio.run(run())
    assert bool(ended) == pieces[-1].endswith(b"}\n"), "an answer that is not whole is not ended"
    return pieces


# --- restore ------------------------------------------------------------------------------------------------------


def test_restore_answers_as_the_tool_does_and_twice_changes_nothing(
    api: Api, live: FakeSet, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = restored(api, manifest, dryRun=True)
    assert dry == json.loads(tool_output(capsys, "restore", manifest, "--dry-run"))
    assert (live.writes, records(manifest), dry["audit"]) == (0, [], None)

    done = restored(api, manifest)
    assert done["counts"] == {"done": 3, "there": 0, "would": 0, "left": 1}
    assert done["writes"] == [{**row, "result": row["result"].replace("would", "done")} for row in dry["writes"]]
    assert [Path(done["audit"])] == records(manifest)
    notes = [json.loads(line) for line in records(manifest)[0].read_text().splitlines()]
    assert notes[0]["restore"] == {**{name: done[name] for name in dry if name not in ("writes", "counts")}, "at": AT}
    assert notes[-1] == {"counts": done["counts"], "at": AT}

    after, writes = live.rows(), live.writes
    again = restored(api, manifest)
    assert (again["counts"], live.rows(), live.writes) == ({**done["counts"], "done": 0, "there": 3}, after, writes)
    assert api.member.admission.in_use == 0


AT = "2023-11-14T22:13:20+00:00"
"""The time that the member tells."""


def test_a_policy_decides_on_conflicts(api: Api, live: FakeSet, manifest: Path) -> None:
    assert restored(api, manifest, policy="overwrite")["counts"]["left"] == 0
    assert {"_id": 3, "a": 2, "b": 1} in live.rows()
    copied = restored(api, manifest, policy="to-collection", collection="saved")
    assert copied["policy"] == "to-collection saved"
    assert {row["_id"] for row in live.rows("shop.saved")} == {2, 3, 10}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"policy": "sometimes"}, 2, "no policy 'sometimes'"),
        ({"policy": "merge", "collection": "x"}, 2, "merge takes no NAME"),
        ({"collection": "x"}, 2, "skip takes no NAME"),
        ({"policy": "to-collection"}, 2, "takes the NAME"),
        ({"policy": "to-collection", "collection": "$x"}, 73, "Invalid namespace"),
        ({"policy": "to-collection", "collection": "system.x"}, 73, "system collections"),
        ({"policy": "to-collection", "collection": "x" * 300}, 73, "Invalid namespace"),
        ({"policy": 1}, 14, "'policy' must be a string"),
        ({"policy": None}, 14, "'policy' must be a string"),
        ({"collection": []}, 14, "'collection' must be a string"),
        ({"dryRun": 1}, 14, "'dryRun' must be a boolean"),
        ({"dryrun": True}, 40415, "unknown field 'dryrun'; there are: policy, collection, dryRun"),
    ],
)
def test_restore_options_that_are_refused(
    api: Api, live: FakeSet, manifest: Path, options: dict[str, object], code: int, words: str
) -> None:
    refused(api.post(url_of(manifest, "restore"), options), 400, code, words)
    assert (live.writes, records(manifest)) == (0, [])


@pytest.mark.parametrize("what", ["verify", "diff", "restore"])
@pytest.mark.parametrize("name", ["rollback-nothing", "..%2Frollback%2F{id}", "notes"])
def test_a_rollback_that_this_member_does_not_have(
    api: Api, live: FakeSet, manifest: Path, what: str, name: str
) -> None:
    path = f"/v1/replset/rollbacks/{name.format(id=manifest.stem)}/{what}"
    response = api.post(path) if what == "restore" else api.get(path)
    assert response.status_code == 404
    assert response.json()["code"] in (26, 59)


@pytest.mark.parametrize("what", ["verify", "diff", "restore"])
def test_a_damaged_manifest(api: Api, live: FakeSet, manifest: Path, what: str) -> None:
    manifest.write_text("{")
    response = api.post(url_of(manifest, what)) if what == "restore" else api.get(url_of(manifest, what))
    refused(response, 400, 2, manifest.name)


@pytest.mark.parametrize(
    ("state", "words"),
    [(RollbackState.PLANNED, "planned, not settled yet"), (RollbackState.ABANDONED, "nothing was undone")],
)
def test_a_rollback_that_is_not_over(tmp_path: Path, live: FakeSet, state: RollbackState, words: str) -> None:
    manifest = history().write(tmp_path, state)
    refused(Api(str(manifest.parent)).post(url_of(manifest, "restore")), 400, 20, words)
    assert (live.writes, records(manifest)) == (0, [])


def test_damaged_files(api: Api, live: FakeSet, manifest: Path) -> None:
    file = next(manifest.parent.glob("shop.orders.*.bson"))
    file.write_bytes(file.read_bytes()[:-1])
    refused(api.post(url_of(manifest, "restore")), 400, 2, file.name)
    refused(api.get(url_of(manifest, "diff")), 400, 2, f"{file.name}: the document at byte")
    file.unlink()
    refused(api.post(url_of(manifest, "restore")), 400, 2, file.name)
    refused(api.get(url_of(manifest, "diff")), 400, 2, "missing")
    assert (live.writes, records(manifest)) == (0, [])


@pytest.mark.parametrize("what", ["diff", "restore"])
def test_no_primary(api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def asked() -> httpx.Response:
        return api.post(url_of(manifest, what)) if what == "restore" else api.get(url_of(manifest, what))

    api.member.become_secondary(primary=None)
    refused(asked(), 503, 10107, "knows no primary")
    api.member.become_secondary()
    for error, status, code in (
        (HostUnreachableError("nobody answers"), 503, 6),
        (BadValueError("a member of another set"), 400, 2),
    ):
        connect_to(monkeypatch, error)
        refused(asked(), status, code, error.message)
    assert (live.writes, records(manifest)) == (0, [])


def connect_to(monkeypatch: pytest.MonkeyPatch, error: ReplError) -> None:
    def fail(host: str, set_name: str) -> FakeSet:
        assert (host, set_name) == ("127.0.0.1:27018", "rs0")
        raise error

    monkeypatch.setattr(recovery, "LiveSet", fail)


# --- failures on the way ------------------------------------------------------------------------------------------


def test_a_failure_after_the_first_row_is_in_the_answer(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BATCH_DOCUMENTS", 1)

    def fail(writes: Sequence[Write]) -> None:
        if live.writes == 2:
            raise ReplError("no more", code=13)

    live.before_write = fail
    answer = restored(api, manifest)
    assert [row["_id"] for row in answer["writes"]] == [{"$numberInt": "10"}]
    assert list(answer)[-1] == "error"
    assert answer["error"] == {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "no more"}
    last = json.loads(records(manifest)[0].read_text().splitlines()[-1])
    assert (last["error"], last["counts"]["done"]) == ("no more", 1)
    live.before_write = lambda writes: None
    assert restored(api, manifest)["counts"] == {"done": 2, "there": 1, "would": 0, "left": 1}


def test_a_failure_before_the_first_row_tells_whether_anything_was_sent(
    api: Api, live: FakeSet, manifest: Path
) -> None:
    def fail(*_: object) -> None:
        raise ReplError("not now", code=262)

    live.before_write = fail
    response = api.post(url_of(manifest, "restore"))
    assert (response.status_code, response.headers["x-replset-applied"]) == (504, "unknown")
    answer = plain(response)
    assert (answer["code"], answer["applied"], answer["audit"]) == (262, "unknown", str(records(manifest)[0]))
    live.documents = fail  # type: ignore[method-assign, assignment]
    refused(api.post(url_of(manifest, "restore")), 503, 262, "not now")


@pytest.mark.parametrize(("number", "status", "code"), [(errno.ENOSPC, 503, 14031), (errno.EROFS, 503, 1)])
def test_a_record_that_cannot_be_made(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, code: int
) -> None:
    def fail(*_: object) -> AuditLog:
        raise OSError(number, "no")

    monkeypatch.setattr(AuditLog, "beside", fail)
    refused(api.post(url_of(manifest, "restore")), status, code)
    assert live.writes == 0


def test_a_record_that_finds_no_room_on_the_way(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written of which no record is on disk."""

    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AuditLog, "sync", fail)
    refused(api.post(url_of(manifest, "restore")), 503, 14031, "No space left")
    assert live.writes == 0


# --- how many at once ---------------------------------------------------------------------------------------------


class Gate:
    """Holds the writes of a restore up until it is opened."""

    def __init__(self, live: FakeSet) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        live.before_write = self._wait

    def _wait(self, _: Sequence[Write]) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def at_once(api: Api, gate: Gate, path: str, *others: tuple[str, str, object]) -> tuple[httpx.Response, ...]:
    """The answers to a restore, and to other requests while it waits at the gate."""

    async def main() -> tuple[httpx.Response, ...]:
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON_BODY) as client:
            first = asyncio.create_task(client.post(path))
            assert await asyncio.to_thread(gate.reached.wait, 20)
            found = [await client.request(method, where, json=body) for method, where, body in others]
            gate.opened.set()
            return await first, *found

    return asyncio.run(main())


def test_a_rollback_is_put_back_once_at_a_time(api: Api, live: FakeSet, manifest: Path) -> None:
    path = url_of(manifest, "restore")
    dry = {"dryRun": True}
    first, second, other, health = at_once(
        api, Gate(live), path, ("POST", path, {}), ("POST", path, dry), ("GET", "/health", None)
    )
    answer = refused(second, 409, 117, "under way on this member")
    assert answer["codeName"] == "ConflictingOperationInProgress"
    assert (other.status_code, health.status_code) == (200, 200)
    assert first.json()["counts"]["done"] == 3
    assert restored(api, manifest)["counts"]["there"] == 3


def test_few_rollbacks_are_read_at_once(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_jobs, "JOBS_MAX", 1)
    others = [("GET", url_of(manifest, what), None) for what in ("diff", "verify")]
    first, *rest = at_once(api, Gate(live), url_of(manifest, "restore"), *others)
    for response in rest:
        answer = refused(response, 503, 462, "it works on 1 rollbacks")
        assert answer["errorLabels"] == ["SystemOverloadedError", "RetryableError"]
    assert first.status_code == 200
    assert api.get(url_of(manifest, "diff")).status_code == 200


def test_what_a_comparison_takes_is_counted(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    live.before_write = lambda writes: seen.append(api.member.admission.in_use)
    restored(api, manifest)
    assert (seen[0] // recovery.RECORD_BYTES, api.member.admission.in_use) == (4, 0)  # and the request's own bytes
    monkeypatch.setattr(recovery, "RESERVED_BYTES_MAX", 500)
    restored(api, manifest, policy="overwrite")
    assert seen[1] // 100 == 5
    api.member.admission.add(128 << 20)
    refused(api.get(url_of(manifest, "diff")), 503, 462)


def test_a_client_that_goes_away_stops_the_restore(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(streaming, "CHUNK_CHARS", 1)
    pieces = exchange(api, "POST", url_of(manifest, "restore"), take=lambda body: False)
    assert not b"".join(pieces).endswith(b"}\n")
    assert live.writes < 3
    for thread in threading.enumerate():
        if thread.name == "replset-rollback":
            thread.join(20)
    last = json.loads(records(manifest)[0].read_text().splitlines()[-1])
    assert last["error"] == "broken off"
    assert restored(api, manifest)["counts"]["left"] == 1


def test_a_member_that_stops_ends_what_is_under_way(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BATCH_DOCUMENTS", 1)

    def stop() -> None:
        api.member.shutting_down = True

    live.after_write = stop
    answer = restored(api, manifest)
    assert (len(answer["writes"]), answer["error"]["code"], live.writes) == (1, 91, 1)
    assert json.loads(records(manifest)[0].read_text().splitlines()[-1])["error"] == "broken off"
    refused(api.get(url_of(manifest, "diff")), 503, 91)


def test_a_failure_that_is_a_fault_of_ours_is_not_hidden(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise KeyError("a fault")

    live.before_write = fail
    with pytest.raises(KeyError, match="a fault"):
        api.post(url_of(manifest, "restore"))
    assert str(ME) == api.member.host
