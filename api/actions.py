"""`POST /v1/action/...`: the data actions, in the shape of the retired Atlas Data API, as commands and back.

Each action says which fields it takes, how they become a command, and how the reply becomes an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.content import HttpError, failure
from replset.bson import ObjectId, Timestamp
from replset.errors import code_name

NOT_BUILT = ("findOneAndUpdate", "findOneAndReplace", "findOneAndDelete", "bulkWrite", "aggregate")
COMMON = frozenset(
    {"database", "collection", "dataSource", "writeConcern", "readConcern", "readPreference", "maxTimeMS"}
)
UNKNOWN_FIELD, TYPE_MISMATCH, MISSING, BAD_VALUE = 40415, 14, 40414, 2
READ_MODES = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
Body = dict[str, Any]
NewId = Callable[[], ObjectId]


@dataclass(frozen=True, slots=True)
class Action:
    """One action. `command` gets the body and a maker of ids; `shape` the reply and the command that was run."""

    name: str
    fields: frozenset[str]
    writes: bool
    command: Callable[[Body, NewId], Body]
    shape: Callable[[Body, Body], Body]
    summary: str
    status: int = 200


# --- fields -----------------------------------------------------------------------------------------------------


def check_fields(action: Action, body: Body) -> None:
    for name in body:
        if name not in COMMON and name not in action.fields:
            raise failure(UNKNOWN_FIELD, f"{action.name}: unknown field {name!r}")
    for name in ("database", "collection"):
        value = body.get(name)
        if value is None:
            raise failure(MISSING, f"{action.name}: field {name!r} is missing")
        if not isinstance(value, str):
            raise failure(TYPE_MISMATCH, f"{action.name}: field {name!r} must be a string")


def document(body: Body, name: str, *, required: bool = False) -> Body:
    value = body.get(name)
    if value is None and not required:
        return {}
    if value is None:
        raise failure(MISSING, f"field {name!r} is missing")
    if not isinstance(value, Mapping):
        raise failure(TYPE_MISMATCH, f"field {name!r} must be a document")
    return dict(value)


def whole(body: Body, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise failure(TYPE_MISMATCH, f"field {name!r} must be a whole number")
    if value < 0:
        raise failure(BAD_VALUE, f"field {name!r} must not be below 0")
    return int(value)


def flag(body: Body, name: str, default: bool = False) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise failure(TYPE_MISMATCH, f"field {name!r} must be true or false")
    return value


def common(body: Body, command: Body, *, writes: bool) -> Body:
    """`command` with what every action may carry."""
    if body.get("maxTimeMS") is not None:
        command["maxTimeMS"] = whole(body, "maxTimeMS")
    if writes:
        if body.get("writeConcern") is not None:
            command["writeConcern"] = document(body, "writeConcern")
        return command
    if body.get("readConcern") is not None:
        command["readConcern"] = document(body, "readConcern")
    preference = body.get("readPreference")
    if isinstance(preference, str):
        preference = {"mode": preference}
    if preference is not None:
        if not isinstance(preference, Mapping) or preference.get("mode") not in READ_MODES:
            raise failure(BAD_VALUE, f"readPreference must be {{mode: one of {', '.join(sorted(READ_MODES))}}}")
        command["$readPreference"] = dict(preference)
    return command


def with_id(doc: Body, new_id: NewId) -> Body:
    """The document with its `_id` fixed now, so that a forwarded or repeated request means the same document."""
    return doc if "_id" in doc else {"_id": new_id(), **doc}


# --- commands ---------------------------------------------------------------------------------------------------


def _insert(docs: list[Body], body: Body, new_id: NewId) -> Body:
    ordered = flag(body, "ordered", True)
    return {"insert": body["collection"], "documents": [with_id(doc, new_id) for doc in docs], "ordered": ordered}


def _insert_one(body: Body, new_id: NewId) -> Body:
    return _insert([document(body, "document", required=True)], body, new_id)


def _insert_many(body: Body, new_id: NewId) -> Body:
    docs = body.get("documents")
    if not isinstance(docs, list) or not docs:
        raise failure(TYPE_MISMATCH if docs is not None else MISSING, "field 'documents' must be a non-empty array")
    for index, doc in enumerate(docs):
        if not isinstance(doc, Mapping):
            raise failure(TYPE_MISMATCH, f"field 'documents.{index}' must be a document")
    return _insert(docs, body, new_id)


def _find(body: Body, _new_id: NewId) -> Body:
    command: Body = {"find": body["collection"], "filter": document(body, "filter")}
    for name in ("projection", "sort"):
        if body.get(name) is not None:
            command[name] = document(body, name)
    for name in ("limit", "skip"):
        number = whole(body, name)
        if number is not None:
            command[name] = number
    return command


def _find_one(body: Body, new_id: NewId) -> Body:
    return {**_find(body, new_id), "limit": 1, "singleBatch": True}


def _update(many: bool) -> Callable[[Body, NewId], Body]:
    def build(body: Body, _new_id: NewId) -> Body:
        change = body.get("update")
        if not isinstance(change, Mapping | list):
            raise failure(TYPE_MISMATCH if change is not None else MISSING, "field 'update' must be a document")
        if isinstance(change, Mapping) and not any(name.startswith("$") for name in change):
            raise failure(BAD_VALUE, "field 'update' must hold update operators ($set, ...); see replaceOne")
        statement: Body = {"q": document(body, "filter"), "u": change, "multi": many, "upsert": flag(body, "upsert")}
        if body.get("arrayFilters") is not None:
            statement["arrayFilters"] = body["arrayFilters"]
        return {"update": body["collection"], "updates": [statement]}

    return build


def _replace_one(body: Body, _new_id: NewId) -> Body:
    replacement = document(body, "replacement", required=True)
    if any(name.startswith("$") for name in replacement):
        raise failure(BAD_VALUE, "field 'replacement' must be a plain document, without update operators")
    statement = {"q": document(body, "filter"), "u": replacement, "upsert": flag(body, "upsert")}
    return {"update": body["collection"], "updates": [statement]}


def _delete(limit: int) -> Callable[[Body, NewId], Body]:
    def build(body: Body, _new_id: NewId) -> Body:
        return {
            "delete": body["collection"],
            "deletes": [{"q": document(body, "filter", required=True), "limit": limit}],
        }

    return build


def _count(body: Body, _new_id: NewId) -> Body:
    command: Body = {"count": body["collection"], "query": document(body, "filter")}
    for name in ("limit", "skip"):
        number = whole(body, name)
        if number is not None:
            command[name] = number
    return command


def _distinct(body: Body, _new_id: NewId) -> Body:
    key = body.get("key")
    if not isinstance(key, str):
        raise failure(TYPE_MISMATCH if key is not None else MISSING, "field 'key' must be a string")
    return {"distinct": body["collection"], "key": key, "query": document(body, "filter")}


# --- answers ----------------------------------------------------------------------------------------------------


def _ids(command: Body) -> list[object]:
    return [doc["_id"] for doc in command["documents"]]


def _inserted_one(_reply: Body, command: Body) -> Body:
    return {"insertedId": _ids(command)[0]}


def _inserted_many(reply: Body, command: Body) -> Body:
    failed = {int(row["index"]) for row in reply.get("writeErrors", [])}
    tried = len(command["documents"]) if not command["ordered"] or not failed else min(failed)
    return {"insertedIds": [value for index, value in enumerate(_ids(command)[:tried]) if index not in failed]}


def _found_one(reply: Body, _command: Body) -> Body:
    batch = reply["cursor"]["firstBatch"]
    return {"document": batch[0] if batch else None}


def _found(reply: Body, _command: Body) -> Body:
    return {"documents": reply["cursor"]["firstBatch"]}


def _updated(reply: Body, _command: Body) -> Body:
    upserted = reply.get("upserted") or []
    matched = int(reply.get("n", 0)) - len(upserted)
    shaped: Body = {"matchedCount": matched, "modifiedCount": int(reply.get("nModified", 0))}
    if upserted:
        shaped["upsertedId"] = upserted[0]["_id"]
    return shaped


def _deleted(reply: Body, _command: Body) -> Body:
    return {"deletedCount": int(reply.get("n", 0))}


def _counted(reply: Body, _command: Body) -> Body:
    return {"count": int(reply["n"])}


def _values(reply: Body, _command: Body) -> Body:
    return {"values": reply["values"]}


def _action(
    name: str,
    fields: str,
    writes: bool,
    command: Callable[[Body, NewId], Body],
    shape: Callable[[Body, Body], Body],
    summary: str,
    status: int = 200,
) -> Action:
    return Action(name, frozenset(fields.split()), writes, command, shape, summary, status)


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        _action(
            "findOne", "filter projection sort skip", False, _find_one, _found_one, "The first document that matches."
        ),
        _action("find", "filter projection sort limit skip", False, _find, _found, "All documents that match."),
        _action("insertOne", "document ordered", True, _insert_one, _inserted_one, "Insert one document.", 201),
        _action(
            "insertMany", "documents ordered", True, _insert_many, _inserted_many, "Insert several documents.", 201
        ),
        _action(
            "updateOne", "filter update upsert arrayFilters", True, _update(False), _updated, "Change the first match."
        ),
        _action(
            "updateMany", "filter update upsert arrayFilters", True, _update(True), _updated, "Change every match."
        ),
        _action("replaceOne", "filter replacement upsert", True, _replace_one, _updated, "Replace the first match."),
        _action("deleteOne", "filter", True, _delete(1), _deleted, "Delete the first match."),
        _action("deleteMany", "filter", True, _delete(0), _deleted, "Delete every match."),
        _action("countDocuments", "filter limit skip", False, _count, _counted, "How many documents match."),
        _action("distinct", "key filter", False, _distinct, _values, "The distinct values of a field."),
    )
}


# --- writes that did not go well --------------------------------------------------------------------------------


def optime_text(optime: object) -> str | None:
    if not isinstance(optime, Mapping):
        return None
    stamp = optime.get("ts")
    return f"{int(optime['t'])}:{stamp.time}:{stamp.inc}" if isinstance(stamp, Timestamp) else None


def check_write(action: Action, reply: Body, command: Body) -> None:
    """HttpError for a write that failed (writeErrors), or is applied without its write concern (504)."""
    shaped = action.shape(reply, command)
    errors = reply.get("writeErrors")
    if errors:
        first = dict(errors[0])
        details = {name: first[name] for name in ("keyPattern", "keyValue") if name in first}
        details |= {
            "writeErrors": errors,
            **(shaped if action.name in ("insertMany", "updateMany", "deleteMany") else {}),
        }
        raise failure(int(first["code"]), str(first.get("errmsg", "")), details={**details, **times(reply)})
    concern = reply.get("writeConcernError")
    if concern:
        code = int(concern["code"])
        body: dict[str, object] = {
            "ok": 0,
            "code": code,
            "codeName": concern.get("codeName", code_name(code)),
            "errmsg": concern.get("errmsg", ""),
            "applied": True,
            **shaped,
            "optime": optime_text(reply.get("opTime")),
            "writeConcernError": concern,
            **times(reply),
        }
        raise HttpError(504, body, {"x-replset-applied": "true"})


def times(reply: Mapping[str, Any]) -> Body:
    """The fields that every answer carries."""
    return {name: reply[name] for name in ("operationTime", "$clusterTime") if name in reply}
