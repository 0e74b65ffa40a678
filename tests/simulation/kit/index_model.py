"""What indexes must hold, in a few plain lines that share nothing with the product but the encoding of values."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from replset.bson import Int64, Undefined, decode, encode_key

if TYPE_CHECKING:
    import apsw

    from tests.simulation.kit.disk import SimDisk

_FLIPPED = bytes(255 - byte for byte in range(256))
_ABSENT = object()
Definitions = dict[bytes, dict[str, bool]]
"""UUID of the collection -> name of the index -> whether it is ready."""


class ParallelError(Exception):
    """Two arrays side by side."""


def model_keys(spec: Mapping[str, Any], document: Mapping[str, Any]) -> set[bytes]:
    """The keystrings of a document; of partial filters only {field: {$gt: number}} is known."""
    for name, condition in spec.get("partialFilterExpression", {}).items():
        values = document.get(name)
        values = values if isinstance(values, list) else [values]
        if not any(type(v) in (int, float, Int64) and v > condition["$gt"] for v in values):
            return set()
    keys = set()
    for row in model_rows(document, [path.split(".") for path in spec["key"]]):
        if spec.get("sparse") and all(value is _ABSENT for value in row):
            continue
        parts = [encode_key(None if value is _ABSENT else value) for value in row]
        signs = spec["key"].values()
        keys.add(b"".join(p if sign > 0 else p.translate(_FLIPPED) for p, sign in zip(parts, signs, strict=True)))
    return keys


def model_rows(document: Any, paths: list[list[str]]) -> list[list[Any]]:
    """The values of all paths, once for each item of the array that they go through. No index in a path is known.

    Paths are grouped by their first name. Of all groups one at most may meet an array.
    """
    names = list(dict.fromkeys(path[0] for path in paths))
    groups = [[number for number, path in enumerate(paths) if path[0] == name] for name in names]
    tables = [_group(document, name, [paths[n][1:] for n in group]) for name, group in zip(names, groups, strict=True)]
    if sum(is_array for is_array, _ in tables) > 1:
        raise ParallelError
    rows = []
    for combination in itertools.product(*(table for _, table in tables)):
        row: list[Any] = [None] * len(paths)
        for group, values in zip(groups, combination, strict=True):
            for number, value in zip(group, values, strict=True):
                row[number] = value
        rows.append(row)
    return rows


def _group(document: Any, name: str, rests: list[list[str]]) -> tuple[bool, list[list[Any]]]:
    value = document.get(name, _ABSENT) if isinstance(document, dict) else _ABSENT
    is_array = isinstance(value, list)
    items = (value or [Undefined()]) if is_array else [value]
    rows: list[list[Any]] = []
    for item in items:
        deep = [rest for rest in rests if rest]
        found = model_rows(item, deep) if deep else [[]]
        is_array = is_array or len(found) > 1 or (bool(deep) and _meets_array(item, deep))
        for values in found:
            left = iter(values)
            rows.append([next(left) if rest else item for rest in rests])
    return is_array, rows


def _meets_array(document: Any, paths: Iterable[list[str]]) -> bool:
    for path in paths:
        value = document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, list):
                return True
    return False


def index_fault(connection: apsw.Connection, expected: Definitions | None) -> str | None:
    """What is wrong with the indexes in a member's database; None when nothing is.

    expected: the definitions that the oplog gives, None where it is not known.
    """
    found: Definitions = {}
    sql = "SELECT i.id, i.coll, i.spec, i.position, i.ready FROM indexes i JOIN catalog c ON c.uuid = i.coll"
    rows = connection.execute(f"{sql} WHERE i.dropped_ts IS NULL AND c.dropped_ts IS NULL").fetchall()
    for id_, coll, raw, position, ready in rows:
        spec = decode(raw)
        found.setdefault(coll, {})[str(spec["name"])] = bool(ready)
        entries = set(connection.execute(f"SELECT keystring, key FROM i_{id_}").fetchall())
        documents = connection.execute(f"SELECT key, doc FROM d_{coll.hex()}").fetchall()
        wanted = {
            (keystring, key)
            for key, doc in documents
            if position is None or key <= position
            for keystring in model_keys(spec, decode(doc))
        }
        if ready and position is not None:
            return f"the index {spec} is ready and holds only what is up to {position!r}"
        if entries != wanted:
            return f"the index {spec} lacks {sorted(wanted - entries)[:3]}, not {sorted(entries - wanted)[:3]}"
        if ready and spec.get("unique") and len({keystring for keystring, _ in entries}) < len(entries):
            return f"the unique index {spec} holds a key twice"
    if expected is not None and found != expected:
        return f"the oplog says that there are the indexes {expected}, and there are {found}"
    return None


def index_fault_on(disk: SimDisk, expected: Definitions | None) -> str | None:
    """As `index_fault`, of a running member; None too when it has no connection to spare just now."""
    connection = disk.reader(os.path.join(disk.folder, "replset.db"))
    return None if connection is None else index_fault(connection, expected)


def definitions_of(bodies: Iterable[Mapping[str, Any]]) -> Definitions:
    """The indexes that there are after these entries."""
    found: Definitions = {}
    for body in bodies:
        if body["op"] != "c":
            continue
        o, coll = body["o"], bytes(body.get("ui", b""))
        match next(iter(o)):
            case "createIndexes":
                found.setdefault(coll, {})[o["name"]] = True
            case "startIndexBuild" | "commitIndexBuild" as kind:
                found.setdefault(coll, {}).update({spec["name"]: kind == "commitIndexBuild" for spec in o["indexes"]})
            case "abortIndexBuild":
                for spec in o["indexes"]:
                    found[coll].pop(spec["name"], None)
            case "dropIndexes":
                found[coll].pop(o["index"], None)
            case "drop":
                found.pop(coll, None)
            case "renameCollection":
                found.pop(bytes(o.get("dropTarget") or b""), None)
            case _:
                continue
    return {coll: names for coll, names in found.items() if names}
