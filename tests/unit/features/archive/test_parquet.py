"""The rows of a segment in a Parquet file: in groups of bounded size, so that a part is read without the rest."""

from __future__ import annotations

import pytest

from replset.features.archive.archive import decode_rows, encode_rows
from replset.oplog_row import CHAIN_START, chained_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KIB = 1 << 10
MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        pytest.param([1], [1], id="one"),
        pytest.param([MIB // 2, MIB // 2], [2], id="exactly-full"),
        pytest.param([MIB // 2, MIB // 2, 1], [2, 1], id="one-byte-more"),
        pytest.param([600 * KIB] * 4, [1, 1, 1, 1], id="no-two-fit"),
        pytest.param([400 * KIB] * 5, [2, 2, 1], id="two-fit"),
        pytest.param([3 * MIB, 1, 1, 3 * MIB], [1, 2, 1], id="larger-than-a-group"),
    ],
)
def test_a_group_of_rows_holds_a_mebibyte_of_entries(sizes: list[int], groups: list[int]) -> None:
    rows = chained_rows([(n, 1, "i", "a.b", b"k", n, bytes(size)) for n, size in enumerate(sizes, 1)], CHAIN_START)
    data = encode_rows(rows)
    file = pq.ParquetFile(pa.BufferReader(data))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == groups
    assert decode_rows(data, "here", CHAIN_START) == rows
