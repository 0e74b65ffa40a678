"""`replset add-witness` on real processes, and docs/witness.md, word for word.

The page's commands are run in order, in one shell, and print what it says. On the page `…` stands for any text, and the
ports are others here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replset.cli.local_set import HTTP_OFFSET, LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "witness.md"
FIRST_PORT = 27017
COMMAND_WITHIN_S = 120


def commands() -> Iterator[tuple[str, str]]:
    """(command, what it prints) of each command on the page. Lines that begin with four spaces go on with it."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            ends = next((n for n, line in enumerate(lines) if n and not line.startswith("    ")), len(lines))
            yield "\n".join(lines[:ends]), "\n".join(lines[ends:])


def test_a_witness_is_added_to_a_set_that_runs(make_set: MakeSet) -> None:
    """It copies the oplog, then its vote counts; clients see an arbiter that serves nothing."""
    local = make_set(members=2)
    primary = local.wait_for_primary()
    for number in range(20):
        insert(primary, number)
    witness = local.add(next_ports(1)[0], witness=True)
    done = run_program("replset.cli.main", "add-witness", witness.host, "--host", primary.host)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{witness.host} is added as witness; it copies the oplog, then it votes" in done.stdout
    assert "majority writes will need 2 of 3 copies and go on with 1 data members down" in done.stdout
    wait_until(lambda: row_of(primary, witness).get("counted"), 60, "its vote")
    row = row_of(primary, witness)
    assert (row["stateStr"], row["witness"], "optimeDurable" in row) == ("ARBITER", True, True)

    hello = witness.command({"hello": 1})
    assert (hello["arbiterOnly"], hello["secondary"], hello["arbiters"]) == (True, False, [witness.host])
    refused = witness.command({"find": "orders", "$readPreference": {"mode": "secondaryPreferred"}}, "shop")
    assert refused["code"] == 13436
    answers = {path: status_of(witness, path) for path in ("arbiter", "secondary", "ready", "primary")}
    assert answers == {"arbiter": 200, "secondary": 503, "ready": 503, "primary": 503}
    assert "WITNESS" in run_program("replset.cli.main", "status", "--host", primary.host).stdout

    (second,) = (member for member in local.members if member not in (primary, witness))
    local.kill(second)
    insert(primary, 100)
    three = primary.command(concern(101, w=3), "shop")
    assert three["writeConcernError"]["code"] == 100  # type: ignore[index]


def insert(primary: LocalMember, number: int) -> None:
    reply = primary.command(concern(number), "shop", timeout_s=30)
    assert (reply["ok"], reply.get("writeConcernError")) == (1, None), reply


def concern(number: int, w: object = "majority") -> dict[str, object]:
    documents = [{"_id": number}]
    return {"insert": "orders", "documents": documents, "writeConcern": {"w": w, "wtimeout": 20_000}}


def row_of(asked: LocalMember, member: LocalMember) -> dict[str, Any]:
    rows: list[dict[str, Any]] = asked.command({"replSetGetStatus": 1})["members"]  # type: ignore[assignment]
    return next((row for row in rows if row["name"] == member.host), {})


def status_of(member: LocalMember, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{member.http}/{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class Shell:
    """Runs the page's commands in a folder of its own, with the ports of this run."""

    def __init__(self, folder: Path, first_port: int) -> None:
        self.folder = folder
        self._ports = {
            str(FIRST_PORT + offset + n): str(first_port + offset + n) for offset in (0, HTTP_OFFSET) for n in range(3)
        }
        self._functions = f'replset() {{ "{sys.executable}" -m replset.cli.main "$@"; }}\n'

    def run(self, command: str) -> str:
        """What it prints, with the page's ports."""
        here = self._replaced(command, self._ports)
        if re.match(r"\w+\(\) \{", here):
            self._functions += f"{here}\n"
            return ""
        environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
        done = subprocess.run(
            ["bash", "-c", self._functions + here],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        assert done.stderr == "", done.stderr
        return self._replaced(done.stdout, {there: mine for mine, there in self._ports.items()})

    def _replaced(self, text: str, names: dict[str, str]) -> str:
        return re.sub(r"\b\d{5}\b", lambda match: names.get(match[0], match[0]), text)


def pattern(text: str) -> str:
    return re.escape(text.strip()).replace("…", ".*")


def test_the_page_is_true(tmp_path: Path) -> None:
    shell = Shell(tmp_path, next_ports(3)[0])
    wrong: list[str] = []
    seen = 0
    try:
        for command, expected in commands():
            found = shell.run(command)
            seen += 1
            if not re.fullmatch(pattern(expected), found.strip()):
                wrong.append(f"$ {command}\n{found}")
    finally:
        if (tmp_path / "demo" / "set.json").exists():
            for member in (local := LocalSet.load(tmp_path / "demo")).members:
                local.kill(member)
    assert seen == 13
    assert wrong == [], "\n".join(wrong)
