"""Entries applied once, twice and again in suffixes; groups that are all or nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from replset.bson import DateTime, Int64, Timestamp, encode
from replset.errors import CannotApplyError, RemoteProtocolError
from replset.features.scrub.corrections import written_after
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import (
    OplogEntry,
    command_entry,
    delete_entry,
    insert_entry,
    noop_entry,
    operation_of,
    transaction_entry,
    update_entry,
)
from replset.oplog_row import chain_after
from replset.replication.applier import (
    _CHECK_TIME_EVERY,
    LargeUpdateError,
    apply_batch,
    apply_effect,
    apply_entry,
    document_key,
    evaluate_large,
)
from tests.unit.replication.kit import NS, Member, Pair, copy_log, key_of, numbered, pair, undo_to


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    return pair(tmp_path)


def write_everything(source: Member) -> None:
    source.create(NS)
    source.insert(NS, *numbered(range(8)))
    source.replace(NS, {"_id": 1, "text": "new"})
    source.change(NS, 2, {"u": {"text": "x"}, "d": {"n": False}})
    source.change(NS, 2, {"i": {"late": 1, "n": 7}})
    source.delete(NS, 3)
    source.insert(NS, {"_id": 3, "again": True})
    source.delete(NS, 4)
    source.create("app.gone")
    source.insert("app.gone", {"_id": 1})
    source.drop("app.gone")
    source.create("app.gone")
    source.insert("app.gone", {"_id": 2})
    source.create("tmp.a")
    source.insert("tmp.a", {"_id": 1})
    source.drop_database("tmp")
    source.create("tmp.b")
    source.insert("tmp.b", {"_id": 1})
    source.create("app.new")
    source.insert("app.new", {"_id": 1})
    source.rename("app.new", "app.old")
    source.coll_mod("app.old", {"validator": {"a": 1}, "validationLevel": "off"})
    source.rename("app.old", "app.gone", drop_target=True)
    source.create("app.new")
    source.insert("app.new", {"_id": 3})
    source.coll_mod("app.gone", {"validator": {}, "validationAction": "warn"})
    source.noop()


def apply_all(member: Member, entries: Sequence[bytes]) -> None:
    done = 0
    while done < len(entries):
        done += apply_batch(member.store, entries, done, len(entries), lambda: False)


def test_every_operation_arrives_byte_for_byte(source: Member, mine: Member) -> None:
    write_everything(source)
    apply_all(mine, source.oplog())
    assert mine.everything() == source.everything()
    assert mine.oplog() == source.oplog()
    assert (mine.store.last_applied, mine.store.chain) == (source.store.last_applied, source.store.chain)
    rows = mine.store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30)
    assert {row.key for row in rows if row.op in "iud"} >= {key_of(1), key_of(2), key_of(3)}
    assert all(row.key is None for row in rows if row.op in "cn")


def test_an_entry_that_is_there_already_changes_nothing(source: Member, mine: Member) -> None:
    write_everything(source)
    copy_log(source, mine)
    everything, chain = mine.everything(), mine.store.chain
    apply_all(mine, source.oplog())
    with mine.store.group() as txn:
        assert apply_entry(txn, OplogEntry(source.oplog()[3])) is False
    assert mine.everything() == everything
    assert mine.store.chain == chain
    assert mine.oplog() == source.oplog()


@pytest.mark.parametrize("start", range(0, 36, 2))
def test_any_suffix_again_gives_the_same_state(source: Member, mine: Member, start: int) -> None:
    write_everything(source)
    copy_log(source, mine)
    everything = mine.everything()
    effects_again(mine, source.oplog()[start:])
    assert mine.everything() == everything


def test_a_rename_of_what_a_later_entry_dropped_changes_nothing(mine: Member) -> None:
    """As a replay meets it, which begins with the rename."""
    mine.create("app.first")
    mine.rename("app.first", "app.second")
    mine.drop("app.second")
    everything = mine.everything()
    effects_again(mine, mine.oplog()[-2:])
    assert mine.everything() == everything


def effects_again(mine: Member, entries: Sequence[bytes]) -> None:
    """The effects alone, as a replay does, each in a group of its own behind the newest entry."""
    for raw in entries:
        with mine.store.group() as txn:
            optime = OpTime(mine.store.last_applied.term, mine.store.last_applied.ts + 1)
            apply_effect(txn, OplogEntry(raw), optime.ts)
            txn.append(noop_entry({"msg": "again"}, optime, 1), optime, op="n", ns="", wall_ms=1)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(12))
def test_random_histories_are_idempotent(source: Member, mine: Member, seed: int) -> None:
    rng = random.Random(seed)
    source.create(NS)
    for _ in range(60):
        known = source.documents(NS)
        key = rng.randrange(5)
        if key not in known:
            source.insert(NS, {"_id": key, "filler": "x" * 200})
        elif rng.random() < 0.15:
            source.delete(NS, key)
        else:
            source.update(NS, changed(known[key], rng))
    copy_log(source, mine)
    assert mine.everything() == source.everything()
    log = source.oplog()
    assert any(b"diff" in raw for raw in log)
    for _ in range(6):
        effects_again(mine, log[rng.randrange(len(log)) :])
        assert mine.everything() == source.everything()


def changed(document: dict[str, object], rng: random.Random) -> dict[str, object]:
    """Fields set, removed, moved; arrays grown and cut; documents in documents."""
    after = dict(document)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice("abcd")
        value = after.get(name)
        match rng.randrange(6):
            case 0:
                after.pop(name, None)
            case 1:
                after[name] = rng.randrange(9)
            case 2:
                after[name] = [rng.randrange(9) for _ in range(rng.randrange(6))]
            case 3 if isinstance(value, list):
                after[name] = [*value[: rng.randrange(len(value) + 1)], {"in": rng.randrange(3)}]
            case 4 if isinstance(value, dict):
                after[name] = changed(value, rng)
            case _:
                after[name] = {rng.choice("abcd"): rng.randrange(9), "long": "y" * 60}
    return after


def entry(make_o: object, number: int, op: str = "i") -> bytes:
    """An entry that no builder makes."""
    fields = {"op": op, "ns": NS, "o": make_o, "ts": Timestamp(100, number), "t": Int64(1), "v": Int64(2)}
    return encode({**fields, "wall": DateTime(5)})


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(entry({"_id": 1}, 2, "x"), id="unknown-op"),
        pytest.param(entry({"a": 1}, 2), id="no-id"),
        pytest.param(entry({"_id": 1}, 2, "u"), id="update-without-o2"),
        pytest.param(entry({"nonsense": "x"}, 2, "c"), id="unknown-command"),
        pytest.param(entry({"create": "x"}, 2, "c"), id="create-without-uuid"),
        pytest.param(entry({"_id": 1, "big": "x" * (17 << 20)}, 2), id="too-large"),
        pytest.param(encode({"op": "i"}), id="no-entry"),
        pytest.param(encode({"a": 1})[:-1], id="no-bson"),
    ],
)
def test_a_bad_entry_fails_its_group_whole(mine: Member, bad: bytes) -> None:
    good = noop_entry({"msg": "x"}, OpTime(1, pack_ts(100, 1)), 5)
    with pytest.raises(RemoteProtocolError):
        apply_batch(mine.store, [good, bad], 0, 2, lambda: False)
    assert mine.store.last_applied == OPTIME_NULL
    assert mine.oplog() == []
    assert apply_batch(mine.store, [good], 0, 1, lambda: False) == 1


def test_groups_are_bounded_by_count_bytes_and_time(mine: Member) -> None:
    uuid = bytes(range(16))
    entries = [command_entry("app", uuid, {"create": "orders"}, OpTime(1, pack_ts(100, 1)), 5)]
    entries += [insert_entry(NS, uuid, encode({"_id": n}), OpTime(1, pack_ts(100, n)), 5) for n in range(2, 1_102)]
    assert apply_batch(mine.store, entries, 0, len(entries), lambda: False) == 500
    assert apply_batch(mine.store, entries, 500, len(entries), lambda: True) == 100
    assert apply_batch(mine.store, entries, 600, 604, lambda: False) == 4
    large = [
        insert_entry(NS, uuid, encode({"_id": -n, "x": b"x" * 400_000}), OpTime(1, pack_ts(200, n)), 5)
        for n in range(5)
    ]
    assert apply_batch(mine.store, large, 0, 5, lambda: False) == 3
    assert len(mine.documents(NS)) == 603 + 3
    deletes = [delete_entry(NS, uuid, encode({"_id": n}), OpTime(1, pack_ts(300, n)), 5) for n in range(2, 402)]
    each = _CHECK_TIME_EVERY
    assert apply_batch(mine.store, deletes, 0, 400, lambda: True) == each, "to look at the clock costs, too"
    assert apply_batch(mine.store, deletes, each, 400, iter([False, True]).__next__) == 2 * each


@pytest.mark.parametrize("options", [{}, {"capped": True, "size": 1 << 20}], ids=["plain", "capped"])
def test_a_run_of_inserts_goes_on_behind_documents_that_are_there(
    source: Member, mine: Member, options: dict[str, object]
) -> None:
    source.create(NS, **options)
    source.insert(NS, *numbered(range(20)))
    entries = source.oplog()
    copy_log(source, mine)
    uuid = OplogEntry(entries[0]).ui or b""
    at = mine.store.last_applied.ts
    again = [40, 41, 3, 30, 31, 4, 4, 32, 33, 5]
    entries = [
        insert_entry(NS, uuid, encode({"_id": number, "again": True}), OpTime(1, at + n), 5)
        for n, number in enumerate(again, 1)
    ]
    chain = chain_after(entries, mine.store.chain)
    before = mine.everything()
    assert apply_batch(mine.store, entries, 0, len(entries), lambda: False) == len(entries)
    assert {number for number, doc in mine.documents(NS).items() if "again" in doc} == set(again)
    assert (mine.store.chain, mine.oplog()[-len(entries) :]) == (chain, entries)
    undo_to(mine, OpTime(1, at), limit=1)
    assert mine.everything() == before


@pytest.mark.parametrize("diff", [{"u": {"a": 1}, "i": {"a": 2}}, {"x": 5}])
def test_a_bad_diff_is_the_sources_fault(source: Member, mine: Member, diff: dict[str, object]) -> None:
    source.create(NS)
    source.insert(NS, {"_id": 1})
    copy_log(source, mine)
    uuid = source.store.collection(NS)
    at = OpTime(1, mine.store.last_applied.ts + 1)
    bad = update_entry(NS, uuid.uuid, encode({"_id": 1}), encode({"$v": 2, "diff": diff}), at, 5)
    with pytest.raises(RemoteProtocolError):
        apply_batch(mine.store, [bad], 0, 1, lambda: False)
    assert mine.documents(NS) == {1: {"_id": 1}}


def test_a_replacement_that_looks_like_a_diff_is_told_by_its_version(source: Member, mine: Member) -> None:
    source.create(NS)
    source.insert(NS, {"_id": 1})
    source.replace(NS, {"_id": 1, "$v": 7, "diff": {"u": {"a": 1}}})
    copy_log(source, mine)
    assert mine.documents(NS) == {1: {"_id": 1, "$v": 7, "diff": {"u": {"a": 1}}}}


def index_entry(member: Member, name: str, o: dict[str, object]) -> bytes:
    coll = member.store.collection(NS)
    newest = member.store.last_applied
    return command_entry("app", coll.uuid, {name: "orders", **o}, OpTime(1, newest.ts + 1), 5)


def test_an_index_that_was_made_empty_holds_what_is_here(source: Member, mine: Member) -> None:
    """The set had no document then. A disk brought one back here, or a later part of the oplog was applied before."""
    source.create(NS)
    copy_log(source, mine)
    coll = mine.store.collection(NS)
    with mine.store.maintenance() as txn:
        txn.connection.execute(coll.sql_insert, (key_of(1), encode({"_id": 1, "a": [5, 6]})))
    made = index_entry(source, "createIndexes", {"v": 2, "key": {"a": 1}, "name": "a_1"})
    source.apply(made)
    source.insert(NS, {"_id": 2, "a": 7})
    copy_log(source, mine)
    index = mine.store._catalog.by_uuid[coll.uuid].indexes[0]
    assert index.ready
    assert index.multikey
    with mine.store.read() as snapshot:
        assert [key for _, key in snapshot.index_scan(index, b"", None, limit=9)] == [key_of(1), key_of(1), key_of(2)]
    again = index_entry(mine, "dropIndexes", {"index": "a_1"})
    mine.apply(again)
    mine.apply(index_entry(mine, "createIndexes", {"v": 2, "key": {"a": 1}, "name": "a_1"}))
    assert len(mine.store._catalog.by_uuid[coll.uuid].indexes) == 1


@pytest.mark.parametrize("what", ["bytes of a document", "a table", "a row of the undo"])
def test_an_entry_that_does_not_fit_this_disk_is_this_members_fault(source: Member, mine: Member, what: str) -> None:
    """Its error ends nothing, since it would come again at each start."""
    source.create(NS)
    source.insert(NS, {"_id": 1, "a": {"b": 1}})
    copy_log(source, mine)
    source.change(NS, 1, {"sa": {"u": {"b": 2}}})
    coll, before = mine.store.collection(NS), mine.store.last_applied
    entry = source.oplog()[-1]
    with mine.store.maintenance() as txn:
        if what == "bytes of a document":
            txn.connection.execute(coll.sql_update, (b"\x07 no document", key_of(1)))
        elif what == "a table":
            txn.connection.execute(f"DROP TABLE {coll.table}")
        else:
            ts = OplogEntry(entry).optime.ts
            txn.connection.execute("INSERT INTO undo (ts, seq, kind) VALUES (?, 0, 'doc')", (ts,))
    with pytest.raises(CannotApplyError, match="does not fit what is on this member's disk"):
        apply_batch(mine.store, [entry], 0, 1, lambda: False)
    assert mine.store.last_applied == before


def test_an_update_of_what_is_not_there_is_passed_over(source: Member, mine: Member) -> None:
    source.create(NS)
    source.insert(NS, {"_id": 1})
    source.change(NS, 1, {"i": {"a": 1}})
    source.delete(NS, 1)
    log = source.oplog()
    with mine.store.group() as txn:
        apply_entry(txn, OplogEntry(log[0]))
        apply_entry(txn, OplogEntry(log[2]))
        apply_entry(txn, OplogEntry(log[3]))
    assert mine.documents(NS) == {}


@pytest.mark.parametrize(
    "document",
    [{"_id": 1, "a": 2}, {"a": 2, "_id": 1}, {"a": {"_id": 5}, "b": [1], "_id": "x"}, {"_id": {"a": 1}}, {"_id": None}],
)
def test_document_key_finds_the_id_anywhere(document: dict[str, object]) -> None:
    assert document_key(encode(document)) == key_of(document["_id"])


def transaction_of(mine: Member, large: str = "", behind: int = 1) -> bytes:
    """A transaction on two collections, so far behind the newest entry."""
    a, b = (mine.store.collection(ns) for ns in (NS, "app.other"))
    at = OpTime(1, mine.store.last_applied.ts + behind)
    entries = [
        insert_entry(NS, a.uuid, encode({"_id": 9, "n": 1}), at, 1_000),
        update_entry(NS, a.uuid, encode({"_id": 9}), encode({"$v": 2, "diff": {"u": {"n": 2}}}), at, 1_000),
        update_entry(NS, a.uuid, encode({"_id": 1}), encode({"$v": 2, "diff": {"u": {"text": large}}}), at, 1_000),
        update_entry(NS, a.uuid, encode({"_id": 2}), encode({"$v": 2, "diff": {"u": {"text": large}}}), at, 1_000),
        delete_entry("app.other", b.uuid, encode({"_id": 1}), at, 1_000),
    ]
    return transaction_entry([operation_of(entry) for entry in entries], at, 1_000, b"")


@pytest.fixture
def two_collections(members: Pair) -> Member:
    mine = members[1]
    for ns in (NS, "app.other"):
        mine.create(ns)
        mine.insert(ns, *numbered(range(4)))
    return mine


def test_which_documents_were_written_since_is_told_by_each_kind_of_entry(two_collections: Member) -> None:
    """A repair must not take away what was written after the comparison."""
    mine, at = two_collections, two_collections.store.last_applied.ts

    def written() -> set[bytes] | None:
        return mine.do(lambda group: written_after(group.txn, NS, at))

    assert written() == set()
    mine.insert("app.other", {"_id": 7})
    mine.insert(NS, {"_id": 8})
    assert written() == {key_of(8)}
    apply_all(mine, [transaction_of(mine, "new")])
    assert written() == {key_of(n) for n in (1, 2, 8, 9)}
    mine.create("app.third")
    assert written() is None, "a command may be about any collection"


def test_a_transaction_is_applied_and_undone_as_a_whole(two_collections: Member) -> None:
    mine = two_collections
    before, at = mine.everything(), mine.store.last_applied
    apply_all(mine, [transaction_of(mine, "new")])
    assert mine.documents(NS)[9] == {"_id": 9, "n": 2}
    assert [mine.documents(NS)[key]["text"] for key in (1, 2)] == ["new", "new"]
    assert 1 not in mine.documents("app.other")
    after = mine.everything()
    effects_again(mine, mine.oplog()[-1:])
    assert mine.everything() == after
    undo_to(mine, at, limit=1)
    assert mine.everything() == before


def test_large_updates_of_one_transaction_are_computed_before_any_of_it_is_applied(two_collections: Member) -> None:
    mine = two_collections
    noop = noop_entry({"msg": "before it"}, OpTime(1, mine.store.last_applied.ts + 1), 1_000)
    before, raw = mine.everything(), transaction_of(mine, "x" * 40_000, behind=2)
    assert apply_batch(mine.store, [noop, raw], 0, 2, lambda: False) == 1
    assert mine.everything() == before
    with pytest.raises(LargeUpdateError) as raised:
        apply_batch(mine.store, [raw], 0, 1, lambda: False)
    assert mine.everything() == before
    evaluated = evaluate_large(mine.store, raised.value)
    assert apply_batch(mine.store, [raw], 0, 1, lambda: False, evaluated) == 1
    assert len(mine.documents(NS)[2]["text"]) == 40_000


def test_a_chain_of_large_updates_is_computed_at_once(two_collections: Member) -> None:
    mine = two_collections
    mine.insert(NS, {"_id": "large", "text": "x" * 40_000, "n": 0})
    coll, at = mine.store.collection(NS), OpTime(1, mine.store.last_applied.ts + 1)
    new = encode({"_id": "new", "text": "y" * 40_000, "n": 0})
    operations = [insert_entry(NS, coll.uuid, new, at, 1_000)]
    for number in range(50):
        o = encode({"$v": 2, "diff": {"u": {"n": number}}})
        operations += [update_entry(NS, coll.uuid, encode({"_id": _id}), o, at, 1_000) for _id in ("large", "new")]
    operations.append(delete_entry(NS, coll.uuid, encode({"_id": "new"}), at, 1_000))
    operations.append(update_entry(NS, coll.uuid, encode({"_id": "new"}), o, at, 1_000))
    raw = transaction_entry([operation_of(entry) for entry in operations], at, 1_000, b"")
    with pytest.raises(LargeUpdateError) as raised:
        apply_batch(mine.store, [raw], 0, 1, lambda: False)
    evaluated = evaluate_large(mine.store, raised.value)
    assert apply_batch(mine.store, [raw], 0, 1, lambda: False, evaluated) == 1
    assert mine.documents(NS)["large"]["n"] == 49
    assert "new" not in mine.documents(NS)
