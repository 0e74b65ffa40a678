"""What `rollback-tools dump` has beyond bsondump: --resync, --filter, --format table."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replset.bson import Binary, encode
from rollback_tools import damaged_bson, main
from tests.examples import examples

Capture = pytest.CaptureFixture[str]
DOCUMENTS = [encode({"_id": number, "in": {"a": number}, "text": "x" * number}) for number in range(6)]
SIZES = [len(document) for document in DOCUMENTS]
AT = [sum(SIZES[:number]) for number in range(7)]


def run(tmp_path: Path, data: bytes, *arguments: str) -> int:
    path = tmp_path / "file.bson"
    path.write_bytes(data)
    return main.main(["dump", *arguments, str(path)])


def ids_of(out: str) -> list[int]:
    return [int(number) for number in re.findall(r'"_id":\{"\$numberInt":"(\d+)"', out)]


def messages_of(err: str) -> list[str]:
    return [line.split("\t", 1)[1] for line in err.splitlines()]


WHOLE = b"".join(DOCUMENTS)


def with_bytes(offset: int, data: bytes) -> bytes:
    return WHOLE[:offset] + data + WHOLE[offset + len(data) :]


@pytest.mark.parametrize(
    ("data", "ids", "skipped"),
    [
        pytest.param(WHOLE, [0, 1, 2, 3, 4, 5], [], id="sound"),
        pytest.param(b"", [], [], id="empty"),
        pytest.param(with_bytes(AT[2] + 4, b"\x7a"), [0, 1, 3, 4, 5], [(AT[2], AT[3])], id="type-byte"),
        pytest.param(with_bytes(AT[2], b"\xff\xff\xff\xff"), [0, 1, 3, 4, 5], [(AT[2], AT[3])], id="length"),
        pytest.param(with_bytes(AT[2], b"\x40\0\0\0"), [0, 1, 3, 4, 5], [(AT[2], AT[3])], id="length-too-long"),
        pytest.param(with_bytes(AT[0], b"\xff" * 6), [1, 2, 3, 4, 5], [(0, AT[1])], id="first"),
        pytest.param(with_bytes(AT[5], b"\xff" * 6), [0, 1, 2, 3, 4], [(AT[5], AT[6])], id="last"),
        pytest.param(
            with_bytes(AT[1] + 4, b"\x7a")[: AT[3] + 4] + b"\x7a" + WHOLE[AT[3] + 5 :],
            [0, 2, 4, 5],
            [(AT[1], AT[2]), (AT[3], AT[4])],
            id="two-places",
        ),
        pytest.param(WHOLE[:-3], [0, 1, 2, 3, 4], [(AT[5], AT[6] - 3)], id="cut"),
        pytest.param(WHOLE + b"\x09\0", [0, 1, 2, 3, 4, 5], [(AT[6], AT[6] + 2)], id="cut-in-a-length"),
        pytest.param(WHOLE[: AT[3]] + b"rubbish" + WHOLE[AT[3] :], [*range(6)], [(AT[3], AT[3] + 7)], id="rubbish"),
        pytest.param(b"rubbish only", [], [(0, 12)], id="nothing-but-rubbish"),
    ],
)
def test_resync_goes_on_behind_damage_and_says_where_it_is(
    tmp_path: Path, capfd: Capture, data: bytes, ids: list[int], skipped: list[tuple[int, int]]
) -> None:
    assert run(tmp_path, data, "--resync") == (3 if skipped else 0)
    out, err = capfd.readouterr()
    assert ids_of(out) == ids
    lines = messages_of(err)
    assert lines[-1] == f"{len(ids)} objects found"
    for line, (start, end) in zip(lines, skipped, strict=False):
        assert line.startswith(f"damaged: bytes {start} to {end} skipped: ")
    if skipped:
        assert lines[-2] == f"{len(skipped)} damaged places, {sum(b - a for a, b in skipped)} bytes skipped"
    assert len(lines) == (len(skipped) + 2 if skipped else 1)


def test_resync_reads_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rollback_tools.main", "dump", "--resync", "--quiet"]
    done = subprocess.run(command, input=with_bytes(AT[1] + 4, b"\x7a"), capture_output=True, check=False)
    assert (done.returncode, ids_of(done.stdout.decode()), done.stderr) == (3, [0, 2, 3, 4, 5], b"")


@examples(200)
@given(st.integers(0, 5), st.integers(0, 40), st.binary(min_size=1, max_size=12))
@example(0, 0, bytes([AT[3]]))  # a length that reaches over two more documents
@example(0, 0, b"\xbb")  # one that ends before a document inside of another
def test_damage_in_one_document_costs_no_other(number: int, offset: int, data: bytes) -> None:
    start = AT[number] + offset % SIZES[number]
    data = data[: AT[number + 1] - start]
    damaged = with_bytes(start, data)
    parts: list[tuple[int, int]] = []
    found = list(damaged_bson.documents(io_of(damaged), lambda a, b, why: parts.append((a, b))))
    others = DOCUMENTS[:number] + DOCUMENTS[number + 1 :]
    assert [raw for raw in found if raw in others] == others
    assert sum(map(len, found)) + sum(b - a for a, b in parts) == len(damaged)


def io_of(data: bytes) -> io.BufferedReader:
    """What cannot be sought in, as a pipe."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    return Pipe(data)  # type: ignore[return-value]


# --- filter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ('{"_id": {"$gte": 4}}', [4, 5]),
        ('{"in.a": 2}', [2]),
        ('{"_id": {"$in": [{"$numberLong": "1"}]}}', [1]),
        ("{}", [0, 1, 2, 3, 4, 5]),
        ('{"none": 1}', []),
    ],
)
def test_filter(tmp_path: Path, capfd: Capture, query: str, ids: list[int]) -> None:
    assert run(tmp_path, WHOLE, "--filter", query) == 0
    out, err = capfd.readouterr()
    assert ids_of(out) == ids
    assert messages_of(err) == [f"{len(ids)} objects found"]


@pytest.mark.parametrize(("query", "words"), [("{", "--filter: "), ('{"a": {"$frob": 1}}', "unknown operator")])
def test_filters_that_cannot_be(tmp_path: Path, capfd: Capture, query: str, words: str) -> None:
    assert run(tmp_path, WHOLE, "--filter", query) == 1
    assert words in capfd.readouterr().err


def test_a_filter_and_a_document_that_is_damaged(tmp_path: Path, capfd: Capture) -> None:
    assert run(tmp_path, with_bytes(AT[2] + 4, b"\x7a"), "--filter", '{"_id": {"$gte": 2}}') == 0
    out, err = capfd.readouterr()
    assert ids_of(out) == [3, 4, 5]
    assert messages_of(err)[0].startswith("unable to dump document 1: ")


# --- table ------------------------------------------------------------------------------------------------------


def test_table(tmp_path: Path, capfd: Capture) -> None:
    rows = [{"_id": 1, "name": "Ana"}, {"_id": 2, "tags": ["x", {"y": 1.5}]}, {"_id": 3, "name": "a\nb"}]
    assert run(tmp_path, b"".join(map(encode, rows)), "--format", "table") == 0
    assert capfd.readouterr().out.splitlines() == [
        "_id  name    tags",
        "---  ------  ---------------",
        '1    "Ana"',
        '2            ["x",{"y":1.5}]',
        '3    "a\\nb"',
    ]


def test_a_table_begins_before_the_file_ends_and_names_what_has_no_column(tmp_path: Path, capfd: Capture) -> None:
    rows = [{"_id": number} for number in range(100)] + [{"_id": 100, "late": 1, "b\nad": 2}]
    assert run(tmp_path, b"".join(map(encode, rows)), "--format=table") == 0
    lines = capfd.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (103, "100  more: late, b\\nad")


def test_a_table_cuts_what_is_long_and_many(tmp_path: Path, capfd: Capture) -> None:
    row = {"_id": Binary(bytes(200)), **{f"f{number}": number for number in range(20)}}
    assert run(tmp_path, encode(row), "--format=table") == 0
    head, _, line = capfd.readouterr().out.splitlines()
    assert head.split() == ["_id", *(f"f{number}" for number in range(11))]
    assert len(line.split("  ")[0]) == 40
    assert line.endswith("more: " + ", ".join(f"f{number}" for number in range(11, 20)))


def test_a_table_of_a_file_that_is_cut_and_of_nothing(tmp_path: Path, capfd: Capture) -> None:
    assert run(tmp_path, WHOLE[:-3], "--format=table") == 1
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), messages_of(err)) == (7, ["5 objects found", "unexpected EOF"])
    assert run(tmp_path, b"", "--format=table") == 0
    assert capfd.readouterr().out == ""


def test_debug_and_table_cannot_both_be(tmp_path: Path, capfd: Capture) -> None:
    with pytest.raises(SystemExit, match="1"):
        run(tmp_path, b"", "--type=debug", "--format=table")
    assert "cannot both be" in capfd.readouterr().err
