"""Calls PyMongo for the operations that a test names, and gives results the form that the test format expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pymongo
from bson import SON
from gridfs import GridFSBucket
from pymongo import operations
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.driver_info import DriverInfo
from pymongo.errors import BulkWriteError
from pymongo.operations import SearchIndexModel
from pymongo.results import BulkWriteResult

from tests.conformance.entities import Entities, UnsupportedError
from tests.conformance.names import common_options, snake

_CAMEL_CASE = {"batchSize", "allowDiskUse", "bypassDocumentValidation", "maxTimeMS", "collation"}
"""Arguments that `aggregate`, `count` and the like pass to the server under their own names."""
_ROWS = {
    "aggregate": "aggregate",
    "find": "find",
    "listDatabases": "list_databases",
    "listDatabaseObjects": "list_databases",
    "listCollections": "list_collections",
    "listCollectionObjects": "list_collections",
    "listIndexes": "list_indexes",
}
_PLAIN = {
    "insertOne", "insertMany", "updateOne", "updateMany", "replaceOne", "deleteOne", "deleteMany",
    "countDocuments", "estimatedDocumentCount", "distinct", "findOne", "findOneAndDelete", "findOneAndReplace",
    "findOneAndUpdate", "createIndex", "dropIndex", "dropIndexes", "dropSearchIndex", "updateSearchIndex", "rename",
    "listDatabaseNames", "listCollectionNames", "dropDatabase", "dropCollection", "close", "delete", "deleteByName",
    "renameByName", "startTransaction", "commitTransaction", "abortTransaction", "endSession", "withTransaction",
    "iterateOnce", "iterateUntilDocumentOrError",
}  # fmt: skip
"""Operations that PyMongo has a method for, with the same arguments but for those of _ARGUMENTS."""
_ARGUMENTS = {
    ("dropCollection", "collection"): "name_or_collection",
    ("dropDatabase", "database"): "name_or_database",
    ("dropIndex", "name"): "index_or_name",
    ("delete", "id"): "file_id",
}


def run_operation(entities: Entities, target: Any, name: str, raw: Mapping[str, Any]) -> Any:
    """Run an operation other than the test runner's own on an entity; return its result as plain values."""
    if "rawData" in raw or "timeoutMode" in raw:
        raise UnsupportedError("rawData and timeoutMode")
    arguments = _converted(entities, name, raw)
    special: Callable[..., Any] | None = globals().get(f"_{snake(name)}")
    if special is not None:
        return _as_result(name, special(target, **arguments))
    if name in _ROWS:
        return list(getattr(target, _ROWS[name])(**arguments))
    if name in _PLAIN and hasattr(target, snake(name)):
        return _as_result(name, getattr(target, snake(name))(**arguments))
    raise UnsupportedError(f"the operation {name}")


def _converted(entities: Entities, operation: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Name and convert arguments as the PyMongo method of the operation takes them."""
    raw = common_options(raw) if operation in {"startTransaction", "withTransaction"} else raw
    converted: dict[str, Any] = {}
    keeps_names = operation in {"aggregate", "countDocuments", "estimatedDocumentCount", "distinct"}
    for name, value in raw.items():
        match name:
            case "session":
                converted["session"] = entities[value]
            case "fieldName":
                converted["key"] = value
            case _ if (operation, name) in _ARGUMENTS:
                converted[_ARGUMENTS[operation, name]] = value
            case "returnDocument":
                converted["return_document"] = value == "After"
            case "sort" | "hint" if isinstance(value, Mapping) and (name == "hint" or operation.startswith("find")):
                converted[name] = list(value.items())
            case "readPreference":
                converted |= common_options({name: value})
            case "maxTimeMS" if operation not in {"find", "findOne", "runCursorCommand", "createCommandCursor"}:
                converted[name] = value
            case "bypassDocumentValidation" if operation.startswith("findOneAnd"):
                converted[name] = value
            case "dropTarget":
                converted[name] = value
            case _:
                converted[name if keeps_names and name in _CAMEL_CASE else snake(name)] = value
    return converted


def _as_result(operation: str, result: Any) -> Any:
    """Return the document that the test format has for what PyMongo returned."""
    if getattr(result, "acknowledged", True) is False:
        return {"acknowledged": False}
    match operation:
        case "insertOne":
            return {"insertedId": result.inserted_id}
        case "insertMany":
            return {"insertedIds": {str(n): key for n, key in enumerate(result.inserted_ids)}}
        case "updateOne" | "updateMany" | "replaceOne":
            return _update_result(result) | {"upsertedCount": int(result.upserted_id is not None)}
        case "deleteOne" | "deleteMany":
            return {"deletedCount": result.deleted_count}
        case "bulkWrite":
            return _bulk_result(result)
    return result


def partial_result(error: BaseException) -> Any:
    """Return what a bulk write did before it failed."""
    if isinstance(error, BulkWriteError):
        return _bulk_result(BulkWriteResult(error.details, True))
    raise AssertionError(f"{error!r} has no result")


def _update_result(result: Any) -> dict[str, Any]:
    counts = {"matchedCount": result.matched_count, "modifiedCount": result.modified_count}
    return counts if result.upserted_id is None else {**counts, "upsertedId": result.upserted_id}


def _bulk_result(result: Any) -> dict[str, Any]:
    kinds = ("inserted", "matched", "modified", "deleted", "upserted")
    counts = {f"{kind}Count": getattr(result, f"{kind}_count") for kind in kinds}
    return {**counts, "upsertedIds": {str(n): key for n, key in (result.upserted_ids or {}).items()}}


def _models(requests: list[Mapping[str, Any]]) -> list[Any]:
    """Return PyMongo's write models for `{insertOne: {...}}` and the like."""
    models = []
    for request in requests:
        ((name, fields),) = request.items()
        model = getattr(operations, name[0].upper() + name[1:])
        models.append(model(**{snake(field): value for field, value in fields.items()}))
    return models


class OpenCursor:
    """A cursor that has asked the server for its first batch when it is made, as the test format wants it."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._first = next(cursor, None)

    def iterate_once(self) -> Any:
        """Return the next document; None when this batch has none."""
        first, self._first = self._first, None
        return first if first is not None else next(self._cursor, None)

    def iterate_until_document_or_error(self) -> Any:
        while (found := self.iterate_once()) is None:
            if not self._cursor.alive:
                raise AssertionError("the cursor ended without a document")
        return found

    def close(self) -> None:
        self._cursor.close()


class OpenStream(OpenCursor):
    """A change stream. `watch` has opened it; nothing is asked for before the test does."""

    def __init__(self, stream: Any) -> None:
        self._cursor = stream

    def iterate_once(self) -> Any:
        return self._cursor.try_next()


# One function per operation that is more than a call of the PyMongo method of the same name.


def _bulk_write(target: Collection[Any], requests: list[Any], **options: Any) -> Any:
    return target.bulk_write(_models(requests), **options)


def _list_index_names(target: Collection[Any]) -> list[str]:
    return [index["name"] for index in target.list_indexes()]


def _create_search_index(target: Collection[Any], model: Mapping[str, Any]) -> str:
    return target.create_search_index(SearchIndexModel(**model))


def _create_search_indexes(target: Collection[Any], models: list[Mapping[str, Any]]) -> list[str]:
    return target.create_search_indexes([SearchIndexModel(**model) for model in models])


def _list_search_indexes(
    target: Collection[Any], name: str | None = None, aggregation_options: Mapping[str, Any] | None = None
) -> list[Any]:
    return list(target.list_search_indexes(name, **(aggregation_options or {})))


def _create_change_stream(target: Any, **arguments: Any) -> Any:
    return OpenStream(target.watch(**arguments))


def _create_find_cursor(target: Collection[Any], **arguments: Any) -> OpenCursor:
    return OpenCursor(target.find(**arguments))


def _create_collection(target: Database[Any], collection: str, **options: Any) -> None:
    camel = {"expire_after_seconds": "expireAfterSeconds", "view_on": "viewOn", "clustered_index": "clusteredIndex"}
    camel["change_stream_pre_and_post_images"] = "changeStreamPreAndPostImages"
    named = {camel.get(name, name): value for name, value in options.items()}
    target.create_collection(collection, check_exists=False, **named)


def _modify_collection(target: Database[Any], collection: str, **options: Any) -> None:
    camel = {"change_stream_pre_and_post_images": "changeStreamPreAndPostImages"}
    target.command("collMod", collection, **{camel.get(name, name): value for name, value in options.items()})


def _create_index(target: Collection[Any], keys: Mapping[str, Any], **options: Any) -> str:
    return target.create_index(list(keys.items()), **options)


def _append_metadata(target: pymongo.MongoClient[Any], driver_info_options: Mapping[str, Any]) -> None:
    target.append_metadata(DriverInfo(**driver_info_options))


def _command_first(command: Mapping[str, Any], name: str) -> SON[str, Any]:
    """Return the command with its name as the first field, which JSON need not keep."""
    return SON([(name, command[name]), *((key, value) for key, value in command.items() if key != name)])


def _run_command(target: Database[Any], command: Mapping[str, Any], command_name: str, **options: Any) -> Any:
    return target.command(_command_first(command, command_name), **options)


def _run_cursor_command(target: Database[Any], **arguments: Any) -> list[Any]:
    return list(_command_cursor(target, **arguments))


def _create_command_cursor(target: Database[Any], **arguments: Any) -> OpenCursor:
    return OpenCursor(_command_cursor(target, **arguments))


def _command_cursor(
    target: Database[Any],
    command: Mapping[str, Any],
    command_name: str,
    batch_size: int = 0,
    max_time_ms: int | None = None,
    cursor_type: str | None = None,
    **options: Any,
) -> Any:
    cursor = target.cursor_command(_command_first(command, command_name), max_await_time_ms=max_time_ms, **options)
    return cursor.batch_size(batch_size) if batch_size else cursor


def _get_snapshot_time(target: ClientSession) -> Any:
    raise UnsupportedError("snapshotTime of a session")


def _download(target: GridFSBucket, id: Any) -> bytes:
    return target.open_download_stream(id).read()


def _download_by_name(target: GridFSBucket, filename: str, **options: Any) -> bytes:
    return target.open_download_stream_by_name(filename, **options).read()


def _upload(target: GridFSBucket, filename: str, source: Mapping[str, str], **options: Any) -> Any:
    if options.pop("content_type", None) is not None:
        raise UnsupportedError("contentType of GridFS")
    options.pop("disable_md5", None)
    return target.upload_from_stream(filename, bytes.fromhex(source["$$hexBytes"]), **options)


def _rename(target: Any, **arguments: Any) -> None:
    if isinstance(target, GridFSBucket):
        target.rename(arguments["id"], arguments["new_filename"])
    else:
        target.rename(arguments.pop("to"), **arguments)
