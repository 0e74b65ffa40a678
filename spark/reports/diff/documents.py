"""`diff --documents`: the documents of the members' data files at one point, which all their histories have.

The point is the newest entry in common, of all members: what is before it is theirs together, so the documents after it
are equal on all, whatever each did since. A file that went on is taken back to it by its undo, as far as that reaches.
Documents are compared by a hash of their bytes. Only a member's own files hold documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replset.bson import RawDocument
from replset.ejson import to_ejson_value
from replset.errors import BadValueError, ReplError
from replset.ids import OpTime
from replset.oplog_row import entry_hash
from spark.columns import repeated, schema_of, sorted_by, tuples_of
from spark.oplog import Oplog, OplogError
from spark.readers.sqlite import SqliteOplog
from spark.render.report_documents import SAMPLES, entry_value
from spark.reports.replay.base import DbpathBase
from spark.runners import Rows, Runner, SparkRunner, aggregated, table_of_rows

DIFFERING = pa.schema([("ns", pa.string()), ("key", pa.binary())])
_ROWS = schema_of("ns key at hash", ns=pa.string(), key=pa.binary())


class Task(NamedTuple):
    """The documents of one collection of one member. at: the member's number."""

    at: int
    ns: str
    uuid: bytes


@dataclass(frozen=True, slots=True)
class DocumentDiff:
    """point: as of which entry. documents: how many each member has there, by name. catalogs: of each collection that
    not all have alike the members that have it. differing: ns and key of each document that not all have alike.
    """

    point: OpTime
    documents: Mapping[str, int]
    catalogs: Mapping[str, tuple[str, ...]]
    differing: pa.Table
    _bases: tuple[DbpathBase, ...] = ()

    @property
    def same(self) -> bool:
        return not self.differing.num_rows and not self.catalogs

    def document(self, samples: int = SAMPLES) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "optime": str(self.point),
            "members": [{"member": name, "documents": count} for name, count in self.documents.items()],
            "collections": [{"ns": ns, "members": list(names)} for ns, names in self.catalogs.items()],
            "differing": self.differing.num_rows,
            "samples": [self._sample(row["ns"], row["key"]) for row in self.differing.slice(0, samples).to_pylist()],
        }

    def _sample(self, ns: str, key: bytes) -> dict[str, Any]:
        """One document as each member has it; null where it has none."""
        found = [(base.name, base.document(ns, key, self.point)) for base in self._bases]
        ids = [_id_of(document) for _, document in found if document is not None]
        return {
            "ns": ns,
            "_id": next((to_ejson_value(one) for one in ids if one is not None), None),
            "versions": [{"member": name, "document": entry_value(raw)} for name, raw in found],
        }


def _id_of(document: bytes) -> object:
    """None where the document's bytes are none any more."""
    try:
        return RawDocument(document).get("_id")
    except (ReplError, ValueError):
        return None


def check_oplogs(oplogs: Sequence[Oplog]) -> None:
    """BadValueError where one is no member's files."""
    for oplog in oplogs:
        if not isinstance(oplog, SqliteOplog):
            raise BadValueError(f"--documents: {oplog.name} is no dbpath; only a member's files hold its documents")


def newest_common(pairs: Sequence[Mapping[str, Any]]) -> OpTime:
    """The newest entry that all have, of the rows of `Diff.pairs`. OplogError: two have none in common."""
    for pair in pairs:
        if pair["common_ts"] is None:
            raise OplogError(pair["a"], f"--documents: it has no entry in common with {pair['b']}")
    oldest = min(pairs, key=lambda pair: pair["common_ts"])
    return OpTime(oldest["common_term"], oldest["common_ts"])


def document_diff(
    runner: Runner, oplogs: Sequence[Oplog], point: OpTime, namespaces: Sequence[str] = ()
) -> DocumentDiff:
    """Compare the documents as of `point`, one collection of a member in one task.

    OplogError: a member cannot be read, or its undo does not reach back to the point.
    """
    bases = tuple(DbpathBase(oplog.name, oplog.path) for oplog in oplogs if isinstance(oplog, SqliteOplog))
    collections = [base.collections(point) for base in bases]
    wanted = sorted({ns for one in collections for ns in one if not namespaces or ns in namespaces})
    tasks = [Task(at, ns, one[ns]) for ns in wanted for at, one in enumerate(collections) if ns in one]
    catalogs = {
        ns: tuple(base.name for base, one in zip(bases, collections, strict=True) if ns in one)
        for ns in wanted
        if len({one.get(ns) for one in collections}) > 1
    }
    counts, found = [0] * len(bases), [DIFFERING.empty_table()]
    # In this process one collection after the other, so that the hashes of only one are in memory.
    together = [tasks] if isinstance(runner, SparkRunner) else [[t for t in tasks if t.ns == ns] for ns in wanted]
    for some in together:
        rows = runner.kept(runner.numbers(len(some), partial(_read, bases, some, point), _ROWS))
        for at, documents in tuples_of(table_of_rows(aggregated(rows, ("at",), documents=("count", "key")))):
            counts[at] += documents
        found.append(_differing(rows, len(bases)))
        runner.release(rows)
    documents = {base.name: count for base, count in zip(bases, counts, strict=True)}
    return DocumentDiff(point, documents, catalogs, sorted_by(pa.concat_tables(found), "ns", "key"), bases)


def _read(bases: Sequence[DbpathBase], tasks: Sequence[Task], point: OpTime, number: int) -> Iterator[pa.RecordBatch]:
    task = tasks[number]
    for batch in bases[task.at].as_of(task.ns, task.uuid, point):
        hashes = [entry_hash(document) for document in batch.column(1).to_pylist()]
        columns = [repeated(task.ns, len(hashes)), batch.column(0), repeated(task.at, len(hashes))]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(hashes, pa.int64())], schema=_ROWS)


def _differing(rows: Rows, members: int) -> pa.Table:
    """DIFFERING of these _ROWS."""
    how = {"copies": ("count", "at"), "least": ("min", "hash"), "most": ("max", "hash")}
    by_key = aggregated(rows, ("ns", "key"), **how)
    if isinstance(by_key, pa.Table):
        wanted = (pc.field("copies") != members) | (pc.field("least") != pc.field("most"))
    else:
        wanted = (by_key["copies"] != members) | (by_key["least"] != by_key["most"])
    return table_of_rows(by_key.filter(wanted).select(DIFFERING.names)).cast(DIFFERING)
