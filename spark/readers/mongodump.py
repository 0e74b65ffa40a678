"""The oplog's entries in what mongodump writes: a file of documents, or the blocks of an archive (`--archive`).

An archive is a magic number, a prelude of documents about what is in it, and blocks: a header {db, collection, EOF,
CRC}, documents of that collection, and a terminator. A block with EOF ends its collection. The blocks of collections
that were dumped at once alternate. The CRC is not checked: each entry's own form is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from replset.bson import MAX_INTERNAL_SIZE, InvalidBSONError, RawDocument

ARCHIVE_MAGIC = b"\x6d\xe2\x99\x81"
_TERMINATOR = b"\xff\xff\xff\xff"
_OPLOGS = {("local", "oplog.rs"), ("", "oplog")}
"""Dumped as a collection, and by `mongodump --oplog`."""


class DamagedDumpError(ValueError):
    """Its text says where and why."""


def dumped_entries(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Where each entry is, and its bytes. DamagedDumpError: the dump is cut or is none, or an archive without oplog."""
    head = file.read(4)
    if head != ARCHIVE_MAGIC:
        file.seek(0)
        return _documents(_parts(file, 0))
    return _archived(_parts(file, 4))


def _documents(parts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    for offset, raw in parts:
        if raw == _TERMINATOR:
            raise _damaged(offset, "its length says -1")
        yield offset, raw


def _archived(parts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    for _, raw in parts:
        if raw == _TERMINATOR:
            break
    ended: dict[tuple[object, object], bool] = {}
    for offset, raw in parts:
        try:
            header = RawDocument(raw)
            name = header.get("db"), header.get("collection")
            is_end = header.get("EOF")
        except InvalidBSONError as error:
            raise _damaged(offset, error) from error
        if not (isinstance(name[0], str) and isinstance(name[1], str)):
            raise _damaged(offset, "it is no header of an archive's block")
        if name in _OPLOGS:
            ended[name] = bool(is_end)
        for at, raw in parts:
            if raw == _TERMINATOR:
                break
            if name in _OPLOGS:
                yield at, raw
        else:
            raise _damaged(offset, "the archive ends within the block that begins there")
    if not ended:
        raise DamagedDumpError("has no oplog: neither local.oplog.rs nor what `mongodump --oplog` adds")
    if not all(ended.values()):
        raise DamagedDumpError("is cut: it ends before the end of the oplog")


def _parts(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes]]:
    """The documents and terminators of a file from `offset` on, where it is."""
    while head := file.read(4):
        length = int.from_bytes(head, "little", signed=True)
        if head == _TERMINATOR:
            yield offset, head
            offset += 4
            continue
        if len(head) == 4 and not 5 <= length <= MAX_INTERNAL_SIZE:
            raise _damaged(offset, f"its length says {length}")
        raw = head + file.read(length - 4) if len(head) == 4 else head
        if len(head) < 4 or len(raw) < length:
            raise _damaged(offset, f"the file ends after {len(raw)} bytes of it")
        yield offset, raw
        offset += length


def _damaged(offset: int, why: object) -> DamagedDumpError:
    return DamagedDumpError(f"is damaged: the document at byte {offset}: {why}")
