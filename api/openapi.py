"""The actions in the OpenAPI page: they are answered in front of the application, and described all the same."""

from __future__ import annotations

from typing import Any

from api.actions import ACTIONS, NOT_BUILT, Action

_DOCUMENT: dict[str, Any] = {"type": "object", "additionalProperties": True}
_FIELDS: dict[str, dict[str, Any]] = {
    "database": {"type": "string", "minLength": 1},
    "collection": {"type": "string", "minLength": 1},
    "dataSource": {"type": "string"},
    "writeConcern": {"type": "object", "example": {"w": "majority", "wtimeout": 5000}},
    "readConcern": {"type": "object", "example": {"level": "majority"}},
    "readPreference": {"type": "object", "example": {"mode": "nearest"}},
    "maxTimeMS": {"type": "integer", "minimum": 0},
    "document": _DOCUMENT,
    "documents": {"type": "array", "items": _DOCUMENT, "minItems": 1},
    "filter": _DOCUMENT,
    "projection": _DOCUMENT,
    "sort": _DOCUMENT,
    "update": _DOCUMENT,
    "replacement": _DOCUMENT,
    "limit": {"type": "integer", "minimum": 0},
    "skip": {"type": "integer", "minimum": 0},
    "upsert": {"type": "boolean"},
    "ordered": {"type": "boolean"},
    "arrayFilters": {"type": "array", "items": _DOCUMENT},
    "key": {"type": "string"},
}
_NEEDED = {
    "insertOne": ["document"],
    "insertMany": ["documents"],
    "updateOne": ["update"],
    "updateMany": ["update"],
    "replaceOne": ["replacement"],
    "deleteOne": ["filter"],
    "deleteMany": ["filter"],
    "distinct": ["key"],
}
ERROR = {
    "type": "object",
    "required": ["ok", "code", "codeName", "errmsg"],
    "properties": {
        "ok": {"type": "integer", "enum": [0]},
        "code": {"type": "integer"},
        "codeName": {"type": "string"},
        "errmsg": {"type": "string"},
    },
}
_TEXTS = {
    "400": "bad input; the place is in errmsg",
    "404": "no such namespace where one is required",
    "405": "another method is needed",
    "409": "duplicate key",
    "413": "too large",
    "415": "a content type that is not read",
    "503": "nothing was applied; try again after Retry-After",
    "504": "applied without its write concern, or the outcome is unknown; `applied` says which",
}


def with_actions(schema: dict[str, Any]) -> dict[str, Any]:
    """The application's OpenAPI document, with a path for each action and the error form. Safe to do twice."""
    paths = schema.setdefault("paths", {})
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = ERROR
    for action in ACTIONS.values():
        paths[f"/v1/action/{action.name}"] = {"post": _operation(action)}
    for name in NOT_BUILT:
        refused = {"summary": "Not built yet.", "tags": ["data"], "responses": _errors("400", "405")}
        paths[f"/v1/action/{name}"] = {"post": refused}
    return schema


def _operation(action: Action) -> dict[str, Any]:
    names = ["database", "collection", "maxTimeMS", *sorted(action.fields)]
    names += ["writeConcern"] if action.writes else ["readConcern", "readPreference"]
    body = {
        "type": "object",
        "required": ["database", "collection", *_NEEDED.get(action.name, [])],
        "properties": {name: _FIELDS[name] for name in names},
        "additionalProperties": False,
    }
    responses = {str(action.status): {"description": "done", "content": {"application/json": {"schema": _DOCUMENT}}}}
    if action.writes:
        responses["202"] = {"description": "w: 0, nothing is promised", "content": {"application/json": {}}}
        responses["307"] = {"description": "forward=false: the primary is at Location"}
    return {
        "summary": action.summary,
        "tags": ["data"],
        "operationId": action.name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {**responses, **_errors(*_TEXTS)},
    }


def _errors(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _TEXTS[status], "content": content} for status in statuses}
