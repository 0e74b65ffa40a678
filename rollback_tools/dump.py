"""`rollback-tools dump FILE`: bsondump's options, output and exit codes (map C).

Standard output carries data alone. Standard error ends with `N objects found`, before an error line if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from replset.bson import RawDocument, decode, to_ejson, validate, walk
from replset.bson.errors import InvalidBSONError
from replset.bson.limits import MAX_INTERNAL_SIZE
from replset.errors import ReplError

MIN_SIZE = 5
DOCUMENT, ARRAY = 0x03, 0x04
SIGNED_TYPE = {0xFF: -1}


class DumpError(ReplError):
    """The dump ends here; the message is the last line on standard error, the exit status 1."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error parsing command line options: {message}\ntry 'rollback-tools dump --help'\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rollback-tools dump", description="Print a BSON file.", allow_abbrev=False)
    parser.add_argument("file", nargs="?", help="a BSON file (default: standard input)")
    parser.add_argument("--bsonFile", metavar="FILE", help="the same as an option")
    parser.add_argument("--outFile", metavar="FILE", help="write here instead of to standard output")
    parser.add_argument("--type", default="json", help="json (canonical Extended JSON) or debug")
    parser.add_argument("--objcheck", action="store_true", help="stop at the first document that is not valid")
    parser.add_argument("--pretty", action="store_true", help="indent the JSON")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="more on standard error")
    parser.add_argument("--quiet", action="store_true", help="nothing on standard error but errors")
    return parser


def main(argv: Sequence[str]) -> int:
    """Dump one file; 0, or 1 when the input ended badly or could not be read (damage inside one document: see map C)."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.file and options.bsonFile:
        parser.error("two input files: give one")
    if options.type not in {"", "json", "debug"}:
        parser.error(f"unsupported output type {options.type!r}: json or debug")
    found, failure = 0, ""
    try:
        with _input(options.file or options.bsonFile) as source, _output(options.outFile) as out:
            writer = _Writer(out, debug=options.type == "debug", pretty=options.pretty, objcheck=options.objcheck)
            for raw in read_documents(source):
                trouble = writer.write(raw, found)
                found += 1
                if trouble and not options.quiet:
                    _log(trouble)
    except DumpError as error:
        failure = error.message
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        failure = f"{error.filename or 'output'}: {error.strerror}"
    if not options.quiet:
        _log(f"{found} objects found")
    if failure:
        _log(failure)
    return 1 if failure else 0


def read_documents(source: BinaryIO) -> Iterator[bytes]:
    """Yield each document's bytes; DumpError where the file is cut or a length cannot be."""
    while True:
        head = source.read(4)
        if not head:
            return
        if len(head) < 4:
            raise DumpError("unexpected EOF")
        size = int(struct.unpack("<i", head)[0])
        if size < MIN_SIZE or size > MAX_INTERNAL_SIZE:
            raise DumpError(f"invalid BSONSize: {size} bytes")
        body = source.read(size - 4)
        if not body:
            raise DumpError("invalid bson: EOF")
        if len(body) < size - 4:
            raise DumpError("unexpected EOF")
        yield head + body


class _Writer:
    def __init__(self, out: BinaryIO, *, debug: bool, pretty: bool, objcheck: bool) -> None:
        self._out = out
        self._debug = debug
        self._pretty = pretty
        self._objcheck = objcheck

    def write(self, raw: bytes, number: int) -> str:
        """Print one document; what is wrong with it, when it could not be printed whole."""
        if self._objcheck:
            try:
                validate(raw)
            except InvalidBSONError as error:
                raise DumpError(f"failed to validate bson during objcheck: {error.message}") from error
        try:
            if self._debug:
                for line in debug_lines(raw, 0):
                    self._out.write(line)
            else:
                self._out.write(self._json(raw))
        except InvalidBSONError as error:
            return f"unable to dump document {number + 1}: {error.message}"
        return ""

    def _json(self, raw: bytes) -> bytes:
        text = to_ejson(decode(raw), canonical=True)
        if self._pretty:
            text = json.dumps(json.loads(text), indent="\t", ensure_ascii=False)
        return text.replace("\u2028", "\\u2028").encode() + b"\n"


def debug_lines(raw: bytes, depth: int) -> Iterator[bytes]:
    """The debug form: per element its type, and its size with type byte, name, NUL and value."""
    tabs = b"\t" * depth
    yield tabs + b"--- new object ---\n"
    yield tabs + b"\tsize : %d\n" % len(raw)
    for name, kind, start, end in walk(raw):
        encoded = name.encode()
        yield tabs + b"\t\t" + encoded + b"\n"
        size = 1 + len(encoded) + 1 + end - start
        yield tabs + b"\t\t\ttype: %4d size: %d\n" % (SIGNED_TYPE.get(kind, kind), size)
        if kind in (DOCUMENT, ARRAY):
            yield from debug_lines(RawDocument(bytes(raw[start:end])).raw, depth + 3)


@contextlib.contextmanager
def _input(path: str | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as file:
        yield file


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with Path(path).open("wb") as file:
        yield file


def _log(text: str) -> None:
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a tool's log line, not a member's time
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}+0000"
    print(f"{stamp}\t{text}", file=sys.stderr)
