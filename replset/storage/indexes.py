"""Keeps the indexes of collections: one SQLite table each, with a row (keystring, key) for each key of each document.

Index entries follow from the documents alone. `write_entries` writes them in the transaction of the document, from its
bytes before and after; an undo puts the document back and does the same. So entries have no undo rows, but the
definitions of indexes have.

An index under build holds the documents up to its `position`, in the order of their keys. The build moves the position
on in slices; a write behind it is left to the build.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import apsw

from replset.bson import MAX_BSON_SIZE, Int64, RawDocument, decode, encode, encode_key
from replset.bson.errors import InvalidBSONError
from replset.bson.parts import PathTree, TooManyValuesError, count_part, decode_part, path_tree, raw_fields
from replset.errors import (
    CannotBuildIndexKeysError,
    CannotIndexParallelArraysError,
    DuplicateKeyError,
    ReplError,
)
from replset.query.collation import LONGEST, Fold, characters_in, hexed, stored_fold, with_version
from replset.query.errors import shell_text
from replset.query.index_values import ParallelArraysError, Path, value_lists
from replset.query.match import Matcher, compile_filter
from replset.query.order import MISSING
from replset.storage.schema import DOC, KEY, collection_table
from replset.storage.sqlite import first_row, rows_of

KEYS_MAX = 100_000
"""Keys of one document in one index, as MongoDB's indexMaxNumGeneratedKeysPerDocument."""
VALUES_MAX = 2 * KEYS_MAX
"""Values that are read of one document for its keys in all indexes together: items of an array, fields of a document,
and what is passed over on the way to them. They are counted before anything is decoded, since keys are made on the
event loop, on every member. An array of 16 MiB has a million items; no heartbeat would be sent meanwhile."""
KEY_BYTES_MAX = 2 * MAX_BSON_SIZE
"""Bytes of the keys of one document in one index: each item of an array repeats the other parts of a compound key."""
LARGE = 4096
"""Documents of fewer bytes cannot have too many values."""
FOLDED_MAX = LONGEST
"""Characters of one document that its indexes with a collation read, all together: some 10 ms of ICU."""
REFUSALS = (CannotBuildIndexKeysError, CannotIndexParallelArraysError, DuplicateKeyError)
"""Why a document cannot be in an index."""
ICU_VERSION = "icu_version"
"""Says in the file's meta which ICU made the entries of the indexes with a collation; without it there are none."""
ID_INDEX = "_id_"
"""The name of the index on `_id`. Only with a collation it has a table: else that of the documents is enough."""
TO_THE_END = b"\xff"
"""Behind every keystring."""
_COMPLEMENT = bytes(range(255, -1, -1))
_NULL_KEY = encode_key(None)
_COLUMNS = "id, coll, spec, build, position, ready, multikey"
_AS_WRITTEN = (
    "id, CAST(coll AS BLOB), CAST(spec AS BLOB), CAST(build AS BLOB), CAST(position AS BLOB), CAST(ready AS INTEGER),"
    " CAST(multikey AS INTEGER)"
)


class Definition(NamedTuple):
    """What an index's document says, read once."""

    name: str
    fields: tuple[tuple[str, int], ...]
    paths: tuple[Path, ...]
    descending: frozenset[int]
    tree: PathTree
    unique: bool
    sparse: bool
    hidden: bool
    partial_filter: Matcher | None
    expire_after_s: float | None
    fold: Fold | None


@lru_cache(maxsize=1024)
def _definition(spec: bytes) -> Definition:
    document = RawDocument(spec)
    key: Any = document.get("key")
    given: Any = document.get("partialFilterExpression")
    fold = fold_in(document)
    expire: Any = document.get("expireAfterSeconds")
    fields = tuple((path, 1 if direction > 0 else -1) for path, direction in key.items())
    paths = tuple(tuple(path.split(".")) for path, _ in fields)
    partial_filter = None if given is None else compile_filter(given, fold=fold)
    of_filter = [path.split(".") for path in (partial_filter.paths if partial_filter else ())]
    return Definition(
        str(document.get("name")),
        fields,
        paths,
        frozenset(number for number, (_, direction) in enumerate(fields) if direction < 0),
        path_tree([*paths, *of_filter]),
        document.get("unique") is True,
        document.get("sparse") is True,
        document.get("hidden") is True,
        partial_filter,
        None if expire is None else float(expire),
        fold,
    )


def fold_in(options: RawDocument) -> Fold | None:
    """Return the fold of the collation that an index or a collection has by its options; None for the simple one."""
    collation = options.get("collation")
    return stored_fold(collation) if isinstance(collation, dict) else None


def id_index_spec(options: RawDocument) -> dict[str, object]:
    """Return the index on `_id` of a collection with these options."""
    spec: dict[str, object] = {"v": 2, "key": {"_id": 1}, "name": ID_INDEX}
    return spec | ({"collation": options.get("collation")} if "collation" in options else {})


def shown_spec(spec: Mapping[str, object]) -> dict[str, object]:
    """Return an index as it is listed, with the version of its collation."""
    collation = spec.get("collation")
    return {**spec, "collation": with_version(collation)} if isinstance(collation, Mapping) else dict(spec)


@dataclass(frozen=True, slots=True)
class Index:
    """One index of a collection. The index on `_id` is the table of the documents, and none of these but in a
    collection with a collation: the table knows the keys as they are, and this index refuses those that are equal.

    id: names its table, on this member only. spec: {v, key, name, options}, as listIndexes shows it. multikey_fields:
    a bit for each field whose path went through an array in some document, kept for ever. ready: queries may use it.
    position: of a build, the key of the last document that it holds; None once it holds them all. build: the UUID of
    its build, None for one that was made with its collection empty.
    """

    id: int
    coll: bytes
    spec: RawDocument
    build: bytes | None
    position: bytes | None
    ready: bool
    multikey_fields: int
    name: str = field(init=False)
    fields: tuple[tuple[str, int], ...] = field(init=False)
    unique: bool = field(init=False)
    sparse: bool = field(init=False)
    hidden: bool = field(init=False)
    partial_filter: Matcher | None = field(init=False, compare=False)
    expire_after_s: float | None = field(init=False)
    fold: Fold | None = field(init=False, compare=False, repr=False)
    paths: tuple[Path, ...] = field(init=False, repr=False)
    descending: frozenset[int] = field(init=False, repr=False)
    tree: PathTree = field(init=False, repr=False, compare=False)
    table: str = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, value in _definition(self.spec.raw)._asdict().items():
            put(self, name, value)
        put(self, "table", f"i_{self.id}")
        if self.name == ID_INDEX:
            put(self, "unique", True)

    @property
    def multikey(self) -> bool:
        return self.multikey_fields != 0

    @property
    def key_pattern(self) -> dict[str, object]:
        """The `key` of its spec, with the directions as they were given."""
        key: Any = self.spec.get("key")
        return dict(key)


# --- keys -------------------------------------------------------------------------------------------------------


def keys_of(index: Index, document: bytes) -> list[bytes]:
    """The keystrings that the document has in the index, each once, in order; none when it is not in the index.

    A field that is missing counts as null, a descending part is complemented. CannotIndexParallelArraysError,
    CannotBuildIndexKeysError.
    """
    return sorted(_keys(index, document)[0])


def _keys(index: Index, document: bytes) -> tuple[set[bytes], int]:
    """The keystrings, and the bits of the fields whose path goes through an array."""
    try:
        return _made_keys(index, document)
    except (*REFUSALS, InvalidBSONError):
        raise
    except ReplError as error:  # of a collation: the string is too much for it
        raise CannotBuildIndexKeysError(f"index {index.name}: {error.message}") from None


def _made_keys(index: Index, document: bytes) -> tuple[set[bytes], int]:
    values = _values_for(index, document)
    if values is None:
        return set(), 0
    plain = []
    for path in index.paths:
        value = values.get(path[0], MISSING)
        if type(value) is list or (len(path) > 1 and value is not MISSING):
            return _array_keys(index, values)
        plain.append(value)
    if index.sparse and all(value is MISSING for value in plain):
        return set(), 0
    keystring = _keystring(index, plain)
    if len(keystring) > KEY_BYTES_MAX:
        raise _too_many_bytes(index)
    return {keystring}, 0


def _values_for(index: Index, document: bytes) -> Mapping[str, object] | None:
    """The fields of the document that the index is about; None when the partial index does not hold it."""
    if len(document) >= LARGE:
        try:
            part = decode_part(document, index.tree, VALUES_MAX)
        except TooManyValuesError:
            raise _too_many_values(f"index {index.name}") from None
    elif index.partial_filter is not None:
        part = decode(document)
    else:
        view = RawDocument(document)
        return {path[0]: view.get(path[0], MISSING) for path in index.paths}
    return part if index.partial_filter is None or index.partial_filter.matches(part) else None


def _array_keys(index: Index, values: Mapping[str, object]) -> tuple[set[bytes], int]:
    found: set[bytes] = set()
    through: set[int] = set()
    size = 0
    last: list[object] = [found] * len(index.paths)  # what no document has
    parts = [b""] * len(last)
    try:
        for row in value_lists(values, index.paths, through):
            if index.sparse and all(value is MISSING for value in row):
                continue
            for number, value in enumerate(row):
                if value is not last[number]:  # a value beside the array stays, and may be large
                    parts[number] = _part(index, number, value)
            last = row
            keystring = b"".join(parts)
            size += len(keystring)
            if size > KEY_BYTES_MAX:
                raise _too_many_bytes(index)
            found.add(keystring)
            if len(found) > KEYS_MAX:
                raise CannotBuildIndexKeysError(
                    f"Index key generation for {index.name} exceeded the maximum of {KEYS_MAX} keys for one document"
                )
    except ParallelArraysError as error:
        first, second = (index.paths[number][-1] for number in error.paths)
        raise CannotIndexParallelArraysError(f"cannot index parallel arrays [{second}] [{first}]") from None
    return found, sum(1 << number for number in through)


def _too_many_bytes(index: Index) -> CannotBuildIndexKeysError:
    return CannotBuildIndexKeysError(
        f"the keys of one document in index {index.name} would take more than {KEY_BYTES_MAX} bytes"
    )


def _too_many_values(whose: str) -> CannotBuildIndexKeysError:
    return CannotBuildIndexKeysError(f"{whose} would read more than {VALUES_MAX} values of the document")


def _keystring(index: Index, values: list[object]) -> bytes:
    return b"".join([_part(index, number, value) for number, value in enumerate(values)])


def _part(index: Index, number: int, value: object) -> bytes:
    fold = index.fold
    key = _NULL_KEY if value is MISSING else encode_key(value if fold is None else fold(value))
    return key.translate(_COMPLEMENT) if number in index.descending else key


def key_of(index: Index, document: bytes, keystring: bytes | None) -> dict[str, object]:
    """The values of one of the document's keys, by their paths; {} if it has no such key."""
    values = _values_for(index, document) or {}
    row = next((row for row in value_lists(values, index.paths) if _keystring(index, row) == keystring), [])
    return {path: None if value is MISSING else value for (path, _), value in zip(index.fields, row, strict=False)}


def duplicate_of(index: Index, ns: str, document: bytes, keystring: bytes) -> DuplicateKeyError:
    """MongoDB's 11000, with the values of the key that is taken."""
    return duplicate_key(ns, index.name, index.key_pattern, key_of(index, document, keystring), index.fold)


def duplicate_key(
    ns: str, name: str, key_pattern: Mapping[str, object], key_value: Mapping[str, object], fold: Fold | None = None
) -> DuplicateKeyError:
    """MongoDB's 11000 for the index `name`. With a collation it shows ICU's sort keys in the place of strings."""
    details: dict[str, object] = {"keyPattern": key_pattern, "keyValue": key_value}
    of_index = f"index: {name}"
    if fold is not None:
        collation = with_version(fold.spec)
        of_index += f" collation: {_text(collation)}"
        is_hex = [isinstance(value, str) for value in key_value.values()]
        folded = {path: fold(value) for path, value in key_value.items()}
        details["keyValue"], key_value = hexed(folded), hexed(folded, "0x")
        details |= ({"hexEncoded": is_hex} if any(is_hex) else {}) | {"collation": collation}
    return DuplicateKeyError(
        f"E11000 duplicate key error collection: {ns} {of_index} dup key: {_text(key_value)}", details=details
    )


def _text(document: Mapping[str, object]) -> str:
    return f"{{ {', '.join(f'{name}: {shell_text(value)}' for name, value in document.items())} }}"


# --- entries ----------------------------------------------------------------------------------------------------


def write_entries(
    connection: apsw.Connection,
    indexes: tuple[Index, ...],
    key: bytes,
    before: bytes | None,
    after: bytes | None,
    *,
    unique_in: str | None = None,
) -> bool:
    """Write what the change of one document means to the indexes. True: an index became multikey.

    unique_in: the namespace, where a key that another document has in a unique index is refused; None where the entry
    was accepted before, by another member or by this one. DuplicateKeyError, the errors of `keys_of`, and
    CannotBuildIndexKeysError for more than KEYS_MAX new keys, or VALUES_MAX values, in all indexes together: nothing is
    written then.
    """
    touched = [index for index in indexes if index.position is None or key <= index.position]
    if before is not None and after is not None and len(after) >= LARGE:
        touched = _touched(touched, before, after)
    if touched and unique_in is not None and after is not None:
        check_number_of_values(indexes, after, unique_in)
    changes: list[tuple[Index, set[bytes], set[bytes], int]] = []
    made = 0
    for index in touched:
        old = _known_keys(index, before)[0]
        new, multikey = (_keys if unique_in is not None and after is not None else _known_keys)(index, after or b"")
        added = new - old
        made += len(added)
        if unique_in is not None:
            check_number_of_keys(made, unique_in)
        if unique_in is not None and after is not None and index.unique:
            for keystring in sorted(added):
                if _other_owner(connection, index, keystring, key):
                    raise duplicate_of(index, unique_in, after, keystring)
        if added or old != new:
            changes.append((index, old - new, added, multikey & ~index.multikey_fields))
    for index, gone, added, multikey in changes:
        _write(connection, index, key, gone, added, multikey)
    return any(multikey for _, _, _, multikey in changes)


def check_number_of_values(indexes: Iterable[Index], document: bytes, ns: str) -> None:
    """Refuse (201) a document of which all indexes together would read more than VALUES_MAX values, or those with a
    collation more than FOLDED_MAX characters.

    So what its removal costs, which nobody can refuse, has a limit too.
    """
    left, characters = VALUES_MAX, 0
    for index in indexes if len(document) >= LARGE else ():
        try:
            left -= count_part(document, index.tree, left)
            if index.fold is not None:
                characters += characters_in(decode_part(document, index.tree, VALUES_MAX))
        except TooManyValuesError:
            raise _too_many_values(f"the indexes of {ns} together") from None
    if characters > FOLDED_MAX:
        raise CannotBuildIndexKeysError(
            f"the indexes of {ns} with a collation would read more than {FOLDED_MAX} characters of the document"
        )


def check_number_of_keys(made: int, ns: str) -> None:
    """Refuse (201) a document that gets more than KEYS_MAX new keys in all indexes together.

    They are written in one piece. With many indexes that would take longer than an election timeout.
    """
    if made > KEYS_MAX:
        raise CannotBuildIndexKeysError(
            f"the document would get more than {KEYS_MAX} keys in the indexes of {ns} together"
        )


def _touched(indexes: list[Index], before: bytes, after: bytes) -> list[Index]:
    """The indexes about whose fields a large document changes. No key is made of an array that stays as it is."""
    names = {name for index in indexes for name in index.tree}
    try:
        was, becomes = raw_fields(before, names, VALUES_MAX), raw_fields(after, names, VALUES_MAX)
    except TooManyValuesError:
        return indexes
    return [index for index in indexes if any(was.get(name) != becomes.get(name) for name in index.tree)]


def _known_keys(index: Index, document: bytes | None) -> tuple[set[bytes], int]:
    """Do as `_keys`; a document that cannot be indexed has no entries, and is refused by the primary's build."""
    if not document:
        return set(), 0
    try:
        return _keys(index, document)
    except ReplError:
        return set(), 0


def has_entry(connection: apsw.Connection, index: Index, keystring: bytes, key: bytes) -> bool:
    sql = f"SELECT 1 FROM {index.table} WHERE keystring = ? AND key = ?"
    return first_row(connection, sql, (keystring, key)) is not None


def _other_owner(connection: apsw.Connection, index: Index, keystring: bytes, key: bytes) -> bool:
    sql = f"SELECT 1 FROM {index.table} WHERE keystring = ? AND key <> ? LIMIT 1"
    return first_row(connection, sql, (keystring, key)) is not None


def _write(
    connection: apsw.Connection, index: Index, key: bytes, gone: set[bytes], added: set[bytes], multikey: int
) -> None:
    table = index.table
    delete = f"DELETE FROM {table} WHERE keystring = ? AND key = ?"
    connection.executemany(delete, [(keystring, key) for keystring in sorted(gone)])
    insert = f"INSERT OR IGNORE INTO {table} (keystring, key) VALUES (?, ?)"
    connection.executemany(insert, [(keystring, key) for keystring in sorted(added)])
    if multikey:
        connection.execute("UPDATE indexes SET multikey = multikey | ? WHERE id = ?", (multikey, index.id))


def scan_index(
    connection: apsw.Connection,
    index: Index,
    low: bytes,
    high: bytes | None,
    *,
    after: tuple[bytes, bytes] | None,
    limit: int,
    backwards: bool,
) -> list[tuple[bytes, bytes]]:
    """(keystring, key) with low <= keystring < high, in order, on from `after`; see Snapshot.index_scan."""
    order = "DESC" if backwards else "ASC"
    where = ["keystring >= ?", "keystring < ?"]
    values: list[tuple[bytes, ...]] = [(low,), (TO_THE_END if high is None else high,)]
    if after is not None:  # in place of the bound before it: with both, SQLite would begin at the bound each time
        where[backwards], values[backwards] = f"(keystring, key) {'<' if backwards else '>'} (?, ?)", after
    sql = (
        f"SELECT CAST(keystring AS BLOB), CAST(key AS BLOB) FROM {index.table} WHERE {' AND '.join(where)}"
        f" ORDER BY keystring {order}, key {order} LIMIT ?"
    )
    return list(rows_of(connection, sql, (*values[0], *values[1], limit)))


# --- definitions ------------------------------------------------------------------------------------------------


def index_table_sql(table: str) -> str:
    return (
        f"CREATE TABLE {table} (keystring BLOB NOT NULL, key BLOB NOT NULL, PRIMARY KEY (keystring, key)) WITHOUT ROWID"
    )


def load_indexes(connection: apsw.Connection, coll: bytes) -> tuple[Index, ...]:
    """The indexes of a collection that are not dropped, in the order in which they were made."""
    sql = f"SELECT {_AS_WRITTEN} FROM indexes WHERE coll = ? AND dropped_ts IS NULL ORDER BY id"
    return tuple(_index(row) for row in rows_of(connection, sql, (coll,)))


def load_all_indexes(connection: apsw.Connection) -> dict[bytes, tuple[Index, ...]]:
    """Do as `load_indexes` for all collections that have some."""
    found: dict[bytes, tuple[Index, ...]] = {}
    for row in rows_of(connection, f"SELECT {_AS_WRITTEN} FROM indexes WHERE dropped_ts IS NULL ORDER BY id"):
        index = _index(row)
        found[index.coll] = (*found.get(index.coll, ()), index)
    return found


def _index(row: Any) -> Index:
    id_, coll, spec, build, position, ready, multikey = row
    return Index(id_, coll, RawDocument(spec), build, position, bool(ready), multikey)


def load_any_index(connection: apsw.Connection) -> list[tuple[Index, bool]]:
    """All indexes that have a table, and whether each is dropped."""
    sql = f"SELECT {_AS_WRITTEN}, dropped_ts IS NOT NULL FROM indexes"
    return [(_index(row[:-1]), bool(row[-1])) for row in rows_of(connection, sql)]


def insert_index(
    connection: apsw.Connection, coll: bytes, spec: RawDocument, build: bytes | None, *, is_whole: bool
) -> int:
    """Make an index and its empty table; return its id. is_whole: its collection is empty, so it is ready at once."""
    (id_,) = first_row(connection, "SELECT ifnull(max(id), 0) + 1 FROM indexes")
    connection.execute(
        f"INSERT INTO indexes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0)",
        (id_, coll, spec.raw, build, None if is_whole else b"", int(is_whole)),
    )
    connection.execute(index_table_sql(f"i_{id_}"))
    return int(id_)


def state_of(connection: apsw.Connection, id_: int) -> bytes:
    """What an undo row keeps of an index before its definition changes."""
    ready, dropped, spec = first_row(connection, "SELECT ready, dropped_ts, spec FROM indexes WHERE id = ?", (id_,))
    return encode({"id": Int64(id_), "ready": Int64(ready), "dropped": dropped, "spec": RawDocument(spec)})


def state_before_creation(id_: int) -> bytes:
    """Return the `state_of` an index that is about to be made: undone, it waits for its removal (retention.py)."""
    return encode({"id": Int64(id_), "dropped": Int64(0)})


def restore_state(connection: apsw.Connection, before: bytes) -> None:
    """Take a change of an index's definition back; `before` is what `state_of` gave.

    The documents are as they were then, so an index that was emptied while it was dropped is filled again.
    """
    state: Any = RawDocument(before)
    id_, dropped = state.get("id"), state.get("dropped")
    connection.execute("UPDATE indexes SET dropped_ts = ? WHERE id = ?", (dropped, id_))
    if "spec" in state:
        connection.execute(
            "UPDATE indexes SET ready = ?, spec = ? WHERE id = ?", (state.get("ready"), state.get_raw("spec"), id_)
        )
        sql = f"SELECT {_AS_WRITTEN} FROM indexes WHERE id = ? AND ready AND position = x'' AND dropped_ts IS NULL"
        for row in list(rows_of(connection, sql, (id_,))):
            fill_index(connection, _index(row))


def fill_index(connection: apsw.Connection, index: Index) -> None:
    """Put all documents into an empty index."""
    whole = replace(index, position=None)
    for key, doc in rows_of(connection, f"SELECT {KEY}, {DOC} FROM {collection_table(index.coll)}"):
        write_entries(connection, (whole,), key, None, doc)
    set_index(connection, index, "position", None)


def set_index(connection: apsw.Connection, index: Index, column: str, value: object) -> None:
    connection.execute(f"UPDATE indexes SET {column} = ? WHERE id = ?", (value, index.id))
