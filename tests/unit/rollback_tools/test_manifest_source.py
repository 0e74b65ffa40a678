"""The tools on a rollback that a member holds, over its HTTP API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollback_tools import main
from tests.unit.rollback_tools.kit import Doc, LostHistory

Capture = pytest.CaptureFixture[str]
ROUTE = "/v1/replset/rollbacks"


class Member(HTTPServer):
    """Serves the files of one rollback as a member does. broken: how many bytes of each file are sent, -1 for all."""

    def __init__(self, manifest: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.manifest = manifest
        self.base = f"http://127.0.0.1:{self.server_address[1]}"
        self.url = f"{self.base}{ROUTE}/{manifest.stem}"
        self.asked: list[tuple[str, str, Any]] = []
        self.broken = -1
        self.rows: list[dict[str, Any]] = []
        self.unreachable: dict[str, str] = {}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        self.asked.append((method, path, body))
        name = path.removeprefix(f"{ROUTE}/{self.manifest.stem}/")
        document = {**json.loads(self.manifest.read_text()), "operationTime": {"$timestamp": {"t": 1, "i": 1}}}
        if (method, path) == ("GET", ROUTE):
            return 200, json.dumps({"rollbacks": self.rows, "unreachable": self.unreachable}).encode()
        if (method, path) == ("GET", f"{ROUTE}/{self.manifest.stem}"):
            return 200, json.dumps(document).encode()
        if (method, name) == ("POST", "ack"):
            found = {"id": self.manifest.stem, "acknowledged": "2026-01-02T03:04:05.000Z", "new": True}
            return 200, json.dumps(found | {"operationTime": 1}).encode()
        if method == "GET" and name in {row["name"] for row in document["files"]}:
            return 200, (self.manifest.parent / name).read_bytes()
        return 404, json.dumps({"ok": 0, "code": 26, "errmsg": "there is none"}).encode()


class Handler(BaseHTTPRequestHandler):
    server: Member

    def do_GET(self) -> None:
        self._serve("GET", None)

    def do_POST(self) -> None:
        self._serve("POST", json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _serve(self, method: str, body: Any) -> None:
        status, data = self.server.answer(method, self.path, body)
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        is_file = self.path.endswith(".bson")
        self.wfile.write(data[: self.server.broken] if is_file and self.server.broken >= 0 else data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    before: dict[int, Doc] = {number: {"_id": number} for number in range(3)}
    lost = LostHistory(before)
    for number in range(3):
        lost.update({"_id": number, "lost": True})
    serving = Member(lost.write(tmp_path))
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_verify_and_show_fetch_what_they_need(member: Member, capsys: Capture) -> None:
    assert main.main(["verify", member.url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{member.manifest.stem} is sound"
    assert main.main(["show", member.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {**json.loads(member.manifest.read_text()), "problems": {}}
    assert len(member.asked) == 2 * (1 + 3)


def test_a_transfer_that_breaks_off_and_a_file_elsewhere(member: Member, capsys: Capture) -> None:
    member.broken = 10
    assert main.main(["verify", member.url]) == 2
    assert "ended after 10 of" in capsys.readouterr().err
    document = json.loads(member.manifest.read_text())
    document["files"][0]["name"] = "../../secret.bson"
    member.manifest.write_text(json.dumps(document))
    assert main.main(["show", member.url]) == 2
    assert "is no file beside the manifest" in capsys.readouterr().err


def test_ack_asks_the_member(member: Member, capsys: Capture) -> None:
    assert main.main(["ack", member.url, "--by", "anna"]) == 0
    assert capsys.readouterr().out == f"{member.manifest.stem} is acknowledged 2026-01-02T03:04:05.000Z\n"
    assert member.asked == [("POST", f"{ROUTE}/{member.manifest.stem}/ack", {"by": "anna"})]
    assert list(member.manifest.parent.glob("*.ack")) == []


def test_list_shows_the_rollbacks_of_all_members(member: Member, capsys: Capture) -> None:
    assert main.main(["list", member.base]) == 0
    assert capsys.readouterr().out == "no rollbacks on any member\n"
    row = json.loads(member.manifest.read_text()) | {"member": "127.0.0.1:27018", "acknowledged": None}
    row["httpAddress"] = "127.0.0.1:28018"
    member.rows = [row, {"id": "rollback-x", "member": "127.0.0.1:27018", "error": "rollback-x.json is no manifest"}]
    member.unreachable = {"127.0.0.1:27019": "away"}
    assert main.main(["list", member.base]) == 1
    out, err = capsys.readouterr()
    assert f"http://127.0.0.1:28018{ROUTE}/{member.manifest.stem}" in out
    line = next(line for line in out.splitlines() if "27018" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[:3] == ["127.0.0.1:27018", member.manifest.stem, "finished"]
    assert err.splitlines() == [
        "rollback-tools: rollback-x.json is no manifest",
        "rollback-tools: 127.0.0.1:27019 did not answer: away",
    ]
    assert main.main(["list", member.base, "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert (listed["rollbacks"], list(listed["damaged"])) == ([row], ["rollback-x", "127.0.0.1:27019"])


@pytest.mark.parametrize("end", ["", ROUTE, f"{ROUTE}/", f"{ROUTE}/a/b", "/rollback-x"])
@pytest.mark.parametrize("command", ["show", "ack"])
def test_addresses_of_no_rollback(member: Member, capsys: Capture, command: str, end: str) -> None:
    assert main.main([command, f"{member.base}{end}"]) == 2
    assert "is not http://HOST:PORT/v1/replset/rollbacks/ID" in capsys.readouterr().err
    assert member.asked == []


def test_a_rollback_that_the_member_does_not_have(member: Member, capsys: Capture) -> None:
    assert main.main(["show", f"{member.base}{ROUTE}/rollback-y"]) == 2
    assert "404: there is none" in capsys.readouterr().err
