"""What mongods put into their oplogs and members of this product do not: updates as operators, as before MongoDB 5.0,
and transactions of several entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from replset.bson import DateTime, RawDocument, Timestamp, encode
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.oplog_entry import APPLY_OPS, COMMAND, OplogEntry
from replset.query.diff import apply_update_object, is_diff
from replset.query.update_operators import UpdateOperation, set_value, unset
from replset.query.update_paths import PathUpdate, UpdateContext, path_order, update_path
from spark.oplog import OplogError

RESULT_OPERATORS = frozenset({"$v", "$set", "$unset"})
_OPERATORS = {"$set": set_value, "$unset": unset}
_ENDS = ("commitTransaction", "abortTransaction")


# --- updates


def is_modifiers(o: RawDocument) -> bool:
    """Whether the `o` of an update has operators: `{$v: 1, $set: ...}`, before MongoDB 3.6 without `$v`."""
    return (o.first_key or "") in RESULT_OPERATORS and o.type_of("diff") is None


def apply_change(document: dict[str, object], o: Mapping[str, object]) -> dict[str, object]:
    """The document after an update whose `o` is a difference or has operators. ReplError: it cannot be applied."""
    if is_diff(o):
        return apply_update_object(document, o)
    context = UpdateContext(DateTime(0), Timestamp(0, 0), document.get("_id"))
    for parts, operation in sorted(_steps_of(o), key=lambda step: [path_order(part) for part in step[0]]):
        try:
            document = PathUpdate(parts, operation.change, operation.creates, context).apply(document)
        except ReplError as error:
            if error.code != ErrorCode.PATH_NOT_VIABLE:  # of a document that is newer: mongods leave it out too
                raise
    return document


def _steps_of(o: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], UpdateOperation]]:
    for name, fields in o.items():
        if name == "$v":
            continue
        if name not in _OPERATORS or not isinstance(fields, Mapping):
            raise BadValueError(f"an update by {name[:40]}, which no oplog has")
        for path, value in fields.items():
            yield update_path(path), _OPERATORS[name](path, value)


# --- transactions


class Place(NamedTuple):
    """When operations of an entry count, and the number of the first one among those of its transaction."""

    ts: int
    first: int


Places = Mapping[int, Place | None]
"""By the ts of their entries; None: they do not count. Entries that are not in it count where they are."""


def is_part(entry: OplogEntry) -> bool:
    """Whether the entry is one of several of a transaction, or may be."""
    if entry.op != COMMAND:
        return False
    o = entry.o
    return o.first_key in _ENDS or (
        o.first_key == APPLY_OPS and any(o.get(name) for name in ("partialTxn", "prepare", "count"))
    )


def without_operations(entry: OplogEntry) -> bytes:
    """The entry of a transaction, but for its operations, which may be many."""
    fields = {name: entry.get(name) for name in ("op", "ns", "lsid", "txnNumber", "ts", "t")}
    marks = {name: entry.o.get(name) for name in ("partialTxn", "prepare", "count") if name in entry.o}
    return encode({**fields, "o": {APPLY_OPS: [], **marks}})


def places_of(entries: Iterable[OplogEntry], oplog: str) -> dict[int, Place | None]:
    """Where the operations of transactions of several entries count: at the last one, or where it is committed.

    entries: those that `is_part` found, in order. OplogError, with the name `oplog`: a transaction began before them.
    """
    places: dict[int, Place | None] = {}
    unfinished: dict[bytes, list[int]] = {}
    for entry in entries:
        key = encode({"lsid": entry.get("lsid"), "txnNumber": entry.get("txnNumber")})
        ts, o = entry.optime.ts, entry.o
        if o.first_key == APPLY_OPS and (o.get("partialTxn") or o.get("prepare")):
            unfinished.setdefault(key, []).append(ts)
            places[ts] = None
            continue
        begun = unfinished.pop(key, [])
        if o.first_key == "abortTransaction":
            continue
        if not begun:
            raise OplogError(
                oplog, f"{entry.optime} ends a transaction that began before what is read: begin at an earlier base"
            )
        for number, at in enumerate([*begun, ts]):
            places[at] = Place(ts, number << 32)
    return places
