"""The tables, defined by sqlite-utils and executed by apsw.

sqlite-utils builds the schema and its migrations in a temporary database in memory; the SQL that it issued there is
what runs in the real file, so every byte of that still goes through the Disk. `user_version` counts the steps done:
a file whose schema is made costs no import of sqlite-utils.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import apsw

from replset.errors import CorruptDataError
from replset.imports import kept_out
from replset.storage import DATA_APPLICATION_ID
from replset.storage.sqlite import first_row, rows_of, transaction

if TYPE_CHECKING:
    from sqlite_utils import Database

Step = Callable[["Database"], None]
_READS = ("SELECT", "PRAGMA", "BEGIN", "COMMIT", "EXPLAIN", "SAVEPOINT", "RELEASE")


@dataclass(frozen=True, slots=True)
class Schema:
    """The steps from an empty file to today's tables; never change one that was released, add to the end."""

    application_id: int
    steps: tuple[Step, ...]
    on_upgrade: Callable[[apsw.Connection, int], None] | None = None
    """Changes the rows of a file that had so many of the steps, after the others were done."""


def _oplog_and_documents(db: Database) -> None:
    db.table("oplog").create(
        {
            "ts": int,  # seconds * 2**31 + increment
            "term": int,
            "op": str,
            "ns": str,
            "key": bytes,  # encode_key of the document's _id
            "wall": int,  # milliseconds
            "hash": int,  # xxh3_64 of entry, signed
            "chain": int,  # xxh3_64 of the previous chain and hash, signed
            "entry": bytes,
        },
        pk="ts",
        not_null={"term", "op", "ns", "wall", "hash", "chain", "entry"},
    )
    undo = db.create_table_sql(
        "undo",
        {"ts": int, "seq": int, "kind": str, "coll": bytes, "key": bytes, "before": bytes},
        pk=("ts", "seq"),
        not_null={"kind"},
    )
    # sqlite-utils has no word for this; without a rowid the rows of one ts lie together, in one tree less.
    db.execute(undo.rstrip().rstrip(";") + " WITHOUT ROWID")
    db.table("undo").create_index(["coll", "key", "ts"])
    db.table("catalog").create(
        {"uuid": bytes, "ns": str, "options": bytes, "created_ts": int, "dropped_ts": int},
        pk="uuid",
        not_null={"ns", "options", "created_ts"},
    )
    db.table("terms").create({"term": int, "first_ts": int, "last_ts": int}, pk="term", not_null={"first_ts"})
    db.table("meta").create({"name": str, "value": bytes}, pk="name")


def _indexes(db: Database) -> None:
    db.table("indexes").create(
        {
            "id": int,  # names the table of its entries: i_ID
            "coll": bytes,
            "spec": bytes,
            "build": bytes,  # UUID of its build
            "position": bytes,  # of its build; NULL once all documents are in
            "ready": int,
            "multikey": int,  # a bit for each field
            "dropped_ts": int,
        },
        pk="id",
        not_null={"coll", "spec", "ready", "multikey"},
    )
    db.table("indexes").create_index(["coll"])


def _places_of_deleted_documents(db: Database) -> None:
    db.table("undo").add_column("place", int)  # of a delete: the rowid that the document had; else NULL
    # sqlite-utils has no partial indexes. Only deletes pay for these.
    db.execute("CREATE INDEX undo_by_place ON undo (coll, place) WHERE place IS NOT NULL")
    db.execute("CREATE INDEX undo_deletes_by_key ON undo (coll, key) WHERE place IS NOT NULL")


def _sessions_out_of_the_index(db: Database) -> None:
    # Every write of a session has an undo row. In this index each session has a page of its own, which each group would
    # write. NULL stands for the collection of sessions, and keeps its rows out.
    db.execute("DROP INDEX idx_undo_coll_key_ts")
    db.execute("CREATE INDEX undo_by_key ON undo (coll, key, ts) WHERE coll IS NOT NULL")


def _upgrade_undo(connection: apsw.Connection, done: int) -> None:
    _give_places(connection, done)
    connection.execute("UPDATE undo SET coll = NULL WHERE coll = ?", (SESSIONS_UUID,))


def _give_places(connection: apsw.Connection, done: int) -> None:
    """Give the documents that an older version deleted places in front of all others, each its own. Without one, a read
    at a point before the delete would not find the document in natural order.
    """
    if done > _DATA_STEPS.index(_places_of_deleted_documents):
        return
    place = 0
    for (uuid,) in list(rows_of(connection, "SELECT uuid FROM catalog")):
        # A delete: the key's next change is an insert, or there is none and the document is not there.
        deletes = (
            "SELECT ts, seq FROM undo AS u WHERE coll = ? AND kind = 'doc' AND before IS NOT NULL AND place IS NULL"
            " AND ifnull((SELECT before IS NULL FROM undo AS n WHERE n.coll = u.coll AND n.key = u.key"
            " AND (n.ts, n.seq) > (u.ts, u.seq) ORDER BY n.ts, n.seq LIMIT 1),"
            f" NOT EXISTS (SELECT 1 FROM {collection_table(uuid)} AS d WHERE d.key = u.key))"
        )
        for ts, seq in list(rows_of(connection, deletes, (uuid,))):
            place -= 1
            connection.execute("UPDATE undo SET place = ? WHERE ts = ? AND seq = ?", (place, ts, seq))


def _vote_config_and_journal(db: Database) -> None:
    db.table("member").create({"name": str, "value": bytes}, pk="name")
    db.table("journal").create(
        {"id": int, "wall": int, "term": int, "event": str, "detail": str},
        pk="id",
        not_null={"wall", "term", "event", "detail"},
    )


SESSIONS_UUID = bytes.fromhex("5e5510005e5540008000000000000001")
"""The UUID of the collection of session records (sessions.py): the same on every member."""


def _session_records(db: Database) -> None:
    db.execute(collection_table_sql(SESSIONS_UUID))


def _renames_and_capped(db: Database) -> None:
    db.table("name_changes").create({"ns": str, "ts": int}, pk=("ns", "ts"))  # a rename: both names
    db.table("capped").create({"coll": bytes, "documents": int, "bytes": int}, pk="coll")


_DATA_STEPS = (
    _oplog_and_documents,
    _indexes,
    _session_records,
    _places_of_deleted_documents,
    _renames_and_capped,
    _sessions_out_of_the_index,
)
DATA_SCHEMA = Schema(application_id=DATA_APPLICATION_ID, steps=_DATA_STEPS, on_upgrade=_upgrade_undo)
MEMBER_SCHEMA = Schema(application_id=0x72706C6D, steps=(_vote_config_and_journal,))


KEY, DOC = "CAST(key AS BLOB)", "ifnull(CAST(doc AS BLOB), x'00')"
"""The columns of a document. The row may say that they are text, a number or nothing: a disk has changed a bit then.
Nothing is read as what is no document, since an empty one would be passed over.
"""
IS_MISTYPED = "(typeof(doc) <> 'blob' OR typeof(key) <> 'blob')"


def collection_table(uuid: bytes) -> str:
    """The name of the table that holds a collection's documents; it needs no quoting."""
    return f"d_{uuid.hex()}"


def collection_table_sql(uuid: bytes) -> str:
    """A rowid table: as fast as WITHOUT ROWID on rising keys, twice as fast on random ones."""
    return f"CREATE TABLE {collection_table(uuid)} (key BLOB NOT NULL UNIQUE, doc BLOB NOT NULL)"


def load_sqlite_utils() -> type[Database]:
    """sqlite-utils without pandas and numpy: it loads both for types that are not used here. A member that made its
    files would hold 80 MB of them until it ends, and each command line would take 0.4 s longer to start.
    """
    with kept_out("pandas", "numpy"):
        from sqlite_utils import Database
    return Database


@cache
def statements_of(schema: Schema, done: int) -> tuple[str, ...]:
    """The SQL of the steps after the first `done` ones, as sqlite-utils issues it: 3 ms for a new member's files."""
    database = load_sqlite_utils()
    issued: list[str] = []

    def note(sql: str, _parameters: Any) -> None:
        issued.append(sql)

    db = database(memory=True, tracer=note)
    try:
        for step in schema.steps[:done]:
            step(db)
        issued.clear()
        for step in schema.steps[done:]:
            step(db)
    finally:
        db.close()
    return tuple(sql for sql in issued if not sql.lstrip().upper().startswith(_READS))


def check_schema(connection: apsw.Connection, schema: Schema, path: str) -> int:
    """How many steps of the schema the file has; writes nothing, so that a foreign file stays as it is.

    CorruptDataError when the file is another application's or a newer version's.
    """
    done = int(first_row(connection, "PRAGMA user_version")[0])
    application_id = int(first_row(connection, "PRAGMA application_id")[0])
    if done == len(schema.steps) and application_id == schema.application_id:
        return done
    if done > len(schema.steps):
        raise CorruptDataError(
            f"{path} was made by a newer version of replset: its schema is {done}, and this one reads up to"
            f" {len(schema.steps)}"
        )
    tables = first_row(connection, "SELECT count(*) FROM sqlite_schema")[0]
    if (done or tables) and application_id != schema.application_id:
        raise CorruptDataError(f"{path} is no database of ours: its application id is {application_id}")
    return done


def ensure_schema(connection: apsw.Connection, schema: Schema, path: str) -> bool:
    """Bring the file up to today's schema in one transaction; True when something had to be done. See check_schema."""
    done = check_schema(connection, schema, path)
    if done == len(schema.steps):
        return False
    statements = statements_of(schema, done)
    with transaction(connection):
        for sql in statements:
            connection.execute(sql)
        if done and schema.on_upgrade is not None:
            schema.on_upgrade(connection, done)
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        connection.execute(f"PRAGMA user_version = {len(schema.steps)}")
    return True
