"""verification: sound oplogs are clean, each planted fault is found as what it is, however the oplog is cut up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Binary, Int64, decode, encode, encode_key
from replset.oplog_entry import insert_entry, noop_entry
from replset.oplog_row import OplogRow, entry_hash, next_chain
from spark.members import open_members
from spark.oplog import Oplog, Span
from spark.reports.verify.check import COUNTS, FAULT_COLUMNS, Verification, WantedDocuments, verification
from spark.runners import LocalRunner
from tests.examples import examples
from tests.spark.audit_kit import NS, UUID, Story, lives, resealed
from tests.spark.kit import ListOplog

COUNT, MIDDLE = 90, 30
CUTS = [1, 7, 250_000]
SOUND = lives(COUNT).rows()
Found = list[tuple[int, str, str]]


def first(op: str, after: int = MIDDLE) -> int:
    return next(at for at in range(after, len(SOUND)) if SOUND[at].op == op)


INS, UPD, DEL, NOOP = map(first, "iudn")
DIFF = next(at for at in range(MIDDLE, COUNT) if SOUND[at].op == "u" and "diff" in decode(SOUND[at].entry)["o"])
Doc = dict[str, object]


def changed(at: int, **fields: object) -> list[OplogRow]:
    return [*SOUND[:at], SOUND[at]._replace(**fields), *SOUND[at + 1 :]]


def rewritten(at: int, entry: bytes, **columns: object) -> list[OplogRow]:
    """Another entry in its place, hash and chain as if it had always been there."""
    return resealed(changed(at, entry=entry, **columns), at)


def with_fields(at: int, **fields: object) -> list[OplogRow]:
    """The entry with these fields set, or removed where None."""
    entry = {**decode(SOUND[at].entry), **fields}
    return rewritten(at, encode({name: value for name, value in entry.items() if value is not None}))


def flipped(entry: bytes, bit: int | None = None) -> bytes:
    at, of = divmod(len(entry) * 4 if bit is None else bit % (len(entry) * 8), 8)
    return entry[:at] + bytes([entry[at] ^ (1 << of)]) + entry[at + 1 :]


def rechained(at: int) -> list[OplogRow]:
    """Another chain from row `at` on, right but for the one link."""
    rows = changed(at, chain=SOUND[at].chain ^ 1)
    for later in range(at + 1, len(rows)):
        rows[later] = rows[later]._replace(chain=next_chain(rows[later - 1].chain, rows[later].hash))
    return rows


def put_in(at: int) -> list[OplogRow]:
    """A no-op more before row `at`, sealed as if it followed from the one before; those behind it do not know of it."""
    before = SOUND[at - 1]
    optime = before.optime._replace(ts=before.ts + 1)
    assert optime.ts < SOUND[at].ts or not pytest.fail("no room there")
    row = before._replace(ts=optime.ts, op="n", ns="", key=None, entry=noop_entry({"msg": "x"}, optime, before.wall_ms))
    return [*resealed([*SOUND[:at], row], at), *SOUND[at:]]


def in_term(at: int, term: int) -> list[OplogRow]:
    return rewritten(at, encode({**decode(SOUND[at].entry), "t": Int64(term)}), term=term)


class Planted(NamedTuple):
    rows: Sequence[OplogRow]
    at: int
    """Of the row, in `rows`, that is to be named."""
    kind: str
    detail: str
    """Part of it."""


def behind(rows: Sequence[OplogRow], at: int) -> str:
    return str(rows[at - 1].optime)


LAST_OF_SECOND = next(at for at in range(MIDDLE, COUNT) if SOUND[at].ts >> 31 > SOUND[at - 1].ts >> 31)
OTHER = noop_entry({"msg": "other"}, SOUND[NOOP].optime, SOUND[NOOP].wall_ms)
PLANTED = {
    "bit-rot-insert": Planted(
        changed(INS, entry=flipped(SOUND[INS].entry)), INS, "hash", "do not give the stored hash"
    ),
    "nothing-left": Planted(changed(UPD, entry=b""), UPD, "hash", "do not give the stored hash"),
    "wrong-chain": Planted(rechained(DEL), DEL, "chain", f"does not follow from the chain of {behind(SOUND, DEL)}"),
    "wrong-chain-newest": Planted(changed(COUNT - 1, chain=0), COUNT - 1, "chain", behind(SOUND, COUNT - 1)),
    "entry-put-in": Planted(
        put_in(LAST_OF_SECOND), LAST_OF_SECOND + 1, "chain", f"{SOUND[LAST_OF_SECOND - 1].ts % (1 << 31) + 1}"
    ),
    "entry-replaced": Planted(
        [*rewritten(NOOP, OTHER)[: NOOP + 1], *SOUND[NOOP + 1 :]], NOOP + 1, "chain", behind(SOUND, NOOP + 1)
    ),
    "term-falls": Planted(in_term(COUNT - 1, 1), COUNT - 1, "order", f"comes after {behind(SOUND, COUNT - 1)}"),
    "op-unknown": Planted(with_fields(NOOP, op="x"), NOOP, "entry", "the op 'x' is not known"),
    "no-op": Planted(with_fields(NOOP, op=None), NOOP, "entry", "needs op, ns, ts and t"),
    "no-term": Planted(with_fields(INS, t=None), INS, "entry", "needs ts and t"),
    "no-v": Planted(with_fields(INS, v=None), INS, "entry", "v is None, not 2"),
    "no-ui": Planted(with_fields(DEL, ui=None), DEL, "entry", "no collection by ui"),
    "ui-of-another-type": Planted(with_fields(INS, ui=Binary(UUID, 3)), INS, "entry", "no collection by ui"),
    "no-o": Planted(with_fields(INS, o=None), INS, "entry", "needs the document o"),
    "no-o2": Planted(with_fields(UPD, o2=None), UPD, "entry", "needs the document o2"),
    "no-id": Planted(with_fields(INS, o={"a": 1}), INS, "entry", "o has no _id"),
    "wall-is-a-number": Planted(with_fields(INS, wall=5), INS, "entry", "wall is no date"),
    "ns-of-nothing": Planted(with_fields(INS, ns="shop."), INS, "entry", "names no collection"),
    "not-bson": Planted(rewritten(INS, b"\5\0\0\0\1"), INS, "entry", ""),
    "empty-command": Planted(with_fields(NOOP, op="c", o={}), NOOP, "entry", "holds no command"),
    "column-ts": Planted(changed(COUNT - 1, ts=SOUND[-1].ts + 1), COUNT - 1, "columns", "ts is "),
    "column-term": Planted(changed(COUNT - 1, term=9), COUNT - 1, "columns", "term is 9, in the entry 3"),
    "column-op": Planted(changed(DEL, op="i"), DEL, "columns", "op is 'i', in the entry 'd'"),
    "column-ns": Planted(changed(INS, ns="shop.else"), INS, "columns", "ns is 'shop.else', in the entry"),
    "column-key": Planted(changed(UPD, key=encode_key("no")), UPD, "columns", "key is 3c6e6f00, in the entry"),
    "column-key-null": Planted(changed(INS, key=None), INS, "columns", "key is None, in the entry"),
    "column-key-of-a-noop": Planted(changed(NOOP, key=b"\x14"), NOOP, "columns", "key is 14, in the entry None"),
    "malformed-diff": Planted(with_fields(DIFF, o={"$v": 2, "diff": {"x": {}}}), DIFF, "diff", "unknown section 'x'"),
    "diff-without-v": Planted(with_fields(DIFF, o={"$set": {"n": 1}}), DIFF, "diff", "neither a document nor"),
    "diff-of-the-id": Planted(with_fields(DIFF, o={"$v": 2, "diff": {"u": {"_id": 1}}}), DIFF, "diff", "changes _id"),
    "another-document": Planted(with_fields(DIFF, o={"_id": "no"}), DIFF, "diff", "another _id than o2"),
    "an-operation": Planted(with_fields(DIFF, o={"$inc": {"n": 1}}), DIFF, "idempotence", "an operation ($inc)"),
}


def found_in(verified: Verification[pa.Table], member: str = "a") -> Found:
    rows = verified.faults.to_pylist()
    return [(row["ts"], row["kind"], row["detail"]) for row in rows if row["member"] == member]


@pytest.fixture(scope="module", params=CUTS)
def planted(request: pytest.FixtureRequest) -> Verification[pa.Table]:
    """All of them at once, each a member."""
    oplogs = [ListOplog(name, plant.rows) for name, plant in PLANTED.items()]
    return verification(LocalRunner(), [*oplogs, ListOplog("sound", SOUND)], rows_per_task=request.param)


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(planted: Verification[pa.Table], name: str) -> None:
    rows, at, kind, detail = PLANTED[name]
    [(ts, found, said)] = found_in(planted, name)
    assert (ts, found) == (rows[at].ts, kind)
    assert detail in said


def test_a_sound_member_beside_them_is_clean(planted: Verification[pa.Table]) -> None:
    assert found_in(planted, "sound") == []
    updates = [row for row in SOUND if row.op == "u"]
    differences = [row for row in updates if "diff" in decode(row.entry)["o"]]
    documents = len({(row.ns, row.key) for row in differences})
    [checked] = [row for row in planted.checked.to_pylist() if row["member"] == "sound"]
    assert checked.pop("member") == "sound"
    counts = (COUNT, COUNT, COUNT, len(updates), documents, len(differences))
    assert checked == dict(zip(("entries", "hashes", "links", "updates", "documents", "applied"), counts, strict=True))


def test_a_fault_names_the_entry_and_its_document(planted: Verification[pa.Table]) -> None:
    assert planted.faults.column_names == list(FAULT_COLUMNS)
    [row] = [row for row in planted.faults.to_pylist() if row["member"] == "malformed-diff"]
    of = SOUND[DIFF]
    assert (row["term"], row["optime"], row["ns"], row["key"]) == (of.term, str(of.optime), of.ns, of.key)
    assert json.loads(row["id"]) == decode(of.entry)["o2"]["_id"]


# --- runs, order, what is not kept -----------------------------------------------------------------------------


MOVES_C: Doc = {"$v": 2, "diff": {"i": {"c": 1}}}
LOST: dict[str, Doc] = {
    "lost": {"msg": "periodic noop"},
    "in-a-transaction": {"applyOps": [{"op": "u", "ns": NS, "ui": Binary(UUID, 4), "o": MOVES_C, "o2": {"_id": 1}}]},
}


def moves_then_sets(instead: Doc | None = None) -> list[OplogRow]:
    """Document 1 gets `b`, then `c` behind it, then another `c`. instead: of the entry that puts `c` there, another.

    Without it `c` is absent at first and behind `b`, then there already, and `b` is moved behind it.
    """
    story = Story().initiated()
    story.insert({"_id": 1})
    story.update_with({"$v": 2, "diff": {"i": {"b": 1}}}, 1)
    if instead is None:
        story.update_with(MOVES_C, 1)
    elif "applyOps" in instead:
        story.command(instead)
    else:
        story.noop(instead)
    story.update_with({"$v": 2, "diff": {"u": {"c": 2}}}, 1)
    return story.rows()


@pytest.mark.parametrize("rows_per_task", CUTS)
def test_differences_that_do_not_fit_their_document(rows_per_task: int) -> None:
    rows = moves_then_sets(LOST["lost"])
    [(ts, kind, detail)] = found_in(verification(LocalRunner(), [ListOplog("a", rows)], rows_per_task=rows_per_task))
    assert (ts, kind) == (rows[-1].ts, "idempotence")
    assert detail == f"the document's entries from {rows[2].optime} on applied again give another document"
    assert found_in(verification(LocalRunner(), [ListOplog("a", moves_then_sets())], rows_per_task=rows_per_task)) == []


@pytest.mark.parametrize("rows_per_task", CUTS)
def test_the_order_of_fields_is_not_asked_of_a_document_that_is_not_all_there(rows_per_task: int) -> None:
    damaged = moves_then_sets()
    damaged[3] = damaged[3]._replace(entry=damaged[3].entry[:-3])
    oplogs = [
        ListOplog("damaged", damaged),
        ListOplog("in-a-transaction", moves_then_sets(LOST["in-a-transaction"])),
        ListOplog("trimmed", moves_then_sets(LOST["lost"])[2:]),
    ]
    found = verification(LocalRunner(), oplogs, rows_per_task=rows_per_task).faults.to_pylist()
    assert [(row["member"], row["ts"], row["kind"]) for row in found] == [("damaged", damaged[3].ts, "hash")]


@pytest.mark.parametrize("rows_per_task", CUTS)
def test_an_optime_that_stands_there_twice_or_falls(rows_per_task: int) -> None:
    twice = resealed([*SOUND[: NOOP + 1], *SOUND[NOOP:]])
    [(ts, kind, detail)] = found_in(verification(LocalRunner(), [ListOplog("a", twice)], rows_per_task=rows_per_task))
    assert (ts, kind, detail) == (SOUND[NOOP].ts, "order", f"it comes after {SOUND[NOOP].optime}")
    exchanged = resealed([*SOUND[:NOOP], SOUND[NOOP + 1], SOUND[NOOP], *SOUND[NOOP + 2 :]])
    found = found_in(verification(LocalRunner(), [ListOplog("a", exchanged)]))
    assert found == [(SOUND[NOOP].ts, "order", f"it comes after {SOUND[NOOP + 1].optime}")]


def test_the_head_of_an_oplog_has_nothing_before_it() -> None:
    capped = ListOplog("a", SOUND[MIDDLE:])
    assert found_in(verification(LocalRunner(), [capped], rows_per_task=7)) == []
    span = Span(SOUND[MIDDLE].ts, SOUND[-1].ts)
    [checked] = verification(LocalRunner(), [ListOplog("a", SOUND)], span=span, rows_per_task=7).checked.to_pylist()
    assert (checked["entries"], checked["links"]) == (COUNT - MIDDLE - 1, COUNT - MIDDLE - 2)
    initiating = changed(0, chain=SOUND[0].chain ^ 1)[:1]
    verified = verification(LocalRunner(), [ListOplog("a", initiating), ListOplog("empty", [])])
    assert [(row["member"], row["kind"]) for row in verified.faults.to_pylist()] == [("a", "chain")]
    assert [(row["member"], row["entries"]) for row in verified.checked.to_pylist()] == [("a", 1), ("empty", 0)]
    assert verified.checked.column_names == ["member", *COUNTS]


def dump(folder: Path, entries: Sequence[bytes]) -> list[Oplog]:
    path = folder / "oplog.bson"
    path.write_bytes(b"".join(entries))
    return open_members([str(path)])


def test_a_dump_keeps_no_hashes_so_all_its_bytes_are_looked_at(tmp_path: Path) -> None:
    entries = [row.entry for row in SOUND]
    verified = verification(LocalRunner(), dump(tmp_path, entries), rows_per_task=30)
    [checked] = verified.checked.to_pylist()
    assert (verified.faults.num_rows, checked["entries"]) == (0, COUNT)
    assert (checked["hashes"], checked["links"]) == (0, 0)
    broken = encode({"_id": 1, "text": "word"}).replace(b"word\0", b"w\xffrd\0")
    entries[INS] = insert_entry(SOUND[INS].ns, UUID, broken, SOUND[INS].optime, SOUND[INS].wall_ms)
    twice = [*entries[: NOOP + 1], *entries[NOOP:]]
    found = [(row["ts"], row["kind"]) for row in verification(LocalRunner(), dump(tmp_path, twice)).faults.to_pylist()]
    assert sorted(found) == sorted([(SOUND[INS].ts, "entry"), (SOUND[NOOP].ts, "order")])


def test_a_dump_of_entries_without_a_wall_is_sound(tmp_path: Path) -> None:
    """As MongoDB wrote them once; the column says the second of ts then, which no entry contradicts."""
    walls = [{name: value for name, value in decode(row.entry).items() if name != "wall"} for row in SOUND]
    assert verification(LocalRunner(), dump(tmp_path, [encode(entry) for entry in walls])).faults.num_rows == 0


# --- any number of faults, anywhere ----------------------------------------------------------------------------

LONG = lives(60, documents=3).rows()
KIND_OF = {"bits": "hash", "hash": "hash", "both": "hash", "ns": "columns", "wall": "columns", "v": "entry"}
DAMAGES = (*KIND_OF, "chain", "gone")


def damaged(random: Random, share: int, kinds: Sequence[str]) -> tuple[list[OplogRow], list[tuple[int, str]]]:
    """LONG with `share` % of its rows damaged; and what is wrong now, told from what was done, not from the result."""
    rows: list[OplogRow] = []
    found: list[tuple[int, str]] = []
    is_followed = True
    for row in LONG:
        what = random.choice(kinds) if random.randrange(100) < share else "sound"
        ts, now = row.ts, row
        match what:
            case "gone":
                is_followed = False
                continue
            case "bits":
                now = row._replace(entry=flipped(row.entry, random.randrange(1 << 20)))
            case "hash":
                now = row._replace(hash=row.hash ^ (1 << random.randrange(63)))
            case "both":
                now = row._replace(hash=row.hash ^ 1, entry=row.entry[: random.randrange(len(row.entry))])
            case "chain":
                now = row._replace(chain=row.chain ^ (1 << random.randrange(63)))
            case "ns":
                now = row._replace(ns=row.ns + "x")
            case "wall":
                now = row._replace(wall_ms=row.wall_ms + 1)
            case "v":
                entry = encode({**decode(row.entry), "v": 1})
                now = row._replace(entry=entry, hash=entry_hash(entry))
        if what in KIND_OF:
            found.append((ts, KIND_OF[what]))
        # A link holds while neither chain was touched, nothing between went away, and the hash or the bytes are right.
        # The oldest row has one only if it can be read to be the one that initiated the set.
        has_link = bool(rows) or (is_followed and what not in ("bits", "both"))
        if has_link and (not is_followed or what in ("chain", "both", "v")):
            found.append((ts, "chain"))
        is_followed = what != "chain"
        rows.append(now)
    return rows, sorted(found)


@given(
    st.integers(0, 1 << 32),
    st.integers(0, 100),
    st.lists(st.sampled_from(DAMAGES), min_size=1, unique=True),
    st.integers(1, 70),
    st.integers(1, 70),
)
@examples(60)
def test_any_number_of_damaged_entries_are_found(
    seed: int, share: int, kinds: list[str], rows_per_task: int, batch_rows: int
) -> None:
    rows, expected = damaged(Random(seed), share, kinds)
    found = found_in(verification(LocalRunner(), [ListOplog("a", rows, batch_rows)], rows_per_task=rows_per_task))
    assert sorted((ts, kind) for ts, kind, _ in found if kind != "idempotence") == expected
    assert "gone" in kinds or "idempotence" not in {kind for _, kind, _ in found}
    assert found == found_in(verification(LocalRunner(), [ListOplog("a", rows)]))


def test_looking_up_documents_costs_the_same_however_many_were_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sorted once, and searched as they lie: nothing sorts them again for each batch."""
    (wanted,) = WantedDocuments.of(pa.chunked_array([np.arange(0, 30_000, 3)[::-1]]), None)
    wanted.routes.flags.writeable = False

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sorted again")

    for name in ("sort", "argsort", "lexsort", "unique", "isin", "intersect1d"):
        monkeypatch.setattr(np, name, refuse)
    assert wanted.among(np.arange(4_096)).tolist() == [number % 3 == 0 for number in range(4_096)]
    asked = np.array([-(1 << 63), -1, 0, 5, (1 << 63) - 1])
    assert WantedDocuments(asked[1:3]).among(asked).tolist() == [False, True, True, False, False]
    assert WantedDocuments(asked[:0]).among(asked).tolist() == [False] * 5
    assert WantedDocuments(None).among(asked).tolist() == [True] * 5
