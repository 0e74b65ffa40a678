"""docs/backup.md, word for word, and a backup of a member that is written to all the time."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from replset.bson import decode
from replset.cli.backup import receive_backup
from replset.cli.local_set import LocalMember, wait_until
from replset.client import HttpClient
from replset.ids import HostPort
from replset.long_work import LongWork
from replset.storage.backup import NewSet, restore_backup
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program, running_set
from tests.integration.page import differences, running_shell
from tests.integration.talk import insert, run


def test_the_page_is_true(tmp_path: Path) -> None:
    with running_shell(tmp_path, next_ports(4)) as shell:
        wrong = differences("backup.md", shell)
    assert wrong == [], "\n".join(wrong)


def test_a_backup_under_writes_is_one_moment_and_holds_all_that_was_acknowledged(
    make_set: MakeSet, tmp_path: Path
) -> None:
    """Each order is followed by its bill, so at any moment there are as many bills as orders, or one less."""
    local = make_set()
    primary = local.wait_for_primary()
    (secondary, *_) = (member for member in local.members if member is not primary)
    with writing(primary) as acknowledged:
        for number, member in enumerate((primary, secondary, secondary)):
            wait_until(partial(written, acknowledged, 20 * (number + 1)), 30, "orders to be written")
            before = len(acknowledged)
            folder = tmp_path / f"backup{number}"
            with HttpClient(member.http).stream("/v1/replset/backup", {}) as answer:
                receive_backup(answer, folder, LongWork("replset"))
            restore_backup(
                RealDisk(), str(folder), str(folder / "data"), NewSet("other", HostPort("m:1")), lambda _size: None
            )
            orders, bills = (ids_in(folder / "data", ns) for ns in ("shop.orders", "shop.bills"))
            assert orders == list(range(len(orders)))
            assert bills == list(range(len(bills)))
            assert len(bills) in (len(orders), len(orders) - 1)
            if member is primary:
                assert len(bills) >= before
    assert [os.listdir(member.dbpath / "snapshots") for member in (primary, secondary)] == [[], []]


def written(acknowledged: list[int], count: int) -> bool:
    return len(acknowledged) >= count


@contextmanager
def writing(primary: LocalMember) -> Iterator[list[int]]:
    """Insert order after order, each with its bill, and list those that are acknowledged."""
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            number = len(acknowledged)
            insert(primary, number, w=1)
            run(primary, {"insert": "bills", "documents": [{"_id": number, "pad": "x" * 5_000}]})
            acknowledged.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def ids_in(dbpath: Path, ns: str) -> list[Any]:
    with closing(Store.open(RealDisk(), dbpath, StoreOptions(min_free_bytes=0))) as store, store.read() as snapshot:
        coll = store.collection(ns)
        return [] if coll is None else [decode(document)["_id"] for _, document in snapshot.scan(coll)]


def test_it_needs_the_role_where_users_log_in(tmp_path: Path) -> None:
    with running_set(tmp_path / "set") as local:
        member = local.add(next_ports(1)[0], flags=["--auth"])
        member.command({"replSetInitiate": {}})
        wait_until(lambda: member.command({"hello": 1}).get("isWritablePrimary"), 30, "the primary")
        root = {"createUser": "keeper", "pwd": "k", "roles": ["backup", "userAdminAnyDatabase"]}
        assert member.command(root)["ok"] == 1.0  # the first user, from this machine

        def program(user: str, *arguments: object) -> subprocess.CompletedProcess[str]:
            login = {"REPLSET_USER": user, "REPLSET_PASSWORD": "k"} if user else {}
            return run_program("replset.cli.main", *arguments, environment={**login, "REPLSET_HOST": member.host})

        done = program("keeper", "backup", tmp_path / "one")
        assert (done.returncode, done.stderr) == (0, "")
        stranger = program("", "backup", tmp_path / "two")
        assert (stranger.returncode, "401" in stranger.stderr) == (2, True), stranger.stderr
        assert not (tmp_path / "two").exists()
        restored = program("", "restore", tmp_path / "one", tmp_path / "data", "--new-set", "127.0.0.1:1")
        assert restored.returncode == 0, restored.stderr
        assert [path for path in (tmp_path / "data").rglob("*") if path.stat().st_mode & 0o077] == []
