"""The data actions, in the shape of the retired Atlas Data API: fields of a body to a command, its reply to an answer.

One table says for each action which fields it takes; openapi.py describes them from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, TypeAlias

from api.ask import Reply, decoded
from api.content import Documents, times_of
from api.errors import APPLIED, HttpError, failure, status_of, unknown_outcome
from api.exchange import Answer
from replset.bson import Binary, Code, DateTime, Decimal128, Int64, ObjectId, RawDocument, Regex, Timestamp, encode
from replset.errors import ErrorCode, code_name
from replset.ids import OpTime, pack_ts

NOT_BUILT = ("findOneAndUpdate", "findOneAndReplace", "findOneAndDelete", "bulkWrite", "aggregate")
BATCH = 100_000
"""Documents that a find asks for at once; a batch ends at 16 MiB anyway."""
Fields: TypeAlias = dict[str, Any]
NewId: TypeAlias = Callable[[], ObjectId]
_int32 = Struct("<i").pack


class Kind(Enum):
    """What a field holds; the value is MongoDB's word for it."""

    DOCUMENT = "object"
    ARRAY = "array"
    CHANGE = "object or array"
    TEXT = "string"
    FLAG = "bool"
    NUMBER = "number"
    MODE = "object or string"


FILTER = {"filter": Kind.DOCUMENT}
COMMON = {"database": Kind.TEXT, "collection": Kind.TEXT, "dataSource": Kind.TEXT, "maxTimeMS": Kind.NUMBER}
READS = {"readConcern": Kind.DOCUMENT, "readPreference": Kind.MODE}
WRITES = {"writeConcern": Kind.DOCUMENT}
FIND = {**FILTER, "projection": Kind.DOCUMENT, "sort": Kind.DOCUMENT, "skip": Kind.NUMBER}
NEEDS = frozenset({"database", "collection"})
UPDATE = {**FILTER, "update": Kind.CHANGE, "upsert": Kind.FLAG, "arrayFilters": Kind.ARRAY}


@dataclass(slots=True)
class Prepared:
    """What an action is to run. `ids`: of the documents that it inserts."""

    database: str
    command: dict[str, Any]
    ids: list[object]
    ordered: bool = True

    @property
    def unacknowledged(self) -> bool:
        """w: 0: the answer promises nothing."""
        concern = self.command.get("writeConcern")
        w = concern.get("w") if isinstance(concern, RawDocument) else None
        return isinstance(w, int | float) and not isinstance(w, bool) and w == 0


@dataclass(frozen=True, slots=True)
class Action:
    """One action. build: the command for its fields. shape: the answer's fields out of the reply."""

    name: str
    takes: Mapping[str, Kind]
    needs: frozenset[str]
    writes: bool
    build: Callable[[Fields, NewId], Prepared]
    shape: Callable[[Reply, Prepared], dict[str, Any]]
    summary: str
    status: int = 200


# --- fields of a body -------------------------------------------------------------------------------------------


def checked(action: Action, body: Fields) -> Fields:
    """The fields that say something. HttpError for one that is unknown, missing or of the wrong type."""
    takes = action.takes
    found: Fields = {}
    for name, value in body.items():
        kind = takes.get(name)
        if kind is None:
            raise failure(ErrorCode.UNKNOWN_FIELD, f"BSON field '{action.name}.{name[:80]}' is an unknown field.")
        if value is None and name not in action.needs:
            continue
        if not _fits(kind, value):
            raise failure(
                ErrorCode.TYPE_MISMATCH,
                f"BSON field '{action.name}.{name}' is the wrong type '{type_name(value)}',"
                f" expected type '{kind.value}'",
            )
        found[name] = value
    for name in action.needs:
        if name not in found:
            raise failure(ErrorCode.MISSING_FIELD, f"BSON field '{action.name}.{name}' is missing but a required field")
    return found


def _fits(kind: Kind, value: object) -> bool:
    match kind:
        case Kind.DOCUMENT:
            return isinstance(value, RawDocument)
        case Kind.ARRAY:
            return isinstance(value, list)
        case Kind.CHANGE:
            return isinstance(value, RawDocument | list)
        case Kind.TEXT:
            return type(value) is str
        case Kind.FLAG:
            return isinstance(value, bool)
        case Kind.NUMBER:
            return isinstance(value, int | float | Decimal128) and not isinstance(value, bool)
        case Kind.MODE:
            return isinstance(value, RawDocument | str)


_TYPE_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    (Int64, "long"),
    (int, "int"),
    (float, "double"),
    (Decimal128, "decimal"),
    (ObjectId, "objectId"),
    (DateTime, "date"),
    (Timestamp, "timestamp"),
    (Binary, "binData"),
    (Regex, "regex"),
    (Code, "javascript"),
    (str, "string"),
    (list, "array"),
    ((RawDocument, dict), "object"),
)


def type_name(value: object) -> str:
    """MongoDB's name for the type of a decoded value."""
    if value is None:
        return "null"
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), type(value).__name__)


def with_common(body: Fields, made: Prepared) -> Prepared:
    """`made` with what every action of its kind may carry."""
    command = made.command
    for name in ("maxTimeMS", "writeConcern", "readConcern"):
        if name in body:
            command[name] = body[name]
    preference = body.get("readPreference")
    if preference is not None:
        command["$readPreference"] = {"mode": preference} if isinstance(preference, str) else preference
    made.ordered = body.get("ordered", True)
    return made


def prepare(action: Action, body: Fields, new_id: NewId) -> Prepared:
    """Check the body, make the command. HttpError 400 names the field."""
    fields = checked(action, body)
    made = action.build(fields, new_id)
    return with_common(fields, made)


# --- commands ---------------------------------------------------------------------------------------------------


def with_id(document: RawDocument, new_id: NewId) -> tuple[RawDocument, object]:
    """The document with its `_id` fixed now, so that what is sent twice is one document; and that `_id`."""
    if "_id" in document:
        return document, document.get("_id")
    value = new_id()
    raw = document.raw
    return RawDocument(b"".join((_int32(len(raw) + 17), b"\x07_id\0", value.binary, raw[4:]))), value


def _insert(body: Fields, documents: list[RawDocument], new_id: NewId) -> Prepared:
    rows = [with_id(document, new_id) for document in documents]
    command = {"insert": body["collection"], "documents": [row for row, _ in rows]}
    if "ordered" in body:
        command["ordered"] = body["ordered"]
    return Prepared(body["database"], command, [value for _, value in rows])


def _insert_one(body: Fields, new_id: NewId) -> Prepared:
    return _insert(body, [body["document"]], new_id)


def _insert_many(body: Fields, new_id: NewId) -> Prepared:
    for index, document in enumerate(body["documents"]):
        if not isinstance(document, RawDocument):
            raise failure(
                ErrorCode.TYPE_MISMATCH,
                f"BSON field 'insertMany.documents.{index}' is the wrong type '{type_name(document)}',"
                " expected type 'object'",
            )
    return _insert(body, body["documents"], new_id)


def _command(name: str, body: Fields, *copied: str, **fixed: object) -> Prepared:
    command: dict[str, Any] = {name: body["collection"]}
    for field in copied:
        if field in body:
            command[field] = body[field]
    return Prepared(body["database"], {**command, **fixed}, [])


def _find(body: Fields, _new_id: NewId) -> Prepared:
    return _command("find", body, "filter", "projection", "sort", "skip", "limit", batchSize=BATCH)


def _find_one(body: Fields, _new_id: NewId) -> Prepared:
    return _command("find", body, "filter", "projection", "sort", "skip", limit=1, singleBatch=True)


EMPTY = RawDocument(b"\5\0\0\0\0")


def _update(many: bool) -> Callable[[Fields, NewId], Prepared]:
    def build(body: Fields, _new_id: NewId) -> Prepared:
        change = body["update"]
        if isinstance(change, RawDocument) and (change.first_key or "")[:1] != "$":
            name = "updateMany" if many else "updateOne"
            text = f"'{name}.update' must hold update operators such as $set; replaceOne takes a whole document"
            raise failure(ErrorCode.FAILED_TO_PARSE, text)
        return _statement(body, change, many)

    return build


def _replace_one(body: Fields, _new_id: NewId) -> Prepared:
    replacement: RawDocument = body["replacement"]
    if (replacement.first_key or "")[:1] == "$":
        raise failure(
            ErrorCode.FAILED_TO_PARSE, "'replaceOne.replacement' is a whole document; updateOne takes operators"
        )
    return _statement(body, replacement, False)


def _statement(body: Fields, change: object, many: bool) -> Prepared:
    statement = {"q": body["filter"], "u": change, "multi": many}
    for name in ("upsert", "arrayFilters"):
        if name in body:
            statement[name] = body[name]
    return Prepared(body["database"], {"update": body["collection"], "updates": [statement]}, [])


def _delete(limit: int) -> Callable[[Fields, NewId], Prepared]:
    def build(body: Fields, _new_id: NewId) -> Prepared:
        deletes = [{"q": body["filter"], "limit": limit}]
        return Prepared(body["database"], {"delete": body["collection"], "deletes": deletes}, [])

    return build


def _count(body: Fields, _new_id: NewId) -> Prepared:
    return _command("count", body, "limit", "skip", query=body.get("filter", EMPTY))


def _distinct(body: Fields, _new_id: NewId) -> Prepared:
    return _command("distinct", body, "key", query=body.get("filter", EMPTY))


# --- answers ----------------------------------------------------------------------------------------------------


def _inserted_one(_reply: Reply, prepared: Prepared) -> dict[str, Any]:
    return {"insertedId": prepared.ids[0]}


def _inserted_many(reply: Reply, prepared: Prepared) -> dict[str, Any]:
    errors = reply.get("writeErrors")
    if not isinstance(errors, list) or not errors:
        return {"insertedIds": prepared.ids}
    failed = {int(row["index"]) for row in errors}
    tried = min(failed) if prepared.ordered else len(prepared.ids)
    return {"insertedIds": [value for index, value in enumerate(prepared.ids[:tried]) if index not in failed]}


def first_batch(reply: Reply) -> tuple[Int64, Documents]:
    """(cursor id, documents) of a reply with a cursor."""
    return _page(reply, "firstBatch")


def next_batch(reply: Reply) -> tuple[Int64, Documents]:
    return _page(reply, "nextBatch")


def _page(reply: Reply, name: str) -> tuple[Int64, Documents]:
    cursor: Any = reply.get("cursor")
    return Int64(cursor["id"]), Documents(row if isinstance(row, RawDocument) else _raw(row) for row in cursor[name])


def _raw(document: Any) -> RawDocument:
    return RawDocument(encode(document))


def _found_one(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    _, batch = first_batch(reply)
    return {"document": batch[0] if batch else None}


def _found(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    return {"documents": first_batch(reply)[1]}


def _updated(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    upserted: Any = reply.get("upserted") or []
    shaped: dict[str, Any] = {
        "matchedCount": _number(reply, "n") - len(upserted),
        "modifiedCount": _number(reply, "nModified"),
    }
    if upserted:
        shaped["upsertedId"] = upserted[0]["_id"]
    return shaped


def _deleted(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    return {"deletedCount": _number(reply, "n")}


def _counted(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    return {"count": _number(reply, "n")}


def _values(reply: Reply, _prepared: Prepared) -> dict[str, Any]:
    return {"values": reply.get("values")}


def _number(reply: Reply, name: str) -> int:
    value = reply.get(name)
    return int(value) if isinstance(value, int | float) else 0


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            "findOne",
            COMMON | READS | FIND,
            NEEDS,
            False,
            _find_one,
            _found_one,
            "The first document that matches, or null.",
        ),
        Action(
            "find",
            COMMON | READS | FIND | {"limit": Kind.NUMBER},
            NEEDS,
            False,
            _find,
            _found,
            "All documents that match.",
        ),
        Action(
            "countDocuments",
            COMMON | READS | FILTER | {"limit": Kind.NUMBER, "skip": Kind.NUMBER},
            NEEDS,
            False,
            _count,
            _counted,
            "How many documents match.",
        ),
        Action(
            "distinct",
            COMMON | READS | FILTER | {"key": Kind.TEXT},
            NEEDS | frozenset({"key"}),
            False,
            _distinct,
            _values,
            "The distinct values of one field.",
        ),
        Action(
            "insertOne",
            COMMON | WRITES | {"document": Kind.DOCUMENT},
            NEEDS | frozenset({"document"}),
            True,
            _insert_one,
            _inserted_one,
            "Insert a document; it gets an ObjectId as _id when it has none.",
            201,
        ),
        Action(
            "insertMany",
            COMMON | WRITES | {"documents": Kind.ARRAY, "ordered": Kind.FLAG},
            NEEDS | frozenset({"documents"}),
            True,
            _insert_many,
            _inserted_many,
            "Insert documents; unless ordered is false, the first that fails ends it.",
            201,
        ),
        Action(
            "updateOne",
            COMMON | WRITES | UPDATE,
            NEEDS | frozenset({"filter", "update"}),
            True,
            _update(False),
            _updated,
            "Change the first document that matches.",
        ),
        Action(
            "updateMany",
            COMMON | WRITES | UPDATE,
            NEEDS | frozenset({"filter", "update"}),
            True,
            _update(True),
            _updated,
            "Change every document that matches.",
        ),
        Action(
            "replaceOne",
            COMMON | WRITES | FILTER | {"replacement": Kind.DOCUMENT, "upsert": Kind.FLAG},
            NEEDS | frozenset({"filter", "replacement"}),
            True,
            _replace_one,
            _updated,
            "Replace the first document that matches; its _id stays.",
        ),
        Action(
            "deleteOne",
            COMMON | WRITES | FILTER,
            NEEDS | frozenset({"filter"}),
            True,
            _delete(1),
            _deleted,
            "Delete the first document that matches.",
        ),
        Action(
            "deleteMany",
            COMMON | WRITES | FILTER,
            NEEDS | frozenset({"filter"}),
            True,
            _delete(0),
            _deleted,
            "Delete every document that matches.",
        ),
    )
}


# --- how a write ended ------------------------------------------------------------------------------------------


def optime_text(optime: object) -> str | None:
    """TERM:SECONDS:INC of an optime in a reply."""
    if not isinstance(optime, Mapping) or not isinstance(optime.get("ts"), Timestamp):
        return None
    stamp: Timestamp = optime["ts"]
    return str(OpTime(int(optime.get("t", 0)), pack_ts(stamp.time, stamp.inc)))


def write_answer(action: Action, reply: Reply, prepared: Prepared) -> Answer:
    """The answer to a write that was carried out. HttpError: it failed, or it is applied without its write concern."""
    if prepared.unacknowledged:
        shaped = action.shape({}, prepared) if prepared.ids else {}
        return Answer(shaped, 202, times=times_of(reply))
    raise_for(reply, action.shape(reply, prepared), many=len(prepared.ids) > 1 or action.name.endswith("Many"))
    return Answer(action.shape(reply, prepared), action.status, times=times_of(reply))


def raise_for(reply: Reply, result: Mapping[str, Any], *, many: bool) -> None:
    """HttpError for the write errors of a reply with ok: 1, by the first one, or for its write concern (504)."""
    if reply.get("writeErrors"):
        whole = decoded(reply)
        errors: Any = whole["writeErrors"]
        details = {name: value for name, value in errors[0].items() if name not in ("index", "code", "errmsg")}
        if many:
            details |= {"writeErrors": errors, **result}
        if whole.get("writeConcernError"):
            details["writeConcernError"] = whole["writeConcernError"]
        code, text = int(errors[0]["code"]), str(errors[0].get("errmsg", ""))
        if status_of(code) == 503 and _number(reply, "n"):  # part of it is applied: 503 would deny that
            raise unknown_outcome(code, text, details)
        raise failure(code, text, details=details)
    concern: Any = reply.get("writeConcernError")
    if concern:
        code = int(concern["code"])
        body = {
            "ok": 0,
            "code": code,
            "codeName": str(concern.get("codeName", code_name(code))),
            "errmsg": str(concern.get("errmsg", "")),
            "applied": True,
            **result,
            "optime": optime_text(reply.get("opTime")),
            "writeConcernError": concern,
        }
        raise HttpError(504, body, {APPLIED: "true"})
