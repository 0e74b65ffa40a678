"""Parses and encodes bodies: Extended JSON v2, relaxed or canonical, and BSON. It does not know what they mean.

Documents inside a body become RawDocuments. So each may have the full 200 levels of nesting, whatever surrounds it, and
its bytes are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple, cast

import orjson

from api.errors import HttpError, failure, http_error
from api.json_bson import bson_from_json
from replset.bson import (
    MAX_MESSAGE_SIZE,
    MAX_WRITE_BATCH,
    Binary,
    ExtendedJSONError,
    Int64,
    InvalidBSONError,
    ObjectId,
    RawDocument,
    Timestamp,
    encode,
    validate,
    walk,
)
from replset.bson.decoding import read_value
from replset.ejson import from_ejson, from_ejson_value, load_json, to_ejson
from replset.errors import ErrorCode, ReplError
from replset.ids import INCREMENT_BITS, pack_ts
from replset.optime import timestamp

JSON, EJSON, BSON = "application/json", "application/ejson", "application/bson"
LARGE_BYTES = 1 << 17
"""A larger body is parsed or encoded in a worker thread, since it would hold the event loop up for 10 ms or more."""
HUGE_BYTES = 1 << 20
"""Only a few bodies over this are under way at once, see `HUGE_BODIES`."""
MAX_ANSWER_BYTES = MAX_MESSAGE_SIZE
_MAX_CACHED_HEADER = 200
_INC_SECONDS = Struct("<II").unpack_from


class Form(Enum):
    """The form that an answer is encoded in."""

    JSON = JSON
    EJSON = EJSON
    CANONICAL = f"{EJSON}; canonical=true"
    BSON = BSON


class DocumentParts(dict[str, Any]):
    """A document whose fields are encoded one by one, so that none counts as nested in it.

    A field can still be too deep: an oplog entry may hold a change at the very bottom of a document. Such a field is
    encoded as binary data.
    """


def parts_of(raw: bytes) -> DocumentParts:
    """Return the fields of a document, of which documents stay as they are."""
    return DocumentParts(
        (name, RawDocument(raw[start:end]) if kind == 3 else read_value(raw, kind, start, end))
        for name, kind, start, end in walk(raw)
    )


class DocumentList(list[Any]):
    """RawDocuments or DocumentParts in one field of an answer. They are encoded one by one."""


class Times(NamedTuple):
    """operationTime and $clusterTime of an answer, packed as in OpTime.ts; 0 while the member has no oplog entry."""

    operation: int = 0
    cluster: int = 0


NO_TIMES = Times()


# --- the form of the answer -------------------------------------------------------------------------------------


def form_of(accept: str) -> Form:
    """Return the form that an Accept header prefers by its weights; relaxed JSON when it names no form of ours."""
    return _cached_form(accept) if len(accept) <= _MAX_CACHED_HEADER else _form_of(accept)


def _form_of(accept: str) -> Form:
    best, weight = Form.JSON, 0.0
    for option in accept.lower().split(","):
        kind, *rest = (part.strip() for part in option.split(";"))
        parameters = dict(part.partition("=")[::2] for part in (piece.replace(" ", "") for piece in rest))
        form = _FORMS.get(kind)
        if form is Form.EJSON and parameters.get("canonical") == "true":
            form = Form.CANONICAL
        q = _weight(parameters.get("q", "1"))
        if form is not None and q > weight:
            best, weight = form, q
    return best


_FORMS = {JSON: Form.JSON, EJSON: Form.EJSON, BSON: Form.BSON, "*/*": Form.JSON, "application/*": Form.JSON}


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


_cached_form = lru_cache(maxsize=128)(_form_of)


# --- reading ----------------------------------------------------------------------------------------------------


def is_bson(content_type: str) -> bool:
    """Return True for BSON and False for JSON. HttpError 415 for any other content type, and for none."""
    kind, _, rest = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == BSON:
        return True
    if kind in (JSON, EJSON):
        charset = rest.lower().replace(" ", "").replace('"', "").partition("charset=")[2].partition(";")[0]
        if charset in ("", "utf-8", "utf8", "us-ascii"):
            return False
        raise failure(ErrorCode.FAILED_TO_PARSE, f"charset {charset[:40]!r} is not read; JSON is UTF-8", status=415)
    raise failure(
        ErrorCode.FAILED_TO_PARSE,
        f"content type {kind[:80]!r} is not read; send {JSON}, {EJSON} or {BSON}"
        + (" (curl: -H 'content-type: application/json')" if "form" in kind or not kind else ""),
        status=415,
    )


def check_size(size: int, most: int = MAX_MESSAGE_SIZE) -> None:
    if size > most:
        raise failure(ErrorCode.DOCUMENT_TOO_LARGE, f"the body is over {most} bytes")


def parse_document(content_type: str, data: bytes) -> RawDocument:
    """Parse the whole body as one document. HttpError 400 names the place of an error; 415 for the content type."""
    try:
        if is_bson(content_type):
            validate(data)
            return RawDocument(data)
        _check_not_empty(data)
        return RawDocument(encode(from_ejson(data)))
    except ReplError as error:
        raise http_error(error) from error


def parse_fields(content_type: str, data: bytes) -> dict[str, Any]:
    """Parse the body into its fields. Documents in them and in their arrays stay RawDocuments. HttpError 400, 415."""
    try:
        if content_type != JSON and is_bson(content_type):
            return dict(_bson_fields(data))
        _check_not_empty(data)
        fields = _load_json(data)
    except ReplError as error:
        raise http_error(error) from error
    return {name: _json_field(name, value) for name, value in fields.items()}


def _check_not_empty(data: bytes) -> None:
    if not data.strip():
        raise ExtendedJSONError("the body is empty; a JSON document is needed")


def _load_json(data: bytes) -> dict[str, Any]:
    fields = load_json(data)
    if not isinstance(fields, dict):
        raise ExtendedJSONError("the body is a JSON document, not an array or a single value")
    return fields


def _json_field(name: str, value: object) -> object:
    if isinstance(value, dict):
        raw = bson_from_json(value)
        if raw is not None:
            return RawDocument(raw)
    elif isinstance(value, list):
        if len(value) > MAX_WRITE_BATCH:
            raise failure(
                ErrorCode.INVALID_LENGTH,
                f"field '{name[:80]}' has {len(value)} items, and at most {MAX_WRITE_BATCH} are taken",
            )
        rows = [bson_from_json(item) if isinstance(item, dict) else None for item in value]
        if None not in rows:
            return [RawDocument(row) for row in rows if row is not None]
    elif isinstance(value, str | bool) or value is None:
        return value
    try:
        read = from_ejson_value(value)
        if isinstance(read, dict):
            return RawDocument(encode(read))
        if isinstance(read, list):
            return [RawDocument(encode(item)) if isinstance(item, dict) else item for item in read]
    except ReplError as error:
        raise _field_error(name, error) from error
    return read


def _field_error(name: str, error: ReplError) -> HttpError:
    """Return the error with the name of the body's field in front."""
    return failure(error.code, f"field '{name[:80]}': {error.message}", details=error.details)


def _bson_fields(data: bytes) -> Iterator[tuple[str, object]]:
    RawDocument(data)  # refuses a wrong outer length
    for name, kind, start, end in walk(data):
        value = data[start:end]
        try:
            if kind == 3:
                yield name, _sub_document(value)
            elif kind == 4:
                yield (
                    name,
                    [
                        _sub_document(value[first:last]) if item == 3 else read_value(value, item, first, last)
                        for _, item, first, last in walk(value)
                    ],
                )
            else:
                yield name, read_value(data, kind, start, end)
        except ReplError as error:
            raise _field_error(name, error) from error


def _sub_document(data: bytes) -> RawDocument:
    validate(data)
    return RawDocument(data)


# --- writing ----------------------------------------------------------------------------------------------------


def times_of(reply: Mapping[str, Any] | RawDocument) -> Times:
    """Return the times in a reply."""
    operation = reply.get("operationTime")
    if not isinstance(operation, Timestamp):
        return NO_TIMES
    packed = pack_ts(*operation)
    if isinstance(reply, RawDocument):
        raw = reply.get_raw("$clusterTime")
        if raw is None or raw[4:17] != b"\x11clusterTime\0":
            return Times(packed, packed)
        inc, seconds = _INC_SECONDS(raw, 17)
        return Times(packed, pack_ts(seconds, inc))
    cluster = reply.get("$clusterTime")
    stamp = cluster.get("clusterTime") if isinstance(cluster, Mapping | RawDocument) else None
    return Times(packed, pack_ts(*stamp) if isinstance(stamp, Timestamp) else packed)


_TIME_FIELDS = ("operationTime", "$clusterTime")
_SECOND = 1 << INCREMENT_BITS
_NO_HASH = "A" * 27 + "="
_SIGNATURE = '{"hash":{"$binary":{"base64":"' + _NO_HASH + '","subType":"00"}},"keyId":%s}'
_TAIL = '"operationTime":{"$timestamp":{"t":%d,"i":%d}},"$clusterTime":{"clusterTime":{"$timestamp":{"t":%d,"i":%d}},'
_RELAXED_TAIL = _TAIL + '"signature":' + _SIGNATURE % "0" + "}"
_CANONICAL_TAIL = _TAIL + '"signature":' + _SIGNATURE % '{"$numberLong":"0"}' + "}"


def encode_body(form: Form, document: Mapping[str, Any], times: Times) -> bytes:
    """Encode an answer, with `times` as its last two fields. InvalidBSONError when the document has no such form."""
    if form is Form.BSON:
        own = {name: value for name, value in document.items() if name not in _TIME_FIELDS}
        return encode({**own, **_time_fields(times)})
    canonical = form is Form.CANONICAL
    parts: list[str] = []
    for name, value in document.items():
        if name not in _TIME_FIELDS:
            parts.append(f"{orjson.dumps(name).decode()}:{_json_of(value, canonical)}")
    if times.operation:
        tail = _CANONICAL_TAIL if canonical else _RELAXED_TAIL
        parts.append(tail % (*divmod(times.operation, _SECOND), *divmod(times.cluster, _SECOND)))
    return ("{" + ",".join(parts) + "}").encode()


def _json_of(value: object, canonical: bool) -> str:
    kind = type(value)
    if kind is str:
        return orjson.dumps(value).decode()
    if kind is ObjectId:
        return f'{{"$oid":"{value}"}}'
    if kind is DocumentList:
        return "[" + ",".join([_json_of(document, canonical) for document in cast("DocumentList", value)]) + "]"
    if kind is DocumentParts:
        fields = cast("DocumentParts", value).items()
        return (
            "{" + ",".join([f"{orjson.dumps(name).decode()}:{_part(part, canonical)}" for name, part in fields]) + "}"
        )
    return to_ejson(value, canonical)


def _part(value: object, canonical: bool) -> str:
    try:
        return _json_of(value, canonical)
    except InvalidBSONError:
        if isinstance(value, RawDocument):
            return to_ejson(Binary(value.raw), canonical)
        raise


def _time_fields(times: Times) -> dict[str, object]:
    if not times.operation:
        return {}
    return {
        "operationTime": timestamp(times.operation),
        "$clusterTime": {
            "clusterTime": timestamp(times.cluster),
            "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)},
        },
    }


def is_large(document: Mapping[str, Any]) -> bool:
    """Return True if encoding this answer would hold the event loop up."""
    for value in document.values():
        if type(value) is DocumentList and sum(len(item.raw) for item in value) > LARGE_BYTES:
            return True
    return False
