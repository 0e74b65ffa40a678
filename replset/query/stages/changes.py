"""$changeStream and $changeStreamSplitLargeEvent: their arguments. The feature change_streams runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replset.bson import MAX_BSON_SIZE, RawDocument, Timestamp, encode
from replset.errors import (
    BadValueError,
    ErrorCode,
    IllegalOperationError,
    ReplError,
    TypeMismatchError,
)
from replset.ids import pack_ts
from replset.query.change_tokens import Kind, Token, in_front_of
from replset.query.errors import check_fields, not_built
from replset.query.expressions import fault
from replset.query.order import type_name
from replset.query.stages.stage import ReadingStage, SourceStage, StageScope

ALLOWED_BEHIND: Final = frozenset(
    {"$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact"}
    | {"$changeStreamSplitLargeEvent"}
)
FULL_DOCUMENT: Final = ("default", "updateLookup", "whenAvailable", "required")
BEFORE_CHANGE: Final = ("off", "whenAvailable", "required")
_PLACES: Final = ("resumeAfter", "startAfter", "startAtOperationTime")
_FLAGS: Final = ("allChangesForCluster", "showExpandedEvents", "showSystemEvents", "showRawUpdateDescription")


class ChangeStreamStage(SourceStage):
    """`start`: where the stream goes on, None for now. is_resumed: `start` is a token that the client had before."""

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping):
            raise fault(50808, f"$changeStream stage expects a document as argument, not {type_name(spec)}")
        check_fields(spec, ("fullDocument", "fullDocumentBeforeChange", *_PLACES, *_FLAGS), "$changeStream")
        flags = {name: _boolean(spec, name) for name in _FLAGS}
        for name in ("showSystemEvents", "showRawUpdateDescription"):
            if flags[name]:
                raise not_built(f"$changeStream.{name}")
        self.is_of_deployment = flags["allChangesForCluster"]
        self.expanded = flags["showExpandedEvents"]
        self.full_document: Any = _one_of(spec, "fullDocument", FULL_DOCUMENT)
        self.before_change: Any = _one_of(spec, "fullDocumentBeforeChange", BEFORE_CHANGE)
        given = [name for name in _PLACES if spec.get(name) is not None]
        if given[:2] == ["resumeAfter", "startAfter"]:
            raise fault(50674, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage")
        if len(given) > 1:
            raise fault(40674, "Only one type of resume option is allowed, but multiple were found.")
        self.is_resumed = bool(given) and given[0] != "startAtOperationTime"
        self.from_token: Token | None = _place(given[0], spec[given[0]]) if given else None


class SplitStage(ReadingStage):
    """Cuts an event that is too large for one document into parts. It is the last stage of a change stream."""

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if not isinstance(spec, Mapping) or spec:
            raise fault(7182800, "$changeStreamSplitLargeEvent spec should be an empty object")


def check_change_stream(names: list[str]) -> None:
    """Refuse stages that may not follow a $changeStream, and those that must (20)."""
    if names[:1] != ["$changeStream"]:
        if "$changeStreamSplitLargeEvent" in names:
            raise IllegalOperationError("$changeStreamSplitLargeEvent can only be used in a $changeStream pipeline")
        return
    for number, name in enumerate(names[1:], 1):
        if name not in ALLOWED_BEHIND:
            raise IllegalOperationError(f"{name:.80} is not permitted in a $changeStream pipeline")
        if name == "$changeStreamSplitLargeEvent" and number < len(names) - 1:
            raise fault(7182802, f"{name} must be the last stage in the pipeline")


def _boolean(spec: Mapping[str, object], name: str) -> bool:
    value = spec.get(name, False)
    if not isinstance(value, bool):
        raise TypeMismatchError(
            f"BSON field '$changeStream.{name}' is the wrong type '{type_name(value)}', expected type 'bool'"
        )
    return value


def _one_of(spec: Mapping[str, object], name: str, values: tuple[str, ...]) -> str:
    value = spec.get(name, values[0])
    if not isinstance(value, str):
        raise TypeMismatchError(
            f"BSON field '$changeStream.{name}' is the wrong type '{type_name(value)}', expected type 'string'"
        )
    if value not in values:
        raise BadValueError(f"Enumeration value '{value:.80}' for field '$changeStream.{name}' is not a valid value.")
    return value


def _place(name: str, value: object) -> Token:
    if name == "startAtOperationTime":
        if not isinstance(value, Timestamp):
            raise TypeMismatchError(
                f"BSON field '$changeStream.{name}' is the wrong type '{type_name(value)}', expected type 'timestamp'"
            )
        return in_front_of(pack_ts(value.time, value.inc))
    if not isinstance(value, Mapping):
        raise TypeMismatchError(
            f"BSON field '$changeStream.{name}' is the wrong type '{type_name(value)}', expected type 'object'"
        )
    if not isinstance(value.get("_data"), str):
        raise fault(40647, "Bad resume token: _data of missing or of wrong type")
    token = Token.parse(value["_data"])
    if token.kind is Kind.INVALIDATE and name == "resumeAfter":
        raise ReplError(
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.",
            code=ErrorCode.INVALID_RESUME_TOKEN,
        )
    return token


def split_event(raw: bytes, token: Token, most: int = MAX_BSON_SIZE) -> list[tuple[Token, bytes]]:
    """Cut an event into parts of at most `most` bytes, each with a token of its own; one that fits stays whole.

    The small fields come first. 10334 if one field alone is too large.
    """
    if len(raw) <= most:
        return [(token, raw)]
    event = RawDocument(raw)
    names = sorted(set(event.keys()) - {"_id"}, key=lambda name: (event.size_of(name), name))
    head = 300  # _id, splitEvent, and what is around them
    parts: list[list[str]] = [[]]
    size = head
    for name in names:
        needed = event.size_of(name) + len(name.encode()) + 2
        if head + needed > most:
            raise ReplError(
                f"the field {name:.80} of a change event is too large for a part of its own",
                code=ErrorCode.DOCUMENT_TOO_LARGE,
            )
        if size + needed > most and parts[-1]:
            parts.append([])
            size = head
        parts[-1].append(name)
        size += needed
    found = []
    for number, fields in enumerate(parts, 1):
        place = token._replace(fragment=number)
        document: dict[str, object] = {
            "_id": place.document(),
            "splitEvent": {"fragment": number, "of": len(parts)},
            **{name: _field(event, name) for name in fields},
        }
        found.append((place, encode(document)))
    return found


def _field(event: RawDocument, name: str) -> object:
    """The value of a field. A document stays the bytes that it is."""
    return RawDocument(event.get_raw(name) or b"") if event.type_of(name) == 3 else event.get(name)
