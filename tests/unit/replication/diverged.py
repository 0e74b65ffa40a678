"""Two members whose histories part: for the tests of rollback."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from replset.bson import encode
from replset.core.messages import RollbackEnded
from replset.ids import OpTime
from replset.replication.rollback_manifest import FOLDER, FileKind, Manifest
from tests.unit.replication.kit import NS, SOURCE, Member, Pair, copy_log, numbered, pair, split_bson

OTHER = "app.parts"
DISK_OPERATIONS = 23  # of the rollback in these tests; the last six are behind the undo


def two_members(tmp_path: Path) -> Pair:
    """A source and me with a common history: documents 1 to 20 and a second collection."""
    source, mine = pair(tmp_path)
    source.create(NS)
    source.insert(NS, *numbered(range(1, 21)))
    source.create(OTHER)
    source.insert(OTHER, {"_id": "bolt"}, {"_id": "nut"})
    copy_log(source, mine)
    return source, mine


def diverge(source: Member, mine: Member) -> OpTime:
    """I go on in term 1 with everything that there is, the source in term 2; returns the common point."""
    common = mine.store.last_applied
    mine.clock.ms += 5_000
    mine.insert(NS, *numbered(range(100, 105)))
    mine.replace(NS, {"_id": 1, "text": "mine"})
    mine.change(NS, 2, {"u": {"text": "changed here"}, "i": {"extra": True}})
    mine.change(NS, 2, {"u": {"text": "changed again"}})
    mine.delete(NS, 3)
    mine.insert(NS, {"_id": 200})
    mine.delete(NS, 200)
    mine.replace(NS, {**mine.documents(NS)[4], "text": "away"})
    mine.replace(NS, {**mine.documents(NS)[4], "text": "document 4"})  # and back: nothing is lost
    mine.create("app.new")
    mine.insert("app.new", {"_id": "only here"})
    mine.insert(OTHER, {"_id": "washer"})
    mine.drop(OTHER)
    mine.create(OTHER)  # the same name, another collection
    mine.insert(OTHER, {"_id": "bolt", "size": 8})
    mine.noop()
    source.clock.ms += 9_000
    source.node.term = 2
    source.noop()
    source.insert(NS, {"_id": 100, "text": "theirs"})
    return common


def run_rollback(mine: Member) -> RollbackEnded:
    asyncio.run(mine.rollback.run(SOURCE))
    ended = mine.reports[-1]
    assert isinstance(ended, RollbackEnded)
    return ended


def files_of(mine: Member, manifest: Manifest) -> dict[tuple[str, str], list[list[dict[str, object]]]]:
    """Documents by (kind, namespace), one list per file."""
    found: dict[tuple[str, str], list[list[dict[str, object]]]] = {}
    for file in manifest.files:
        found.setdefault((file.kind.value, file.ns), []).append(mine.rollback_file(file.name))
    return found


def by_id(documents: Iterable[dict[str, object]]) -> dict[object, dict[str, object]]:
    return {document["_id"]: document for document in documents}


def stamp_of(manifest: Manifest) -> str:
    return manifest.id.removeprefix("rollback-").rpartition(".")[0]


class Crash(BaseException):
    """The process is gone."""


def entries_in(mine: Member, manifest: Manifest) -> set[bytes]:
    """The oplog entries that a rollback's files hold; checks every file on the way."""
    found: set[bytes] = set()
    for file in manifest.files:
        data = mine.disk.read_file(os.path.join(mine.dbpath, FOLDER, file.name))
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
        if file.kind is FileKind.OPLOG:
            found |= {encode(entry) for entry in split_bson(data)}
    return found
