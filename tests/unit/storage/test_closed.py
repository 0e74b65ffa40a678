"""A store that is closed stays out of the files: another one may be in their place already."""

from __future__ import annotations

from pathlib import Path

import pytest

from replset.errors import StorageError
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions


def test_a_closed_store_opens_no_file_again(tmp_path: Path) -> None:
    """Nor does it make a WAL beside a database that is just being replaced."""
    store = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))
    store.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StorageError):
        store.read()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
