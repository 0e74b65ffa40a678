"""POST /v1/replset/backup: the tar file, and the copy that is removed whatever becomes of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from types import SimpleNamespace
from typing import Any

import pytest

from replset.errors import CursorNotFoundError
from replset.features.backup.backup_folder import BackupManifest
from tests.unit.api.kit import Api, refused

DATA = b"pages" * 1_000_001


class FakeSnapshots:
    """One copy, which is gone after `left` chunks."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.ended: list[str] = []

    async def chunk(self, snapshot_id: str, offset: int, length: int) -> Any:
        assert snapshot_id == "c1"
        if not self.left:
            raise CursorNotFoundError("no copy 'c1' here")
        self.left -= 1
        return SimpleNamespace(data=DATA[offset : offset + length])

    async def end(self, snapshot_id: str) -> None:
        self.ended.append(snapshot_id)


def prepared(api: Api, left: int) -> FakeSnapshots:
    api.member.snapshots = snapshots = FakeSnapshots(left)  # type: ignore[attr-defined]
    api.dispatcher.answers["replSetBackup"] = {
        "ok": 1.0,
        "id": "c1",
        "setName": "rs0",
        "setId": "0" * 24,
        "member": "127.0.0.1:27017",
        "newest": "3:1700000000:5",
        "size": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "made": "2026-01-01T00:00:00+00:00",
        "config": {"_id": "rs0", "version": 1},
    }
    return snapshots


def test_the_answer_is_a_tar_file_of_both_files(api: Api) -> None:
    snapshots = prepared(api, 100)
    response = api.post("/v1/replset/backup")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-tar")
    assert int(response.headers["content-length"]) == len(response.content)
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        assert tar.getnames() == ["backup.json", "replset.db"]
        text, data = (tar.extractfile(name).read() for name in tar.getnames())  # type: ignore[union-attr]
    assert data == DATA
    assert BackupManifest.parse(text, "it").newest == "3:1700000000:5"
    assert snapshots.ended == ["c1"]


def test_a_copy_that_goes_away_breaks_the_answer_off(api: Api) -> None:
    snapshots = prepared(api, 2)
    with pytest.raises(AssertionError):  # of httpx: the answer has no end, so the server closes the connection
        api.post("/v1/replset/backup")
    assert snapshots.ended == ["c1"]


def test_what_the_member_refuses_is_an_error(api: Api) -> None:
    api.dispatcher.answers["replSetBackup"] = {"ok": 0.0, "code": 14031, "codeName": "x", "errmsg": "the disk is full"}
    refused(api.post("/v1/replset/backup"), 503, 14031, "the disk is full")
    refused(api.post("/v1/replset/backup", {"to": "/etc"}), 400, 40415, "'to'")
    assert api.request("GET", "/v1/replset/backup").status_code == 405
