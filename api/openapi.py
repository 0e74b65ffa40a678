"""Builds the OpenAPI document: the answers and bodies of the routes, and the paths of the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from api.action_table import ACTIONS
from api.actions import ActionType, FieldKind
from api.bodies import BSON, EJSON, JSON
from api.exchange import LONGEST_KEY

Schema: TypeAlias = dict[str, Any]
_DOCUMENT: Schema = {"type": "object", "additionalProperties": True}
_KINDS: dict[FieldKind, Schema] = {
    FieldKind.DOCUMENT: _DOCUMENT,
    FieldKind.ARRAY: {"type": "array", "items": _DOCUMENT},
    FieldKind.UPDATE: {"anyOf": [_DOCUMENT, {"type": "array", "items": _DOCUMENT}]},
    FieldKind.TEXT: {"type": "string"},
    FieldKind.BOOL: {"type": "boolean"},
    FieldKind.NUMBER: {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    FieldKind.READ_PREFERENCE: {"anyOf": [_DOCUMENT, {"type": "string"}]},
}
_FIELDS: dict[str, Schema] = {
    "database": {"type": "string", "minLength": 1, "maxLength": 63, "example": "shop"},
    "collection": {"type": "string", "minLength": 1, "example": "orders"},
    "dataSource": {"type": "string", "description": "taken and ignored"},
    "filter": {**_DOCUMENT, "example": {"qty": {"$gt": 2}}},
    "document": {**_DOCUMENT, "example": {"item": "pen", "qty": 3}},
    "documents": {"type": "array", "items": _DOCUMENT, "minItems": 1, "example": [{"item": "pen"}]},
    "replacement": {**_DOCUMENT, "example": {"item": "pen", "qty": 9}},
    "update": {
        "type": "object",
        "minProperties": 1,
        "patternProperties": {"^\\$": {}},
        "additionalProperties": False,
        "example": {"$inc": {"qty": 1}},
    },
    "operations": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "minProperties": 1, "maxProperties": 1},
        "example": [{"insertOne": {"document": {"item": "pen"}}}, {"deleteMany": {"filter": {"qty": 0}}}],
    },
    "maxTimeMS": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "sort": {**_DOCUMENT, "example": {"qty": -1}},
    "projection": {**_DOCUMENT, "example": {"qty": 1}},
    "returnNewDocument": {"type": "boolean", "description": "true: return the document as the write leaves it"},
    "pipeline": {"type": "array", "items": _DOCUMENT, "example": [{"$match": {"qty": {"$gt": 2}}}, {"$count": "n"}]},
    "key": {"type": "string", "minLength": 1, "example": "item"},
    "collation": {**_DOCUMENT, "example": {"locale": "en", "strength": 2}},
    "writeConcern": {**_DOCUMENT, "example": {"w": "majority", "wtimeout": 5000}},
    "readConcern": {**_DOCUMENT, "example": {"level": "majority"}},
    "readPreference": {**_KINDS[FieldKind.READ_PREFERENCE], "example": {"mode": "secondaryPreferred"}},
}
_RESULTS: dict[str, Schema] = {
    "insertedId": {},
    "insertedIds": {"type": "array"},
    "document": {"type": ["object", "null"]},
    "documents": {"type": "array", "items": {"type": "object"}},
    "values": {"type": "array"},
    "count": {"type": "integer"},
    "matchedCount": {"type": "integer"},
    "modifiedCount": {"type": "integer"},
    "deletedCount": {"type": "integer"},
    "insertedCount": {"type": "integer"},
    "upsertedIds": {"type": "array"},
}
_ANSWERS: dict[str, tuple[str, ...]] = {
    "aggregate": ("documents",),
    "findOne": ("document",),
    "find": ("documents",),
    "countDocuments": ("count",),
    "distinct": ("values",),
    "insertOne": ("insertedId",),
    "insertMany": ("insertedIds",),
    "updateOne": ("matchedCount", "modifiedCount"),
    "updateMany": ("matchedCount", "modifiedCount"),
    "replaceOne": ("matchedCount", "modifiedCount"),
    "findOneAndUpdate": ("document",),
    "findOneAndReplace": ("document",),
    "findOneAndDelete": ("document",),
    "deleteOne": ("deletedCount",),
    "deleteMany": ("deletedCount",),
    "bulkWrite": ("insertedCount", "matchedCount", "modifiedCount", "deletedCount", "insertedIds", "upsertedIds"),
}
ERROR: Schema = {
    "type": "object",
    "required": ["ok", "code", "codeName", "errmsg"],
    "properties": {
        "ok": {"type": "number", "enum": [0]},
        "code": {"type": "integer", "description": "MongoDB's number"},
        "codeName": {"type": "string"},
        "errmsg": {"type": "string"},
        "applied": {"enum": [True, "unknown"], "description": "with 504: what became of the write"},
        "optime": {"type": ["string", "null"], "description": "with 504: TERM:SECONDS:INC of the write"},
        "writeConcernError": {"type": "object", "description": "errInfo.progress: how far each member was"},
    },
}
_TEXTS = {
    200: "done",
    201: "inserted",
    202: "w: 0: taken in, nothing is promised",
    307: "with forward=false: the primary is at Location",
    400: "bad input; errmsg names the place",
    401: "with --auth: nobody has logged in, or the password or the token is wrong",
    403: "a foreign Origin, an unknown Host, not against this database, or no role that allows it",
    404: "no such path, cursor or name",
    405: "another method is needed: Allow names it",
    409: "duplicate key; or the same is being done already",
    413: "a document over 16 MiB, or a body over 48 MB",
    415: f"the body is neither {JSON} nor {EJSON} nor {BSON}",
    422: "the Idempotency-Key was used for another request",
    503: "nothing was applied: no primary, overload, a full disk or the end of this process; see Retry-After",
    504: "applied without its write concern, or the outcome is unknown: `applied` and x-replset-applied say which",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: documents below status 300, the error model from 400 on."""
    return {status: _answer(status, _DOCUMENT) for status in statuses}


def _answer(status: int, schema: Schema) -> dict[str, Any]:
    if status in (202, 307):
        schema = _DOCUMENT
    elif status >= 400:
        schema = {"$ref": "#/components/schemas/Error"}
    answer: dict[str, Any] = {"description": _TEXTS[status], "content": {JSON: {"schema": schema}}}
    header = {503: "retry-after", 504: "x-replset-applied", 307: "location", 405: "allow"}.get(status)
    if header is not None:
        answer["headers"] = {header: {"schema": {"type": "string"}}}
    return answer


def body(schema: Schema, *, required: bool = True) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its body itself."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}


def with_actions(schema: Schema) -> Schema:
    """Return the application's OpenAPI document with the actions and the error model added. It may run twice."""
    paths = schema.setdefault("paths", {})
    schema.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR
    for unused in ("HTTPValidationError", "ValidationError"):  # the framework's own; this API never answers with them
        schema["components"]["schemas"].pop(unused, None)
    for path in paths.values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for action in ACTIONS.values():
        paths[f"/v1/action/{action.name}"] = {"post": _operation(action)}
    for path in paths.values():
        for method, operation in path.items():
            guarded = (401, 403, 415) if method == "post" else (401, 403)
            operation["responses"] |= _texts(
                answers(*(code for code in guarded if str(code) not in operation["responses"]))
            )
    return schema


def _operation(action: ActionType) -> dict[str, Any]:
    properties = {name: _field(action, name, kind) for name, kind in action.fields.items()}
    fields = {"type": "object", "required": sorted(action.required), "properties": properties}
    names = _ANSWERS[action.name]
    result = {"type": "object", "required": list(names), "properties": {name: _RESULTS[name] for name in names}}
    statuses: tuple[int, ...] = (400, 404, 405, 413, 415, 503)
    if action.is_write:
        statuses += (202, 307, 409, 422, 504)
    operation = {
        "summary": action.summary,
        "tags": ["data"],
        "operationId": action.name,
        "parameters": [_FORWARD, _KEY] if action.is_write else [],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {**fields, "additionalProperties": False}}},
        },
        "responses": _texts({action.status: _answer(action.status, result), **answers(*statuses)}),
    }
    if action.is_write:
        operation["description"] = "Forwarded once to the primary when this member is not it: x-replset-forwarded-to."
    return operation


def _field(action: ActionType, name: str, kind: FieldKind) -> Schema:
    """Return the schema of one field. An optional field may be null, which counts as absent."""
    schema = _FIELDS.get(name, _KINDS[kind])
    if (action.name, name) == ("countDocuments", "limit"):
        schema = {"type": "integer", "description": "a negative one counts like its opposite; 0: none"}
    if name in action.required:
        return schema
    own = {key: value for key, value in schema.items() if key in ("example", "description")}
    rest = {key: value for key, value in schema.items() if key not in own}
    return {"anyOf": [rest, {"type": "null"}], **own}


_FORWARD: dict[str, Any] = {
    "name": "forward",
    "in": "query",
    "required": False,
    "description": "false: 307 to the primary instead of forwarding",
    "schema": {"type": "string", "enum": ["true", "false"]},
}


_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "the same request under the same key is applied once and gets the same answer",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
}


def _texts(responses: Mapping[int | str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {str(status): answer for status, answer in responses.items()}
