"""What documents were at a point of an oplog, from the entries before it: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from replset.errors import ReplError
from replset.ids import OpTime
from replset.oplog_entry import APPLY_OPS, COMMAND, DELETE, INSERT, UPDATE, OplogEntry
from replset.query.diff import apply_update_bytes, is_diff

DocumentKey = tuple[str, bytes]
"""A namespace, and encode_key of a document's `_id`."""
_UNKNOWN: Final = object()


def taken_names(entry: OplogEntry) -> Iterator[str]:
    """The namespaces whose documents a command takes away: what had the name has another one, or is dropped."""
    target, *renamed = (entry.o.get(name) for name in ("drop", "renameCollection", "to"))
    if isinstance(target, str):
        yield f"{entry.database}.{target}"
    yield from (ns for ns in renamed if isinstance(ns, str))


class OplogHistory:
    """The operations on some documents, collected backwards. `namespaces`: those whose entries matter."""

    def __init__(self, wanted: frozenset[DocumentKey]) -> None:
        self._operations: dict[DocumentKey, list[OplogEntry]] = {key: [] for key in wanted}
        self._open = set(wanted)
        names = {ns for ns, _ in wanted}
        self.namespaces = sorted(names | {f"{ns.partition('.')[0]}.$cmd" for ns in names} | {"admin.$cmd"})

    @property
    def is_complete(self) -> bool:
        """Whether each document has an operation that tells all of it."""
        return not self._open

    def add_before(self, entries: Iterable[OplogEntry]) -> None:
        """Add entries, oldest first, that are older than all before."""
        found: dict[DocumentKey, list[OplogEntry]] = {}
        for entry in entries:
            for operation in entry.operations:
                for key in self._keys(operation):
                    found.setdefault(key, []).append(_prepared(entry) or operation)
        for key, operations in found.items():
            self._operations[key][:0] = operations
            if any(_starts_anew(operation) for operation in operations):
                self._open.discard(key)

    def _keys(self, operation: OplogEntry) -> list[DocumentKey]:
        if operation.op == COMMAND:
            taken = set(taken_names(operation))
            return [key for key in self._open if key[0] in taken] if taken else []
        if operation.ns not in self.namespaces:
            return []
        key = operation.key()
        return [] if key is None or (operation.ns, key) not in self._open else [(operation.ns, key)]

    def versions(self) -> dict[DocumentKey, bytes | None]:
        """The last version of each document that the operations tell; None where there was none."""
        found = {key: _last_version(operations) for key, operations in self._operations.items()}
        return {key: version for key, version in found.items() if version is None or isinstance(version, bytes)}


def _prepared(entry: OplogEntry) -> OplogEntry | None:
    """The entry, when it is a transaction that a later one commits or aborts: it does not tell what became of it."""
    is_prepared = entry.op == COMMAND and entry.o.first_key == APPLY_OPS and entry.o.get("prepare")
    return entry if is_prepared else None


def _starts_anew(operation: OplogEntry) -> bool:
    """Whether what was before does not matter."""
    return operation.op in (INSERT, DELETE, COMMAND) or (operation.op == UPDATE and _is_replacement(operation))


def _is_replacement(operation: OplogEntry) -> bool:
    return not (operation.o.first_key or "").startswith("$")


def _last_version(operations: Iterable[OplogEntry]) -> object:
    """Bytes, None for no document, or _UNKNOWN."""
    version: object = _UNKNOWN
    for operation in operations:
        match operation.op:
            case "i":
                version = operation.o.raw
            case "u" if _is_replacement(operation):
                version = operation.o.raw
            case "u" if isinstance(version, bytes) and is_diff(operation.o.decode()):
                try:
                    version = apply_update_bytes(version, operation.o)
                except ReplError:  # a difference of another form
                    version = _UNKNOWN
            case "d":
                version = None
            case "c" if isinstance(operation.o.get("drop"), str):
                version = None
            case _:
                version = _UNKNOWN
    return version


def ends_of_terms(at_or_after: Callable[[int], OpTime | None], since: int, until: int) -> Iterator[OpTime]:
    """The last entry of each term that ended between two timestamps, oldest first.

    A common point is always one of these: the next entry of the set is by a new primary. at_or_after: the first entry
    from a timestamp on. It is asked some 50 times for each term.
    """
    last = at_or_after(since)
    while last is not None and last.ts < until:
        term, end = last.term, until + 1
        while end - last.ts > 1:
            middle = (last.ts + end) // 2
            found = at_or_after(middle)
            if found is None or found.term > term or found.ts >= end:
                end = middle
            else:
                last = found
        following = at_or_after(last.ts + 1)
        if following is None or following.ts > until:
            return
        yield last
        last = following
