"""A few of the entries that differ, looked at closely: their content on each member, the document before and after.

Works on the driver, entry by entry: for samples, not for tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replset.bson import RawDocument, encode_key
from replset.errors import ReplError
from replset.ids import OpTime
from replset.replication.rollback_manifest import FileKind, Manifest, rollback_folder
from spark.oplog import Oplog, OplogTrimmedError, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.elections import manifests_of
from spark.reports.replay.base import bson_documents

_COLUMNS = ("ts", "term", "hash", "wall", "entry")
_ALL_VERSIONS = frozenset({"divergent", "duplicated"})


@dataclass(slots=True)
class Version:
    """One content of an optime and the members that have it."""

    hash: int
    wall: int
    entry: bytes
    members: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Sample:
    """row: of `Diff.entries`. rollback: MEMBER/ID of the rollback that took the entry, if one is on record.

    before, after: the document at the common point and as the rollback found it, where its files have them.
    """

    row: Mapping[str, Any]
    versions: list[Version]
    rollback: str | None = None
    before: bytes | None = None
    after: bytes | None = None


def samples_of(oplogs: Sequence[Oplog], rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """rows: of `Diff.entries`. Entries that were trimmed away since have no version. OplogError: one cannot be read."""
    by_name = {oplog.name: oplog for oplog in oplogs}
    samples = []
    for row in rows:
        holders = row["present"] if row["kind"] in _ALL_VERSIONS else row["present"][:1]
        samples.append(Sample(row, versions_of([by_name[name] for name in holders], row["ts"], row["term"])))
    _add_rollbacks(oplogs, samples)
    return samples


def versions_of(oplogs: Iterable[Oplog], ts: int, term: int) -> list[Version]:
    """The different entries at an optime, in the order of the oplogs."""
    found: dict[tuple[int, bytes], Version] = {}
    for oplog in oplogs:
        for row in _rows(oplog, ts):
            if row["term"] == term:
                content = (row["hash"], row["entry"])  # a changed entry keeps the hash that is stored beside it
                version = found.setdefault(content, Version(row["hash"], row["wall"], row["entry"]))
                if oplog.name not in version.members:
                    version.members.append(oplog.name)
    return list(found.values())


def entry_about(oplogs: Iterable[Oplog], ts: int, key: bytes) -> bytes | None:
    """An entry at this ts about the document with this key, from the first oplog that has one."""
    for oplog in oplogs:
        try:
            for batch in oplog.read(Span(ts, ts + 1), ("key", "entry")):
                for row in batch.to_pylist():
                    if row["key"] == key:
                        return bytes(row["entry"])
        except OplogTrimmedError:
            continue
    return None


# --- rollback files --------------------------------------------------------------------------------------------


def _add_rollbacks(oplogs: Sequence[Oplog], samples: Sequence[Sample]) -> None:
    """Find each entry in the manifests beside the members' files, and its document in the files that they name."""
    recorded = [(oplog, manifest) for oplog in oplogs for manifest in manifests_of(oplog)]
    wanted: dict[Path, list[tuple[Sample, FileKind]]] = {}
    for sample in samples:
        optime = OpTime(sample.row["term"], sample.row["ts"])
        for oplog, manifest in recorded:
            if manifest.first <= optime <= manifest.last and isinstance(oplog, SqliteOplog):
                sample.rollback = f"{oplog.name}/{manifest.id}"
                for path, kind in _files(oplog, manifest, sample.row["ns"]):
                    wanted.setdefault(path, []).append((sample, kind))
                break
    for path, seekers in wanted.items():
        _read_file(path, seekers)


def _files(oplog: SqliteOplog, manifest: Manifest, ns: str) -> list[tuple[Path, FileKind]]:
    folder = rollback_folder(Path(oplog.path).absolute().parent)
    kinds = (FileKind.BEFORE, FileKind.DOCUMENTS)
    return [(folder / file.name, file.kind) for file in manifest.files if file.ns == ns and file.kind in kinds]


def _read_file(path: Path, seekers: Sequence[tuple[Sample, FileKind]]) -> None:
    """A file that is gone or damaged has nothing to show; `rollback-tools` reports what is wrong with it."""
    try:
        with path.open("rb") as file:
            for document in bson_documents(file, None):
                key = encode_key(RawDocument(document).get("_id"))
                for sample, kind in seekers:
                    if sample.row["key"] == key and kind is FileKind.BEFORE:
                        sample.before = document
                    elif sample.row["key"] == key:
                        sample.after = document
    except (OSError, ReplError):
        return


def _rows(oplog: Oplog, ts: int) -> list[dict[str, Any]]:
    try:
        return [row for batch in oplog.read(Span(ts, ts + 1), _COLUMNS) for row in batch.to_pylist()]
    except OplogTrimmedError:
        return []
