"""Collations: which are refused, and that what is compared by one is compared as ICU does."""

from __future__ import annotations

import pickle
from typing import Any

import icu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.errors import ReplError
from replset.query import collation
from replset.query.collation import fold_of, stored_fold
from replset.query.distinct import Distinct
from replset.query.match import compile_filter
from replset.query.sort import compile_sort

LONGEST = 262_144
LOOSE = {"locale": "en_US", "strength": 2}


@pytest.mark.parametrize(
    ("collation", "code"),
    [
        ({"strength": 1}, 40414),
        ({"locale": "en", "x": 1}, 40415),
        ({"locale": 1}, 14),
        ({"locale": "en", "caseLevel": 1}, 14),
        ({"locale": "en", "strength": "1"}, 14),
        ({"locale": "en", "strength": 6}, 2),
        ({"locale": "en", "strength": 1.5}, 2),
        ({"locale": "en", "caseFirst": "x"}, 2),
        ({"locale": "en", "alternate": "x"}, 2),
        ({"locale": "en", "maxVariable": "x"}, 2),
        ({"locale": "xx"}, 2),
        ({"locale": "en", "strength": 2, "caseFirst": "upper"}, 2),
        ({"locale": "fr", "strength": 1, "backwards": True}, 2),
        ({"locale": "simple", "strength": 1}, 9),
    ],
)
def test_what_is_refused(collation: dict[str, Any], code: int) -> None:
    with pytest.raises(ReplError) as raised:
        fold_of(collation)
    assert raised.value.code == code


def test_the_simple_one_folds_nothing() -> None:
    assert fold_of({"locale": "simple"}) is None


def test_a_fold_is_written_as_its_settings() -> None:
    """A $group writes the states of its accumulators to the disk, and each may have one."""
    fold = fold_of(LOOSE)
    assert fold is not None
    again = pickle.loads(pickle.dumps(fold))
    assert (again, again("A")) == (fold, fold("A"))


@pytest.mark.parametrize(
    ("collation", "in_order"),
    [
        ({"locale": "de"}, ["a", "A", "\u00e4", "b"]),
        ({"locale": "sv"}, ["a", "z", "\u00e4"]),
        ({"locale": "en", "caseFirst": "upper"}, ["A", "a", "B"]),
        ({"locale": "en", "numericOrdering": True}, ["a2", "a10"]),
        ({"locale": "fr", "backwards": True}, ["cot\u00e9", "c\u00f4te"][::-1]),
        ({"locale": "en", "strength": 1, "caseLevel": True}, ["a", "A"]),
        ({"locale": "de@collation=phonebook"}, ["ad", "\u00e4", "af"]),
    ],
)
def test_orders(collation: dict[str, Any], in_order: list[str]) -> None:
    sort = compile_sort({"a": 1}, fold_of(collation))
    keys = [sort({"a": text}) for text in in_order]
    assert sorted(set(keys)) == keys


@pytest.mark.parametrize(
    ("collation", "same"),
    [
        (LOOSE, ("a", "A")),
        ({"locale": "en", "strength": 1}, ("a", "\u00c4")),
        ({"locale": "en", "alternate": "shifted"}, ("a-b", "a b")),
    ],
)
def test_equal_ones(collation: dict[str, Any], same: tuple[str, str]) -> None:
    assert compile_filter({"a": same[0]}, fold=fold_of(collation)).matches({"a": same[1]})


def test_max_variable_says_what_is_shifted() -> None:
    shifted = {"locale": "en", "alternate": "shifted", "maxVariable": "space"}
    matcher = compile_filter({"a": "ab"}, fold=fold_of(shifted))
    assert matcher.matches({"a": "a b"})
    assert not matcher.matches({"a": "a-b"})


@pytest.mark.parametrize(
    ("query", "is_match"),
    [
        ({"a": "ping"}, True),
        ({"a": {"$ne": "ping"}}, False),
        ({"a": {"$in": ["x", "ping"]}}, True),
        ({"a": {"$nin": ["ping"]}}, False),
        ({"a": {"$gte": "ping", "$lte": "ping"}}, True),
        ({"a": {"$gt": "ping"}}, False),
        ({"a": {"$not": {"$eq": "ping"}}}, False),
        ({"$or": [{"a": "ping"}]}, True),
        ({"list": "x"}, True),
        ({"list": ["x", {"b": "y"}]}, True),
        ({"list": {"$all": ["x"]}}, True),
        ({"list": {"$elemMatch": {"b": "y"}}}, True),
        ({"list": {"$elemMatch": {"$eq": "x"}}}, True),
        ({"list.b": "y"}, True),
        ({"a": {"$regex": "ping"}}, False),
        ({"A": "ping"}, False),
        ({"none": None}, True),
    ],
)
def test_filters(query: dict[str, Any], is_match: bool) -> None:
    document = {"a": "PING", "list": ["X", {"b": "Y"}]}
    assert compile_filter(query, fold=fold_of(LOOSE)).matches(document) is is_match
    assert compile_filter({"a": "ping"}, fold=fold_of(LOOSE)).needle == b""


def test_distinct_keeps_the_first_of_equal_ones() -> None:
    found = Distinct("a", fold_of(LOOSE))
    for text in ("Ping", "PING", "pong"):
        found.add({"a": text})
    assert found.values == ["Ping", "pong"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    st.sampled_from(["en", "de", "sv", "ja"]),
    st.integers(1, 5),
)
def test_the_order_is_that_of_icu(texts: list[str], locale: str, strength: int) -> None:
    collator = icu.Collator.createInstance(icu.Locale(locale))
    levels = ("PRIMARY", "SECONDARY", "TERTIARY", "QUATERNARY", "IDENTICAL")
    collator.setStrength(getattr(icu.Collator, levels[strength - 1]))
    sort = compile_sort({"a": 1}, fold_of({"locale": locale, "strength": strength}))
    in_order = sorted(texts, key=lambda text: sort({"a": text}))
    assert in_order == sorted(texts, key=collator.getSortKey)


@pytest.mark.parametrize("pairs", [10, 500, 60_000])
def test_a_run_of_marks_is_sorted_in_parts(pairs: int) -> None:
    """ICU puts a run of marks in order in quadratic time: 12 s for 200,000, in which the whole member stands still."""
    fold = fold_of({"locale": "vi"})
    assert fold is not None
    parts, rest = divmod(2 * pairs, 30)
    limited = "a" + "\u034f".join(["\u0316\u0301" * 15] * parts + ["\u0316\u0301" * (rest // 2)] * bool(rest))
    key = icu.Collator.createInstance(icu.Locale("vi")).getSortKey(limited)
    assert fold("a" + "\u0316\u0301" * pairs) == key[:-1].decode("latin-1")


def test_a_string_that_is_too_long_is_refused() -> None:
    fold = fold_of(LOOSE)
    assert fold is not None
    assert fold("a" * LONGEST) == fold("A" * LONGEST)
    # ICU takes as long for U+FDFA as for 18 letters.
    for text in ("a" * (LONGEST + 1), "\ufdfa" * (LONGEST // 18 + 1)):
        with pytest.raises(ReplError, match="at most 262144 characters") as raised:
            fold({"a": [text]})
        assert raised.value.code == 2
    assert fold("\ufdfa" * (LONGEST // 18)) != fold("\ufdfb")


def test_the_sort_keys_of_one_value_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that an expression makes may hold one string a thousand times, but each time its key is made anew."""
    fold = fold_of(LOOSE)
    assert fold is not None
    monkeypatch.setattr(collation, "MAX_BYTES", 5000)
    assert fold(["a" * 100] * 10)
    with pytest.raises(ReplError) as raised:
        fold([{"b": "a" * 100}] * 100)
    assert raised.value.code == 146


@pytest.mark.parametrize("more", [{}, {"strength": 1}, {"strength": 2, "caseLevel": True}, {"numericOrdering": True}])
def test_a_stored_collation_is_the_same(more: dict[str, Any]) -> None:
    """It names what the locale brings, too: `da` has upper case first, which nobody may ask of strength 2."""
    for locale in icu.Collator.getAvailableLocales():
        fold = fold_of({"locale": locale, **more})
        assert fold is not None
        stored = stored_fold(fold.spec)
        assert stored is not None
        assert (stored, stored.spec) == (fold, fold.spec)
        words = ["a\u00e9B 10", "\u00c5-x", "\u4e2d", "chZ"]
        assert stored(words) == fold(words)
