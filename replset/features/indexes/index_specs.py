"""Checks the indexes of createIndexes, gives them the form that listIndexes shows, and compares them with others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from replset.bson import Decimal128, RawDocument, Regex, encode, encode_key, walk
from replset.errors import (
    BadValueError,
    CannotCreateIndexError,
    ErrorCode,
    FailedToParseError,
    NotBuiltError,
    ReplError,
    TypeMismatchError,
)
from replset.operations import fields
from replset.query.collation import Fold
from replset.query.conditions import is_operators
from replset.query.errors import show
from replset.query.match import compile_filter
from replset.query.order import equals, is_number, is_true
from replset.query.paths import DBREF_NAMES
from replset.query.sort import MAX_FIELDS
from replset.storage.indexes import ID_INDEX

INDEXES_MAX: Final = 64
"""How many indexes a collection may have, the one on `_id` included."""
_KEY_BYTES_MAX: Final = 2048
_EXPIRE_MAX: Final = (1 << 31) - 1
_OF_ID_INDEX = frozenset({"key", "name", "v", "ns", "collation"})
_FLAGS = ("unique", "sparse", "hidden", "background")
_SHOWN_FALSE = frozenset({"sparse", "background"})  # false is kept, as given
_KNOWN = _OF_ID_INDEX | {
    *_FLAGS,
    "bits",
    "bucketSize",
    "clustered",
    "coarsestIndexedLevel",
    "columnstoreProjection",
    "default_language",
    "dropDups",
    "expireAfterSeconds",
    "finestIndexedLevel",
    "2dsphereIndexVersion",
    "language_override",
    "max",
    "min",
    "partialFilterExpression",
    "prepareUnique",
    "storageEngine",
    "textIndexVersion",
    "weights",
    "wildcardProjection",
}
_BUILT = _OF_ID_INDEX | {*_FLAGS, "dropDups", "expireAfterSeconds", "partialFilterExpression"}
_PLUGINS = frozenset({"2d", "2dsphere", "hashed", "text", "wildcard", "columnstore"})
_IN_PARTIAL = frozenset({"$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$type", "$exists"})


def parse_index(index: RawDocument, place: str, ignore_unknown: bool) -> RawDocument:
    """Return an index of the command as {v, key, name, options}. The collation is whole, but of locale `simple`.

    ignore_unknown: pass over options that MongoDB does not know (ignoreUnknownIndexOptions). Raises 40414 without a
    key, 197 for an option that is unknown or that the index on `_id` does not have, 67 for what cannot be an index,
    238 for an index that is not built, 85 for another name of the index on `_id`.
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
    version = fields.whole(index, "v", place, 2)
    if version not in (1, 2):
        raise CannotCreateIndexError(f"Invalid index specification: index version {index.get('v')}")
    if [path for path, _, _, _ in walk(key)] == ["_id"]:
        _check_id_index(index, RawDocument(key).get("_id"), given, place)
        return RawDocument(encode({"v": 2, "key": {"_id": 1}, "name": ID_INDEX, **_collation(index, place)}))
    pattern = _key_pattern(key)
    name = fields.text(index, "name", place, _default_name(pattern))
    _check_name(name, key)
    for option in given:
        if option not in _BUILT and fields.given(index, option):
            raise NotBuiltError(f"BSON field '{place}.{option}' is not built yet")
    collation = _collation(index, place)
    if collation and version == 1:
        raise CannotCreateIndexError("an index of version 1 has no collation")
    spec: dict[str, object] = {"v": version, "key": pattern, "name": name}
    for flag in _FLAGS:
        is_set = _flag(index, flag)
        if is_set or (flag in _SHOWN_FALSE and not fields.is_absent(index, flag)):
            spec[flag] = is_set
    spec |= _partial_filter(index, spec)
    spec |= _expiry(index, pattern) | collation
    return RawDocument(encode(spec))


def _collation(index: RawDocument, place: str) -> dict[str, object]:
    given = fields.document(index, "collation", place)
    if given is None or not given.first_key:
        return {}
    fold = fields.collation(index, place)
    return {"collation": {"locale": "simple"} if fold is None else fold.spec}


def with_collation(spec: RawDocument, default: Fold | None) -> RawDocument | None:
    """Return an index as it is made in a collection with this collation, which it takes if it names none.

    Returns None for the one on `_id`, which is always there; BadValueError if it has another collation. Without a
    collation in its spec an index has the simple one.
    """
    given, own = spec.get("collation"), {"locale": "simple"} if default is None else default.spec
    if spec.get("name") == ID_INDEX:
        if given not in (None, own):
            raise BadValueError(
                f"The _id index must have the same collation as the collection. Index collation: {show(given)},"
                f" collection collation: {show(own)}"
            )
        return None
    if given is None and spec.get("v") == 1:
        return spec
    wanted = own if given is None else given
    parts = spec.top_level()
    parts.pop("collation", None)
    return RawDocument(encode(parts | ({} if wanted == {"locale": "simple"} else {"collation": wanted})))


def _check_id_index(index: RawDocument, direction: object, given: list[str], place: str) -> None:
    if isinstance(direction, str):
        raise NotBuiltError(f"a {direction:.80} index on _id is not built yet")
    if not equals(1)(direction):
        raise BadValueError("The field 'key' for an _id index must be {_id: 1}")
    for option in given:
        if option not in _OF_ID_INDEX:
            raise ReplError(
                f"The field '{option}' is not valid for an _id index specification.",
                code=ErrorCode.INVALID_INDEX_OPTION,
            )
    name = fields.text(index, "name", place, "_id_")
    if not name:
        raise FailedToParseError("an index name cannot be empty")
    if name != "_id_":
        raise ReplError("Index already exists with a different name: _id_", code=ErrorCode.INDEX_OPTIONS_CONFLICT)


def _key_pattern(key: bytes) -> dict[str, object]:
    """The decoded key; CannotCreateIndexError (67) for what cannot be one, 238 for an index of another kind."""

    def bad(why: str) -> CannotCreateIndexError:
        return CannotCreateIndexError(f"bad index key pattern {show(RawDocument(key))}: {why}")

    if len(key) > _KEY_BYTES_MAX:
        raise CannotCreateIndexError("Index key pattern too large.")
    pattern = RawDocument(key).decode()
    if not pattern:
        raise bad("Index keys cannot be empty.")
    if len(pattern) > MAX_FIELDS:
        raise CannotCreateIndexError(f"too many compound keys: an index has at most {MAX_FIELDS}")
    if len(pattern) < len(walk(key)):
        raise bad("a field is there twice.")
    for path, direction in pattern.items():
        if isinstance(direction, str) and direction not in _PLUGINS:
            raise bad(f"Unknown index plugin '{direction:.80}'")
        if isinstance(direction, str) or path.split(".")[-1] == "$**":
            raise NotBuiltError(f"a {direction if isinstance(direction, str) else 'wildcard'} index is not built yet")
        if not is_number(direction) or isinstance(direction, Decimal128):
            raise bad(
                "Values in v:2 index key pattern cannot be of another type. Only numbers > 0, numbers < 0, and strings"
                " are allowed."
            )
        if not is_true(direction) or direction != direction:
            raise bad("Values in the index key pattern cannot be 0 or NaN.")
        if not all(path.split(".")):
            raise bad("Index keys cannot contain an empty field.")
        for depth, part in enumerate(path.split(".")):
            if part.startswith("$") and not (depth and part in DBREF_NAMES):
                raise bad("Index key contains an illegal field name: field name starts with '$'.")
    return pattern


def _default_name(pattern: Mapping[str, Any]) -> str:
    """Return the name that drivers make: a_1_b_-1."""
    return "_".join(
        f"{path}_{int(direction) if float(direction).is_integer() else direction}"
        for path, direction in pattern.items()
    )


def _check_name(name: str, key: bytes) -> None:
    if not name:
        raise CannotCreateIndexError("index name cannot be empty")
    if "\0" in name:
        raise CannotCreateIndexError("index name cannot contain NUL bytes")
    if name == "*":
        raise BadValueError("The index name '*' is not valid.")
    if name == "_id_":
        raise BadValueError(
            "The index name '_id_' is reserved for the _id index, which must have key pattern {_id: 1}, found key:"
            f" {show(RawDocument(key))}"
        )


def _flag(index: RawDocument, name: str) -> bool:
    if fields.is_absent(index, name):
        return False
    value = index.get(name)
    if not isinstance(value, bool) and not is_number(value):
        raise TypeMismatchError(f"The field '{name}' has value {name}: {show(value)}, which is not convertible to bool")
    return is_true(value)


def _expiry(index: RawDocument, pattern: Mapping[str, object]) -> dict[str, object]:
    if fields.is_absent(index, "expireAfterSeconds"):
        return {}
    seconds = expire_after(index.get("expireAfterSeconds"))
    if len(pattern) > 1:
        raise CannotCreateIndexError(
            f"TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: {show(index)}"
        )
    return {"expireAfterSeconds": seconds}


def expire_after(value: Any) -> int:
    """expireAfterSeconds as it is stored; 14 for what is no number, 67 for one out of range."""
    if not is_number(value):
        raise TypeMismatchError(f"TTL index 'expireAfterSeconds' option must be numeric, but is {show(value)}")
    number = float(value.to_decimal()) if hasattr(value, "to_decimal") else float(value)
    if math.isnan(number):
        return _EXPIRE_MAX
    if not 0 <= number <= _EXPIRE_MAX:
        raise CannotCreateIndexError(
            f"TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number than"
            f" {show(value)}"
            if number > 0
            else f"TTL index 'expireAfterSeconds' option cannot be less than 0. Found: {show(value)}"
        )
    return int(number)


def _partial_filter(index: RawDocument, spec: Mapping[str, object]) -> dict[str, object]:
    name = "partialFilterExpression"
    if fields.is_absent(index, name):
        return {}
    query = index.get(name)
    if not isinstance(query, dict):
        raise TypeMismatchError(f"The field '{name}' must be an object, but got {show(query)}")
    if spec.get("sparse"):
        raise CannotCreateIndexError('cannot mix "partialFilterExpression" and "sparse" options')
    compile_filter(query)
    _check_partial(query)
    return {name: query}


def _check_partial(query: Mapping[str, Any]) -> None:
    for name, value in query.items():
        if name in ("$and", "$or"):
            for part in value:
                _check_partial(part)
            continue
        if name.startswith("$"):
            raise _unsupported(name)
        conditions = value.items() if is_operators(value) else [("$eq", value)]
        for operator, operand in conditions:
            if operator not in _IN_PARTIAL or isinstance(operand, Regex):
                raise _unsupported(f"{name} {operator}")
            if operator == "$exists" and not is_true(operand):
                raise _unsupported(f"$not {name} $exists")


def _unsupported(what: str) -> CannotCreateIndexError:
    return CannotCreateIndexError(f"unsupported expression in partial index: {what:.200}")


# --- comparing --------------------------------------------------------------------------------------------------


def existing_index(ns: str, known: Sequence[RawDocument], spec: RawDocument) -> RawDocument | None:
    """The index of `known`, those of the collection, that is identical to the wanted one; None when it can be made.

    86 when another index has its name, 85 when an index of the same key has other options or another name, 67 when the
    collection has too many.
    """
    shown = f"Requested index: {show(spec)}, existing index: "
    name, signature = spec.get("name"), _signature(spec)
    for other in known:
        same_options = _other_options(other) == _other_options(spec)
        if other.get("name") != name:
            continue
        if _signature(other) != signature:
            raise ReplError(
                "An existing index has the same name as the requested index. When index names are not specified, they"
                f" are auto generated and can cause conflicts. Please refer to our documentation. {shown}{show(other)}",
                code=ErrorCode.INDEX_KEY_SPECS_CONFLICT,
            )
        if not same_options:
            raise ReplError(
                f"An equivalent index already exists with the same name but different options. {shown}{show(other)}",
                code=ErrorCode.INDEX_OPTIONS_CONFLICT,
            )
        return other
    for other in known:
        if _signature(other) == signature:
            raise ReplError(
                f"Index already exists with a different name: {other.get('name')}"
                if _other_options(other) == _other_options(spec)
                else f"An equivalent index already exists with a different name and options. {shown}{show(other)}",
                code=ErrorCode.INDEX_OPTIONS_CONFLICT,
            )
    if len(known) + 1 >= INDEXES_MAX:
        raise CannotCreateIndexError(f"add index fails, too many indexes for {ns} key:{show(spec.get('key'))}")
    return None


def _signature(spec: RawDocument) -> tuple[object, ...]:
    """What two indexes with the same key must differ in: as in MongoDB since 5.0."""
    flags = [bool(spec.get(name)) for name in ("unique", "sparse")]
    parts = [encode_key(spec.get(name)) for name in ("key", "partialFilterExpression", "collation")]
    return (*parts, *flags)


def _other_options(spec: RawDocument) -> object:
    return spec.get("expireAfterSeconds")
