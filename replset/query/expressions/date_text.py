"""Dates as text: what $dateToString writes and $dateFromString reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any, Final

from replset.bson import DateTime
from replset.errors import ReplError
from replset.query.errors import shorten
from replset.query.expressions.compiler import fault, spend
from replset.query.expressions.shared import conversion_failure
from replset.query.expressions.time_zones import (
    MINUTE,
    ZULU,
    Parts,
    Zone,
    days_of,
    iso_days,
    local_ms,
    parts_of,
    zone_of,
)

ISO: Final = "%Y-%m-%dT%H:%M:%S.%L"
_SPECIFIER = re.compile(r"%(.?)", re.DOTALL)
_WRITERS: Final[dict[str, Callable[[Parts, int], str]]] = {
    "Y": lambda parts, offset: _year(parts.year),
    "m": lambda parts, offset: f"{parts.month:02}",
    "d": lambda parts, offset: f"{parts.day:02}",
    "H": lambda parts, offset: f"{parts.hour:02}",
    "M": lambda parts, offset: f"{parts.minute:02}",
    "S": lambda parts, offset: f"{parts.second:02}",
    "L": lambda parts, offset: f"{parts.millisecond:03}",
    "j": lambda parts, offset: f"{parts.day_of_year:03}",
    "w": lambda parts, offset: str(parts.weekday),
    "u": lambda parts, offset: str(parts.iso_weekday),
    "U": lambda parts, offset: f"{parts.week:02}",
    "V": lambda parts, offset: f"{parts.iso_week:02}",
    "G": lambda parts, offset: _year(parts.iso_week_year),
    "z": lambda parts, offset: "{}{:02}{:02}".format("-" if offset < 0 else "+", *divmod(abs(offset) // MINUTE, 60)),
    "Z": lambda parts, offset: str(offset // MINUTE),
    "%": lambda parts, offset: "%",
}


def _year(year: int) -> str:
    if not 0 <= year <= 9999:
        raise fault(18537, f"Could not convert date to string: date component was outside the supported range: {year}")
    return f"{year:04}"


def _check(letters: Collection[str], text: str) -> None:
    """Raise 18535 and 18536 for a format that has other letters behind a percent sign."""
    for found in _SPECIFIER.finditer(text):
        if not found[1]:
            raise fault(18535, "Unmatched '%' at end of format string")
        if found[1] not in letters:
            raise fault(18536, f"Invalid format character '%{found[1]}' in format string")


check_writing: Final = partial(_check, _WRITERS)


def date_text(text: str, ms: int, zone: Zone) -> str:
    """Return the date in a format that `check_writing` let through."""
    offset = zone.offset(ms)
    parts = parts_of(ms + offset)
    spend(3 * len(text))
    return _SPECIFIER.sub(lambda found: _WRITERS[found[1]](parts, offset), text)


def iso_text(ms: int) -> str:
    return date_text(ISO + "Z", ms, ZULU)


# --- reading ------------------------------------------------------------------------------------------------------

_READERS: Final = {
    "Y": r"(?P<Y>\d{4})",
    "m": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "H": r"(?P<H>\d{1,2})",
    "M": r"(?P<M>\d{1,2})",
    "S": r"(?P<S>\d{1,2})",
    "L": r"(?P<L>\d{1,3})",
    "j": r"(?P<j>\d{1,3})",
    "G": r"(?P<G>\d{4})",
    "V": r"(?P<V>\d{1,2})",
    "u": r"(?P<u>\d)",
    "z": r"(?P<z>Z|[+-]\d\d:?(?:\d\d)?)",
    "Z": r"(?P<minutes>[+-]\d{1,4})",
    "%": "%",
}
check_reading: Final = partial(_check, _READERS)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = r"(?P<name>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_TIME: Final = (
    r"(?P<H>\d{1,2}):(?P<M>\d\d)(?::(?P<S>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?(?:\s*(?P<half>[ap])\.?m\.?(?![a-z]))?"
)
_ZONE: Final = r"\s*(?P<z>Z|(?:UTC|GMT)?[+-]\d\d?:?(?:\d\d)?|UTC|GMT|[a-z]+/[a-z_/+-]+)"
_DATES: Final = (
    r"(?P<Y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})",
    r"(?P<Y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})",
    r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<Y>\d{4})",
    r"(?P<d>\d{1,2})[-.](?P<m>\d{1,2})[-.](?P<Y>\d{4})",
    r"(?P<Y>\d{4})(?P<m>\d\d)(?P<d>\d\d)",
    r"(?P<G>\d{4})-?W(?P<V>\d\d)(?:-?(?P<u>[1-7]))?",
    rf"(?:[a-z]+,?\s+)?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?[\s-]+{_MONTH}[\s,-]+(?P<Y>\d{{4}})",
    rf"(?:[a-z]+,?\s+)?{_MONTH}\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<Y>\d{{4}})",
)
_FORMS: Final = tuple(
    re.compile(rf"\s*{date}(?:(?:T|\s*,?\s+){_TIME})?(?:{_ZONE})?\s*", re.IGNORECASE) for date in _DATES
)
_LONGEST: Final = 200
"""Characters of a text without a format that is read as a date."""


def read_date(text: str, zone: Zone, format_: str | None = None) -> DateTime:
    """Return the date that a text names; 241 if it names none. format_: one that `check_reading` let through."""
    if format_ is not None:
        found = _pattern(format_).fullmatch(text)
    elif len(text) > _LONGEST:
        found = None
    else:
        found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    if found is None:
        raise conversion_failure(f"Error parsing date string '{shorten(text)}'")
    try:
        return DateTime(_read(found.groupdict(), zone))
    except ValueError as error:
        raise conversion_failure(f"Error parsing date string '{shorten(text)}': {error}") from None


@lru_cache(maxsize=64)
def _pattern(format_: str) -> re.Pattern[str]:
    used: set[str] = set()
    parts: list[str] = []
    for literal, letter in re.findall(r"([^%]+)|%(.)", format_, re.DOTALL):
        if letter in used and letter not in ("", "%"):
            raise conversion_failure(f"the format '{shorten(format_)}' names %{letter} twice")
        used.add(letter)
        parts.append(re.escape(literal) if literal else _READERS[letter])
    return re.compile("".join(parts))


def _read(found: dict[str, Any], zone: Zone) -> int:
    """Return UTC milliseconds. ValueError for what is no date."""
    given = {name: text for name, text in found.items() if text is not None}
    if "z" in given or "minutes" in given:
        if not zone.is_utc:
            raise ValueError("you cannot pass in a date/time string with a time zone together with a timezone argument")
        zone = _zone_in(given)
    hour = _number(given, "H", 0, 23)
    if "half" in given:
        if not 1 <= hour <= 12:
            raise ValueError("an hour with am or pm is 1 to 12")
        hour = hour % 12 + (12 if given["half"].lower() == "p" else 0)
    ms = int(given.get("fraction", "0")[:3].ljust(3, "0")) if "fraction" in given else _number(given, "L", 0, 999)
    minute, second = _number(given, "M", 0, 59), _number(given, "S", 0, 59)
    return zone.to_utc(local_ms(_days(given), hour, minute, second, ms))


def _zone_in(given: dict[str, str]) -> Zone:
    if "minutes" in given:
        return Zone(int(given["minutes"]) * MINUTE)
    name = given["z"]
    if name[:3].upper() in ("UTC", "GMT") and len(name) > 3:
        name = name[3:]
    if name[0] in "+-" and len(name.replace(":", "")) in (2, 4):
        name = name[0] + "0" + name[1:]
    try:
        return zone_of(name if "/" in name else name.upper())
    except ReplError as error:
        raise ValueError(error.message) from None


def _days(given: dict[str, str]) -> int:
    if "name" in given:
        given["m"] = str(_MONTHS.index(given["name"].lower()) + 1)
    if "G" in given and "V" in given:
        return iso_days(int(given["G"]), _number(given, "V", 1, 53), _number(given, "u", 1, 7))
    if "Y" in given and "j" in given:
        return days_of(int(given["Y"]), 1, _number(given, "j", 1, 366))
    if not {"Y", "m", "d"} <= given.keys():
        raise ValueError("an incomplete date/time string has been found, with elements missing")
    year, month, day = int(given["Y"]), _number(given, "m", 1, 12), _number(given, "d", 1, 31)
    days = days_of(year, month, day)
    if days >= days_of(year, month + 1, 1):
        raise ValueError("The parsed date was invalid")
    return days


def _number(given: dict[str, str], name: str, least: int, most: int) -> int:
    number = int(given.get(name, least))
    if not least <= number <= most:
        raise ValueError(f"{number} is not {least} to {most}")
    return number
