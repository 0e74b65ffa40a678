"""Temporary files of queries: what is written is read again, and nothing stays."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from replset.errors import OutOfDiskSpaceError, StorageError
from replset.features.crud import spill_file as spill
from replset.features.crud.spill_file import SpillFile
from replset.member.disk.member_files import remove_spill_files
from replset.query import sorter as sorter_module
from replset.query.sorter import Sorter
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))) as opened:
        yield opened


def spill_files(store: Store) -> list[str]:
    return [name for name in store.disk.list_folder(store.dbpath) if name.startswith("spill-")]


def test_runs_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BLOCK_BYTES", 100)
    rng = random.Random(5)
    runs = [[rng.randbytes(rng.choice([0, 1, 5, 96, 100, 101, 350])) for _ in range(40)] for _ in range(5)] + [[]]
    file = SpillFile(store)
    places = [file.append(run) for run in runs]
    readers = [file.read(place) for place in places]
    assert [next(reader, None) for reader in readers[:5]] == [run[0] for run in runs[:5]]
    assert [list(file.read(place)) for place in places] == runs
    assert len(spill_files(store)) == 1
    file.close()
    file.close()
    assert spill_files(store) == []


def test_a_full_disk_refuses(store: Store) -> None:
    store.options = StoreOptions(min_free_bytes=1 << 60)
    with pytest.raises(OutOfDiskSpaceError):
        SpillFile(store).append([b"x"])
    assert spill_files(store) == []


def test_a_write_that_fails_leaves_no_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gets full has taken a part of the first block."""
    write_file = store.disk.write_file

    def fails(path: str, blocks: Iterable[bytes], *, append: bool = False) -> None:
        write_file(path, (b"a part",), append=append)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.disk, "write_file", fails)
    file = SpillFile(store)
    with pytest.raises(OutOfDiskSpaceError):
        file.append([b"x"])
    assert len(spill_files(store)) == 1
    file.close()
    assert spill_files(store) == []


def test_a_closed_file_takes_no_more(store: Store) -> None:
    """A cursor can be killed while a thread writes for it."""
    file = SpillFile(store)
    file.append([b"x"])
    file.close()
    with pytest.raises(StorageError):
        file.append([b"y"])
    assert spill_files(store) == []


def test_a_file_that_was_cut_is_an_error(store: Store) -> None:
    file = SpillFile(store)
    place = file.append([b"x" * 100])
    store.disk.truncate(f"{store.dbpath}/{spill_files(store)[0]}", 50)
    with pytest.raises(StorageError):
        list(file.read(place))
    file.close()


def test_a_start_removes_what_a_crash_left(store: Store) -> None:
    SpillFile(store).append([b"x"])
    remove_spill_files(store.disk, store.dbpath)
    assert spill_files(store) == []


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 50, 400])
def test_sorting_in_runs(store: Store, limit: int, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorter_module, "MAX_BYTES", 20_000)
    rng = random.Random(limit)
    pairs = [(bytes([rng.randrange(20)]), b"%d" % number) for number in range(3000)]
    sorter = Sorter(lambda: SpillFile(store), "Sort", limit)
    for start in range(0, len(pairs), 10):
        if together:
            sorter.add_all(pairs[start : start + 10])
            continue
        for key, raw in pairs[start : start + 10]:
            sorter.add(key, raw)
    assert (sorter.spilled_runs > 3) == (limit in (0, 400)), "fewer fit in memory"
    pairs.sort(key=lambda pair: pair[0])
    assert list(sorter.rows()) == [raw for _, raw in pairs][: limit or len(pairs)]
    assert spill_files(store) == []


def test_few_wanted_documents_of_many_large_ones_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorter_module, "MAX_BYTES", 20_000)
    rng = random.Random(2)
    keys = [rng.randbytes(4) for _ in range(300)]
    sorter = Sorter(None, "Sort", limit=5)
    for key in keys:
        sorter.add(key, key * 250)
    assert [raw[:4] for raw in sorter.rows()] == sorted(keys)[:5]
    assert sorter.spilled_runs == 0
