"""A set that follows another one: its entries, where it is, what it refuses, and where it may begin."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replset.bson import MAX_BSON_SIZE, MAX_ENTRY_SIZE, Binary, Int64, RawDocument, encode, encode_key
from replset.errors import BadValueError, ConsumerNotFoundError, ErrorCode, IllegalOperationError, ReplError
from replset.features.follower.follow_source import OwnHistory, SourceSet
from replset.features.follower.followed import (
    FollowMode,
    FollowProgress,
    FollowState,
    came_from,
    is_followed,
    own_entry,
    position_in,
    read_state,
    refuse_clients,
    save_state,
    source_optime,
)
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, extra_fields, insert_entry, noop_entry, transaction_entry
from replset.query.change_tokens import behind
from replset.replication.applier import apply_batch
from replset.replication.write_ops import WriteGroup, do_create, do_insert, do_noop, do_update
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions

UUID = bytes(range(16))
WALL = 1_790_000_000_000
NOW = pack_ts(WALL // 1000, 0)


def at(number: int, term: int = 3) -> OpTime:
    return OpTime(term, NOW + number)


def inserted(number: int, ns: str = "app.c", extra: bytes = b"") -> bytes:
    return insert_entry(ns, UUID, encode({"_id": number, "n": Int64(1)}), at(number), WALL, extra)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))


def group_of(store: Store, *operations: object) -> None:
    with store.group() as txn:
        group = WriteGroup(txn, 2, WALL, random.Random(1))
        for operation in operations:
            operation(group)


def follows(position: OpTime) -> FollowState:
    return FollowState(FollowMode.FOLLOWING, ("a:1", "b:1"), "site1", "follower-site2", position, at(1))


def place(store: Store, state: FollowState) -> OpTime:
    return store.query(lambda connection: position_in(connection, state)).position


def test_an_entry_keeps_everything_but_its_optime() -> None:
    session = extra_fields({"lsid": {"id": Binary(UUID, 4)}, "txnNumber": Int64(7), "stmtId": 0})
    raw = inserted(5, extra=session)
    own = own_entry(raw, OpTime(1, NOW + 99), "site1")
    view, before = RawDocument(own), RawDocument(raw)
    assert OplogEntry(own).optime == OpTime(1, NOW + 99)
    assert source_optime(own) == at(5)
    assert source_optime(raw) is None
    assert came_from(own, "site1")
    assert not came_from(own, "site2")
    assert not came_from(raw, "site1")
    assert view.get_raw("o") == before.get_raw("o")
    for name in ("op", "ns", "ui", "v", "wall", "lsid", "txnNumber", "stmtId"):
        assert view.get(name) == before.get(name)
    again = own_entry(own, OpTime(2, NOW + 200), "site2")
    assert source_optime(again) == OpTime(1, NOW + 99), "a follower of a follower follows that one"


def _update_of_size(store: Store, size: int) -> bytes:
    """The entry of an update whose document has 16 MiB, and which has `size` bytes by its `_id`."""
    document = encode({"_id": "", "b": "x" * (MAX_BSON_SIZE - 40)})

    def entry_of(id_bytes: int) -> bytes:
        key, before = encode_key("k" * id_bytes), encode({"_id": "k" * id_bytes})
        with store.group() as txn:
            group, mark = WriteGroup(txn, 2, WALL, random.Random(1)), txn.mark()
            coll = txn.catalog.by_ns.get("app.large") or do_create(group, "app.large")
            do_insert(group, coll, key, before)
            do_update(group, coll, key, before, document, document)
            (entry,) = txn.entries_since(mark)[-1:]
        return entry

    return entry_of(size - len(entry_of(1)) + 1)


def test_the_largest_entry_of_a_source_fits_with_what_a_follower_adds(store: Store, tmp_path: Path) -> None:
    largest = _update_of_size(store, MAX_ENTRY_SIZE)
    assert len(largest) == MAX_ENTRY_SIZE
    with pytest.raises(ReplError) as refused:
        _update_of_size(store, MAX_ENTRY_SIZE + 1)
    assert refused.value.code == ErrorCode.TRANSACTION_TOO_LARGE
    follower = Store.open(RealDisk(), tmp_path / "follower", StoreOptions(min_free_bytes=0))
    own = own_entry(largest, OpTime(1, follower.last_applied.ts + 1), "site1")
    assert apply_batch(follower, [own], 0, 1, lambda: False) == 1
    once_more = own_entry(own, OpTime(1, follower.last_applied.ts + 1), "site2")
    assert apply_batch(follower, [once_more], 0, 1, lambda: False) == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (inserted(1), True),
        (inserted(1, "config.consumers"), False),
        (inserted(1, "admin.system.users"), False),
        (noop_entry({"msg": "periodic noop"}, at(1), WALL), False),
        (command_entry("app", UUID, {"drop": "c"}, at(1), WALL), True),
        (command_entry("config", UUID, {"create": "consumers"}, at(1), WALL), False),
        (transaction_entry([inserted(1)], at(1), WALL, b""), True),
    ],
)
def test_clients_data_is_followed_and_nothing_else(raw: bytes, expected: bool) -> None:
    assert is_followed(OplogEntry(raw)) is expected


def test_where_it_is_follows_from_its_own_oplog(store: Store) -> None:
    state = follows(at(10))
    group_of(store, lambda group: save_state(group, state))
    assert read_state(store) == state
    assert place(store, state) == at(10)
    first = store.last_applied.ts + 1
    create = own_entry(command_entry("app", UUID, {"create": "c"}, at(11), WALL), OpTime(2, first), "site1")
    entries = [create, own_entry(inserted(12), OpTime(2, first + 1), "site1")]
    assert apply_batch(store, entries, 0, 2, lambda: False) == 2
    noop = noop_entry({"msg": "new primary"}, OpTime(2, first + 2), WALL)
    assert apply_batch(store, [noop], 0, 1, lambda: False) == 1
    assert place(store, state) == at(12)
    for _ in range(11):  # such as linearizable reads, while the source is gone
        group_of(store, *[lambda group: do_noop(group, {"msg": "note"})] * 1_000)
    assert place(store, state) == at(12), "however much this set writes itself"
    later = follows(at(20))
    group_of(store, lambda group: save_state(group, later))
    assert place(store, later) == at(20)


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, 3650 * 86_400_000])
def test_how_far_it_is_behind_is_measured_where_the_source_s_clock_is_ahead(ahead_ms: int) -> None:
    clock: Any = SimpleNamespace(wall_ms=lambda: WALL + 9_000, now=lambda: 7_000)
    progress = FollowProgress("site1", at(5), newest_wall_ms=WALL + ahead_ms, came_at=0)
    assert progress.lag_s(clock) == (7 if ahead_ms else 9)
    assert progress.document(clock)["lagSecs"] == progress.lag_s(clock)


@pytest.mark.parametrize(("mode", "refuses"), [("following", True), ("closed", True), ("stopped", False)])
def test_clients_write_nothing_while_it_follows_or_hands_over(store: Store, mode: str, refuses: bool) -> None:
    group_of(
        store,
        lambda group: do_create(group, "app.c"),
        lambda group: do_create(group, "config.consumers"),
        lambda group: save_state(group, FollowState(FollowMode(mode))),
    )
    with store.group() as txn:
        group, mark = WriteGroup(txn, 2, WALL, random.Random(1)), txn.mark()
        do_insert(group, txn.catalog.by_ns["config.consumers"], encode_key(1), encode({"_id": 1}))
        refuse_clients(txn, txn.entries_since(mark))
        do_insert(group, txn.catalog.by_ns["app.c"], encode_key(1), encode({"_id": 1}))
        if refuses:
            with pytest.raises(IllegalOperationError):
                refuse_clients(txn, txn.entries_since(mark))
        else:
            refuse_clients(txn, txn.entries_since(mark))


# --- where it may begin ---------------------------------------------------------------------------------------------


class Source(SourceSet):
    """A set that holds these entries and maybe a document of its own following."""

    def __init__(self, entries: list[bytes], state: FollowState | None = None) -> None:
        super().__init__(["a:1"], "site1")
        self.entries = entries
        self.state = state

    def find(self, ns: str, query: dict[str, object], limit: int, *, newest_first: bool = False) -> list[bytes]:
        if ns == "config.follow":
            return [] if self.state is None else [encode(self.state.document())]
        wanted = query.get("ts")
        return [raw for raw in self.entries if wanted is None or RawDocument(raw).get("ts") == wanted][:limit]


INITIATED = noop_entry({"msg": "initiating set"}, at(1), WALL)
ENTRIES = [INITIATED, *map(inserted, range(2, 8))]
ELECTED = noop_entry({"msg": "new primary"}, at(50, 4), WALL)


def start(source: Source, own: list[bytes], has_data: bool = True) -> OpTime:
    return source.find_start(OwnHistory("site2", own, has_data))


def test_it_begins_where_a_restored_backup_ends() -> None:
    assert start(Source(ENTRIES), [*ENTRIES[:4], ELECTED]) == at(4)


def test_an_empty_set_begins_at_the_beginning() -> None:
    own = noop_entry({"msg": "initiating set"}, at(70), WALL)
    assert start(Source(ENTRIES), [own], has_data=False) == at(1)
    with pytest.raises(BadValueError, match="begin with a backup"):
        start(Source(ENTRIES[1:]), [own], has_data=False)


def test_other_data_is_no_copy() -> None:
    with pytest.raises(BadValueError, match="own"):
        start(Source(ENTRIES), [*ENTRIES, inserted(60)])
    with pytest.raises(BadValueError, match="no copy"):
        start(Source(ENTRIES), [ELECTED])


def test_after_a_switch_over_the_old_site_begins_where_the_new_one_stopped() -> None:
    stopped = FollowState(FollowMode.STOPPED, ("a:1",), "site2", "follower-site1", at(5), at(90))
    assert start(Source([], stopped), [*ENTRIES[:5], ELECTED]) == at(90)
    with pytest.raises(BadValueError, match="2 entries or more are beyond that here"):
        start(Source([], stopped), ENTRIES)
    with pytest.raises(BadValueError, match="not its newest"):
        start(Source([], stopped), [ELECTED])


class Consumers(SourceSet):
    """A source where the consumer is at `place`, or where there is none."""

    def __init__(self, place: int | None) -> None:
        super().__init__(["a:1"], "site1")
        self.place = place
        self.asked: list[str] = []

    def command(self, document: dict[str, object], database: str = "admin") -> RawDocument:
        name = next(iter(document))
        self.asked.append(name)
        if name == "replSetConsumers" and self.place is None:
            raise ConsumerNotFoundError("no such consumer")
        known = {"generation": 1, "position": str(behind(at(self.place or 0)))}
        return RawDocument(encode({"ok": 1.0, "consumers": [known]}))


@pytest.mark.parametrize(
    ("step", "place", "then"),
    [
        ("acknowledge", 4, ["replSetConsumerAck"]),
        pytest.param("acknowledge", None, ["replSetConsumerCreate"], id="somebody-removed-it"),
        pytest.param("keep_from", None, ["replSetConsumerCreate"], id="it-begins"),
        pytest.param("keep_from", 4, [], id="it-goes-on"),
        pytest.param("keep_from", 6, ["replSetConsumerSeek"], id="it-begins-again-with-an-older-copy"),
    ],
)
def test_a_source_keeps_what_the_follower_lacks(step: str, place: int | None, then: list[str]) -> None:
    source = Consumers(place)
    getattr(source, step)("c", at(5))
    assert source.asked == ["replSetConsumers", *then]


def test_the_end_of_the_process_does_not_wait_for_a_source_that_does_not_answer() -> None:
    forever = threading.Event()

    async def main() -> None:
        asked = asyncio.ensure_future(Source(ENTRIES).run(forever.wait))
        await asyncio.sleep(0)
        asked.cancel()

    runs = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    runs.start()
    runs.join(5)
    assert not runs.is_alive()
    forever.set()
