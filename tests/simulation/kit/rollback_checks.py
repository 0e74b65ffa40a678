"""The files of rollbacks and their manifests, compared with the history that was undone."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replset.bson import decode
from replset.ids import OpTime, pack_ts
from replset.replication.rollback_progress import RollbackProgress
from tests.simulation.kit.entries import Entry, bson_documents, manifests, operations_of
from tests.simulation.kit.replay import replay

if TYPE_CHECKING:
    from tests.simulation.kit.cluster import SimCluster
    from tests.simulation.kit.machine import Machine

Histories = dict[tuple[str, str], list[Entry]]
"""By member and the newest entry that was undone: its oplog before that."""


def rollback_fault(cluster: SimCluster, machine: Machine, histories: Histories) -> str | None:
    """What is wrong with the rollbacks on this member's disk, or with what it says of them; None: nothing."""
    for manifest in manifests(machine.disk):
        if manifest["state"] not in ("finished", "exported") or not manifest["range"]["entries"]:
            continue  # a repair put other documents in the place of some, which need not be sound
        contents: dict[tuple[str, str], list[bytes]] = {}
        for file in manifest["files"]:
            data = Path(machine.disk.folder, "rollback", file["name"]).read_bytes()
            contents[file["kind"], file["ns"]] = documents = list(bson_documents(data))
            found = (len(documents), len(data), hashlib.sha256(data).hexdigest())
            if found != (file["count"], file["bytes"], file["sha256"]):
                return f"{file} holds {found}"
        entries = contents.get(("oplog", "local.oplog.rs"), [])
        wrong = (
            _fault_of_range(manifest, entries)
            or _fault_of_documents(manifest, contents, histories.get((machine.name, manifest["range"]["last"])))
            or _fault_of_answers(cluster, machine, manifest, entries)
        )
        if wrong:
            return f"{manifest['id']}: {wrong}"
    return None


def _optime(body: dict[str, Any]) -> OpTime:
    return OpTime(int(body["t"]), pack_ts(body["ts"].time, body["ts"].inc))


def _fault_of_range(manifest: dict[str, Any], raw: list[bytes]) -> str | None:
    bodies = [decode(entry) for entry in raw]
    found = {
        "first": str(_optime(bodies[0])),
        "last": str(_optime(bodies[-1])),
        "entries": len(bodies),
        "operations": dict(Counter(body["op"] for body in bodies)),
    }
    said = {name: manifest["range"][name] for name in found}
    return None if said == found else f"its oplog file has {found}, and it says {said}"


def _fault_of_documents(
    manifest: dict[str, Any], contents: dict[tuple[str, str], list[bytes]], history: list[Entry] | None
) -> str | None:
    """Each document that an undone entry changed is there as it was, and as it had been at the common point. Not judged
    are collections that came, went or changed their names in what was undone.
    """
    if history is None or manifest.get("oplogOnly"):
        return None
    place = next(
        (n for n, entry in enumerate(history) if str(entry.optime) == manifest["range"]["first"]), len(history)
    )
    undone = [body for _, body in operations_of(history[place:])]
    databases = {body["ns"].partition(".")[0] for body in undone if body["op"] == "c"}
    touched: dict[str, set[str]] = {}
    for body in undone:
        if body["op"] in ("i", "u", "d") and body["ns"].partition(".")[0] not in databases:
            touched.setdefault(body["ns"], set()).add(repr(body.get("o2", body["o"])["_id"]))
    now, before = replay(history), replay(history[:place])
    for ns, keys in touched.items():
        there = {key: now[ns][key] for key in keys if key in now[ns]}
        changed = {key: document for key, document in there.items() if document != before[ns].get(key)}
        had = {key: before[ns][key] for key in changed if key in before[ns]}
        found, was = (
            {repr(document["_id"]): document for document in map(decode, contents.get((kind, ns), []))}
            for kind in ("documents", "before")
        )
        # An export may begin before the undo does. Then nobody knows which of them are as they were.
        if (found, was) != (changed, had) and (manifest["state"] == "finished" or (found, was) != (there, {})):
            return f"of {ns} it has {found}, which were {was}, and not {changed}, which were {had}"
    return None


def _fault_of_answers(cluster: SimCluster, machine: Machine, manifest: dict[str, Any], raw: list[bytes]) -> str | None:
    member = machine.running
    if member is None:
        return None
    optimes = [_optime(decode(entry)) for entry in (raw[0], raw[len(raw) // 2], raw[-1])]
    other = OpTime(optimes[0].term, optimes[0].ts + 1)
    for optime in (*optimes, other):
        found = cluster.run(member.rollbacks.with_entry(optime))
        is_there = optime != other or any(_optime(decode(entry)) == other for entry in raw)
        if (manifest["id"] in [one.id for one in found]) is not is_there:
            return f"the member is asked who has {optime}, and says {[one.id for one in found]}"
    progress = member[RollbackProgress]
    if progress.manifest == manifest["id"] and not progress.running:
        documents = sum(file["count"] for file in manifest["files"] if file["kind"] == "documents")
        size = sum(file["bytes"] for file in manifest["files"])
        expected = (manifest["range"]["entries"], documents, size)
        if (progress.written, progress.documents, progress.size) != expected:
            return f"its progress came to {progress}, and not to {expected}"
    return None
