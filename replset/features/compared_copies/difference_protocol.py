"""What a stale member and its source say to each other while they compare documents: two more steps of replSetSnapshot.

"spans" asks for the digests of a collection's spans, "rows" for what differs in some of them; see
differences.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from replset.bson import Binary, Int64, RawDocument
from replset.errors import RemoteProtocolError
from replset.features.compared_copies.differences import (
    FIRST_PLACE,
    LAST_PLACE,
    SPAN_BITS,
    Differences,
    Row,
    Spans,
    pack_pairs,
    unpack_pairs,
)
from replset.message_fields import check_ok

STEPS = ("spans", "rows")


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Asks about the collection `uuid` of a copy, from the place `low` on.

    hashes: for "rows", of the rows that the asking member has in these spans, by place. spans: which; one without rows
    there is named here alone.
    """

    step: str
    snapshot_id: str
    uuid: bytes
    low: int
    spans: Sequence[int] = ()
    hashes: Mapping[int, int] | None = None

    def document(self) -> dict[str, object]:
        return {
            "replSetSnapshot": 1,
            "step": self.step,
            "id": self.snapshot_id,
            "collection": Binary(self.uuid),
            "low": Int64(self.low),
            "spans": Binary(pack_pairs((span, 0) for span in self.spans)),
            "hashes": Binary(pack_pairs((self.hashes or {}).items())),
        }

    @classmethod
    def parse(cls, body: RawDocument) -> Self:
        step, snapshot_id, uuid = body.get("step"), body.get("id"), body.get("collection")
        if step not in STEPS or not isinstance(snapshot_id, str) or not isinstance(uuid, bytes) or len(uuid) != 16:
            raise RemoteProtocolError("comparing takes a step, the id of a copy and a collection's UUID")
        spans, hashes = _spans(body.get("spans")), _pairs(body.get("hashes"))
        return cls(str(step), snapshot_id, bytes(uuid), _number(body.get("low")), sorted(spans), hashes)


@dataclass(frozen=True, slots=True)
class CompareReply:
    """Answers "spans" with `spans`, "rows" with `differences`."""

    rollback_id: int
    spans: Spans | None = None
    differences: Differences | None = None

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {"ok": 1.0, "rbid": self.rollback_id}
        if self.spans is not None:
            document |= {"digests": Binary(pack_pairs(self.spans.digests.items())), "next": _place(self.spans.next)}
        if self.differences is not None:
            found = self.differences
            document |= {
                "rows": [
                    {"place": Int64(row.place), "key": Binary(row.key), "doc": Binary(row.doc)} for row in found.rows
                ],
                "gone": Binary(pack_pairs((place, 0) for place in found.gone)),
                "next": _place(found.next),
            }
        return document

    @classmethod
    def parse(cls, reply: RawDocument) -> Self:
        check_ok(reply)
        following = reply.get("next")
        after = None if following is None else _number(following)
        rollback_id = _number(reply.get("rbid"))
        if "digests" in reply:
            return cls(rollback_id, Spans(_spans(reply.get("digests")), after))
        rows = reply.get("rows")
        if not isinstance(rows, list):
            raise RemoteProtocolError("field 'rows' is not an array")
        return cls(rollback_id, None, Differences([_row(row) for row in rows], [*_pairs(reply.get("gone"))], after))


def _row(value: object) -> Row:
    if not isinstance(value, dict):
        raise RemoteProtocolError("field 'rows' holds more than rows")
    key, doc = value.get("key"), value.get("doc")
    if not isinstance(key, bytes) or not isinstance(doc, bytes):
        raise RemoteProtocolError("a row lacks its key or its document")
    return Row(_number(value.get("place")), bytes(key), bytes(doc))


def _place(value: int | None) -> Int64 | None:
    return None if value is None else Int64(value)


def _pairs(value: object) -> dict[int, int]:
    if not isinstance(value, bytes):
        raise RemoteProtocolError(f"not binary data: {value!r:.100}")
    try:
        return unpack_pairs(bytes(value))
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None


def _spans(value: object) -> dict[int, int]:
    found = _pairs(value)
    if found and not FIRST_PLACE >> SPAN_BITS <= min(found) <= max(found) <= LAST_PLACE >> SPAN_BITS:
        raise RemoteProtocolError("no such span")
    return found


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"not a number: {value!r:.100}")
    return int(value)
