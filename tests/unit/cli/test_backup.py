"""What `replset backup` makes of an answer that breaks off, is damaged, or is something else; and `replset restore`."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from replset.cli.backup import receive_backup
from replset.cli.main import main
from replset.errors import CorruptDataError, HostUnreachableError, OutOfDiskSpaceError, ReplError
from replset.features.backup.backup_folder import BackupManifest
from replset.long_work import LongWork
from replset.storage.disk import RealDisk

DATA = bytes(range(256)) * 64
MANIFEST = BackupManifest("rs0", "0" * 24, "m0:27017", "1:2:3", len(DATA), hashlib.sha256(DATA).hexdigest(), "", {})


def tar_of(*files: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


WHOLE = tar_of(("backup.json", MANIFEST.encode()), ("replset.db", DATA))


def receive(data: bytes, folder: Path) -> BackupManifest:
    return receive_backup(io.BytesIO(data), folder, LongWork("replset"))


def test_a_whole_answer_is_a_backup(tmp_path: Path) -> None:
    assert receive(WHOLE, tmp_path / "new" / "one") == MANIFEST
    assert sorted(os.listdir(tmp_path / "new" / "one")) == ["backup.json", "replset.db"]
    assert (tmp_path / "new" / "one" / "replset.db").read_bytes() == DATA
    assert others_may(tmp_path / "new") == []


def others_may(folder: Path) -> list[Path]:
    """The files and folders to which others than the owner have rights: backups hold keys of users."""
    return [path for path in [folder, *folder.rglob("*")] if path.stat().st_mode & 0o077]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (WHOLE[:300], HostUnreachableError),
        (WHOLE[:2000], HostUnreachableError),
        (WHOLE[:9000], HostUnreachableError),
        (b"", HostUnreachableError),
        (b"<html>a proxy's page</html>" * 100, HostUnreachableError),
        (tar_of(("replset.db", DATA)), HostUnreachableError),
        (tar_of(("backup.json", MANIFEST.encode())), HostUnreachableError),
        (tar_of(("backup.json", MANIFEST.encode()), ("../../replset.db", DATA)), HostUnreachableError),
        (tar_of(("backup.json", b"{}"), ("replset.db", DATA)), CorruptDataError),
        (tar_of(("backup.json", MANIFEST.encode()), ("replset.db", DATA[::-1])), CorruptDataError),
        (tar_of(("backup.json", MANIFEST.encode()), ("replset.db", DATA[:-1])), CorruptDataError),
    ],
)
def test_any_other_answer_leaves_the_folder_empty(tmp_path: Path, answer: bytes, error: type[ReplError]) -> None:
    with pytest.raises(error):
        receive(answer, tmp_path / "backup")
    assert os.listdir(tmp_path / "backup") == []


def test_a_disk_without_room_is_noticed_before_the_data_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealDisk, "free_bytes", lambda *_: 1000)
    with pytest.raises(OutOfDiskSpaceError, match="1000 are free"):
        receive(WHOLE, tmp_path / "backup")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["backup", "."], "exists and is not an empty folder"),
        (["restore", "missing", "data"], "missing is no backup"),
        (["restore", "one", "data", "--name", "other"], "--name is for --new-set"),
        (["restore", "one", "data", "--new-set", "no:port:there"], "host"),
        (["restore", "one", "."], "is not empty"),
        (["restore", "one", "data", "--new-set", "a:1", "--at", "yesterday"], "yesterday"),
        (["restore", "one", "data"], "file is not a database"),
        (["restore", "one", "data", "--new-set", "a:1", "--at", "1:2:3"], "file is not a database"),
    ],
)
def test_what_is_refused_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    receive(WHOLE, tmp_path / "one")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), text in error) == (1, True), error
    assert os.listdir(tmp_path) == ["one"]
