"""Entries become change events: names, fields, scopes, and the order of tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from replset.bson import Binary, Int64, RawDocument, encode
from replset.errors import ErrorCode, ReplError
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import (
    OplogEntry,
    command_entry,
    delete_entry,
    extra_fields,
    insert_entry,
    noop_entry,
    operation_of,
    transaction_entry,
    update_entry,
)
from replset.oplog_row import OplogRow
from replset.query.change_events import (
    KEPT_OPERATIONS,
    ChangeEvent,
    EntryEvents,
    Watched,
    invalidate_document,
    update_description,
)
from replset.query.change_tokens import Kind, Token, behind, in_front_of
from replset.query.diff import apply_diff, compute_diff

UI = bytes(range(16))
AT = OpTime(3, pack_ts(1_700_000_000, 7))
ID = encode({"_id": 1})
DEPLOYMENT, DATABASE, COLLECTION = Watched(), Watched("shop"), Watched("shop", "items")


def insert(ns: str = "shop.items") -> bytes:
    return insert_entry(ns, UI, encode({"_id": 1, "a": 2}), AT, 5)


def command(o: dict[str, object], o2: dict[str, object] | None = None) -> OplogEntry:
    return OplogEntry(command_entry("shop", UI, o, AT, 5, o2=o2))


def events_of(entry: OplogEntry) -> list[ChangeEvent]:
    return list(EntryEvents(entry))


def only(entry: OplogEntry | bytes) -> ChangeEvent:
    (event,) = events_of(entry if isinstance(entry, OplogEntry) else OplogEntry(entry))
    return event


def plain(event: ChangeEvent, *, expanded: bool = False) -> dict[str, object]:
    return RawDocument(encode(event.document(expanded=expanded))).decode()


def test_an_insert_has_the_whole_document() -> None:
    shown = plain(only(insert()))
    assert list(shown) == ["_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey"]
    assert shown["operationType"] == "insert"
    assert shown["fullDocument"] == {"_id": 1, "a": 2}
    assert shown["ns"] == {"db": "shop", "coll": "items"}
    assert shown["documentKey"] == {"_id": 1}


def test_an_update_says_what_changed() -> None:
    o = encode({"$v": 2, "diff": {"d": {"a": False}, "u": {"b": 2}, "sc": {"i": {"1": 3}}, "sd": {"a": True, "l": 2}}})
    shown = plain(only(update_entry("shop.items", UI, ID, o, AT, 5)))
    assert shown["operationType"] == "update"
    assert shown["updateDescription"] == {
        "updatedFields": {"b": 2, "c.1": 3},
        "removedFields": ["a"],
        "truncatedArrays": [{"field": "d", "newSize": 2}],
    }
    assert "fullDocument" not in shown


def test_a_replacement_has_the_new_document() -> None:
    shown = plain(only(update_entry("shop.items", UI, ID, encode({"_id": 1, "b": 3}), AT, 5)))
    assert (shown["operationType"], shown["fullDocument"]) == ("replace", {"_id": 1, "b": 3})


def test_a_delete_names_the_key_alone() -> None:
    shown = plain(only(delete_entry("shop.items", UI, ID, AT, 5)))
    assert (shown["operationType"], shown["documentKey"]) == ("delete", {"_id": 1})
    assert "fullDocument" not in shown


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": {"0": 1}}, {"a": {"0": 2}}, {"a.0": ["a", "0"]}),
        ({"a": [{"1": 1, "x": "long enough"}]}, {"a": [{"1": 2, "x": "long enough"}]}, {"a.0.1": ["a", 0, "1"]}),
        ({"a": [1, 2, 3, 4, 5, 6]}, {"a": [1, 2, 3, 4, 5, 7]}, {}),
        ({"0": 1}, {"0": 2}, {}),
        ({"a.b": 1}, {"a.b": 2}, {"a.b": ["a.b"]}),
    ],
)
def test_paths_that_can_be_read_in_two_ways_are_told(
    before: dict[str, object], after: dict[str, object], expected: dict[str, object]
) -> None:
    before, after = ({"pad": "x" * 200, **document} for document in (before, after))
    diff = compute_diff(before, after)
    assert diff is not None
    assert apply_diff(before, diff) == after
    assert update_description(diff)["disambiguatedPaths"] == {
        path: names for path, names in expected.items() if path in update_description(diff)["updatedFields"]
    }


def test_a_transaction_gives_its_operations_in_order() -> None:
    operations = [
        operation_of(insert()),
        operation_of(update_entry("shop.items", UI, ID, encode({"_id": 1, "b": 1}), AT, 5)),
        operation_of(insert("other.items")),
    ]
    extra = extra_fields({"lsid": {"id": Binary(UI, 4)}, "txnNumber": Int64(9)})
    made = EntryEvents(OplogEntry(transaction_entry(operations, AT, 5, extra)))
    events = list(made)
    assert [event.operation_type for event in events] == ["insert", "replace", "insert"]
    assert [made.writes_before(event) for event in events] == [0, 1, 2]
    assert list(made.from_operation(1)) == events[1:]
    assert [event.token.operation for event in events] == [0, 1, 2]
    assert plain(events[1])["txnNumber"] == 9
    assert [DATABASE.tells(event, expanded=False) for event in events] == [True, True, False]


def test_writes_of_a_large_transaction_are_counted_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    count = KEPT_OPERATIONS + 10
    made = EntryEvents(OplogEntry(transaction_entry([operation_of(insert())] * count, AT, 5, extra_fields({}))))
    events = list(made)
    walked: list[int] = []
    read = OplogEntry.operation_at
    monkeypatch.setattr(
        OplogEntry, "operation_at", lambda self, start, end: (walked.append(start), read(self, start, end))[1]
    )
    assert made.must_count_writes
    assert [made.writes_before(event) for event in events] == list(range(count))
    assert len(walked) == count
    assert not made.must_count_writes


@pytest.mark.parametrize(
    ("entry", "name", "is_expanded"),
    [
        (command({"drop": "items"}), "drop", False),
        (command({"dropDatabase": 1}), "dropDatabase", False),
        (command({"renameCollection": "shop.items", "to": "shop.old"}), "rename", False),
        (command({"create": "items", "idIndex": {"v": 2}}), "create", True),
        (command({"createIndexes": "items", "v": 2, "key": {"a": 1}, "name": "a_1"}), "createIndexes", True),
        (command({"commitIndexBuild": "items", "indexes": [{"name": "a_1"}]}), "createIndexes", True),
        (command({"dropIndexes": "items", "index": "a_1"}, {"name": "a_1"}), "dropIndexes", True),
        (command({"collMod": "items", "validator": {}}, {"collectionOptions_old": {}}), "modify", True),
    ],
)
def test_commands_are_told(entry: OplogEntry, name: str, is_expanded: bool) -> None:
    event = only(entry)
    assert (event.operation_type, event.is_expanded) == (name, is_expanded)
    assert DATABASE.tells(event, expanded=True)
    assert DATABASE.tells(event, expanded=False) is not is_expanded
    assert ("operationDescription" in plain(event, expanded=True)) == (name not in ("drop", "dropDatabase"))


def test_what_no_client_did_is_not_told() -> None:
    assert events_of(OplogEntry(noop_entry({"msg": "periodic"}, AT, 5))) == []
    assert events_of(command({"startIndexBuild": "items"})) == []


@pytest.mark.parametrize("ns", ["admin.system.users", "config.transactions", "local.x", "shop.system.views", "shop"])
def test_internal_collections_are_never_told(ns: str) -> None:
    assert not any(scope.covers(ns) for scope in (DEPLOYMENT, DATABASE, Watched(*ns.split(".")[:1])))


def test_a_stream_ends_with_what_it_follows() -> None:
    drop, rename = only(command({"drop": "items"})), only(command({"renameCollection": "shop.a", "to": "shop.items"}))
    gone = only(command({"dropDatabase": 1}))
    assert COLLECTION.tells(drop, expanded=False)
    assert COLLECTION.ends_with(drop)
    assert not DATABASE.ends_with(drop)
    assert COLLECTION.tells(rename, expanded=False)
    assert COLLECTION.ends_with(rename)
    assert DATABASE.tells(gone, expanded=False)
    assert DATABASE.ends_with(gone)
    assert not COLLECTION.tells(gone, expanded=False)
    assert not DEPLOYMENT.ends_with(gone)
    token, document = invalidate_document(drop)
    assert token > drop.token
    assert document["operationType"] == "invalidate"


def test_rows_that_cannot_concern_a_stream_are_passed_over() -> None:
    def row(op: str, ns: str) -> OplogRow:
        return OplogRow(AT.ts, AT.term, op, ns, None, 5, 0, 0, b"")

    assert COLLECTION.may_concern(row("i", "shop.items"))
    assert not COLLECTION.may_concern(row("i", "shop.other"))
    assert not DEPLOYMENT.may_concern(row("n", ""))
    assert COLLECTION.may_concern(row("c", "admin.$cmd"))
    assert COLLECTION.may_concern(row("c", "shop.$cmd"))
    assert not COLLECTION.may_concern(row("c", "other.$cmd"))


# --- tokens -----------------------------------------------------------------------------------------------------


def test_tokens_are_ordered_as_values_and_as_text() -> None:
    later = OpTime(2, AT.ts + 1)  # terms do not decide: within a history time goes on
    tokens = [
        in_front_of(AT.ts),
        Token(AT.ts, 0, Kind.EVENT, 0, 3),
        Token(AT.ts, 0, Kind.EVENT, 1, 3),
        Token(AT.ts, 0, Kind.INVALIDATE, 0, 3),
        Token(AT.ts, 1, Kind.EVENT, 0, 3),
        behind(AT),
        in_front_of(later.ts, later.term),
        Token(later.ts, 0, Kind.EVENT, 0, 2),
    ]
    assert all(earlier < later for earlier, later in pairwise(tokens))
    assert all(str(earlier) < str(later) for earlier, later in pairwise(tokens))
    assert [Token.parse(str(token)) for token in tokens] == tokens
    assert str(tokens[1]).startswith("82" + f"{1_700_000_000:08X}" + f"{7:08X}")


@pytest.mark.parametrize("text", ["", "82", "8" * 47, "zz" * 24, "81" + "0" * 46, "82" + "F" * 46, 7, None, " " * 48])
def test_what_is_no_token_is_refused(text: object) -> None:
    with pytest.raises(ReplError, match="Bad resume token") as refusal:
        Token.parse(text)
    assert refusal.value.code == ErrorCode.INVALID_RESUME_TOKEN


def test_a_reader_goes_on_within_the_entry_of_its_token() -> None:
    assert Token(AT.ts, 1, Kind.EVENT, 0, 3).read_after.ts == AT.ts - 1
    assert in_front_of(AT.ts).read_after.ts == AT.ts - 1
    assert behind(AT).read_after == AT
