"""The BSON decoder and its raw views on bytes that are nearly BSON."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import strategies as st

from replset.bson import ExtendedJSONError, InvalidBSONError, RawDocument, decode, encode, encode_key, validate, walk
from replset.ejson import from_ejson, to_ejson
from tests.property.test_bson import DOCUMENTS
from tools.fuzz.kit import Target, damaged, stateless


def check(data: bytes) -> str:
    """What decodes encodes to the same; each view refuses what is malformed as InvalidBSONError and in no other way."""
    try:
        raw = RawDocument(data)
    except InvalidBSONError:
        return "not whole"
    names: list[str] | None = None
    with contextlib.suppress(InvalidBSONError):
        names = look_through(raw)
    try:
        document = decode(data)
    except InvalidBSONError:
        with pytest.raises(InvalidBSONError):
            validate(data)
        return "refused"
    validate(data)
    assert names is not None
    assert set(document) == set(names)
    again = encode(document)
    assert encode(decode(again)) == again
    for value in document.values():
        with contextlib.suppress(InvalidBSONError):
            encode_key(value)
    for canonical in (True, False):
        text = to_ejson(document, canonical=canonical)
        with contextlib.suppress(ExtendedJSONError):  # names that are those of wrappers
            assert to_ejson(from_ejson(text), canonical=canonical) == text or not canonical
    return "read" if again == data else "read, written otherwise"


def look_through(raw: RawDocument) -> list[str]:
    names = raw.keys()
    assert raw.first_key == (names[0] if names else None)
    for name in names:
        raw.type_of(name)
        raw.get_raw(name)
        raw.get(name)
    assert [name for name, *_ in walk(raw.raw)] == names
    return names


def counted(data: bytes) -> bytes:
    """The same with a first length that is right, as whatever cut it out of a stream takes care of."""
    return len(data).to_bytes(4, "little") + data[4:-1] + b"\0" if len(data) > 5 else data


INPUTS = st.one_of(
    damaged(DOCUMENTS.map(encode)).map(counted),
    damaged(DOCUMENTS.map(encode)),
    damaged(
        st.lists(DOCUMENTS, min_size=1, max_size=3).map(
            lambda rows: encode({str(n): row for n, row in enumerate(rows)})
        )
    ),
    st.binary(max_size=64).map(lambda data: (len(data) + 5).to_bytes(4, "little") + data + b"\0"),
)
TARGET = Target("bson", INPUTS, lambda: stateless(check), 250)
