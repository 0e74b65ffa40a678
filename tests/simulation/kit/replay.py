"""Replays an oplog in a few plain lines: which documents it makes, and what was there at each moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import apsw

from replset.bson import decode
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.entries import NAMESPACE, Entry, operations_of
from tests.simulation.kit.retries import COUNTERS_NS
from tests.simulation.kit.transfers import ACCOUNTS
from tests.simulation.kit.workload import DATABASE

SESSIONS_NS, SESSIONS_TABLE = "config.transactions", "5e5510005e5540008000000000000001"
_NEVER = 1 << 63
Documents = dict[str, dict[str, dict[str, Any]]]
"""Namespace -> text of _id -> document."""


def replay(entries: list[Entry]) -> Documents:
    """The oplog applied from its beginning, in a few plain lines."""
    documents: Documents = {SESSIONS_NS: {}}
    for entry, body in operations_of(entries):
        op, ns, o = body["op"], body["ns"], body["o"]
        if op == "c":
            database = ns.partition(".")[0]
            if "create" in o:
                documents[f"{database}.{o['create']}"] = {}
            elif "drop" in o:
                documents.pop(f"{database}.{o['drop']}", None)
            elif "renameCollection" in o:
                documents[o["to"]] = documents.pop(o["renameCollection"])
        elif op == "i":
            documents[ns][repr(o["_id"])] = o
        elif op == "d":
            documents[ns].pop(repr(o["_id"]), None)
        elif op == "u":
            key = repr(body["o2"]["_id"])
            documents[ns][key] = changed(documents[ns][key], o) if o.get("$v") == 2 else o
        _replay_session(documents, entry.body)
    return documents


def _replay_session(documents: Documents, body: Mapping[str, Any]) -> None:
    """What the entry makes of its session's record, or which records it forgets."""
    sessions, o = documents[SESSIONS_NS], body["o"]
    if body["op"] == "n" and o.get("msg") == "sessions expired":
        for lsid in o["sessions"]:
            sessions.pop(repr(lsid), None)
    if "txnNumber" not in body:
        return
    record = {
        "_id": body["lsid"],
        "txnNum": body["txnNumber"],
        "lastWriteOpTime": {"ts": body["ts"], "t": body["t"]},
        "lastWriteDate": body["wall"],
    }
    if body["op"] == "c":
        record["state"] = "committed"
    if body.get("needsRetryImage") == "postImage":
        record["image"] = documents[body["ns"]][repr(body["o2"]["_id"])]
    sessions[repr(body["lsid"])] = record


def changed(document: dict[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """A document after a `$v: 2` diff of its top level, and of items of an array there."""
    diff = update["diff"]
    arrays = {name[1:]: value for name, value in diff.items() if name not in ("u", "i", "d")}
    assert all(value.get("a") is True for value in arrays.values()), f"this replay knows no diffs below: {diff}"
    result = {name: value for name, value in document.items() if name not in diff.get("d", {})}
    result.update(diff.get("u", {}))
    result.update({name: changed_array(result[name], change) for name, change in arrays.items()})
    for name, value in diff.get("i", {}).items():
        result.pop(name, None)
        result[name] = value
    return result


def changed_array(items: list[Any], change: Mapping[str, Any]) -> list[Any]:
    """An array after a diff of its length and of whole items."""
    items = items[: change.get("l", len(items))]
    for name, value in change.items():
        if name.startswith("u"):
            place = int(name[1:])
            items = [*items[:place], value, *items[place + 1 :]]
    return items


def documents_of(disk: SimDisk) -> Documents | None:
    """All documents of a running member, by SQL; None when it has no connection to spare just now."""
    connection = disk.reader(os.path.join(disk.folder, "replset.db"))
    if connection is None:
        return None
    found: Documents = {}
    for uuid, ns in connection.execute("SELECT uuid, ns FROM catalog WHERE dropped_ts IS NULL").fetchall():
        found[ns] = _documents_in(connection, uuid.hex())
    found[SESSIONS_NS] = _documents_in(connection, SESSIONS_TABLE)
    return found


def _documents_in(connection: apsw.Connection, table: str) -> dict[str, dict[str, Any]]:
    rows = connection.execute(f"SELECT doc FROM d_{table}").fetchall()
    return {repr(document["_id"]): document for document in (decode(raw) for (raw,) in rows)}


def moments_of(entries: list[Entry]) -> dict[frozenset[tuple[int, str]], int]:
    """What the workload's collection held at each moment -> the last moment at which it held just that."""
    held: dict[int, str] = {}
    moments: dict[frozenset[tuple[int, str]], int] = {}
    for entry in entries:
        if entry.body["ns"] == NAMESPACE and entry.body["op"] != "c":
            moments[frozenset(held.items())] = entry.optime.ts - 1
            _apply_token(held, entry)
    moments[frozenset(held.items())] = _NEVER
    return moments


def state_at(entries: list[Entry], ts: int) -> dict[int, str]:
    """What the workload's collection held then: _id -> token."""
    held: dict[int, str] = {}
    for entry in entries:
        if entry.optime.ts <= ts and entry.body["ns"] == NAMESPACE and entry.body["op"] != "c":
            _apply_token(held, entry)
    return held


def _apply_token(held: dict[int, str], entry: Entry) -> None:
    body = entry.body
    if body["op"] == "d":
        held.pop(int(body["o"]["_id"]), None)
    elif body["op"] in ("i", "u"):
        held[int(body["o2" if body["op"] == "u" else "o"]["_id"])] = entry.marks[1].removeprefix("w ")


def balances_of(entries: list[Entry]) -> list[tuple[int, dict[str, int]]]:
    """(ts, balance of each account) after each entry that changes one, in order."""
    moments: list[tuple[int, dict[str, int]]] = []
    ns = f"{DATABASE}.{ACCOUNTS}"
    documents: dict[str, dict[str, Any]] = {}
    for entry in entries:
        changes = [body for _, body in operations_of([entry]) if body["ns"] == ns]
        for body in changes:
            o = body["o"]
            name = str(body.get("o2", o)["_id"])
            documents[name] = changed(documents[name], o) if o.get("$v") == 2 else o
        if changes:
            moments.append((entry.optime.ts, {name: int(doc.get("n", 0)) for name, doc in documents.items()}))
    return moments


def counted(entries: list[Entry]) -> dict[str, list[int]]:
    """Of each token of a retried write, the `n` of the document that each of its entries made."""
    documents: dict[str, dict[str, Any]] = {}
    found: dict[str, list[int]] = {}
    for _, body in operations_of(entries):
        o = body["o"]
        if body["ns"] != COUNTERS_NS or body["op"] not in ("i", "u"):
            continue
        key = repr(body["o2"]["_id"] if body["op"] == "u" else o["_id"])
        documents[key] = changed(documents[key], o) if o.get("$v") == 2 else o
        document = documents[key]
        found.setdefault(str(document.get("last", document["_id"])), []).append(int(document.get("n", 0)))
    return found


def first_difference(one: Documents, other: Documents) -> str:
    for ns in sorted(set(one) | set(other)):
        mine, theirs = one.get(ns), other.get(ns)
        if mine is None or theirs is None:
            return f"{ns} is only in {'the second' if mine is None else 'the first'}"
        for key in sorted(set(mine) | set(theirs)):
            if mine.get(key) != theirs.get(key):
                return f"{ns} {key}: {mine.get(key)} and {theirs.get(key)}"
    return "no difference"
