"""The page at `/`, and the stream of events that it reads."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from api import event_stream
from api.routes import events, page
from replset.errors import ErrorCode
from replset.operations.slow_operations import SlowOperation, SlowReason, Work
from tests.unit.api.kit import Api, refused

FOLDER = Path(page.__file__).parents[1] / page.FOLDER
EVENTS = "/v1/replset/events"


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_is_served_with_all_that_it_loads(api: Api) -> None:
    index = api.get("/")
    assert (index.status_code, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    parts = [part for part in re.findall(r'(?:src|href)="([^"#]+)"', index.text) if part.startswith("/page/")]
    modules = re.findall(r'from "\./([\w.]+)"', "".join(file.read_text() for file in FOLDER.glob("*.js")))
    for part in {*parts, *(f"/page/{module}" for module in modules)}:
        served = api.get(part)
        assert (served.status_code, len(served.content) > 200) == (200, True), part
        assert served.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_folder_is_served_and_no_other(api: Api) -> None:
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert there == set(page.TYPES)
    for name in ("", "../routes/page.py", "..%2f..%2fpyproject.toml", "vendor", "index.html%00", "/etc/passwd"):
        assert api.get(f"/page/{name}").status_code == 404, name


def test_the_page_names_no_other_host_and_the_browser_would_load_nothing_from_one(api: Api) -> None:
    own = [path for path in FOLDER.iterdir() if path.suffix in (".html", ".js", ".css")]
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"""["'(](?:https?:)?//[\w.-]+""", text) == [], path
        assert "innerHTML" not in text, path
    policy = api.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_a_browser_that_has_a_file_gets_it_only_when_it_changed(api: Api) -> None:
    tag = api.get("/page/page.js").headers["etag"]
    again = api.get("/page/page.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_the_chart_library_is_shipped_with_its_licence(api: Api) -> None:
    assert "MIT License" in api.get("/page/vendor/uPlot.LICENSE").text


# --- the events ---------------------------------------------------------------------------------------------------


def parsed(text: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


@pytest.fixture
def until(api: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """So many changes come; then the member shuts down."""
    monkeypatch.setattr(api.member, "shutting_down", False)

    def begin(changes: int) -> None:
        left = iter(range(changes))

        async def wait(counter: int, timeout_ms: int) -> None:
            await asyncio.sleep(0)
            api.member.shutting_down = next(left, None) is None

        monkeypatch.setattr(api.member.topology, "wait", wait)

    return begin


def test_a_stream_has_the_status_at_once_and_after_each_change_until_the_member_stops(
    api: Api, until: Callable[[int], None]
) -> None:
    until(2)
    api.insert({"_id": 1})
    api.act("find")
    slow = api.member.dispatcher.operations.slow.rows
    slow.clear()
    for took_ms in (150, 900):
        row = SlowOperation(0, "find", "shop.orders", took_ms, SlowReason.SCAN, "it looked", "c:1", ("n",), Work())
        slow.append(row)
    response = api.get(EVENTS)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-store"
    found = parsed(response.text)
    assert [name for name, _ in found] == ["status"] * 3
    data = found[0][1]
    assert (data["member"], data["status"]["set"]) == ("a:27017", "rs0")
    newest = data["oplog"]["newest"][-1]
    assert (newest["optime"], newest["op"], newest["ns"]) == (str(api.rig.newest()), "i", "shop.orders")
    assert newest["wall"]["$date"].startswith("2023-11-14T22:1")
    assert data["operations"]["find"] == 1
    assert [row["millis"] for row in data["slow"]] == [900, 150], "newest first"


def test_a_member_that_is_not_in_a_set_says_so_in_the_stream(api: Api, until: Callable[[int], None]) -> None:
    until(1)
    api.answers["replSetGetStatus"] = {"ok": 0.0, "code": 94, "errmsg": "no replset config"}
    assert parsed(api.get(EVENTS).text)[0][1]["status"]["errmsg"] == "no replset config"


def test_who_may_not_see_the_status_gets_no_stream(api: Api) -> None:
    api.answers["replSetGetStatus"] = {"ok": 0.0, "code": 13, "errmsg": "not authorized"}
    refused(api.get(EVENTS), 403, 13)


def test_a_stream_ends_with_the_reason_when_it_is_refused_later(api: Api, until: Callable[[int], None]) -> None:
    until(5)
    answers = iter([{"ok": 1.0}, {"ok": 0.0, "code": 13, "errmsg": "not authorized"}])
    api.answers["replSetGetStatus"] = lambda _: next(answers)
    found = parsed(api.get(EVENTS).text)
    assert [name for name, _ in found] == ["status", "error"]
    assert found[1][1]["code"] == ErrorCode.UNAUTHORIZED


def test_a_stream_ends_after_a_while_so_that_the_login_is_checked_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STREAM_S", 5)
    assert 3 < len(parsed(api.get(EVENTS).text)) < 8


@pytest.mark.parametrize("leaves", [True, False])
def test_so_many_streams_are_open_at_once_and_one_that_ends_makes_room(
    api: Api, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 1)
    monkeypatch.setattr(api.member, "shutting_down", False)
    changed = asyncio.Event()

    async def wait(counter: int, timeout_ms: int) -> None:
        await changed.wait()

    monkeypatch.setattr(api.member.topology, "wait", wait)

    async def main() -> list[int]:
        statuses: list[int] = []
        gone, begun = asyncio.Event(), asyncio.Event()

        async def receive() -> MutableMapping[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            begun.set()

        def ask() -> asyncio.Task[None]:
            scope = {"type": "http", "path": EVENTS, "raw_path": EVENTS.encode(), "headers": [], "method": "GET"}
            return asyncio.ensure_future(api.app({**scope, "query_string": b""}, receive, send))

        first = ask()
        await begun.wait()
        await ask()
        if leaves:
            gone.set()
        else:
            api.member.shutting_down = True
            changed.set()
        await first
        api.member.shutting_down = True
        changed.set()
        await ask()
        return statuses

    assert api.rig.do(main()) == [200, 503, 200]
