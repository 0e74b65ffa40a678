"""Prints a BSON document as bsondump does: as canonical Extended JSON, or in the debug form (map C).

It prints straight from the bytes. So it shows repeated names, which a dictionary would lose, and bad UTF-8, which a
strict reader refuses, as bsondump does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

import orjson

from replset.bson.decoding import FIXED_SIZE, inner_end, name_end, outer_end, read_value, value_end
from replset.bson.errors import InvalidBSONError
from replset.bson.limits import MAX_DEPTH
from replset.ejson import from_ejson, to_ejson
from replset.text import printable

_int32 = Struct("<i").unpack_from
_int64 = Struct("<q").unpack_from
_double = Struct("<d").unpack_from

DOCUMENT, ARRAY = 0x03, 0x04
DOLLAR = 0x24
SIGNED_TYPE: Final = {0xFF: -1}
"""MinKey's type byte is printed as a signed number."""
_STRAY_BYTE = re.compile("[\udc80-\udcff]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\[\]{},:"]+')
_PLAIN = re.compile(rb"[ !#-\[\]-~]*").fullmatch
"""Matches text that needs no escape in JSON."""
_BOOLEANS = ("false", "true")


class TooDeepError(InvalidBSONError):
    """A document has more levels than its JSON may have."""


def json_text(raw: bytes) -> str:
    """Print a document as canonical Extended JSON on one line. InvalidBSONError has the offset.

    Each byte of bad UTF-8 is printed as U+FFFD, escaped.
    """
    return _printed(raw)[0]


def reversible_text(raw: bytes) -> str:
    """As json_text. ReplError when the text cannot be read again, because of a field such as $date in a wrong place."""
    text, has_wrapper_names = _printed(raw)
    if has_wrapper_names:
        from_ejson(text)
    return text


def indented(text: str) -> str:
    """Put each field and item of JSON text on its own line, indented with tabs, with a space after each colon."""
    parts: list[str] = []
    newline = "\n"
    opened = False  # the last token was an opening bracket
    for token in _TOKEN.findall(text):
        if token in ("}", "]"):
            newline = newline[:-1]
            if not opened:
                parts.append(newline)
        elif opened:
            parts.append(newline)
        opened = token in ("{", "[")
        if opened:
            newline += "\t"
        parts.append(": " if token == ":" else token)
        if token == ",":
            parts.append(newline)
    return "".join(parts)


def debug_lines(raw: bytes) -> Iterator[bytes]:
    """The debug form: for each element its type, and its size with type byte, name, NUL and value.

    It reads only lengths, of a whole document before its first element is printed. So a document with an unsound length
    raises InvalidBSONError behind its own size. However deep, every level is printed.
    """
    yield _debug_head(len(raw), 0)
    levels = [_debug_elements(raw, 4, len(raw) - 1)]
    while levels:
        element = next(levels[-1], None)
        if element is None:
            levels.pop()
            continue
        kind, name, start, end = element
        depth = 3 * (len(levels) - 1)
        tabs = b"\t" * depth
        yield tabs + b"\t\t" + name + b"\n"
        size = end - start + len(name) + 2
        yield tabs + b"\t\t\ttype: %4d size: %d\n" % (SIGNED_TYPE.get(kind, kind), size)
        if kind in (DOCUMENT, ARRAY):
            yield _debug_head(end - start, depth + 3)
            levels.append(_debug_elements(raw, start + 4, end - 1))


def _debug_head(size: int, depth: int) -> bytes:
    tabs = b"\t" * depth
    return tabs + b"--- new object ---\n" + tabs + b"\tsize : %d\n" % size


def _debug_elements(raw: bytes, pos: int, last: int) -> Iterator[tuple[int, bytes, int, int]]:
    """(type byte, name, start and end of the value) of the elements, all of whose lengths are sound."""
    elements: list[tuple[int, bytes, int, int]] = []
    while pos < last:
        kind = raw[pos]
        start = name_end(raw, pos + 1, last) + 1
        end = value_end(raw, kind, start, last, pos)
        elements.append((kind, raw[pos + 1 : start - 1], start, end))
        pos = end
    return iter(elements)


def _double_text(value: float) -> str:
    """Print a double as Extended JSON does, with a short way for numbers of a common size."""
    if 1e-4 <= abs(value) < 1e6:
        return repr(value)
    return str(json.loads(to_ejson({"": value}, canonical=True))[""]["$numberDouble"])


def quoted(text: bytes) -> str:
    """Print UTF-8 bytes as a JSON string."""
    try:
        quotes = orjson.dumps(text.decode()).decode()
    except UnicodeDecodeError:
        string = text.decode(errors="surrogateescape")
        pieces = [orjson.dumps(piece).decode()[1:-1] for piece in _STRAY_BYTE.split(string)]
        quotes = '"' + "\\ufffd".join(pieces) + '"'
    if "\u2028" in quotes or "\u2029" in quotes:  # they end lines in JavaScript
        quotes = quotes.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return quotes


# Positions as in bson/decoding.py: `last` is that of the terminator of the document around the value.


def _printed(raw: bytes) -> tuple[str, bool]:
    """The text, and whether a name in it begins with `$`."""
    parts: list[str] = []
    has_wrapper_names = _print_fields(raw, 4, outer_end(raw), 1, True, parts.append)
    return "".join(parts), has_wrapper_names


def _print_fields(data: bytes, pos: int, last: int, depth: int, named: bool, put: Callable[[str], None]) -> bool:
    """Print a document, or an array, which has no names. Returns whether a name begins with `$`.

    The most common types are printed here without a function call each, for speed.
    """
    dollar = False
    if depth > MAX_DEPTH:
        raise TooDeepError(f"more than {MAX_DEPTH} levels of nesting", offset=pos - 4)
    put("{" if named else "[")
    comma = ""
    while pos < last:
        kind = data[pos]
        start = data.find(0, pos + 1, last) + 1
        if not start:
            raise InvalidBSONError("a name without an end", offset=pos + 1)
        if named:
            head = comma + _name(data[pos + 1 : start - 1])
            dollar |= data[pos + 1] == DOLLAR
        else:
            head = comma
        comma = ","
        if kind in (DOCUMENT, ARRAY):
            end = inner_end(data, start, last)
            put(head)
            dollar |= _print_fields(data, start + 4, end, depth + 1, kind == DOCUMENT, put)
            pos = end + 1
            continue
        size = FIXED_SIZE[kind]
        if size >= 0:
            end = start + size
            if end > last:
                raise InvalidBSONError("truncated value", offset=start)
            if kind == 0x10:
                put(f'{head}{{"$numberInt":"{_int32(data, start)[0]}"}}')
            elif kind == 0x12:
                put(f'{head}{{"$numberLong":"{_int64(data, start)[0]}"}}')
            elif kind == 0x07:
                put(f'{head}{{"$oid":"{data[start:end].hex()}"}}')
            elif kind == 0x09:
                put(f'{head}{{"$date":{{"$numberLong":"{_int64(data, start)[0]}"}}}}')
            elif kind == 0x01:
                put(f'{head}{{"$numberDouble":"{_double_text(_double(data, start)[0])}"}}')
            elif kind == 0x08:
                put(head + _boolean(data, start))
            else:
                put(head + _by_codec(data, kind, start, end))
        elif kind == 0x02:
            end = value_end(data, kind, start, last, pos)
            text = data[start + 4 : end - 1]
            if data[end - 1] or _PLAIN(text) is None:
                put(head + _string(data, kind, start, end))
            else:
                put(f'{head}"{text.decode()}"')
        else:
            end = value_end(data, kind, start, last, pos)
            put(head)
            if kind == 0x0F:
                dollar |= _print_code_with_scope(data, start, end, depth, put)
            else:
                put(_PRINTERS.get(kind, _by_codec)(data, kind, start, end))
        pos = end
    put("}" if named else "]")
    return dollar


@lru_cache(maxsize=4096)
def _name(name: bytes) -> str:
    return quoted(name) + ":"


def _print_code_with_scope(data: bytes, pos: int, end: int, depth: int, put: Callable[[str], None]) -> bool:
    scope = pos + 8 + _int32(data, pos + 4)[0]
    if not pos + 9 <= scope <= end - 5 or inner_end(data, scope, end) != end - 1:
        raise InvalidBSONError("bad length of code with scope", offset=pos)
    put(f'{{"$code":{_string(data, 2, pos + 4, scope)},"$scope":')
    dollar = _print_fields(data, scope + 4, end - 1, depth + 1, True, put)
    put("}")
    return dollar


def _string(data: bytes, _kind: int, pos: int, end: int) -> str:
    if data[end - 1]:
        raise InvalidBSONError("a string does not end in a zero byte", offset=end - 1)
    return quoted(data[pos + 4 : end - 1])


def _boolean(data: bytes, pos: int) -> str:
    if data[pos] > 1:
        raise InvalidBSONError(f"a boolean is 0 or 1, not {data[pos]}", offset=pos)
    return _BOOLEANS[data[pos]]


def _regex(data: bytes, _kind: int, pos: int, end: int) -> str:
    middle = data.index(0, pos)
    options = bytes(sorted(data[middle + 1 : end - 1]))
    return f'{{"$regularExpression":{{"pattern":{quoted(data[pos:middle])},"options":{quoted(options)}}}}}'


def _pointer(data: bytes, _kind: int, pos: int, end: int) -> str:
    oid = data[end - 12 : end].hex()
    return f'{{"$dbPointer":{{"$ref":{_string(data, 2, pos, end - 12)},"$id":{{"$oid":"{oid}"}}}}}}'


def _by_codec(data: bytes, kind: int, pos: int, end: int) -> str:
    """Print a type that has no bad bytes which bsondump would show."""
    return to_ejson(read_value(data, kind, pos, end), canonical=True)


_PRINTERS: Final[dict[int, Callable[[bytes, int, int, int], str]]] = {
    0x0B: _regex,
    0x0C: _pointer,
    0x0D: lambda data, kind, pos, end: f'{{"$code":{_string(data, kind, pos, end)}}}',
    0x0E: lambda data, kind, pos, end: f'{{"$symbol":{_string(data, kind, pos, end)}}}',
}
"""The types without a fixed size, except strings, documents and arrays."""


def short(value: object, limit: int = 60) -> str:
    """Print a value as relaxed Extended JSON, cut when it is long."""
    text = to_ejson({"": value})
    text = printable(text[text.index(":") + 1 : -1].strip())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
