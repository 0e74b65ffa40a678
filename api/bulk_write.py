"""Runs the action bulkWrite: operations of several kinds in one request.

Operations of one kind that follow each other become one command, as drivers send them. Each command waits for the
write concern, because a failover between two commands may roll the first one back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.actions import ActionCommand, ActionType, FieldKind, Fields, NewId, check_fields, number_of, wrong_type
from api.bodies import parts_of
from api.commands import Reply, check_reply, decode_reply, run_write
from api.errors import HttpError, failure, unknown_outcome
from api.exchange import HttpRequest
from api.idempotency import KeyedWrite
from replset.bson import RawDocument
from replset.bson.limits import MAX_WRITE_BATCH
from replset.errors import ErrorCode
from replset.member.member import RunningMember
from replset.optime import optime_or_none

_STATEMENTS = {"insertOne": "documents", "deleteOne": "deletes", "deleteMany": "deletes"}
"""The field of an operation's command that holds its statement; `updates` for the others."""
OPERATIONS = ("insertOne", "updateOne", "updateMany", "replaceOne", "deleteOne", "deleteMany")


@dataclass(slots=True)
class BulkPart:
    """One command. places: the number in `operations` of each of its statements."""

    body: dict[str, Any]
    statements: str
    places: list[int]


@dataclass(slots=True)
class BulkWrite(ActionCommand):
    """All commands of a bulkWrite, in order. `body` has only the fields that they share."""

    parts: list[BulkPart] = field(default_factory=list)
    id_places: list[int] = field(default_factory=list)
    """Which operation inserts each of `ids`."""


def bulk_write_action(actions: Mapping[str, ActionType], shared: Mapping[str, FieldKind]) -> ActionType:
    """Return the action. actions: those with one command. shared: the fields that every write has."""

    def build(body: Fields, new_id: NewId) -> ActionCommand:
        return _build(actions, shared, body, new_id)

    return ActionType(
        "bulkWrite",
        "Insert, change and delete documents by a list of operations; unless ordered is false, the first that fails"
        " ends it.",
        {**shared, "operations": FieldKind.ARRAY, "ordered": FieldKind.BOOL},
        frozenset({"database", "collection", "operations"}),
        build,
        _answer_fields,
    )


# --- to commands ------------------------------------------------------------------------------------------------


def _build(
    actions: Mapping[str, ActionType], shared: Mapping[str, FieldKind], body: Fields, new_id: NewId
) -> BulkWrite:
    rows = body["operations"]
    if not 1 <= len(rows) <= MAX_WRITE_BATCH:
        text = f"bulkWrite.operations has 1 to {MAX_WRITE_BATCH} operations, not {len(rows)}"
        raise failure(ErrorCode.INVALID_LENGTH, text)
    bulk = BulkWrite(body["database"], {}, [])
    target = {"database": body["database"], "collection": body["collection"]}
    for place, row in enumerate(rows):
        name, fields = _operation(place, row)
        action = actions[name]
        own = {key: kind for key, kind in action.fields.items() if key not in shared}
        found = check_fields(f"bulkWrite.operations.{place}.{name}", own, action.required - target.keys(), fields)
        _add(bulk, name, action.build(target | found, new_id), place, body.get("ordered", True))
    return bulk


def _operation(place: int, row: object) -> tuple[str, Fields]:
    """Return the name and the fields of one operation, which is a document such as {"insertOne": {...}}."""
    where = f"bulkWrite.operations.{place}"
    if not isinstance(row, RawDocument):
        raise wrong_type(where, row, FieldKind.DOCUMENT)
    names = row.keys()
    if len(names) != 1 or names[0] not in OPERATIONS:
        text = f"'{where}' must have one field, which is the operation: one of {', '.join(OPERATIONS)}"
        raise failure(ErrorCode.FAILED_TO_PARSE, text)
    raw = row.get_raw(names[0])
    if raw is None or row.type_of(names[0]) != 3:
        raise wrong_type(f"{where}.{names[0]}", row.get(names[0]), FieldKind.DOCUMENT)
    return names[0], parts_of(raw)


def _add(bulk: BulkWrite, name: str, command: ActionCommand, place: int, is_ordered: bool) -> None:
    """Add the operation to the last command if that is of its kind, else as a command of its own."""
    statements = _STATEMENTS.get(name, "updates")
    if command.ids:
        bulk.ids += command.ids
        bulk.id_places.append(place)
    last = bulk.parts[-1] if bulk.parts else None
    if last is not None and last.statements == statements:
        last.body[statements] += command.body[statements]
        last.places.append(place)
    else:
        bulk.parts.append(BulkPart({**command.body, "ordered": is_ordered}, statements, [place]))


# --- running ----------------------------------------------------------------------------------------------------


async def run_bulk(
    member: RunningMember, request: HttpRequest, bulk: BulkWrite, key: KeyedWrite | None
) -> tuple[Reply, dict[str, str]]:
    """Run the commands one after the other. Return one reply for all, and the headers of the last.

    HttpError: a command failed as a whole. When operations before it were applied, it is a 504 that shows their result.
    """
    total: dict[str, Any] = {"ok": 1.0, "n": 0, "nInserted": 0, "nMatched": 0, "nModified": 0, "nRemoved": 0}
    total |= {"upserted": [], "writeErrors": []}
    headers: dict[str, str] = {}
    for number, part in enumerate(bulk.parts):
        body = {**part.body, **bulk.body, **({} if key is None else key.fields_of(number))}
        try:
            answer, headers = await run_write(member, request, body, bulk.database)
            reply = decode_reply(check_reply(answer, is_write=True))
        except HttpError as error:
            if not total["n"]:
                raise
            details = {name: value for name, value in error.body.items() if name not in ("ok", "applied")}
            code, text = int(details.pop("code")), str(details.pop("errmsg"))
            details.pop("codeName", None)
            details |= {**_answer_fields(total, bulk), "failedOperation": part.places[0]}
            raise unknown_outcome(
                code, f"applied before operation {part.places[0]}, which failed: {text}", details
            ) from error
        _count(total, part, reply)
        if total["writeErrors"] and bulk.is_ordered:
            break
    return total, headers


def _count(total: dict[str, Any], part: BulkPart, reply: dict[str, Any]) -> None:
    """Add the reply of one command to the reply of all."""
    count, upserted = number_of(reply, "n"), reply.get("upserted") or []
    total["n"] += count
    match part.statements:
        case "documents":
            total["nInserted"] += count
        case "deletes":
            total["nRemoved"] += count
        case "updates":
            total["nMatched"] += count - len(upserted)
            total["nModified"] += number_of(reply, "nModified")
    total["upserted"] += [{**row, "index": part.places[int(row["index"])]} for row in upserted]
    errors = reply.get("writeErrors") or []
    total["writeErrors"] += [{**row, "index": part.places[int(row["index"])]} for row in errors]
    # The first unmet write concern stays: what follows it is no newer knowledge about the operations before it.
    if reply.get("writeConcernError") and "writeConcernError" not in total:
        total["writeConcernError"] = reply["writeConcernError"]
    if optime_or_none(reply.get("opTime")) is not None:
        total["opTime"] = reply["opTime"]
    # A reply without a cluster time is as new as its operation: that of the command before is older.
    total |= {name: reply.get(name) for name in ("operationTime", "$clusterTime")}


def _answer_fields(reply: Reply, command: ActionCommand) -> dict[str, Any]:
    """Return the fields of the answer; with w: 0, of which there is no reply, only the ids."""
    assert isinstance(command, BulkWrite)
    errors: Any = reply.get("writeErrors") or ()
    upserted: Any = reply.get("upserted") or ()
    failed = {int(row["index"]) for row in errors}
    first = min(failed, default=None) if command.is_ordered else None
    inserted = [
        {"index": place, "_id": value}
        for place, value in zip(command.id_places, command.ids, strict=True)
        if place not in failed and (first is None or place < first)
    ]
    if command.is_unacknowledged:
        return {"insertedIds": inserted}
    return {
        "insertedCount": number_of(reply, "nInserted"),
        "matchedCount": number_of(reply, "nMatched"),
        "modifiedCount": number_of(reply, "nModified"),
        "deletedCount": number_of(reply, "nRemoved"),
        "insertedIds": inserted,
        "upsertedIds": [{"index": row["index"], "_id": row["_id"]} for row in upserted],
    }
