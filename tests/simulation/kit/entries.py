"""Reads oplog entries for the checkers: those of a store and those in rollback files.

What is known of an entry is what its bytes say.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replset.bson import decode
from replset.ids import OpTime, pack_ts
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.workload import COLLECTION, DATABASE, Write

NAMESPACE = f"{DATABASE}.{COLLECTION}"
_TOKEN = re.compile(rb"token-\d+-")
_MOVE = re.compile(rb"move-\d+-")


@dataclass(frozen=True, slots=True)
class Entry:
    """One oplog entry, decoded. marks: what identifies it, and the client's write that it holds."""

    optime: OpTime
    hash: int
    crc: int
    marks: tuple[str, ...]
    body: dict[str, Any]


def marks_of_entry(body: Mapping[str, Any], raw: bytes) -> tuple[str, ...]:
    """Its optime first; then `w token-5-` or `d 1005` where it is a write of the workload."""
    own = mark_of_optime(OpTime(int(body["t"]), pack_ts(body["ts"].time, body["ts"].inc)))
    if body["op"] == "d":
        return (own, f"d {int(body['o']['_id'])}") if body["ns"] == NAMESPACE else (own,)
    if body["op"] == "c" and (move := _MOVE.search(raw)):
        return own, f"t {move.group().decode()}"
    found = _TOKEN.search(raw) if body["op"] in ("i", "u") else None
    return (own, f"w {found.group().decode()}") if found else (own,)


def mark_of_optime(optime: OpTime) -> str:
    return f"e {optime}"


def mark_of_write(write: Write) -> str:
    return f"d {write.id}" if write.kind == "delete" else f"w {write.token}"


def read_entry(term: int, ts: int, hash_value: int, raw: bytes) -> Entry:
    body = decode(raw)
    return Entry(OpTime(term, ts), hash_value, zlib.crc32(raw), marks_of_entry(body, raw), body)


def kind_of_entry(body: Mapping[str, Any]) -> str:
    """insert | update | replace | delete | create | drop | note: what an entry does."""
    match body["op"]:
        case "c":
            return str(next(iter(body["o"])))
        case "u":
            return "update" if body["o"].get("$v") == 2 else "replace"
        case op:
            return {"i": "insert", "d": "delete", "n": "note"}[op]


def operations_of(entries: list[Entry]) -> Iterator[tuple[Entry, Mapping[str, Any]]]:
    """Each entry with its body; a transaction's with the body of each of its operations."""
    for entry in entries:
        body = entry.body
        is_transaction = body["op"] == "c" and "applyOps" in body["o"]
        for operation in body["o"]["applyOps"] if is_transaction else (body,):
            yield entry, operation


def rolled_back_marks(disk: SimDisk) -> Iterator[str]:
    """The marks of all entries in finished rollbacks' oplog files."""
    for manifest in manifests(disk):
        if manifest["state"] not in ("finished", "exported"):
            continue
        for file in manifest["files"]:
            if file["kind"] == "oplog":
                for raw in bson_documents(Path(disk.folder, "rollback", file["name"]).read_bytes()):
                    yield from marks_of_entry(decode(raw), raw)


def manifests(disk: SimDisk) -> list[dict[str, Any]]:
    folder = Path(disk.folder, "rollback")
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.glob("rollback-*.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except ValueError as error:
            raise SimulationError(f"invariant 4 broken: {path.name} is no manifest: {error}") from error
    return found


def bson_documents(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        yield data[at : at + length]
        at += length
