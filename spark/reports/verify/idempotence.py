"""Whether entries may be applied again: what an update's `o` may look like, and each document's entries once and twice.

A member that starts anew applies entries that it has applied already: any suffix of the oplog, in order, over the state
that the suffix leads to. That gives the same state only if every entry holds results, not operations. Checked is:

- the form of every update (`read_update`): a replacement with the document's own `_id`, the operators `$set` and
  `$unset` with `$v: 1`, or a well-formed `$v: 2` diff, whose every section sets or removes what it names; nothing else
  is a result;
- of every diff, with the member's own function: over the document as it was at that point, twice gives what once gives;
- of every run of diffs of one document (`Documents`): the whole run applied again over its own result gives that result
  again. A run begins behind an insert, a replacement or a delete (which make the state theirs, whatever it was) or
  where the run before is full (256 entries or 1 MiB), so memory is bounded however often a document changes. That no
  run across such a border could fail is not shown.

Documents are distinguished by their collection's UUID and their `_id`, so a collection that was dropped and made again
begins anew. Where a document's entries are not all there (the oplog's head was trimmed away, an entry is damaged, a
transaction changed it), it begins as an empty one; diffs pass over what is not there, and since the order in which
absent fields were appended is then not the document's, the order of fields does not count there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replset.bson import decode, encode_key
from replset.errors import ReplError
from replset.ids import OpTime
from replset.query.diff import is_diff
from replset.query.order import identical
from replset.query.paths import array_index
from spark.mongod_entries import RESULT_OPERATORS, apply_change

RUN_ENTRIES = 256
RUN_BYTES = 1 << 20
MOST_ITEMS = 1 << 22
"""More than any array in a document of 16 MiB can have."""
Doc = dict[str, object]


class NotIdempotentError(ReplError):
    """An update's entry holds an operation, not its result."""


class MalformedDiffError(ReplError):
    """An update's `o` is neither a replacement nor a well-formed difference."""


def read_update(o: bytes, key: bytes) -> tuple[Doc, bool]:
    """The `o` of an update, and whether it is a difference. key: encode_key of the document's `_id`.

    Raises MalformedDiffError or NotIdempotentError when it cannot be in an oplog, InvalidBSONError when it cannot be
    read.
    """
    whole = decode(o)
    if is_diff(whole):
        _check_document_diff(whole["diff"], "", is_top=True)
        return whole, True
    if whole.get("$v") == 1 and whole.keys() <= RESULT_OPERATORS:
        return whole, True
    if next(iter(whole), "").startswith("$"):
        operation = next((name for name in whole if name.startswith("$") and name not in RESULT_OPERATORS), None)
        if operation is not None:
            raise NotIdempotentError(f"the update names an operation ({operation[:40]}), not its result")
        raise MalformedDiffError(f"the update is neither a document nor a difference: {', '.join(whole)[:60]}")
    if "_id" not in whole:
        raise MalformedDiffError("the replacement has no _id")
    if encode_key(whole["_id"]) != key:
        raise MalformedDiffError("the replacement has another _id than o2")
    return whole, False


def _check_document_diff(diff: object, path: str, *, is_top: bool = False) -> None:
    if not isinstance(diff, Mapping):
        raise MalformedDiffError(f"{_at(path)} is no document")
    seen: set[str] = set()
    for section, body in diff.items():
        if section.startswith("s"):
            _check_named_once(section[1:], seen, path)
            _check_nested(body, f"{path}{section[1:]}.")
        elif section in ("d", "u", "i"):
            if not isinstance(body, Mapping):
                raise MalformedDiffError(f"the section '{section}' {_at(path)} is no document")
            for name in body:
                _check_named_once(name, seen, path)
        else:
            raise MalformedDiffError(f"an unknown section '{section[:40]}' {_at(path)}")
    if is_top and "_id" in seen:
        raise MalformedDiffError("the difference changes _id")


def _check_nested(diff: object, path: str) -> None:
    if not isinstance(diff, Mapping) or diff.get("a") is not True:
        _check_document_diff(diff, path)
        return
    seen: set[str] = set()
    for section, body in diff.items():
        if section == "a":
            continue
        if section == "l":
            if not isinstance(body, int) or isinstance(body, bool) or not 0 <= body <= MOST_ITEMS:
                raise MalformedDiffError(f"the length {_at(path)} is no length")
            continue
        index = section[1:]
        number = array_index(index)
        if section[:1] not in ("u", "s") or number is None or number >= MOST_ITEMS:
            raise MalformedDiffError(f"an unknown section '{section[:40]}' {_at(path)}")
        _check_named_once(index, seen, path)
        if section[0] == "s":
            _check_nested(body, f"{path}{index}.")


def _check_named_once(name: str, seen: set[str], path: str) -> None:
    if name in seen:
        raise MalformedDiffError(f"the field '{name[:100]}' {_at(path)} is named twice")
    seen.add(name)


def _at(path: str) -> str:
    return f"of the difference at '{path[:-1][:100]}'" if path else "of the difference"


class Change(NamedTuple):
    """An insert, update or delete. collection: its UUID. o: the document of that name in the entry.

    entry: the entry it is made of, for the text of a fault.
    """

    ts: int
    term: int
    op: str
    collection: bytes
    key: bytes
    o: bytes
    entry: bytes


class Fault(NamedTuple):
    """A change that cannot be applied again."""

    change: Change
    detail: str


@dataclass(slots=True)
class _Document:
    """state: None when there is none. is_certain: it is the document as it was, not grown from an empty one."""

    state: Doc | None
    is_certain: bool = False
    is_changed: bool = False
    run: list[tuple[Change, Doc]] = field(default_factory=list)
    run_bytes: int = 0


class DocumentStates:
    """The documents of a stream of changes in the oplog's order, which holds all changes of those in it."""

    def __init__(self) -> None:
        self._documents: dict[tuple[bytes, bytes], _Document] = {}
        self.applied = 0
        """Differences applied."""
        self.changed = 0
        """Documents that differences were applied to."""

    def apply(self, change: Change) -> list[Fault]:
        """What is not idempotent, as far as it is known. Raises as `read_update`; the document is uncertain then."""
        name = (change.collection, change.key)
        document = self._documents.get(name)
        if document is None:
            document = self._documents[name] = _Document({})
        try:
            match change.op:
                case "i":
                    return _set_state(document, decode(change.o))
                case "d":
                    return _set_state(document, None)
                case _:
                    return self._update(document, change)
        except ReplError:
            _make_uncertain(document)
            raise

    def make_uncertain(self) -> list[Fault]:
        """A change cannot be read, and of which document it is is not known."""
        return [fault for document in self._documents.values() for fault in _make_uncertain(document)]

    def end(self) -> list[Fault]:
        """What the runs that are still open show."""
        return [fault for document in self._documents.values() for fault in _end_run(document)]

    def _update(self, document: _Document, change: Change) -> list[Fault]:
        o, is_difference = read_update(change.o, change.key)
        if document.state is None:
            return []  # as a member does: what is not there is left alone
        if not is_difference:
            return _set_state(document, o)
        self.applied += 1
        self.changed += not document.is_changed
        document.is_changed = True
        once = apply_change(document.state, o)
        found = []
        if not _is_same(once, apply_change(once, o), document.is_certain):
            found.append(Fault(change, "applied twice it gives another document than applied once"))
        document.state = once
        document.run.append((change, o))
        document.run_bytes += len(change.entry)
        if len(document.run) >= RUN_ENTRIES or document.run_bytes >= RUN_BYTES:
            found += _end_run(document)
        return found


def _set_state(document: _Document, state: Doc | None) -> list[Fault]:
    found = _end_run(document)
    document.state, document.is_certain = state, True
    return found


def _make_uncertain(document: _Document) -> list[Fault]:
    found = _end_run(document)
    document.state, document.is_certain = document.state or {}, False
    return found


def _end_run(document: _Document) -> list[Fault]:
    """Apply the run again over its result; it begins anew."""
    run, document.run, document.run_bytes = document.run, [], 0
    if len(run) < 2 or document.state is None or _run_again_is_same(document, run):
        return []
    # The shortest end of the run that fails names the entry that is overwritten.
    start = next((at for at in range(len(run) - 2, 0, -1) if not _run_again_is_same(document, run[at:])), 0)
    first = run[start][0]
    since = OpTime(first.term, first.ts)
    return [Fault(run[-1][0], f"the document's entries from {since} on applied again give another document")]


def _run_again_is_same(document: _Document, run: list[tuple[Change, Doc]]) -> bool:
    state = again = document.state or {}
    for _, o in run:
        again = apply_change(again, o)
    return _is_same(state, again, document.is_certain)


def _is_same(a: object, b: object, in_order: bool) -> bool:
    """identical(), the order of fields left out where it is not known."""
    if in_order or a is b:
        return identical(a, b)
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(_is_same(value, b[name], False) for name, value in a.items())
    if type(a) is list and type(b) is list:
        return len(a) == len(b) and all(_is_same(*pair, False) for pair in zip(a, b, strict=True))
    return identical(a, b)
