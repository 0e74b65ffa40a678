"""Lists the data actions: which fields each takes, which command it becomes, and which fields its answer has.

openapi.py describes the actions from the same table.
"""

from __future__ import annotations

from api import actions
from api.actions import ActionType, FieldKind
from api.bulk_write import bulk_write_action

_K = FieldKind
_COMMON = {"database": _K.TEXT, "collection": _K.TEXT, "dataSource": _K.TEXT, "maxTimeMS": _K.NUMBER}
_READ = _COMMON | {"readConcern": _K.DOCUMENT, "readPreference": _K.READ_PREFERENCE}
_WRITE = _COMMON | {"writeConcern": _K.DOCUMENT}
_COLLATION = {"collation": _K.DOCUMENT}
_FILTER = {"filter": _K.DOCUMENT, **_COLLATION}
_FIND = _FILTER | {"projection": _K.DOCUMENT, "sort": _K.DOCUMENT, "skip": _K.NUMBER}
_UPDATE = _FILTER | {"update": _K.UPDATE, "upsert": _K.BOOL, "arrayFilters": _K.ARRAY}
_REPLACE = _FILTER | {"replacement": _K.DOCUMENT, "upsert": _K.BOOL}
_ONE = {"projection": _K.DOCUMENT, "sort": _K.DOCUMENT}
_ONE_CHANGED = _ONE | {"returnNewDocument": _K.BOOL}


def _required(*names: str) -> frozenset[str]:
    return frozenset({"database", "collection", *names})


_ONE_COMMAND: dict[str, ActionType] = {
    action.name: action
    for action in (
        ActionType(
            "findOne",
            "The first document that matches, or null.",
            _READ | _FIND,
            _required(),
            actions.find_one,
            actions.found_one,
        ),
        ActionType(
            "find",
            "All documents that match.",
            _READ | _FIND | {"limit": _K.NUMBER},
            _required(),
            actions.find,
            actions.found,
        ),
        ActionType(
            "aggregate",
            "What a pipeline makes of the documents.",
            _READ | _COLLATION | {"pipeline": _K.ARRAY},
            _required("pipeline"),
            actions.aggregate,
            actions.found,
        ),
        ActionType(
            "countDocuments",
            "How many documents match.",
            _READ | _FILTER | {"limit": _K.NUMBER, "skip": _K.NUMBER},
            _required(),
            actions.count,
            actions.counted,
        ),
        ActionType(
            "distinct",
            "The distinct values of one field.",
            _READ | _FILTER | {"key": _K.TEXT},
            _required("key"),
            actions.distinct,
            actions.found_values,
        ),
        ActionType(
            "insertOne",
            "Insert a document; it gets an ObjectId as _id when it has none.",
            _WRITE | {"document": _K.DOCUMENT},
            _required("document"),
            actions.insert_one,
            actions.inserted_one,
            201,
        ),
        ActionType(
            "insertMany",
            "Insert documents; unless ordered is false, the first that fails ends it.",
            _WRITE | {"documents": _K.ARRAY, "ordered": _K.BOOL},
            _required("documents"),
            actions.insert_many,
            actions.inserted_many,
            201,
        ),
        ActionType(
            "updateOne",
            "Change the first document that matches.",
            _WRITE | _UPDATE,
            _required("filter", "update"),
            actions.update(False),
            actions.updated,
        ),
        ActionType(
            "updateMany",
            "Change every document that matches.",
            _WRITE | _UPDATE,
            _required("filter", "update"),
            actions.update(True),
            actions.updated,
        ),
        ActionType(
            "replaceOne",
            "Replace the first document that matches; its _id stays.",
            _WRITE | _REPLACE,
            _required("filter", "replacement"),
            actions.replace_one,
            actions.updated,
        ),
        ActionType(
            "findOneAndUpdate",
            "Change the first document that matches, and return it as it was.",
            _WRITE | _UPDATE | _ONE_CHANGED,
            _required("filter", "update"),
            actions.find_one_and_update,
            actions.modified,
        ),
        ActionType(
            "findOneAndReplace",
            "Replace the first document that matches, and return it as it was.",
            _WRITE | _REPLACE | _ONE_CHANGED,
            _required("filter", "replacement"),
            actions.find_one_and_replace,
            actions.modified,
        ),
        ActionType(
            "findOneAndDelete",
            "Delete the first document that matches, and return it.",
            _WRITE | _FILTER | _ONE,
            _required("filter"),
            actions.find_one_and_delete,
            actions.modified,
        ),
        ActionType(
            "deleteOne",
            "Delete the first document that matches.",
            _WRITE | _FILTER,
            _required("filter"),
            actions.delete(1),
            actions.deleted,
        ),
        ActionType(
            "deleteMany",
            "Delete every document that matches.",
            _WRITE | _FILTER,
            _required("filter"),
            actions.delete(0),
            actions.deleted,
        ),
    )
}

ACTIONS: dict[str, ActionType] = _ONE_COMMAND | {"bulkWrite": bulk_write_action(_ONE_COMMAND, _WRITE)}
