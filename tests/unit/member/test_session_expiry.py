"""Sessions that write nothing any more are forgotten by an entry; nothing else makes one end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.bson import Binary, Int64
from replset.features.transactions import session_expiry
from replset.features.transactions.session_expiry import SessionExpiry
from replset.ids import OPTIME_NULL, Millis
from replset.member.member import RunningMember
from replset.operations.session_request import session_id
from replset.replication.applier import apply_batch
from replset.storage.catalog import SESSIONS
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import undo_step
from tests.rig import Client, a_set

TIMEOUT_MS = Millis(30_000)


@pytest.fixture
def client() -> Iterator[Client]:
    with a_set() as rig:
        yield rig.client()


@pytest.fixture
def expiry(client: Client) -> SessionExpiry:
    return expiry_of(client, TIMEOUT_MS)


def expiry_of(client: Client, timeout_ms: Millis) -> SessionExpiry:
    """One more than the member has, with a timeout of the test's."""
    member = client.member
    return SessionExpiry(member.context, member.node, member._writer, client.dispatcher.sessions, timeout_ms)


def write(client: Client, session: int) -> bytes:
    """A retryable write; returns the key of its session."""
    lsid = {"id": Binary(bytes([session]) * 16, 4)}
    number = Int64(client.member.clock.now())
    client.ok({"insert": "c", "documents": [{}], "lsid": lsid, "txnNumber": number, "writeConcern": {"w": 1}})
    return session_id(bytes([session]) * 16)[0]


def known(member: RunningMember) -> int:
    return len(member.store.query(lambda connection: list(connection.execute(f"SELECT key FROM {SESSIONS.table}"))))


def forgotten(client: Client) -> list[list[object]]:
    """The sessions that each entry ends."""
    notes = [entry["o"] for entry in client.entries() if entry["op"] == "n"]
    return [[row["id"] for row in note["sessions"]] for note in notes if note["msg"] == "sessions expired"]


def pass_time(client: Client, expiry: SessionExpiry, ms: int) -> None:
    client.rig.wait(ms / 1000)
    expiry.take_note()
    client.rig.do(expiry.forget())


def test_a_session_that_writes_nothing_is_forgotten(client: Client, expiry: SessionExpiry, tmp_path: Path) -> None:
    write(client, 1)
    kept = write(client, 2)
    expiry.take_note()
    pass_time(client, expiry, TIMEOUT_MS - 100)
    assert known(client.member) == 2
    write(client, 2)
    before = client.member.store.last_applied
    client.rig.stop_disk()  # what is undone is not committed
    pass_time(client, expiry, 100)
    assert known(client.member) == 1
    assert client.member.store.get(SESSIONS, kept) is not None
    assert forgotten(client) == [[Binary(b"\1" * 16, 4)]]

    entries = [row.entry for row in client.member.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 20)]
    secondary = Store.open(RealDisk(), tmp_path / "s", StoreOptions(min_free_bytes=0))
    apply_batch(secondary, entries, 0, len(entries), lambda: False)
    assert len(secondary.query(lambda connection: list(connection.execute(f"SELECT key FROM {SESSIONS.table}")))) == 1
    secondary.close()

    undo_step(client.member.store, before, stem="x")
    assert known(client.member) == 2, "a rollback brings the session back"


def test_a_wall_clock_that_jumps_ends_no_session(client: Client, expiry: SessionExpiry) -> None:
    write(client, 1)
    expiry.take_note()
    client.rig.cluster.machines["a"].clock.jump(86_400_000)
    write(client, 2)
    pass_time(client, expiry, 1_000)
    assert known(client.member) == 2


def test_a_session_in_use_is_kept(client: Client, expiry: SessionExpiry) -> None:
    key = write(client, 1)
    expiry.take_note()
    client.rig.do(client.dispatcher.sessions.check_out(key, None))
    pass_time(client, expiry, TIMEOUT_MS)
    assert known(client.member) == 1
    client.dispatcher.sessions.check_in(key)
    pass_time(client, expiry, 0)
    assert known(client.member) == 0


def test_the_time_begins_anew_after_a_rollback(client: Client, expiry: SessionExpiry) -> None:
    write(client, 1)
    point = client.member.store.last_applied
    client.rig.stop_disk()
    write(client, 2)
    expiry.take_note()
    undo_step(client.member.store, point, stem="x")
    pass_time(client, expiry, TIMEOUT_MS)
    assert known(client.member) == 1
    pass_time(client, expiry, TIMEOUT_MS)
    assert known(client.member) == 0


def test_many_sessions_go_in_slices(client: Client, expiry: SessionExpiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_expiry, "SLICE", 3)
    for number in range(8):
        write(client, number)
    expiry.take_note()
    pass_time(client, expiry, TIMEOUT_MS)
    assert known(client.member) == 0
    assert [len(note) for note in forgotten(client)] == [3, 3, 2]


def test_large_records_go_in_slices_of_their_own(
    client: Client, expiry: SessionExpiry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_expiry, "SLICE_BYTES", 1000)
    client.ok({"insert": "c", "documents": [{"_id": 1, "x": "x" * 2000}]})
    for number in range(3):
        lsid = {"id": Binary(bytes([number]) * 16, 4)}
        change = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}}
        client.ok({**change, "lsid": lsid, "txnNumber": Int64(1)})
    expiry.take_note()
    pass_time(client, expiry, TIMEOUT_MS)
    assert known(client.member) == 0
    assert [len(note) for note in forgotten(client)] == [1, 1, 1]


def test_only_a_primary_forgets(client: Client) -> None:
    rig, write_key = client.rig, write(client, 1)
    rig.step_down(30)
    task = rig.begin(expiry_of(client, Millis(30)).run())
    rig.wait(10)
    assert client.member.store.get(SESSIONS, write_key) is not None
    rig.lead()
    rig.until(lambda: known(client.member) == 0)
    task.cancel()
