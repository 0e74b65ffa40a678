"""CRC-32C, the checksum of OP_MSG. Python's standard library has no fast one: 8 KiB take about a millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SLICE_BYTES: Final = 8 << 10
_POLYNOMIAL: Final = 0x82F63B78
_START: Final = 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ _POLYNOMIAL if byte & 1 else byte >> 1
    return byte


_TABLE: Final = [_row(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`. For more than a few slices see `crc32c_in_slices`."""
    return _add(data, _START) ^ _START


def crc32c_in_slices(data: bytes, start: int, end: int) -> Iterator[int | None]:
    """Yield None after each slice of `data[start:end]` but the last, and then the checksum."""
    state = _START
    for at in range(start, end, SLICE_BYTES):
        state = _add(data[at : min(at + SLICE_BYTES, end)], state)
        if at + SLICE_BYTES < end:
            yield None
    yield state ^ _START


def _add(data: bytes, state: int) -> int:
    table = _TABLE
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state
