"""The routes that compare and put back a rollback: their options, failures on the way, and many requests at once.

`recovery/test_restore.py` has what they answer, which is the same as the tools print.
"""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from api import streaming
from api.routes import recovery
from replset.errors import BadValueError, HostUnreachableError, ReplError
from replset.features.recovery import compare
from replset.features.recovery.live_set import Write
from replset.features.recovery.restore import AuditLog
from tests.unit.api.kit import Api, plain, read_rollbacks, refused
from tests.unit.rollback_tools.kit import FakeSet, live_orders, lost_orders

JSON_BODY = {"content-type": "application/json"}
ALL = 3
"""How many of the six lost writes the policy `skip` puts back."""


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> FakeSet:
    found = live_orders()
    monkeypatch.setattr(recovery, "LiveSet", lambda host, set_name: found)
    return found


@pytest.fixture
def by_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document is compared and put back alone, and each row is sent alone."""
    monkeypatch.setattr(compare, "BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(streaming, "CHUNK_CHARS", 1)


@pytest.fixture
def manifest(tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a rollback of the member."""
    found = lost_orders().write(tmp_path)
    read_rollbacks(api, monkeypatch, found.parent)
    return found


def url_of(manifest: Path, what: str) -> str:
    return f"/v1/replset/rollbacks/{manifest.stem}/{what}"


def ask(api: Api, manifest: Path, what: str, **wanted: object) -> httpx.Response:
    url = url_of(manifest, what)
    return api.post(url, wanted) if what == "restore" else api.get(url)


def counts(api: Api, manifest: Path, **wanted: object) -> dict[str, int]:
    found: dict[str, int] = ask(api, manifest, "restore", **wanted).json()["counts"]
    return found


def last_note(manifest: Path) -> dict[str, Any]:
    """The last line of the first record."""
    found: dict[str, Any] = json.loads(min(manifest.parent.glob("restore.*")).read_text().splitlines()[-1])
    return found


def raising(error: Exception) -> Any:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"collection": "x"}, 2, "skip takes no NAME"),
        ({"policy": "to-collection", "collection": "x" * 300}, 73, "Invalid namespace"),
        ({"policy": 1}, 14, "'policy' must be a string"),
        ({"policy": None}, 14, "'policy' must be a string"),
        ({"collection": []}, 14, "'collection' must be a string"),
        ({"dryRun": 1}, 14, "'dryRun' must be a boolean"),
        ({"dryrun": True}, 40415, "unknown field 'dryrun'; there are: policy, collection, dryRun"),
    ],
)
def test_options_that_are_refused(
    api: Api, live: FakeSet, manifest: Path, options: dict[str, object], code: int, words: str
) -> None:
    refused(ask(api, manifest, "restore", **options), 400, code, words)
    assert live.writes == 0


@pytest.mark.parametrize("what", ["verify", "diff", "restore"])
@pytest.mark.parametrize("name", ["rollback-nothing", "..%2Frollback%2F{id}", "notes"])
def test_a_rollback_that_this_member_does_not_have(api: Api, manifest: Path, what: str, name: str) -> None:
    answer = ask(api, manifest.with_stem(name.format(id=manifest.stem).replace("/", "%2F")), what)
    assert (answer.status_code, answer.json()["code"] in (26, 59)) == (404, True)


@pytest.mark.parametrize("what", ["diff", "restore"])
def test_no_primary(api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(api.member.node._state, "primary_id", None)
        refused(ask(api, manifest, what), 503, 10107, "knows no primary")
    for error, status, code in (
        (HostUnreachableError("nobody answers"), 503, 6),
        (BadValueError("a member of another set"), 400, 2),
    ):
        monkeypatch.setattr(recovery, "LiveSet", raising(error))
        refused(ask(api, manifest, what), status, code, error.message)
    assert list(manifest.parent.glob("restore.*")) == []


# --- an answer in pieces, and failures on the way -----------------------------------------------------------------


def pieces_of(api: Api, method: str, path: str, *, leaves: bool = False) -> list[bytes]:
    """The pieces of the answer. leaves: the client goes away with the first, before the next one is made."""
    pieces: list[bytes] = []

    async def run() -> None:
        gone, messages = asyncio.Event(), [{"type": "http.request", "body": b""}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await gone.wait()
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pieces.append(message.get("body", b""))
            if leaves and pieces[-1]:
                gone.set()
                await asyncio.sleep(0.001)

        headers = [(name.encode(), value.encode()) for name, value in JSON_BODY.items()]
        scope = {"type": "http", "path": path, "method": method, "headers": headers, "query_string": b""}
        await api.app(scope, receive, send)

    api.rig.do(run())
    return pieces[1:]


@pytest.mark.usefixtures("by_ones", "live")
def test_an_answer_comes_in_pieces(api: Api, manifest: Path) -> None:
    *pieces, end = pieces_of(api, "GET", url_of(manifest, "diff"))
    assert (len(pieces), end) == (6 + 1, b"")
    answer = api.get(url_of(manifest, "diff"), headers={"accept": "application/bson"})
    assert (answer.headers["content-type"], answer.content) == ("application/json", b"".join(pieces))


@pytest.mark.usefixtures("by_ones")
def test_a_client_that_goes_away_stops_the_restore(api: Api, live: FakeSet, manifest: Path) -> None:
    pieces = pieces_of(api, "POST", url_of(manifest, "restore"), leaves=True)
    assert pieces[-1], "an answer that is not whole is not ended"
    assert not b"".join(pieces).endswith(b"}\n")
    assert live.writes < ALL
    for thread in threading.enumerate():
        if thread.name == "replset-rollback":
            thread.join(20)
    assert last_note(manifest)["error"] == "broken off"
    assert counts(api, manifest)["left"] == 6 - ALL


@pytest.mark.usefixtures("by_ones")
def test_a_failure_after_the_first_row_is_in_the_answer(api: Api, live: FakeSet, manifest: Path) -> None:
    def fail(_: Sequence[Write]) -> None:
        if live.writes == 2:
            raise ReplError("no more", code=13)

    live.before_write = fail
    answer = ask(api, manifest, "restore").json()
    assert [row["_id"] for row in answer["writes"]] == [{"$numberInt": "10"}]
    assert list(answer)[-1] == "error"
    assert answer["error"] == {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "no more"}
    note = last_note(manifest)
    assert (note["error"], note["counts"]["done"], note["at"].startswith("2023-11-14T22:1")) == ("no more", 1, True)
    live.before_write = lambda writes: None
    assert counts(api, manifest) == {"done": ALL - 1, "there": 1, "would": 0, "left": 6 - ALL}


def test_a_failure_before_the_first_row_tells_whether_anything_was_sent(
    api: Api, live: FakeSet, manifest: Path
) -> None:
    live.before_write = raising(ReplError("not now", code=112))
    answer = ask(api, manifest, "restore")
    assert (answer.status_code, answer.headers["x-replset-applied"]) == (504, "unknown")
    (record,) = manifest.parent.glob("restore.*")
    found = plain(answer)
    assert (found["code"], found["applied"], found["audit"]) == (112, "unknown", str(record))
    live.documents = raising(ReplError("not now", code=112))  # type: ignore[method-assign]
    refused(ask(api, manifest, "restore"), 503, 112, "not now")


@pytest.mark.usefixtures("by_ones")
def test_a_member_that_stops_ends_what_is_under_way(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.after_write = lambda: monkeypatch.setattr(api.member, "shutting_down", True)
    answer = ask(api, manifest, "restore").json()
    assert (len(answer["writes"]), answer["error"]["code"], live.writes) == (1, 91, 1)
    assert last_note(manifest)["error"] == "broken off"
    refused(ask(api, manifest, "diff"), 503, 91)


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [("beside", errno.ENOSPC, 14031), ("beside", errno.EROFS, 1), ("sync", errno.ENOSPC, 14031)],
)
def test_nothing_is_written_of_which_no_record_is_on_disk(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, code: int
) -> None:
    monkeypatch.setattr(AuditLog, name, raising(OSError(number, "No space left")))
    refused(ask(api, manifest, "restore"), 503, code, "No space left")
    assert live.writes == 0


def test_a_failure_that_is_a_fault_of_ours_is_not_hidden(api: Api, live: FakeSet, manifest: Path) -> None:
    live.before_write = raising(KeyError("a fault"))
    with pytest.raises(KeyError, match="a fault"):
        ask(api, manifest, "restore")


# --- how many at once ---------------------------------------------------------------------------------------------


def at_once(api: Api, live: FakeSet, path: str, *others: tuple[str, str, object]) -> tuple[httpx.Response, ...]:
    """The answers to a restore, and to other requests while its first write waits."""
    reached, opened = threading.Event(), threading.Event()

    def wait(_: Sequence[Write]) -> None:
        reached.set()
        assert opened.wait(20)

    async def main() -> tuple[httpx.Response, ...]:
        first = asyncio.create_task(api.ask("POST", path))
        while not reached.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)
        found = [await api.ask(method, where, json=body) for method, where, body in others]
        opened.set()
        return await first, *found

    live.before_write = wait
    return api.rig.do(main())


def test_a_rollback_is_put_back_once_at_a_time(api: Api, live: FakeSet, manifest: Path) -> None:
    path = url_of(manifest, "restore")
    others = (("POST", path, {}), ("POST", path, {"dryRun": True}), ("GET", "/health", None))
    first, second, dry, health = at_once(api, live, path, *others)
    answer = refused(second, 409, 117, "under way on this member")
    assert answer["codeName"] == "ConflictingOperationInProgress"
    assert (dry.status_code, health.status_code) == (200, 200)
    assert first.json()["counts"]["done"] == ALL
    assert counts(api, manifest)["there"] == ALL


def test_few_rollbacks_are_read_at_once(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "JOBS_MAX", 1)
    others = [("GET", url_of(manifest, what), None) for what in ("diff", "verify")]
    first, *rest = at_once(api, live, url_of(manifest, "restore"), *others)
    for response in rest:
        answer = refused(response, 503, 462, "it works on 1 rollbacks")
        assert answer["errorLabels"] == ["SystemOverloadedError", "RetryableError"]
    assert (first.status_code, ask(api, manifest, "diff").status_code) == (200, 200)


def test_what_a_comparison_takes_is_counted(
    api: Api, live: FakeSet, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    live.before_write = lambda writes: seen.append(api.member.admission.in_use)
    ask(api, manifest, "restore")
    assert (seen[0] // recovery.RECORD_BYTES, api.member.admission.in_use) == (7, 0)  # and the request's own bytes
    monkeypatch.setattr(recovery, "RESERVED_BYTES_MAX", 500)
    ask(api, manifest, "restore", policy="overwrite")
    assert seen[1] // 100 == 5
    api.member.admission.add(128 << 20)
    refused(ask(api, manifest, "diff"), 503, 462)
