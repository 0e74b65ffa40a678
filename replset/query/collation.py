"""Collations: the order and the equality of strings in a language, by ICU, as MongoDB has them.

A collation is applied by its fold: it puts ICU's sort key in the place of each string of a value. What is compared
byte by byte afterwards is compared as the collation wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import regex

from replset.bson import Symbol
from replset.errors import BadValueError, ErrorCode, FailedToParseError
from replset.query.errors import TypeMismatchError, not_built
from replset.query.numbers import whole_number
from replset.query.order import is_number
from replset.query.order import type_name as name_of_type

Fold: TypeAlias = Callable[[Any], Any]
"""Returns a value with ICU's sort key for each string in it. Names of fields stay."""

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
_COMPARING: Final = frozenset({"$addToSet", "$max", "$min", "$pull", "$pullAll", "$push"})
"""Operators of updates that compare values."""
_KEPT: Final = 32
"""Collators that are kept."""
LONGEST: Final = 1 << 18
"""Characters of a string that is compared. ICU lets no other thread run meanwhile: some 10 ms for so many."""
_LONG_RUN: Final = regex.compile(r"(\P{ccc=0}{30})(?=\P{ccc=0})")
_JOINER: Final = "\u034f"


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


def refuse_collated_projection(projection: Mapping[str, object]) -> None:
    """238 for what compares values in a projection: it does not know the collation yet."""
    for name, value in projection.items():
        if name.startswith("$") and name not in ("$slice", "$literal"):
            raise not_built(f"{name} in a projection with a collation")
        if isinstance(value, Mapping):
            refuse_collated_projection(value)


def refuse_collated_change(change: object, array_filters: object) -> None:
    """238 for what compares values in an update: it does not know the collation yet."""
    if array_filters or type(change) is list:
        raise not_built("an update by arrayFilters or a pipeline with a collation")
    for name in change if isinstance(change, Mapping) else ():
        if name in _COMPARING:
            raise not_built(f"{name} with a collation")


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
def _made(settings: tuple[tuple[str, Any], ...]) -> Fold:
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
    sort_key = collator.getSortKey

    def fold(value: Any) -> Any:
        kind = type(value)
        if kind is str or kind is Symbol:
            # One character for each byte: the order of the characters is that of the bytes.
            return sort_key(_bounded(str(value)))[:-1].decode("latin-1")
        if kind is list:
            return [fold(item) for item in value]
        if isinstance(value, Mapping):
            return {name: fold(item) for name, item in value.items()}
        return value

    return fold


def _bounded(text: str) -> str:
    """Return the text as ICU may have it: no longer than LONGEST (2), and its runs of marks cut after 30 each.

    ICU puts the marks of a run in order in quadratic time. A client's string of 200,000 marks would hold the member for
    12 s, and the others would elect another primary. The cut is that of Unicode's Stream-Safe Text Format (UAX #15).
    """
    if len(text) > LONGEST:
        raise BadValueError(f"a collation compares strings of at most {LONGEST} characters, not of {len(text)}")
    return text if text.isascii() else _LONG_RUN.sub(rf"\1{_JOINER}", text)
