"""What two databases have otherwise, in answers of bounded size, and the database that is made of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw
import pytest

from replset.errors import CorruptDataError
from replset.features.compared_copies import differences
from replset.features.compared_copies.differences import (
    FIRST_PLACE,
    SPAN_BITS,
    Row,
    Spans,
    end_build,
    read_differences,
    read_hashes,
    read_spans,
)
from replset.storage.copies import OPLOG_ONLY, open_copy
from replset.storage.disk import RealDisk
from replset.storage.sqlite import transaction
from replset.storage.txn import read_meta, write_meta
from tests.unit.storage.conftest import Driver

DISK = RealDisk()
SPAN = 1 << SPAN_BITS


@pytest.fixture
def filled(driver: Driver) -> Driver:
    """Ten spans of documents of 100 bytes and more."""
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 70) for number in range(10 * SPAN - 1)))
    return driver


def answers(driver: Driver) -> list[Spans]:
    """Ask until all is answered."""
    found, low = list[Spans](), FIRST_PLACE
    while not found or found[-1].next is not None:
        found.append(driver.store.query(partial(read_spans, uuid=driver.coll("db.c").uuid, low=low)))
        low = found[-1].next or 0
    return found


@pytest.mark.parametrize(("rows", "size"), [(1, 1 << 20), (3, 1 << 20), (1024, 1), (1024, 500)])
def test_a_digest_is_of_all_rows_of_its_span_however_many_are_read_at_once(
    filled: Driver, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    (whole,) = answers(filled)
    monkeypatch.setattr(differences, "_READ_ROWS", rows)
    monkeypatch.setattr(differences, "_READ_BYTES", size)
    (found,) = answers(filled)
    assert found.digests == whole.digests


@pytest.mark.parametrize(
    ("spans_max", "spans_bytes", "expected"),
    [
        pytest.param(100, 1 << 30, [10], id="one-answer"),
        pytest.param(3, 1 << 30, [3, 3, 3, 1], id="so-many-spans"),
        pytest.param(100, 1, [1] * 10, id="so-many-bytes"),
        pytest.param(4, 1, [1] * 10, id="bytes-first"),
        pytest.param(1, 1 << 30, [1] * 10, id="spans-first"),
    ],
)
def test_an_answer_about_spans_has_a_bound_and_the_next_one_goes_on_behind_it(
    filled: Driver, monkeypatch: pytest.MonkeyPatch, spans_max: int, spans_bytes: int, expected: list[int]
) -> None:
    (whole,) = answers(filled)
    monkeypatch.setattr(differences, "SPANS_MAX", spans_max)
    monkeypatch.setattr(differences, "SPANS_BYTES", spans_bytes)
    found = answers(filled)
    assert [len(answer.digests) for answer in found] == expected
    assert {span: digest for answer in found for span, digest in answer.digests.items()} == whole.digests


@pytest.mark.parametrize(
    ("rows_bytes", "expected"), [(1 << 30, [SPAN]), (1, [1] * SPAN), (350, [4, 4, 4, 4]), (0, [1] * SPAN)]
)
def test_an_answer_about_rows_has_a_bound_and_the_next_one_goes_on_behind_it(
    filled: Driver, monkeypatch: pytest.MonkeyPatch, rows_bytes: int, expected: list[int]
) -> None:
    monkeypatch.setattr(differences, "ROWS_BYTES", rows_bytes)
    uuid, found, sizes = filled.coll("db.c").uuid, list[Row](), list[int]()
    low: int | None = FIRST_PLACE
    while low is not None:
        ask = partial(read_differences, uuid=uuid, spans=[1], theirs={}, low=low)
        answer = filled.store.query(ask)
        found += answer.rows
        sizes.append(len(answer.rows))
        assert not answer.gone
        low = answer.next
    assert sizes == expected
    assert [row.place for row in found] == list(range(SPAN, 2 * SPAN))
    assert filled.store.query(lambda connection: read_hashes(connection, uuid, [1])).keys() == {*range(SPAN, 2 * SPAN)}


@pytest.mark.parametrize("damaged", [False, True])
def test_only_a_sound_database_is_called_whole(filled: Driver, tmp_path: Path, damaged: bool) -> None:
    built, frame = str(tmp_path / "built"), str(tmp_path / "frame")
    for path in (built, frame):
        filled.store.copy_to(path)
    with open_copy(DISK, built) as connection, transaction(connection):
        write_meta(connection, OPLOG_ONLY, 1)
    if damaged:
        damage(built)
        with pytest.raises(CorruptDataError, match="built is damaged: NULL value in"):
            end_build(DISK, built, frame, lambda: None)
    else:
        end_build(DISK, built, frame, lambda: None)
    with open_copy(DISK, built, read_only=True) as connection:
        assert (read_meta(connection, OPLOG_ONLY) is None) is not damaged


def damage(path: str) -> None:
    """Put a NULL where the schema has none."""
    connection = apsw.Connection(path)
    connection.execute("CREATE TABLE extra (a); INSERT INTO extra VALUES (NULL); PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = 'CREATE TABLE extra (a NOT NULL)' WHERE name = 'extra'")
    connection.close()
