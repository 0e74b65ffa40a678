"""Oplogs that tell the lives of documents, and what is wrong in them, planted one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import command_entry, delete_entry, insert_entry, noop_entry, update_entry
from replset.oplog_row import CHAIN_START, OplogRow, UnchainedRow, chained_rows, entry_hash, next_chain
from replset.query.diff import update_entry_object
from spark.readers.sqlite import SqliteOplog
from tests.spark.kit import T0, UUID, write_rows

Doc = dict[str, object]
NS = "shop.orders"


class Story:
    """Entries as a primary writes them, `per_second` of them a second. Documents by collection and `_id`'s key."""

    def __init__(self, per_second: int = 2) -> None:
        self.pending: list[UnchainedRow] = []
        self.documents: dict[tuple[bytes, bytes], Doc] = {}
        self.term = 1
        self._per_second = per_second

    def initiated(self) -> Story:
        self.noop({"msg": "initiating set"})
        return self

    def noop(self, o: Doc) -> None:
        self._add("n", "", None, lambda optime, wall: noop_entry(o, optime, wall))

    def command(self, o: Doc, ui: bytes = UUID) -> None:
        self._add("c", "shop.$cmd", None, lambda optime, wall: command_entry("shop", ui, o, optime, wall))

    def insert(self, doc: Doc, ui: bytes = UUID, ns: str = NS) -> None:
        key = encode_key(doc["_id"])
        self.documents[ui, key] = doc
        self._add("i", ns, key, lambda optime, wall: insert_entry(ns, ui, encode(doc), optime, wall))

    def update(self, after: Doc, ui: bytes = UUID, ns: str = NS) -> None:
        """As a primary does: a difference or the whole document, nothing when it stays the same."""
        key = encode_key(after["_id"])
        o = update_entry_object(self.documents[ui, key], after)
        if o is not None:
            self.documents[ui, key] = after
            self.update_with(o, after["_id"], ui, ns)

    def update_with(self, o: Doc, of: object, ui: bytes = UUID, ns: str = NS) -> None:
        """Whatever `o` is."""
        about, raw = encode({"_id": of}), encode(o)
        self._add("u", ns, encode_key(of), lambda optime, wall: update_entry(ns, ui, about, raw, optime, wall))

    def delete(self, of: object, ui: bytes = UUID, ns: str = NS) -> None:
        key = encode_key(of)
        self.documents.pop((ui, key), None)
        self._add("d", ns, key, lambda optime, wall: delete_entry(ns, ui, encode({"_id": of}), optime, wall))

    def drop(self, ui: bytes = UUID) -> None:
        self.documents = {name: doc for name, doc in self.documents.items() if name[0] != ui}
        self.command({"drop": "orders"}, ui)

    def rows(self) -> list[OplogRow]:
        return chained_rows(self.pending, CHAIN_START)

    def _add(self, op: str, ns: str, key: bytes | None, build: Callable[[OpTime, int], bytes]) -> None:
        second, number = divmod(len(self.pending), self._per_second)
        optime, wall = OpTime(self.term, pack_ts(T0 + second, 1 + number)), (T0 + second) * 1000
        self.pending.append((optime.ts, self.term, op, ns, key, wall, build(optime, wall)))


def lives(count: int, *, documents: int = 5, initiated: bool = True) -> Story:
    """A sound oplog of `count` entries: two collections, documents that are made, changed, replaced and deleted."""
    story = Story(per_second=10)
    if initiated:
        story.initiated()
    story.command({"create": "orders"})
    other = b"o" * 16
    number = 0
    while len(story.pending) < count:
        number += 1
        of: object = number % documents if number % 2 else f"id{number % documents}"
        ui, ns = (UUID, NS) if number % 3 else (other, "shop.other")
        key = (ui, encode_key(of))
        doc = story.documents.get(key)
        if doc is None:
            story.insert({"_id": of, "n": number, "tags": ["a"], "text": "x" * 30}, ui, ns)
        elif number % 17 == 0:
            story.delete(of, ui, ns)
        elif number % 13 == 0:
            story.update({"_id": of, "n": number, "tags": []}, ui, ns)
        elif number % 5 == 0:
            story.noop({"msg": "periodic noop"})
        else:
            tags = doc["tags"]
            grown = [*tags, number][-6:] if isinstance(tags, list) else [number]
            story.update({**doc, "n": number, "tags": grown, f"f{number % 3}": {"x": number}}, ui, ns)
        if number % 40 == 0:
            story.term += 1
    return story


def resealed(rows: Sequence[OplogRow], start: int = 0) -> list[OplogRow]:
    """Hashes and chain made right again from row `start` on."""
    done = list(rows[:start])
    for row in rows[start:]:
        hashed = entry_hash(row.entry)
        done.append(row._replace(hash=hashed, chain=next_chain(done[-1].chain if done else CHAIN_START, hashed)))
    return done


def place_of(folder: Path, name: str, rows: Sequence[OplogRow], *, trimmed_through: int = 0) -> SqliteOplog:
    return SqliteOplog(name, str(write_rows(folder / name, rows, trimmed_through=trimmed_through) / "replset.db"))
