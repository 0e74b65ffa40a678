"""Extended JSON: text that is nearly JSON, and JSON whose wrappers are nearly right."""

from __future__ import annotations

import contextlib
import json

from hypothesis import strategies as st

from replset.bson import ExtendedJSONError, InvalidBSONError, encode
from replset.ejson import from_ejson, from_ejson_value, to_ejson
from tests.property.test_bson import DOCUMENTS
from tools.fuzz.kit import Target, damaged, stateless

WRAPPERS = [
    "$oid",
    "$symbol",
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$binary",
    "$uuid",
    "$code",
    "$scope",
    "$timestamp",
    "$regularExpression",
    "$dbPointer",
    "$date",
    "$ref",
    "$id",
    "$db",
    "$minKey",
    "$maxKey",
    "$undefined",
    "$type",
    "$regex",
    "$options",
]
PARTS = ["base64", "subType", "t", "i", "pattern", "options", *WRAPPERS]
TEXTS = [
    "",
    "0",
    "-1",
    "1e400",
    "NaN",
    "Infinity",
    "-Infinity",
    "9223372036854775808",
    "2147483648",
    "1E+6145",
    "٣",
    " 1",
    "00",
    "ff",
    "a" * 24,
    "AAEC",
    "AAE=",
    "i",
    "\0",
    "\ud800",
    "2012-12-24T12:15:30.501Z",
    "2012-12-24T12:15:30.501+0100",
    "9999-99-99T99:99:99Z",
    "0000-01-01T00:00:00Z",
    "73ffd264-44b3-4c69-90e8-e7d1dfc035d4",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.sampled_from(TEXTS),
    st.text(max_size=8),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), inner, max_size=3),
        st.builds(lambda name, value: {name: value}, st.sampled_from(WRAPPERS), inner),
        st.builds(lambda value, sub: {"$binary": {"base64": value, "subType": sub}}, inner, inner),
        st.builds(lambda t, i: {"$timestamp": {"t": t, "i": i}}, inner, inner),
        st.builds(lambda p, o: {"$regularExpression": {"pattern": p, "options": o}}, inner, inner),
    ),
    max_leaves=8,
)


def check(text: str | bytes) -> str:
    """What is read can be written and read again to the same; all else is ExtendedJSONError."""
    try:
        document = from_ejson(text)
    except ExtendedJSONError:
        return "refused"
    try:
        data = encode(document)
    except InvalidBSONError:  # a name with a zero byte, a string of half a character
        return "no BSON"
    canonical = to_ejson(document, canonical=True)
    assert encode(from_ejson(canonical)) == data or "NaN" in canonical, canonical
    encode(from_ejson(to_ejson(document)))
    return "read"


def check_either(value: object) -> str:
    if isinstance(value, str | bytes):
        return check(value)
    with contextlib.suppress(ExtendedJSONError):
        from_ejson_value(value)
    return check(json.dumps({"a": value}))


INPUTS = st.one_of(
    JSON,
    JSON.map(lambda value: json.dumps({"a": value})),
    damaged(JSON.map(lambda value: json.dumps({"a": value}, ensure_ascii=False).encode(errors="surrogatepass"))),
    damaged(DOCUMENTS.map(lambda document: to_ejson(document, canonical=True).encode())),
    st.text(max_size=30),
)
TARGET = Target("ejson", INPUTS, lambda: stateless(check_either), 300)
