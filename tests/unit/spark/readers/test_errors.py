"""Whatever is wrong with a file, and whatever it is asked: an answer, or one OplogError of one line with its name."""

from __future__ import annotations

import gzip
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replset.bson import Timestamp, encode
from replset.storage import DATA_APPLICATION_ID
from spark.columns import COLUMNS, arrow_schema
from spark.members import open_members
from spark.oplog import EVERYTHING, START, GrowingOplog, Oplog, OplogError
from spark.readers.dump import DumpOplog
from spark.readers.parquet import ParquetOplog
from spark.readers.sqlite import SqliteOplog
from tests.spark.kit import T0, insert, write_oplog
from tests.unit.spark.readers.conftest import descriptors_of

ENTRIES = 400
FILES = {"sqlite": "replset.db", "bson": "oplog.bson", "parquet": "part-0.parquet"}
KINDS: dict[str, Callable[[str, str], Oplog]] = {"sqlite": SqliteOplog, "bson": DumpOplog, "parquet": ParquetOplog}
QUESTIONS: dict[str, Callable[[Oplog], object]] = {
    "pin": lambda oplog: oplog.pin(),
    "bounds": lambda oplog: oplog.bounds(),
    "count": lambda oplog: oplog.count(EVERYTHING),
    "split": lambda oplog: oplog.split(EVERYTHING, 5),
    "follow": lambda oplog: oplog.follow(START, 100) if isinstance(oplog, GrowingOplog) else None,
    "read": lambda oplog: list(oplog.read(EVERYTHING, COLUMNS)),
    "read what was pinned": lambda oplog: [
        list(pinned.read(span, ("hash", "ns"))) for pinned in [oplog.pin()] for span in pinned.split(EVERYTHING, 3)
    ],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same entries as a file of each kind."""
    folder = write_oplog(tmp_path_factory.mktemp("whole"), map(insert, range(ENTRIES)))
    batches = list(SqliteOplog("m", str(folder / FILES["sqlite"])).read(EVERYTHING, COLUMNS))
    table = pa.Table.from_batches(batches)
    (folder / FILES["bson"]).write_bytes(b"".join(table.column("entry").to_pylist()))
    pq.write_table(table, folder / FILES["parquet"], row_group_size=150)
    return {kind: (folder / file).read_bytes() for kind, file in FILES.items()}


def refusals(oplog: Oplog) -> dict[str, str]:
    """What it refuses, and why. Any other error than a OplogError is raised."""
    found: dict[str, OplogError] = {}
    for question, ask in QUESTIONS.items():
        try:
            ask(oplog)
        except OplogError as error:
            found[question] = error
    for error in found.values():
        assert str(error) == f"{oplog.name}: {error.reason}"
        assert error.reason.isprintable()
    return {question: error.reason for question, error in found.items()}


def database(*statements: str) -> Callable[[Path, bytes], None]:
    """SQLite's file, made anew by these statements."""

    def write(file: Path, _content: bytes) -> None:
        with closing(sqlite3.connect(file)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    return write


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path, bytes], None]:
    def write(file: Path, content: bytes) -> None:
        file.write_bytes(change(content))

    return write


def columns(**others: pa.DataType | None) -> Callable[[Path, bytes], None]:
    """A Parquet file with columns of other types, None for those that are missing."""

    def write(file: Path, _content: bytes) -> None:
        types = {name: others.get(name, arrow_schema().field(name).type) for name in COLUMNS}
        pq.write_table(pa.table({name: pa.array([], kind) for name, kind in types.items() if kind}), file)

    return write


SIZE = len(insert(0)[6])
LAST = f"is damaged: the document at byte {(ENTRIES - 1) * SIZE}"
OURS = f"PRAGMA application_id = {DATA_APPLICATION_ID}"
MEMBERS = "is no member's database"
DAMAGED: dict[str, dict[str, tuple[Callable[[Path, bytes], None], str]]] = {
    "sqlite": {
        "not there": (lambda file, _: None, "does not exist"),
        "a folder": (lambda file, _: file.mkdir(), "is no file"),
        "empty": (changed(lambda _: b""), MEMBERS),
        "a text": (changed(lambda _: b"hello\n" * 500), MEMBERS),
        "another's database": (database("CREATE TABLE oplog(ts INTEGER PRIMARY KEY, term)"), MEMBERS),
        "no oplog in it": (database(OURS, "CREATE TABLE meta(name, value)"), MEMBERS),
        "its header alone": (changed(lambda content: content[:100]), "is damaged"),
        "cut short": (changed(lambda content: content[: len(content) // 2]), "is damaged"),
        "a first page of rubbish": (changed(lambda content: content[:100] + b"\xee" * len(content)), "is damaged"),
    },
    "bson": {
        "not there": (lambda file, _: None, "No such file or directory"),
        "a folder": (lambda file, _: file.mkdir(), "Is a directory"),
        "a text": (changed(lambda _: b"hello\n" * 500), "is damaged: the document at byte 0: its length says"),
        "compressed and cut": (changed(lambda content: gzip.compress(content)[:-20]), "it cannot be unpacked"),
        "compressed and changed": (
            changed(lambda content: gzip.compress(content)[:-8] + bytes(8)),
            "it cannot be unpacked: CRC check failed",
        ),
        "cut short": (changed(lambda content: content[:-10]), f"{LAST}: the file ends after {SIZE - 10} bytes of it"),
        "not an oplog": (changed(lambda content: b"\x05\0\0\0\0" * 9), "the document at byte 0: it is no oplog entry"),
        "no length": (changed(lambda content: content[:-SIZE] + b"\xff" * 100), f"{LAST}: its length says -1"),
        "rubbish inside": (changed(lambda content: content[:-50] + b"\xee" * 36 + content[-14:]), LAST),
        **{
            f"{wrong}": (changed(lambda content, wrong=wrong: content[:-SIZE] + encode(wrong)), f"{LAST}: {why}")
            for wrong, why in (
                ({"a": 1}, ".*it has no ts"),
                ({"ts": 5, "op": "i", "ns": "a.b", "o": {}}, ".*it has no ts"),
                ({"ts": Timestamp(T0, 1 << 31), "op": "i", "ns": "a.b", "o": {}}, ".*increment"),
            )
        },
    },
    "parquet": {
        "not there": (lambda file, _: None, "No such file or directory"),
        "empty": (changed(lambda _: b""), "is damaged or no Parquet"),
        "a text": (changed(lambda _: b"hello\n" * 500), "is damaged or no Parquet"),
        "cut short": (changed(lambda content: content[:-1]), "is damaged or no Parquet"),
        "not an oplog": (columns(hash=None), "holds no oplog: it has no column hash"),
        "another type": (columns(ts=pa.string()), "holds no oplog: its column ts is string, not int64"),
    },
}


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, cases in DAMAGED.items() for what in cases])
def test_what_cannot_be_read_is_refused_whatever_is_asked(
    tmp_path: Path, whole: dict[str, bytes], kind: str, what: str
) -> None:
    damage, why = DAMAGED[kind][what]
    file = tmp_path / FILES[kind]
    damage(file, whole[kind])
    found = refusals(KINDS[kind]("m1", str(file)))
    expected = set(QUESTIONS) - (set() if kind == "sqlite" else {"follow"})
    assert set(found) == expected
    for reason in found.values():
        assert str(file) in reason
        assert re.search(why, reason)
    assert kind != "sqlite" or not descriptors_of(file)


def test_an_entry_without_an_op_is_refused_where_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / FILES["bson"]
    file.write_bytes(encode({"ts": Timestamp(T0, 1), "op": 5, "ns": "a.b", "o": {}}))
    found = refusals(DumpOplog("m1", str(file)))
    assert set(found) == {"read", "read what was pinned"}
    assert all("no op and ns" in reason for reason in found.values())


def rubbish(kind: str, content: bytes) -> Iterator[bytes]:
    """The file with something wrong at each place in turn: pages of SQLite's, else as many pieces."""
    step = 4096 if kind == "sqlite" else len(content) // 24
    random = Random(7)
    for at in range(0, len(content), step):
        for piece in (bytes(step), b"\xff" * step, random.randbytes(step), random.randbytes(3)):
            yield content[:at] + piece + content[at + len(piece) :]
        yield content[: at + step // 3]


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", KINDS)
def test_damage_anywhere_gives_no_other_error(tmp_path: Path, whole: dict[str, bytes], kind: str) -> None:
    refused = 0
    for number, content in enumerate(rubbish(kind, whole[kind])):
        file = tmp_path / str(number) / FILES[kind]
        file.parent.mkdir()
        file.write_bytes(content)
        refused += bool(refusals(KINDS[kind]("m1", str(file))))
        assert kind != "sqlite" or not descriptors_of(file)
        with suppress(OplogError):
            open_members([str(file)])
    assert refused > number // 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_goes_away_or_is_another_after_the_plan(tmp_path: Path, whole: dict[str, bytes], kind: str) -> None:
    file = tmp_path / FILES[kind]
    file.write_bytes(whole[kind])
    pinned = KINDS[kind]("m1", str(file)).pin()
    spans = pinned.split(EVERYTHING, 3)
    file.unlink()
    if kind == "parquet":
        pq.write_table(pa.Table.from_batches([], arrow_schema()), file)
    elif kind == "sqlite":
        write_oplog(tmp_path, [insert(n) for n in range(100)])
    else:
        file.write_bytes(whole[kind][: len(whole[kind]) // 2])
    for span in spans:
        with pytest.raises(OplogError, match=r"^m1: "):
            list(pinned.read(span, ("ts",)))
    file.unlink()
    with pytest.raises(OplogError, match=r"^m1: .*(does not exist|No such file or directory)"):
        list(pinned.read(spans[0], ("ts",)))
