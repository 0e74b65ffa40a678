"""A set that only knows what a mongod knows, and the folder that a mongod writes: the page for who runs MongoDB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from replset.client import PASSWORD_VARIABLE, SETTINGS, USER_VARIABLE
from replset.ids import HostPort
from replset.key_file import read_key_file
from replset.replication.rollback_manifest import Manifest, read_manifest
from replset.wire.framing import FrameReader, encode_request
from spark.cli import main as oplog_spark
from tests.integration.conftest import PASSWORD, begin_with_logins, next_ports
from tests.integration.forked import ForkedSet, running_set
from tests.integration.mongod_proxy import FIELDS, fault_of, proxies
from tests.integration.page import differences, running_shell, without_widths
from tests.integration.talk import insert, same_everywhere
from tests.integration.test_restore import Story, lose_writes

STAMP, COMMON = "2026-09-27T12-54-03", "1790513610"
UUID = "e16a3931-c0ef-487c-a251-1a236d215b48"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkedSet]:
    with running_set(tmp_path / "set") as made:
        for port in next_ports(3):
            made.add(port, flags=["--enable-test-commands", "--auth", "--rollback-layout", "mongodb"])
        begin_with_logins(made, monkeypatch)
        yield made


def lose_as_member(local: ForkedSet) -> Story:
    keys = read_key_file(local.key_file)
    with pytest.MonkeyPatch.context() as patch:  # only members may cut a member off
        patch.setattr(SETTINGS, "login", lambda client: client.prove(keys, HostPort("127.0.0.1:1")))
        return lose_writes(local)


def write_as_mongod(story: Story, dbpath: Path) -> tuple[Manifest, Path]:
    """The folder and the log of a mongod that rolled this back."""
    manifest = read_manifest(story.manifest)
    (removed,) = story.manifest.parent.glob("*/removed.*.bson")
    file = dbpath / "rollback" / removed.parent.name / removed.name
    file.parent.mkdir(parents=True)
    shutil.copy(removed, file)
    common = {"t": manifest.common_point.seconds, "i": manifest.common_point.increment}
    attributes = {
        "Rollback common point": {"commonPointOpTime": {"ts": {"$timestamp": common}, "t": manifest.common_point.term}},
        "Preparing to write deleted documents to a rollback file": {
            "namespace": "shop.orders",
            "uuid": removed.parent.name,
            "file": str(file),
        },
        "Operations reverted by rollback": {"insert": 2, "update": 3, "delete": 2},
    }
    lines = [
        json.dumps(
            {"t": {"$date": manifest.when}, "s": "I", "c": "ROLLBACK", "msg": text, "attr": found},
            separators=(",", ":"),
        )
        for text, found in attributes.items()
    ]
    (dbpath / "mongod.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return manifest, file


@pytest.mark.in_turns
def test_the_page_is_true(local: ForkedSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = lose_as_member(local)
    insert(story.new, *range(1000, 1200))  # so that the oplog takes more than one reply
    manifest, file = write_as_mongod(story, tmp_path / "mongod")
    stamp = datetime.fromisoformat(manifest.when).strftime("%Y-%m-%dT%H-%M-%S")
    common = manifest.common_point
    names = {
        "/data/db": str(tmp_path / "mongod"),
        UUID: file.parent.name,
        STAMP: stamp,
        f"{COMMON}:2": f"{common.seconds}:{common.increment}",
        f'"t":{COMMON},"i":2': f'"t":{common.seconds},"i":{common.increment}',
    }
    ordered = [story.old, story.new, *(member for member in local.members if member not in (story.old, story.new))]
    monkeypatch.delenv(USER_VARIABLE)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    (tmp_path / "here").mkdir()
    with (
        proxies([member.host for member in ordered]) as found,
        running_shell(tmp_path / "here", [proxy.port for proxy in found], names) as shell,
    ):
        shell.environment |= {"COLUMNS": "200", "HOME": str(tmp_path)}
        (tmp_path / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
        wrong = differences("mongod-rollback.md", shell, without_widths)
        refused = [fault for proxy in found for fault in proxy.refused]
        passed = {name for proxy in found for name in proxy.passed}
    assert (wrong, refused) == ([], []), "\n".join(wrong)
    assert passed == FIELDS.keys() - {"count", "killCursors", "delete"}
    monkeypatch.setenv(USER_VARIABLE, "root")
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    orders = {row["_id"]: row for row in same_everywhere(local)}
    assert {100, 101} <= orders.keys()
    assert (orders[2], orders[3]) == ({"_id": 2, "n": 2, "kept": True, "lost": True}, {"_id": 3, "n": 3, "lost": True})


@pytest.mark.in_turns
def test_oplogs_by_addresses(local: ForkedSet, capsys: pytest.CaptureFixture[str]) -> None:
    primary = local.wait_for_primary()
    insert(primary, *range(3000))  # more than three replies
    assert len(same_everywhere(local)) == 3000
    primary_first = sorted(local.members, key=lambda member: member is not primary)
    with proxies([member.host for member in primary_first]) as found:
        members = [f"mongodb://root:{PASSWORD}@{proxy.host}/?replicaSet=rs0" for proxy in found]

        def told(command: str, *options: str) -> tuple[int, dict[str, Any]]:
            status = oplog_spark([command, "--engine", "local", "--json", *options, *members])
            said = capsys.readouterr()
            assert PASSWORD not in said.out + said.err
            assert said.out, said.err
            return status, json.loads(said.out)

        status, diff = told("diff")
        assert all(pair["divergent"] == pair["aMissing"] == pair["bMissing"] == 0 for pair in diff["pairs"]), status
        names = sorted(proxy.host for proxy in found)
        assert diff["entriesOnly"] == names
        _, summary = told("summary")
        assert [row["entries"] for row in summary["namespaces"] if row["ns"] == "shop.orders"] == [3000] * 3
        status, verified = told("verify")
        assert (status, verified["entriesOnly"], {row["links"] for row in verified["checked"]}) == (0, names, {0})
        assert [proxy.refused for proxy in found] == [[], [], []]
        assert {name for proxy in found for name in proxy.passed} == {
            *("hello", "saslStart", "saslContinue", "count", "find", "getMore")
        }


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ({"find": "orders", "filter": {"_id": {"$in": [1]}}}, ""),
        ({"replSetGetStatus": 1}, "no such command"),
        ({"find": "orders", "rawData": True}, "find.rawData is an unknown field"),
        ({"find": "orders", "filter": {"a": {"$own": 1}}}, "operators"),
        ({"getMore": 7, "collection": "orders"}, "getMore is no long"),
        ({"insert": "orders", "documents": [{}], "bypassEmptyTsReplacement": True}, "unknown field"),
        ({"update": "orders", "updates": [{"q": {}, "u": {}, "version": 1}]}, "unknown"),
        ({"delete": "orders", "deletes": [], "writeConcern": {"w": 1, "provenance": "x"}}, "unknown"),
    ],
)
def test_what_the_proxy_refuses(command: dict[str, object], fault: str) -> None:
    (message,) = FrameReader().feed(encode_request(1, command, "shop"))
    found = fault_of(message)
    assert fault in found
    assert bool(found) == bool(fault)
