"""`rollback-tools dump FILE`: prints a BSON file with bsondump's options, output and exit codes (map C).

--filter, --format and --resync are additions. Standard output has only data. Standard error ends with
`N objects found`, or with an error line after it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, NoReturn

import yaml

from replset.bson import decode
from replset.bson.errors import InvalidBSONError
from replset.bson.limits import MAX_INTERNAL_SIZE
from replset.ejson import from_ejson
from replset.errors import ReplError
from replset.text import printable
from rollback_tools.bson_text import TooDeepError, debug_lines, indented, json_text, reversible_text

MIN_SIZE = 5
DAMAGED = 3
"""Exit status of a dump with --resync that skipped something."""
_BUFFER_BYTES = 1 << 20
VERBOSE_FORMS = re.compile(r"^(?:-v|--verbose)(=.*)$")
"""`-v=2`, which argparse does not know."""


class DumpError(ReplError):
    """Ends the dump. The message is the last line on standard error, and the exit status is 1."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _log(f"error parsing command line options: {message}")
        _log("try 'rollback-tools dump --help' for more information")
        self.exit(1)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rollback-tools dump",
        description="Print a BSON file as bsondump does. Exit status 1 when the file is cut or cannot be read.",
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a BSON file (default: standard input)")
    parser.add_argument("--bsonFile", metavar="FILE", help="the same as an option")
    parser.add_argument("--outFile", metavar="FILE", help="write here instead of to standard output")
    parser.add_argument("--type", default="json", help="json (canonical Extended JSON, the default) or debug")
    parser.add_argument("--objcheck", action="store_true", help="stop at the first document that is not valid")
    parser.add_argument("--pretty", action="store_true", help="indent the JSON with tabs")
    parser.add_argument("--format", choices=("json", "table"), default="json", help="table: a line for each document")
    parser.add_argument("--filter", metavar="QUERY", help="only documents that match this query (Extended JSON)")
    parser.add_argument(
        "--resync", action="store_true", help="continue after damage, and report where it is (status 3)"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file, read as bsondump does; it sets nothing here")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="more on standard error; also -vv, -v=2")
    parser.add_argument("--verbosity", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--quiet", action="store_true", help="nothing on standard error but what ends the dump")
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def main(argv: Sequence[str]) -> int:
    """Dump one file. Returns 0, or 1 when the input is cut or cannot be read (damage inside a document: see map C)."""
    parser = build_parser()
    options = parser.parse_args([VERBOSE_FORMS.sub(r"--verbosity\1", argument) for argument in argv])
    if options.version:
        print(printable(f"rollback-tools dump version: {metadata.version('replset')}"))
        return 0
    inputs = [*options.files, *([options.bsonFile] if options.bsonFile else [])]
    if len(inputs) > 1:
        parser.error("more than one input file")
    if options.type not in ("", "json", "debug"):
        parser.error(f"unsupported output type {options.type!r}; choose json or debug")
    if options.type == "debug" and options.format == "table":
        parser.error("--type=debug and --format=table cannot both be")
    verbosity = options.verbose + options.verbosity
    with _stop_on_signals():
        try:
            _read_config(options.config)
            with contextlib.ExitStack() as stack:
                sources = [stack.enter_context(_input(path)) for path in _files(*inputs)]
                out = stack.enter_context(_output(options.outFile))
                if verbosity > 1 and not options.quiet:
                    _log("will listen for SIGTERM and SIGINT")
                    _log(f"running with --objcheck: {str(options.objcheck).lower()}")
                return max([_dump(source, out, options) for source in sources])
        except ReplError as error:
            _log(error.message)
        except BrokenPipeError:
            with contextlib.suppress(OSError):  # or Python would try to flush once more at its exit, and say so
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _log("write: broken pipe")
        except OSError as error:
            _log(f"{error.filename or options.outFile or 'standard output'}: {error.strerror}")
        return 1


def _dump(source: BinaryIO, out: BinaryIO, options: argparse.Namespace) -> int:
    """Dump every document, then log their number."""
    found = 0
    failure: Exception | None = None
    damage = _Damage(options.quiet)
    matches = None if options.filter is None else _compiled(options.filter)
    write, finish = _writer(out, options)
    try:
        for raw in _documents(source, options, damage):
            if options.objcheck:
                _check(raw, options.type)
            try:
                if matches is not None and not matches(raw):
                    continue
                write(raw)
            except ReplError as error:
                if not options.quiet:
                    _log(f"unable to dump document {found + 1}: {error.message}")
                if options.objcheck and options.type != "debug":
                    raise DumpError(error.message) from error
            found += 1
        finish()
        out.flush()
    except (DumpError, OSError) as error:
        failure = error
        with contextlib.suppress(OSError):
            finish()
    if not options.quiet:
        damage.sum_up()
        _log(f"{found} objects found")
    if failure is not None:
        raise failure
    return DAMAGED if damage.places else 0


def _documents(source: BinaryIO, options: argparse.Namespace, damage: _Damage) -> Iterator[bytes]:
    if not options.resync:
        return read_documents(source)
    from rollback_tools import damaged_bson

    return damaged_bson.documents(source, damage.add)


def _writer(out: BinaryIO, options: argparse.Namespace) -> tuple[Callable[[bytes], object], Callable[[], None]]:
    """A function that writes one document, and one that is called at the end."""
    shown = _for_terminal if options.outFile is None and sys.stdout.isatty() else bytes
    if options.type == "debug":
        return lambda raw: out.writelines(map(shown, debug_lines(raw))), lambda: None
    if options.format == "table":
        from rollback_tools.dump_table import TableWriter

        table = TableWriter(out)
        return lambda raw: table.add(decode(raw)), table.close
    return lambda raw: out.write(shown(_json(raw, pretty=options.pretty))), lambda: None


def _for_terminal(lines: bytes) -> bytes:
    """Escape control characters, with which the JSON stays the same JSON. Files and pipes get the bytes of bsondump."""
    return printable(lines.decode("utf-8", "backslashreplace"), keep="\n\t").encode()


def _compiled(text: str) -> Callable[[bytes], bool]:
    from replset.query.match import compile_filter

    try:
        query = from_ejson(text)
        matcher = compile_filter(query)
    except ReplError as error:
        raise DumpError(f"--filter: {error.message}") from error
    return lambda raw: matcher.matches(decode(raw))


class _Damage:
    """Counts and logs the parts of the file that --resync skipped."""

    def __init__(self, quiet: bool) -> None:
        self.places = 0
        self._bytes = 0
        self._quiet = quiet

    def add(self, start: int, end: int, reason: str) -> None:
        self.places += 1
        self._bytes += end - start
        if not self._quiet:
            _log(f"damaged: bytes {start} to {end} skipped: {reason}")

    def sum_up(self) -> None:
        if self.places:
            _log(f"{self.places} damaged places, {self._bytes} bytes skipped")


def _check(raw: bytes, form: str) -> None:
    """Validate everything but UTF-8 and repeated names, which bsondump does not check either.

    Only --type=debug prints more than 200 levels. Below these it checks what it reads.
    """
    try:
        json_text(raw)
    except InvalidBSONError as error:
        if isinstance(error, TooDeepError) and form == "debug":
            return
        raise DumpError(f"failed to validate bson during objcheck: {error.message}") from error


def _json(raw: bytes, *, pretty: bool) -> bytes:
    text = reversible_text(raw)
    return (indented(text) if pretty else text).encode() + b"\n"


def read_documents(source: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of each document. DumpError where the file is cut or a length is impossible."""
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


def _files(path: str | None = None) -> list[str | None]:
    """The files to print: of a folder those of mongod's rollback in it."""
    if path is None or not (os.path.isdir(path) or os.path.isdir(os.path.dirname(path))) or os.path.isfile(path):
        return [path]
    from replset.features.recovery.mongod_files import files_at

    return [str(file) for file in files_at(Path(path))] or [path]


@contextlib.contextmanager
def _input(path: str | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb", buffering=_BUFFER_BYTES) as file:
        yield file


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        return
    with Path(path).open("wb", buffering=_BUFFER_BYTES) as file:
        yield file


def _read_config(path: str | None) -> None:
    """Check that the config file is YAML. bsondump reads passwords and addresses from it, which nothing here needs."""
    if path is None:
        return
    try:
        document = yaml.safe_load(Path(path).read_bytes())
    except yaml.YAMLError as error:
        raise DumpError(f"error parsing config file {path}: {' '.join(str(error).split())}") from error
    if document is not None and not isinstance(document, dict):
        raise DumpError(f"error parsing config file {path}: not a mapping")


class _Stopped(DumpError):
    """SIGTERM or SIGINT."""


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """End the dump with status 1 on SIGTERM and SIGINT. What was printed so far stays."""

    def stop(number: int, _frame: object) -> None:
        raise _Stopped(f"signal '{signal.strsignal(number)}' received; stopped")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(text: str) -> None:
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a tool's log line, not a member's time
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}+0000"
    print(printable(f"{stamp}\t{text}", keep="\t"), file=sys.stderr)
