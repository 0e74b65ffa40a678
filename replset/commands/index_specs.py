"""Checks the indexes of createIndexes: only the index on `_id` is supported, and every collection has it."""

from __future__ import annotations

from replset.bson import RawDocument, walk
from replset.commands import fields
from replset.errors import BadValueError, CommandNotFoundError, ErrorCode, FailedToParseError, ReplError
from replset.query.order import equals

_OF_ID_INDEX = frozenset({"key", "name", "v", "ns", "collation"})
_KNOWN = _OF_ID_INDEX | {
    "background",
    "bits",
    "bucketSize",
    "clustered",
    "coarsestIndexedLevel",
    "columnstoreProjection",
    "default_language",
    "dropDups",
    "expireAfterSeconds",
    "finestIndexedLevel",
    "hidden",
    "2dsphereIndexVersion",
    "language_override",
    "max",
    "min",
    "partialFilterExpression",
    "prepareUnique",
    "sparse",
    "storageEngine",
    "textIndexVersion",
    "unique",
    "weights",
    "wildcardProjection",
}


def check_index(index: RawDocument, place: str, ignore_unknown: bool) -> None:
    """Accept what describes the index on `_id` as it is; refuse everything else with MongoDB's code.

    ignore_unknown: pass over options that MongoDB does not know (ignoreUnknownIndexOptions); those that it knows keep
    their meaning. Raises 40414 without a key, 59 for an index that is not built, 197 for an option that the index on
    `_id` does not have, 85 for another name, 67 for another version, 2 for another direction or collation.
    """
    key = index.get_raw("key")
    if key is None:
        raise fields.missing(place, "key")
    given = [name for name in index.keys() if name in _KNOWN or not ignore_unknown]  # noqa: SIM118 - no mapping
    for name in given:
        if name not in _KNOWN:
            raise ReplError(
                f"The field '{name:.80}' is not valid for an index specification.", code=ErrorCode.INVALID_INDEX_OPTION
            )
    name = fields.text(index, "name", place, "_id_")
    if [path for path, _, _, _ in walk(key)] != ["_id"]:
        raise CommandNotFoundError(f"createIndexes for {name!r:.80} is not built yet: only _id is indexed")
    direction = RawDocument(key).get("_id")
    if isinstance(direction, str):
        raise CommandNotFoundError(f"a {direction:.80} index on _id is not built yet")
    if not equals(1)(direction):
        raise BadValueError("The field 'key' for an _id index must be {_id: 1}")
    for option in given:
        if option not in _OF_ID_INDEX:
            raise ReplError(
                f"The field '{option}' is not valid for an _id index specification.",
                code=ErrorCode.INVALID_INDEX_OPTION,
            )
    if fields.whole(index, "v", place, 2) not in (1, 2):
        raise ReplError(
            f"Invalid index specification: index version {index.get('v')}", code=ErrorCode.CANNOT_CREATE_INDEX
        )
    collation = fields.document(index, "collation", place)
    if collation is not None and (len(collation.raw) > 1000 or collation.decode() != {"locale": "simple"}):
        raise BadValueError("The _id index must have the same collation as the collection: the simple one")
    if not name:
        raise FailedToParseError("an index name cannot be empty")
    if name != "_id_":
        raise ReplError("Index already exists with a different name: _id_", code=ErrorCode.INDEX_OPTIONS_CONFLICT)
