"""Defines the data actions, which have the shape of the retired Atlas Data API.

Here is how a body becomes a command and a reply an answer. action_table.py lists the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, TypeAlias

from api.bodies import DocumentList, times_of
from api.commands import Reply, decode_reply
from api.errors import (
    APPLIED,
    HttpError,
    failure,
    unknown_outcome,
)
from api.exchange import HttpAnswer
from replset.bson import Decimal128, Int64, ObjectId, RawDocument, encode, walk
from replset.bson.decoding import read_value
from replset.bson.types import type_name
from replset.errors import ErrorCode, code_name, http_status_of
from replset.optime import optime_or_none

BATCH_SIZE = 100_000
"""Documents in one batch of a find. A batch ends at 16 MiB anyway."""
Fields: TypeAlias = dict[str, Any]
NewId: TypeAlias = Callable[[], ObjectId]
_int32 = Struct("<i").pack


class FieldKind(Enum):
    """The kind of value that a field takes. title: MongoDB's name for it. types: of the values in Python."""

    DOCUMENT = "object", RawDocument
    ARRAY = "array", list
    UPDATE = "object or array", RawDocument, list
    TEXT = "string", str
    BOOL = "bool", bool
    NUMBER = "number", int, Int64, float, Decimal128
    READ_PREFERENCE = "object or string", RawDocument, str

    def __init__(self, title: str, *types: type) -> None:
        self.title = title
        self.types = frozenset(types)


@dataclass(slots=True)
class ActionCommand:
    """The command that an action runs. ids: the `_id` of each document that it inserts. is_unacknowledged: it has the
    write concern w: 0, with which an answer does not say what was applied.
    """

    database: str
    body: dict[str, Any]
    ids: list[object]
    is_ordered: bool = True
    is_unacknowledged: bool = False


@dataclass(frozen=True, slots=True)
class ActionType:
    """One action.

    fields, required: what its body takes and needs. build: makes the command. answer_fields: makes the answer's fields
    from the command's reply.
    """

    name: str
    summary: str
    fields: Mapping[str, FieldKind]
    required: frozenset[str]
    build: Callable[[Fields, NewId], ActionCommand]
    answer_fields: Callable[[Reply, ActionCommand], dict[str, Any]]
    status: int = 200

    @property
    def is_write(self) -> bool:
        return "writeConcern" in self.fields

    @property
    def is_many(self) -> bool:
        """Whether several operations or documents may fail, each by itself."""
        return self.name.endswith("Many") or self.name == "bulkWrite"


# --- fields of a body -------------------------------------------------------------------------------------------


def build_command(action: ActionType, body: Fields, new_id: NewId) -> ActionCommand:
    """Check the body and make its command. HttpError 400 names the field that is wrong."""
    fields = check_fields(action.name, action.fields, action.required, body)
    command = action.build(fields, new_id)
    for name in ("maxTimeMS", "writeConcern", "readConcern"):
        if name in fields:
            command.body[name] = fields[name]
    concern = fields.get("writeConcern")
    w = concern.get("w") if isinstance(concern, RawDocument) else None
    command.is_unacknowledged = isinstance(w, int | float) and not isinstance(w, bool) and w == 0
    preference = fields.get("readPreference")
    if preference is not None:
        command.body["$readPreference"] = {"mode": preference} if isinstance(preference, str) else preference
    command.is_ordered = fields.get("ordered", True)
    return command


def check_fields(place: str, known: Mapping[str, FieldKind], required: Collection[str], body: Fields) -> Fields:
    """Return the fields without nulls. HttpError for a field that is unknown, missing or of the wrong type.

    place: of the fields, for the error.
    """
    found: Fields = {}
    for name, value in body.items():
        kind = known.get(name)
        if kind is None:
            raise failure(ErrorCode.UNKNOWN_FIELD, f"BSON field '{place}.{name[:80]}' is an unknown field.")
        if value is None and name not in required:
            continue
        if type(value) not in kind.types:
            raise wrong_type(f"{place}.{name}", value, kind)
        found[name] = value
    for name in required:
        if name not in found:
            raise failure(ErrorCode.MISSING_FIELD, f"BSON field '{place}.{name}' is missing but a required field")
    return found


def wrong_type(place: str, value: object, kind: FieldKind) -> HttpError:
    found = "object" if isinstance(value, RawDocument) else type_name(value)
    text = f"BSON field '{place}' is the wrong type '{found}', expected type '{kind.title}'"
    return failure(ErrorCode.TYPE_MISMATCH, text)


# --- commands ---------------------------------------------------------------------------------------------------


def _with_id(document: RawDocument, new_id: NewId) -> tuple[RawDocument, object]:
    """Return the document with an `_id`, and that `_id`. It is fixed here, before the write is forwarded."""
    raw = document.raw
    if raw[5:9] == b"_id\0":
        return document, read_value(raw, raw[4], 9, len(raw) - 1)
    if "_id" in document:
        return document, document.get("_id")
    value = new_id()
    return RawDocument(b"".join((_int32(len(raw) + 17), b"\x07_id\0", value.binary, raw[4:]))), value


def _insert(body: Fields, documents: list[RawDocument], new_id: NewId) -> ActionCommand:
    rows = [_with_id(document, new_id) for document in documents]
    command = {"insert": body["collection"], "documents": [row for row, _ in rows]}
    if "ordered" in body:
        command["ordered"] = body["ordered"]
    return ActionCommand(body["database"], command, [value for _, value in rows])


def insert_one(body: Fields, new_id: NewId) -> ActionCommand:
    return _insert(body, [body["document"]], new_id)


def insert_many(body: Fields, new_id: NewId) -> ActionCommand:
    for index, document in enumerate(body["documents"]):
        if not isinstance(document, RawDocument):
            raise wrong_type(f"insertMany.documents.{index}", document, FieldKind.DOCUMENT)
    return _insert(body, body["documents"], new_id)


def _command(name: str, body: Fields, *copied: str, **fixed: object) -> ActionCommand:
    command: dict[str, Any] = {name: body["collection"]}
    for field in (*copied, "collation"):
        if field in body:
            command[field] = body[field]
    return ActionCommand(body["database"], {**command, **fixed}, [])


def find(body: Fields, _new_id: NewId) -> ActionCommand:
    return _command("find", body, "filter", "projection", "sort", "skip", "limit", batchSize=BATCH_SIZE)


def find_one(body: Fields, _new_id: NewId) -> ActionCommand:
    return _command("find", body, "filter", "projection", "sort", "skip", limit=1, singleBatch=True)


EMPTY = RawDocument(b"\5\0\0\0\0")


def _operators(body: Fields, name: str) -> object:
    """Return the `update` of an action, which is no whole document."""
    change = body["update"]
    if isinstance(change, RawDocument) and (change.first_key or "")[:1] != "$":
        instead = "findOneAndReplace" if name == "findOneAndUpdate" else "replaceOne"
        text = f"'{name}.update' must hold update operators such as $set; {instead} takes a whole document"
        raise failure(ErrorCode.FAILED_TO_PARSE, text)
    return change


def _replacement(body: Fields, name: str) -> RawDocument:
    """Return the `replacement` of an action, which is a whole document."""
    replacement: RawDocument = body["replacement"]
    if (replacement.first_key or "")[:1] == "$":
        instead = "findOneAndUpdate" if name == "findOneAndReplace" else "updateOne"
        text = f"'{name}.replacement' is a whole document; {instead} takes operators"
        raise failure(ErrorCode.FAILED_TO_PARSE, text)
    return replacement


def update(many: bool) -> Callable[[Fields, NewId], ActionCommand]:
    return lambda body, _new_id: _statement(body, _operators(body, "updateMany" if many else "updateOne"), many)


def replace_one(body: Fields, _new_id: NewId) -> ActionCommand:
    return _statement(body, _replacement(body, "replaceOne"), False)


def _find_and_modify(body: Fields, **change: object) -> ActionCommand:
    options = {"sort": "sort", "projection": "fields", "returnNewDocument": "new"}
    given = {option: body[field] for field, option in options.items() if field in body}
    return _command("findAndModify", body, "upsert", "arrayFilters", query=body["filter"], **change, **given)


def find_one_and_update(body: Fields, _new_id: NewId) -> ActionCommand:
    return _find_and_modify(body, update=_operators(body, "findOneAndUpdate"))


def find_one_and_replace(body: Fields, _new_id: NewId) -> ActionCommand:
    return _find_and_modify(body, update=_replacement(body, "findOneAndReplace"))


def find_one_and_delete(body: Fields, _new_id: NewId) -> ActionCommand:
    return _find_and_modify(body, remove=True)


def _statement(body: Fields, change: object, many: bool) -> ActionCommand:
    statement = {"q": body["filter"], "u": change, "multi": many}
    for name in ("upsert", "arrayFilters", "collation"):
        if name in body:
            statement[name] = body[name]
    return ActionCommand(body["database"], {"update": body["collection"], "updates": [statement]}, [])


def delete(limit: int) -> Callable[[Fields, NewId], ActionCommand]:
    def build(body: Fields, _new_id: NewId) -> ActionCommand:
        statement = {"q": body["filter"], "limit": limit}
        if "collation" in body:
            statement["collation"] = body["collation"]
        return ActionCommand(body["database"], {"delete": body["collection"], "deletes": [statement]}, [])

    return build


def count(body: Fields, _new_id: NewId) -> ActionCommand:
    return _command("count", body, "limit", "skip", query=body.get("filter", EMPTY))


def aggregate(body: Fields, _new_id: NewId) -> ActionCommand:
    return _command("aggregate", body, "pipeline", cursor={"batchSize": BATCH_SIZE})


def distinct(body: Fields, _new_id: NewId) -> ActionCommand:
    return _command("distinct", body, "key", query=body.get("filter", EMPTY))


# --- answers ----------------------------------------------------------------------------------------------------


def inserted_one(_reply: Reply, command: ActionCommand) -> dict[str, Any]:
    return {"insertedId": command.ids[0]}


def inserted_many(reply: Reply, command: ActionCommand) -> dict[str, Any]:
    errors = reply.get("writeErrors")
    if not isinstance(errors, list) or not errors:
        return {"insertedIds": command.ids}
    failed = {int(row["index"]) for row in errors}
    count = min(failed) if command.is_ordered else len(command.ids)
    return {"insertedIds": [value for index, value in enumerate(command.ids[:count]) if index not in failed]}


def read_cursor(reply: Reply, batch: str) -> tuple[Int64, DocumentList]:
    """Return the cursor's id and the documents of a reply. batch: `firstBatch` or `nextBatch`."""
    cursor: Any = RawDocument(reply.get_raw("cursor") or b"") if isinstance(reply, RawDocument) else reply.get("cursor")
    return Int64(cursor.get("id")), documents_in(cursor, batch)


def documents_in(reply: Reply, name: str) -> DocumentList:
    """Return the documents of an array in a reply, as they are."""
    if isinstance(reply, RawDocument):
        array = reply.get_raw(name) or b""
        return DocumentList(RawDocument(array[at:end]) for _, _, at, end in walk(array))
    return DocumentList(row if isinstance(row, RawDocument) else RawDocument(encode(row)) for row in reply[name])


def found_one(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    _, batch = read_cursor(reply, "firstBatch")
    return {"document": batch[0] if batch else None}


def found(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    return {"documents": read_cursor(reply, "firstBatch")[1]}


def updated(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    upserted: Any = reply.get("upserted") or []
    fields: dict[str, Any] = {
        "matchedCount": number_of(reply, "n") - len(upserted),
        "modifiedCount": number_of(reply, "nModified"),
    }
    if upserted:
        fields["upsertedId"] = upserted[0]["_id"]
    return fields


def modified(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    fields: dict[str, Any] = {"document": reply.get("value")}
    result: Any = reply.get("lastErrorObject") or {}
    if "upserted" in result:
        fields["upsertedId"] = result["upserted"]
    return fields


def deleted(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    return {"deletedCount": number_of(reply, "n")}


def counted(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    return {"count": number_of(reply, "n")}


def found_values(reply: Reply, _command: ActionCommand) -> dict[str, Any]:
    return {"values": reply.get("values")}


def number_of(reply: Reply, name: str) -> int:
    value = reply.get(name)
    return int(value) if isinstance(value, int | float) else 0


# --- how a write ended ------------------------------------------------------------------------------------------


def action_answer(action: ActionType, reply: Reply, command: ActionCommand) -> HttpAnswer:
    """Return the answer to a write that ran. HttpError: it failed, or its write concern was not met."""
    if command.is_unacknowledged:
        fields = action.answer_fields({}, command) if command.ids else {}
        return HttpAnswer(fields, 202, times=times_of(reply))
    fields = action.answer_fields(reply, command)
    _raise_write_errors(reply, fields, is_many=action.is_many or len(command.ids) > 1)
    return HttpAnswer(fields, action.status, times=times_of(reply))


def _raise_write_errors(reply: Reply, fields: Mapping[str, Any], *, is_many: bool) -> None:
    """Raise HttpError for the first write error of a reply with ok: 1, else for its write concern error (504).

    fields: of the answer. is_many: the error lists all write errors, and the answer's fields with them.
    """
    if reply.get("writeErrors"):
        whole = decode_reply(reply)
        errors: Any = whole["writeErrors"]
        details = {name: value for name, value in errors[0].items() if name not in ("index", "code", "errmsg")}
        if is_many:
            details |= {"writeErrors": errors, **fields}
        if whole.get("writeConcernError"):
            details["writeConcernError"] = whole["writeConcernError"]
        code, text = int(errors[0]["code"]), str(errors[0].get("errmsg", ""))
        # A 503 says that nothing was applied and invites the client to send the whole write again. Here a part is
        # applied already, and a second run would apply that part twice. So the answer is a 504.
        if http_status_of(code) == 503 and number_of(reply, "n"):
            raise unknown_outcome(code, text, details)
        raise failure(code, text, details=details)
    concern: Any = reply.get("writeConcernError")
    if concern:
        code, optime = int(concern["code"]), optime_or_none(reply.get("opTime"))
        body = {
            "ok": 0,
            "code": code,
            "codeName": str(concern.get("codeName", code_name(code))),
            "errmsg": str(concern.get("errmsg", "")),
            "applied": True,
            **fields,
            "optime": None if optime is None else str(optime),
            "writeConcernError": concern,
        }
        raise HttpError(504, body, {APPLIED: "true"})
