"""Finds the oplog that a MEMBER on the command line names.

A MEMBER is a dbpath, its database file, a dump (`oplog.bson`, `oplog.rs.bson`, an archive of mongodump's, or a folder
with one), a file or folder of exported Parquet, http://HOST:PORT of a live member, mongodb://HOST:PORT of a mongod, or
an archive of the oplog, alone or with a member: ARCHIVE#MEMBER; NAME=MEMBER names it by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from replset.connection_string import SRV, is_connection_string, parse_connection_string
from replset.errors import BadValueError, ReplError
from replset.features.archive.segments import ARCHIVE_FILE
from replset.storage import DATABASE_FILE
from replset.target import resolve
from spark.oplog import Oplog, OplogError
from spark.readers.shared_file import shared_file

_DUMPS = tuple(name + end for name in ("oplog.bson", "oplog.rs.bson", "local/oplog.rs.bson") for end in ("", ".gz"))
"""`mongodump --oplog` writes the first one, `mongodump -d local -c oplog.rs` the others; `.gz` with `--gzip`."""
_NAMED = re.compile(r"([^/=]+)=(.+)", re.DOTALL)
_SQLITE, _PARQUET = b"SQLite format 3\0", b"PAR1"


class _Finding(NamedTuple):
    """kind: of oplog. parts: from which its name is taken, the last one first. at: its identity. live: the MEMBER that
    goes on behind an archive.
    """

    kind: str
    where: str
    parts: tuple[str, ...]
    given: str | None
    member: str | None = None
    live: str = ""

    @property
    def at(self) -> tuple[str, str | None]:
        if self.kind == "wire":
            return self.parts[0], None
        return (self.where if "://" in self.where else os.path.realpath(self.where)), self.member


def open_members(texts: Sequence[str]) -> list[Oplog]:
    """Return the oplogs, in this order; an export that holds several members gives one for each.

    A name that is not given is the shortest tail of the path that no other has, or HOST:PORT. OplogError when a text
    names no oplog, or one that is given already, or when two have one name. Nothing is opened yet.
    """
    found = [oplog for text in texts for oplog in _found_at(text)]
    seen: dict[tuple[str, str | None], _Finding] = {}
    for each in found:
        if each.at in seen:
            raise OplogError(each.at[0] if each.kind == "wire" else each.where, "it is given twice")
        seen[each.at] = each
    names = [each.given or _tail(each, [other for other in found if other is not each]) for each in found]
    for name in names:
        if names.count(name) > 1:
            raise OplogError(name, "two members have this name; give others with NAME=MEMBER")
    return [_open(name, each) for name, each in zip(names, found, strict=True)]


def _found_at(text: str) -> list[_Finding]:
    named = _NAMED.fullmatch(text)
    given, where = (
        (named[1], named[2]) if named and not os.path.exists(text) and "://" not in named[1] else (None, text)
    )
    if is_connection_string(where):
        return [_Finding("wire", where, (_wire_host(where),), given)]
    address, _, live = where.partition("#")
    if _is_archive(address):
        parts = (address,) if "://" in address else tuple(reversed(Path(os.path.abspath(address)).parts))
        return [_Finding("archive", address, parts, given, live=live)]
    kind, where = _kind(where)
    if kind == "live":
        return [_Finding(kind, where, (urlsplit(where).netloc,), given)]
    parts = tuple(reversed(Path(_named_path(where)).parts)) if "://" not in where else (where,)
    if kind != "parquet":
        return [_Finding(kind, where, parts, given)]
    from spark.readers.parquet import exported_members

    members = exported_members(where)
    if not members:
        return [_Finding(kind, where, parts, given)]
    if len(members) == 1:
        return [_Finding(kind, where, (members[0], *parts), given, members[0])]
    return [_Finding(kind, where, (member, *parts), given and f"{given}/{member}", member) for member in members]


def _is_archive(address: str) -> bool:
    if address.startswith(("http://", "https://")):
        return False
    if "://" not in address:
        return (Path(address) / ARCHIVE_FILE).is_file()
    from replset.features.archive.files import open_files

    try:
        return open_files(address).read(ARCHIVE_FILE) is not None
    except ReplError:  # fsspec does not know it: Arrow may
        return False


def _kind(text: str) -> tuple[str, str]:
    """What it is, and the path or address to open."""
    if text.startswith(("http://", "https://")):
        return "live", _address(text)
    if "://" in text:
        return "parquet", text
    path = Path(text)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise OplogError(text, "there is no such file or folder")
    try:
        with shared_file(path) as file:
            head = file.read(16, 0)
    except OSError as error:
        raise OplogError(text, error.strerror or error) from error
    if head.startswith(_PARQUET):
        return "parquet", text
    return ("sqlite" if head == _SQLITE or path.name == DATABASE_FILE else "bson"), text


def _folder(path: Path) -> tuple[str, str]:
    for kind, name in (("sqlite", DATABASE_FILE), *(("bson", name) for name in _DUMPS)):
        if (path / name).is_file():
            return kind, str(path / name)
    if any(path.rglob("*.parquet")):
        return "parquet", str(path)
    raise OplogError(
        str(path), f"no oplog is there: neither {DATABASE_FILE} nor a dump ({_DUMPS[0]}, {_DUMPS[2]}) nor Parquet files"
    )


def _wire_host(text: str) -> str:
    """HOST:PORT. No error names the address itself, which may hold a password."""
    try:
        hosts = () if text.startswith(SRV) else parse_connection_string(text, resolve).hosts
    except BadValueError as error:
        raise OplogError("mongodb://", error.message) from error
    if len(hosts) != 1:
        raise OplogError("mongodb://", "a member is mongodb://HOST:PORT: one host, give each member by its own")
    return hosts[0]


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        if parts.hostname and parts.port and parts.path in ("", "/") and not parts.query:
            parts.hostname.encode("idna")
            return f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        pass
    raise OplogError(text, "a live member is http://HOST:PORT")


def _named_path(where: str) -> str:
    """The path as its names are taken from it: a member's folder rather than the file in it."""
    path = Path(os.path.abspath(where))
    if path.name not in (DATABASE_FILE, *_DUMPS):
        return str(path)
    return str(path.parents[1] if f"{path.parent.name}/{path.name}" in _DUMPS else path.parent)


def _tail(each: _Finding, others: Sequence[_Finding]) -> str:
    """As few parts as distinguish it from all others."""
    for count in range(1, len(each.parts) + 1):
        tail = each.parts[:count]
        taken = [other.given if other.given else _path_of(other.parts[:count]) for other in others]
        if _path_of(tail) not in taken:
            return _path_of(tail)
    return _path_of(each.parts)


def _path_of(parts: Sequence[str]) -> str:
    return str(Path(*reversed(parts))) if len(parts) > 1 else parts[0]


def _open(name: str, found: _Finding) -> Oplog:
    """The reader is imported now, so that only what is read need be installed."""
    if found.kind == "archive":
        from spark.readers.archive import ArchivedOplog

        live = open_members([found.live])[0] if found.live else None
        where = found.where if "://" in found.where else os.path.abspath(found.where)
        return ArchivedOplog(name, where, live)
    if found.kind == "wire":
        from spark.readers.wire import WireOplog

        return WireOplog(name, found.where)
    if found.kind == "live":
        from spark.readers.live import LiveOplog

        return LiveOplog(name, found.where)
    # Workers of a cluster have another working folder than this process.
    where = found.where if "://" in found.where else os.path.abspath(found.where)
    if found.kind == "bson":
        from spark.readers.dump import DumpOplog

        return DumpOplog(name, where)
    if found.kind == "parquet":
        from spark.readers.parquet import ParquetOplog

        return ParquetOplog(name, where, found.member)
    from spark.readers.sqlite import SqliteOplog

    return SqliteOplog(name, where)
