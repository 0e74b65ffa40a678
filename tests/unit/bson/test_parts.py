"""The part of a document that some paths need is decoded as in the whole document, and counted before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Code, CodeWithScope, RawDocument, decode, encode, parts
from replset.bson.parts import TooManyValuesError, count_part, decode_part, path_tree, raw_fields
from replset.query.index_values import ParallelArraysError, value_lists
from replset.query.match import compile_filter

NAMES = st.sampled_from(["a", "b", "0", "1"])
VALUES = st.recursive(
    st.integers(0, 3) | st.none() | st.builds(lambda: CodeWithScope("f", {"x": 1})),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3)


def lists_of(document: dict[str, Any], paths: list[tuple[str, ...]]) -> Any:
    try:
        return list(value_lists(document, paths))
    except ParallelArraysError as error:
        return error.paths


@given(document=DOCUMENTS, paths=PATHS, value=st.integers(0, 3) | st.none())
def test_the_part_has_the_same_keys_and_matches_as_the_document(
    document: dict[str, Any], paths: list[tuple[str, ...]], value: int | None
) -> None:
    raw = encode(document)
    part = decode_part(raw, path_tree(paths), 1000)
    assert lists_of(part, paths) == lists_of(decode(raw), paths)
    matcher = compile_filter({".".join(paths[0]): value})
    assert matcher.matches(part) == matcher.matches(decode(raw))
    read = count_part(raw, path_tree(paths), 1000)
    assert decode_part(raw, path_tree(paths), read) == part
    if read:
        with pytest.raises(TooManyValuesError):
            decode_part(raw, path_tree(paths), read - 1)


@pytest.mark.parametrize(
    ("paths", "document", "count"),
    [
        pytest.param(["a"], {"_id": 1, "a": [5, 5, 5]}, 5, id="items that repeat"),
        pytest.param(["a"], {"a": {"b": {"c": [1, 2]}}}, 5, id="all that is in a value"),
        pytest.param(["a.b"], {"a": {"b": 1, "c": [1, 2, 3]}}, 3, id="what is beside the path is passed over"),
        pytest.param(["a.b"], {"a": [{"b": 1, "c": [1, 2]}, 7]}, 5, id="documents in an array"),
        pytest.param(["b"], {"a": [1, 2, 3]}, 1, id="another field"),
        pytest.param(["a"], {"a": CodeWithScope("f", {"x": 1, "y": [2]}), "b": Code("g")}, 5, id="a scope"),
    ],
)
def test_count(paths: list[str], document: dict[str, Any], count: int) -> None:
    assert count_part(encode(document), path_tree([path.split(".") for path in paths]), 100) == count


def test_nothing_is_decoded_of_a_part_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode({"a": [[1]] * 1000})
    decoded: list[object] = []
    monkeypatch.setattr(parts, "read_value", lambda *place: decoded.append(place))
    with pytest.raises(TooManyValuesError):
        decode_part(raw, path_tree([("a",)]), 1999)
    assert decoded == []


def test_raw_fields() -> None:
    raw = encode({"a": [1], "b": 2, "c": 3})
    array = RawDocument(raw).get_raw("a")
    assert array is not None
    assert raw_fields(raw, {b"a", b"c", b"d"}, 3) == {b"a": b"\x04" + array, b"c": b"\x10\x03\0\0\0"}
    with pytest.raises(TooManyValuesError):
        raw_fields(raw, {b"a"}, 2)
