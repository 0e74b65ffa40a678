"""POST /v1/replset/backup: the tar file, and the copy that is removed whatever becomes of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from api.routes import backup
from replset.errors import CursorNotFoundError
from replset.features.backup.backup_folder import BackupManifest
from replset.member.peers.snapshot_server import SnapshotServer
from tests.unit.api.kit import Api, refused


def copies(api: Api) -> list[str]:
    folder = Path(api.member.context.dbpath) / "snapshots"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_the_answer_is_a_tar_file_of_both_files(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "CHUNK_BYTES", 10_000)
    api.insert({"_id": 1, "pad": "x" * 50_000})
    newest = api.rig.newest()
    response = api.post("/v1/replset/backup")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-tar")
    assert int(response.headers["content-length"]) == len(response.content)
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        assert tar.getnames() == ["backup.json", "replset.db"]
        text, data = (tar.extractfile(name).read() for name in tar.getnames())  # type: ignore[union-attr]
    found = BackupManifest.parse(text, "it")
    assert (found.newest, found.size, found.sha256) == (str(newest), len(data), hashlib.sha256(data).hexdigest())
    assert copies(api) == []


def test_a_copy_that_goes_away_breaks_the_answer_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "CHUNK_BYTES", 10_000)
    snapshots, seen = api.member[SnapshotServer], []
    chunk = snapshots.chunk

    async def ends(copy: str, offset: int, length: int) -> Any:
        seen.append(copies(api))
        if len(seen) > 2:
            raise CursorNotFoundError("no such copy")
        return await chunk(copy, offset, length)

    monkeypatch.setattr(snapshots, "chunk", ends)
    with pytest.raises(AssertionError):  # of httpx: the answer has no end, so the server closes the connection
        api.post("/v1/replset/backup")
    assert (len(seen), bool(seen[0]), copies(api)) == (3, True, [])


def test_what_the_member_refuses_is_an_error(api: Api) -> None:
    api.answers["replSetBackup"] = {"ok": 0.0, "code": 14031, "codeName": "x", "errmsg": "the disk is full"}
    refused(api.post("/v1/replset/backup"), 503, 14031, "the disk is full")
    refused(api.post("/v1/replset/backup", {"to": "/etc"}), 400, 40415, "'to'")
    assert api.request("GET", "/v1/replset/backup").status_code == 405
