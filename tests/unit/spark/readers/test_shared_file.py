"""Files that are looked into stay open as long as anybody uses them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from spark.readers.shared_file import shared_file


def descriptors(file: Path) -> int:
    return sum(os.path.realpath(fd) == os.path.realpath(file) for fd in Path("/proc/self/fd").iterdir())


def test_a_file_is_opened_once_and_closed_by_its_last_user(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"0123456789")
    os.link(file, link)
    with shared_file(file) as one:
        assert descriptors(file) == descriptors(link) == 0
        with shared_file(link) as other:
            assert (one.read(4, 2), other.read(100, 8)) == (b"2345", b"89")
            assert descriptors(file) + descriptors(link) == 1
        with shared_file(str(file)) as again:
            assert again.read(1, 0) == b"0"
        assert descriptors(file) + descriptors(link) == 1
    assert descriptors(file) + descriptors(link) == 0
    with shared_file(file) as anew:
        assert anew.read(1, 9) == b"9"


def test_an_error_inside_closes_too(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with suppress(ValueError), shared_file(file) as one:
        one.read(1, 0)
        raise ValueError
    assert descriptors(file) == 0
    with pytest.raises(FileNotFoundError), shared_file(tmp_path / "none"):
        pass
