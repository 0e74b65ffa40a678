"""Keys of random documents in random indexes, against plain lines that compute them another way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from replset.bson import DateTime, Int64, RawDocument, encode
from replset.errors import CannotIndexParallelArraysError
from replset.storage.indexes import Index, keys_of
from tests.examples import examples
from tests.simulation.kit.index_model import ParallelError, model_keys

NAMES = st.sampled_from("abc")
PLAIN = st.one_of(
    st.none(), st.integers(-3, 3), st.sampled_from(["", "x", "x\0", 1.5, Int64(2), DateTime(7), True, b"\0\1"])
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)), max_leaves=8
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
PATTERNS = st.dictionaries(PATHS, st.sampled_from([1, -1]), min_size=1, max_size=3)
OPTIONS = st.sampled_from([{}, {"sparse": True}, {"partialFilterExpression": {"b": {"$gt": 0}}}])


@examples(400)
@given(PATTERNS, OPTIONS, DOCUMENTS)
def test_keys_are_those_of_the_model(
    pattern: dict[str, int], options: dict[str, Any], document: dict[str, Any]
) -> None:
    spec = {"v": 2, "key": pattern, "name": "i", **options}
    index = Index(1, b"", RawDocument(encode(spec)), None, None, True, 0)
    try:
        expected: set[bytes] | None = model_keys(spec, document)
    except ParallelError:
        expected = None
    try:
        found: set[bytes] | None = set(keys_of(index, encode(document)))
    except CannotIndexParallelArraysError:
        found = None
    if expected is not None or found is not None:
        assert found == expected
