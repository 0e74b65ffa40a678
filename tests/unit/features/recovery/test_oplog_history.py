"""What a document was, told by the entries about it: in every form that mongod's oplog has or had."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from replset.bson import Binary, decode, encode, encode_key
from replset.features.recovery.oplog_history import OplogHistory, ends_of_terms
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, insert_entry, update_entry

NS, UI, AT = "shop.orders", bytes(16), OpTime(1, 1)
KEY = NS, encode_key(1)
ONE = encode({"_id": 1})


def insert(**fields: object) -> bytes:
    return insert_entry(NS, UI, encode({"_id": 1, **fields}), AT, 0)


def update(o: dict[str, Any]) -> bytes:
    return update_entry(NS, UI, ONE, encode(o), AT, 0)


def command(o: dict[str, Any], database: str = "shop") -> bytes:
    return command_entry(database, UI, o, AT, 0)


def transaction(o: dict[str, Any], **more: object) -> bytes:
    row = {"op": "u", "ns": NS, "ui": Binary(UI, 4), "o": o, "o2": {"_id": 1}}
    return command({"applyOps": [row], **more}, "admin")


DELETE = delete_entry(NS, UI, ONE, AT, 0)
OTHER = insert_entry(NS, UI, encode({"_id": 2}), AT, 0)
DIFF = {"$v": 2, "diff": {"u": {"a": 2}}}
FORMS: dict[str, tuple[list[bytes], Any]] = {
    "nothing": ([], "unknown"),
    "another document": ([OTHER], "unknown"),
    "an insert": ([insert(a=1), OTHER], {"a": 1}),
    "a replacement": ([update({"_id": 1, "a": 5})], {"a": 5}),
    "a difference": ([insert(a=1, b=1), update(DIFF)], {"a": 2, "b": 1}),
    "a difference of what is not known": ([update(DIFF)], "unknown"),
    "a difference of another form": ([insert(a=1), update({"$v": 2, "diff": {"zz": {"a": 2}}})], "unknown"),
    "operators, before 5.0": ([insert(a=1), update({"$v": 1, "$set": {"a": 2}})], "unknown"),
    "operators, before 3.6": ([insert(a=1), update({"$set": {"a": 2}})], "unknown"),
    "and a replacement behind them": ([update({"$set": {"a": 2}}), update({"_id": 1, "a": 3})], {"a": 3}),
    "a delete": ([insert(a=1), DELETE], None),
    "a delete and an insert": ([DELETE, insert(a=1)], {"a": 1}),
    "a drop": ([insert(a=1), command({"drop": "orders"})], None),
    "a drop of another collection": ([insert(a=1), command({"drop": "parts"})], {"a": 1}),
    "a drop in another database": ([insert(a=1), command({"drop": "orders"}, "other")], {"a": 1}),
    "renamed away": ([insert(a=1), command({"renameCollection": NS, "to": "shop.old"})], "unknown"),
    "renamed to it": ([insert(a=1), command({"renameCollection": "shop.new", "to": NS})], "unknown"),
    "another command": ([insert(a=1), command({"create": "orders"})], {"a": 1}),
    "a transaction": ([insert(a=1, b=1), transaction(DIFF)], {"a": 2, "b": 1}),
    "a transaction in several entries": ([insert(a=1, b=1), transaction(DIFF, partialTxn=True)], {"a": 2, "b": 1}),
    "a prepared one": ([insert(a=1), transaction(DIFF, prepare=True)], "unknown"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at_once", [True, False])
def test_every_form(form: str, at_once: bool) -> None:
    entries, expected = FORMS[form]
    history = OplogHistory(frozenset({KEY}))
    if at_once:
        history.add_before(map(OplogEntry, entries))
    else:
        for entry in reversed(entries):
            history.add_before([OplogEntry(entry)])
    found = history.versions()
    if expected == "unknown":
        assert found == {}
    else:
        assert found.keys() == {KEY}
        assert (None if (raw := found[KEY]) is None else decode(raw)) == (expected and {"_id": 1, **expected})


@pytest.mark.parametrize("seed", range(30))
def test_where_terms_end(seed: int) -> None:
    random = Random(seed)
    term, ts, log = 1, 0, list[OpTime]()
    for _ in range(random.randrange(40)):
        term, ts = term + (random.random() < 0.2), ts + random.choice([1, 2, 1 << 31, 7 << 35])
        log.append(OpTime(term, ts))
    since, until = random.randrange(ts // 2 + 1), ts + random.choice([0, 1, -(ts // 3)])
    asked: list[int] = []

    def at_or_after(wanted: int) -> OpTime | None:
        asked.append(wanted)
        return next((entry for entry in log if entry.ts >= wanted), None)

    expected = [
        entry
        for entry, following in pairwise(log)
        if entry.term < following.term and entry.ts >= since and following.ts <= until
    ]
    assert list(ends_of_terms(at_or_after, since, until)) == expected
    assert len(asked) <= 70 * (len(expected) + 1)


def test_it_is_complete_once_no_older_entry_matters() -> None:
    history = OplogHistory(frozenset({KEY, (NS, encode_key(2))}))
    assert history.namespaces == ["admin.$cmd", "shop.$cmd", NS]
    history.add_before(map(OplogEntry, [update(DIFF), OTHER]))
    assert not history.is_complete
    history.add_before(map(OplogEntry, [insert(a=1), OTHER]))
    assert history.is_complete
