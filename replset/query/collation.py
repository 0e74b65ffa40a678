"""Collations: the order and the equality of strings in a language, by ICU, as MongoDB has them.

A collation is applied by its fold: it puts ICU's sort key in the place of each string of a value. What is compared
byte by byte afterwards is compared as the collation wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

from replset.bson import Symbol, encode_key
from replset.errors import BadValueError, ErrorCode, FailedToParseError
from replset.query.errors import TypeMismatchError
from replset.query.numbers import whole_number
from replset.query.order import is_number
from replset.query.order import type_name as name_of_type
from replset.query.sizes import MAX_BYTES, size_of, too_large
from replset.query.time_limit import check_time

_FLAGS: Final = {
    "caseLevel": "CASE_LEVEL",
    "numericOrdering": "NUMERIC_COLLATION",
    "backwards": "FRENCH_COLLATION",
    "normalization": "NORMALIZATION_MODE",
}
_CHOICES: Final = {
    "caseFirst": ("CASE_FIRST", {"off": "OFF", "upper": "UPPER_FIRST", "lower": "LOWER_FIRST"}),
    "alternate": ("ALTERNATE_HANDLING", {"non-ignorable": "NON_IGNORABLE", "shifted": "SHIFTED"}),
}
_STRENGTHS: Final = ("PRIMARY", "SECONDARY", "TERTIARY", "QUATERNARY", "IDENTICAL")
_TEXTS: Final = ("locale", "caseFirst", "alternate", "maxVariable")
_KEPT: Final = 32
"""Collators that are kept."""
LONGEST: Final = 1 << 18
"""Characters of a string that is compared. ICU lets no other thread run meanwhile: some 10 ms for so many.

Some 60 ms for those that stand for several letters each. U+FDFA stands for 18, and counts as so many.
"""
_WIDEST: Final = "\ufdfa"
_OF_WIDEST: Final = 18
_LONG_RUN: Final = r"(\P{ccc=0}{30})(?=\P{ccc=0})"
_JOINER: Final = "\u034f"
_Settings: TypeAlias = tuple[tuple[str, Any], ...]


class Fold:
    """Returns a value with ICU's sort key for each string in it. Names of fields stay.

    spec: the whole collation, as MongoDB shows it, but for the version. Two folds are equal if it is the same.
    """

    __slots__ = ("_made_of", "_sort_key", "spec")

    def __init__(
        self, spec: Mapping[str, Any], sort_key: Callable[[str], bytes], made_of: tuple[_Settings, str]
    ) -> None:
        self.spec = spec
        self._sort_key = sort_key
        self._made_of = made_of

    def __call__(self, value: Any) -> Any:
        """Return the value folded. 2 for a string that is too long, 146 for sort keys that take too much memory."""
        kind = type(value)
        if kind is str or kind is Symbol:
            return self._key_of(value)
        return self._folded(value, [MAX_BYTES]) if kind is list or isinstance(value, Mapping) else value

    def _key_of(self, text: object) -> str:
        check_time()
        # One character for each byte: the order of the characters is that of the bytes.
        return self._sort_key(_bounded(str(text)))[:-1].decode("latin-1")

    def _folded(self, value: Any, left: list[int]) -> Any:
        """left: the bytes that the sort keys may still take."""
        kind = type(value)
        if kind is str or kind is Symbol:
            key = self._key_of(value)
            left[0] -= size_of(key)
            if left[0] < 0:
                raise too_large("a value that is compared by a collation", MAX_BYTES)
            return key
        if kind is list:
            return [self._folded(item, left) for item in value]
        if isinstance(value, Mapping):
            return {name: self._folded(item, left) for name, item in value.items()}
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fold) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(tuple(self.spec.items()))

    def __reduce__(self) -> tuple[Callable[..., Fold], tuple[_Settings, str]]:
        """Let it be written to a temporary file, with the state of an accumulator: ICU's collator cannot."""
        return _made, self._made_of


def key_by(fold: Fold | None) -> Callable[[Any], bytes]:
    """Return what gives the key that orders a value by a collation."""
    return encode_key if fold is None else lambda value: encode_key(fold(value))


def fold_of(collation: Mapping[str, object]) -> Fold | None:
    """Return the fold of a collation; None for the simple one, which compares strings byte by byte.

    Raises 40414 without a locale, 40415 for an unknown field, TypeMismatch, BadValue for a wrong value or locale, and
    FailedToParse for other fields beside the simple locale.
    """
    for name, value in collation.items():
        _check(name, value)
    if "locale" not in collation:
        raise BadValueError(
            "BSON field 'collation.locale' is missing but a required field", code=ErrorCode.MISSING_FIELD
        )
    if collation["locale"] == "simple":
        if len(collation) > 1:
            raise FailedToParseError("If 'locale' is 'simple', no other fields should be present")
        return None
    strength = whole_number(collation.get("strength", 3)) or 0
    if collation.get("caseFirst", "off") != "off" and strength < 3 and not collation.get("caseLevel", False):
        raise BadValueError("'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2")
    if collation.get("backwards") is True and strength == 1:
        raise BadValueError("'backwards' is invalid with 'strength' of 1")
    settings = {**collation, "strength": strength} if "strength" in collation else collation
    return _made(tuple(sorted(settings.items())))


def stored_fold(collation: Mapping[str, Any]) -> Fold | None:
    """Return the fold of a collation that a collection or an index has; it was accepted once, maybe by another ICU.

    If this ICU has no such locale, strings are folded as in English, which has no order of its own. No query can name
    the collation here then, and what the primary accepted is applied.
    """
    try:
        return fold_of(collation)
    except BadValueError:  # also for a setting that the locale brings and that nobody may give
        pass
    try:
        return _made(tuple(sorted(collation.items())))
    except BadValueError:
        return _made(tuple(sorted({**collation, "locale": "en"}.items())), str(collation.get("locale")))


def with_version(collation: Mapping[str, object]) -> dict[str, object]:
    """Return a stored collation as it is shown. The version is that of the ICU that compares strings here."""
    return {**collation, "version": icu_version()}


def icu_version() -> str:
    import icu  # as in _made

    return str(icu.ICU_VERSION)


def hexed(folded: Any, prefix: str = "") -> Any:
    """Return a folded value with its sort keys as hexadecimal digits, as MongoDB shows them."""
    if isinstance(folded, str):
        return prefix + folded.encode("latin-1").hex()
    if isinstance(folded, list):
        return [hexed(item, prefix) for item in folded]
    return {name: hexed(item, prefix) for name, item in folded.items()} if isinstance(folded, Mapping) else folded


def characters_in(value: Any) -> int:
    """Return how many characters a fold would give to ICU. One that stands for 18 letters counts as so many."""
    if isinstance(value, str):
        return len(value) + (0 if value.isascii() else (_OF_WIDEST - 1) * value.count(_WIDEST))
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(characters_in, items))


def _check(name: str, value: object) -> None:
    if name in _TEXTS:
        wanted, is_right = "string", isinstance(value, str)
    elif name in _FLAGS:
        wanted, is_right = "bool", isinstance(value, bool)
    elif name == "strength":
        wanted, is_right = "number", is_number(value)
    elif name == "version":
        wanted, is_right = "string", isinstance(value, str)
    else:
        raise BadValueError(f"BSON field 'collation.{name:.80}' is an unknown field.", code=ErrorCode.UNKNOWN_FIELD)
    if not is_right:
        raise TypeMismatchError(
            f"BSON field 'collation.{name}' is the wrong type '{name_of_type(value)}', expected type '{wanted}'"
        )
    allowed: Any = _CHOICES[name][1] if name in _CHOICES else None
    if name == "maxVariable":
        allowed = ("punct", "space")
    if name == "strength":
        value, allowed = whole_number(value), range(1, 6)
    if allowed is not None and value not in allowed:
        raise BadValueError(f"Enumeration value '{value!s:.80}' for field 'collation.{name}' is not a valid value.")


@lru_cache(_KEPT)
def _made(settings: _Settings, called: str = "") -> Fold:
    """called: how the collation names the locale, if otherwise."""
    import icu  # large, and most members never need it

    collation = dict(settings)
    locale = str(collation["locale"])
    if locale.partition("@")[0] not in icu.Collator.getAvailableLocales():
        raise BadValueError(f"Field 'locale' is invalid in: {{ locale: \"{locale:.80}\" }}")
    if collation.get("maxVariable") == "space":
        locale += f"{';' if '@' in locale else '@'}kv=space"
    collator = icu.Collator.createInstance(icu.Locale(locale))
    attributes, values = icu.UCollAttribute, icu.UCollAttributeValue
    for name, attribute in _FLAGS.items():
        if name in collation:
            collator.setAttribute(getattr(attributes, attribute), values.ON if collation[name] else values.OFF)
    for name, (attribute, choices) in _CHOICES.items():
        if name in collation:
            collator.setAttribute(getattr(attributes, attribute), getattr(values, choices[collation[name]]))
    if "strength" in collation:
        collator.setAttribute(attributes.STRENGTH, getattr(values, _STRENGTHS[collation["strength"] - 1]))
    get = collator.getAttribute
    flags = {flag: get(getattr(attributes, attribute)) == values.ON for flag, attribute in _FLAGS.items()}
    chosen = {
        choice: next(
            text for text, value in texts.items() if getattr(values, value) == get(getattr(attributes, attribute))
        )
        for choice, (attribute, texts) in _CHOICES.items()
    }
    strengths = [getattr(values, strength) for strength in _STRENGTHS]
    spec = {
        "locale": called or collation["locale"],
        "caseLevel": flags["caseLevel"],
        "caseFirst": chosen["caseFirst"],
        "strength": strengths.index(get(attributes.STRENGTH)) + 1,
        "numericOrdering": flags["numericOrdering"],
        "alternate": chosen["alternate"],
        "maxVariable": collation.get("maxVariable", "punct"),
        "normalization": flags["normalization"],
        "backwards": flags["backwards"],
    }
    return Fold(spec, collator.getSortKey, (settings, called))


def _bounded(text: str) -> str:
    """Return the text as ICU may have it: no longer than LONGEST (2), and its runs of marks cut after 30 each.

    ICU puts the marks of a run in order in quadratic time. A client's string of 200,000 marks would hold the member for
    12 s, and the others would elect another primary. The cut is that of Unicode's Stream-Safe Text Format (UAX #15).
    """
    length = characters_in(text)
    if length > LONGEST:
        raise BadValueError(f"a collation compares strings of at most {LONGEST} characters, not of {length}")
    return text if text.isascii() else _long_runs().sub(rf"\1{_JOINER}", text)


@cache
def _long_runs() -> Any:
    import regex  # Spark's workers, which replay updates, lack it

    return regex.compile(_LONG_RUN)
