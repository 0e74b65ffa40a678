"""Time zones of date operators, and the calendar: days, weeks and their numbers for every 64-bit date.

A local time is milliseconds like those of a date, as if the clock on the wall showed UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from replset.query.errors import show
from replset.query.expressions.compiler import fault
from replset.query.order import type_name

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = -62_135_510_400_000
"""The second day of the year 1. Python has dates from its first day, in any time zone, to the last of 9999."""
_LAST: Final = 253_402_214_400_000
_OFFSET = re.compile(r"([+-])(\d\d)(?::?(\d\d))?")
_UTC_NAMES: Final = frozenset({"UTC", "GMT", "Z"})


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone: a fixed distance from UTC in milliseconds, or the rules of a place."""

    fixed_ms: int = 0
    place: ZoneInfo | None = None

    @property
    def is_utc(self) -> bool:
        return self.place is None and not self.fixed_ms

    def offset(self, ms: int) -> int:
        """Return what is added to this UTC time to get the local one, in milliseconds."""
        if self.place is None:
            return self.fixed_ms
        when = _EPOCH + timedelta(milliseconds=max(_FIRST, min(_LAST, ms)))
        return _in_ms(when.astimezone(self.place).utcoffset())

    def to_local(self, ms: int) -> int:
        return ms + self.offset(ms)

    def to_utc(self, local: int) -> int:
        """Return the time at which the clock shows `local`.

        Of two such times it is the first. A time that the clock leaves out counts with the offset before the gap.
        """
        if self.place is None:
            return local - self.fixed_ms
        when = _EPOCH + timedelta(milliseconds=max(_FIRST, min(_LAST, local)))
        return local - _in_ms(when.replace(tzinfo=self.place).utcoffset())


def _in_ms(offset: timedelta | None) -> int:
    return 0 if offset is None else round(offset.total_seconds()) * SECOND


ZULU: Final = Zone()


def zone_of(value: Any) -> Zone:
    """Return the time zone with a name ("Europe/Paris", "UTC") or an offset ("+02", "-0330", "+05:30")."""
    if not isinstance(value, str):
        raise fault(40517, f"timezone must evaluate to a string, found {type_name(value)}")
    return _zone_named(value)


@lru_cache(maxsize=256)
def _zone_named(name: str) -> Zone:
    if name in _UTC_NAMES:
        return ZULU
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        size = int(offset[2]) * HOUR + int(offset[3] or 0) * MINUTE
        return Zone(-size if offset[1] == "-" else size)
    try:
        if len(name) < 100 and name.isascii():
            return Zone(place=ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise fault(40485, f"unrecognized time zone identifier: {show(name)}")


# --- the calendar -------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A local time in parts. days: since 1970."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    millisecond: int
    days: int

    @property
    def weekday(self) -> int:
        """1 for Sunday to 7 for Saturday."""
        return (self.days + 4) % 7 + 1

    @property
    def iso_weekday(self) -> int:
        """1 for Monday to 7 for Sunday."""
        return (self.days + 3) % 7 + 1

    @property
    def day_of_year(self) -> int:
        return self.days - days_of(self.year, 1, 1) + 1

    @property
    def week(self) -> int:
        """0 to 53. Week 1 begins on the year's first Sunday."""
        return (self.day_of_year + 7 - self.weekday) // 7

    @property
    def iso_week_year(self) -> int:
        return civil(self.days - self.iso_weekday + 4)[0]  # that of its week's Thursday

    @property
    def iso_week(self) -> int:
        return (self.days - iso_year_begin(self.iso_week_year)) // 7 + 1


def parts_of(local: int) -> Parts:
    days, rest = divmod(local, DAY)
    hour, rest = divmod(rest, HOUR)
    minute, rest = divmod(rest, MINUTE)
    second, millisecond = divmod(rest, SECOND)
    return Parts(*civil(days), hour, minute, second, millisecond, days)


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a date. Months and days may be too many or too few: month 13 is the next January.

    A year is counted from March here, so that its last day is a leap year's extra one.
    """
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    if month <= 2:
        year -= 1
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468 + day - 1


def local_ms(days: int, hour: int, minute: int, second: int, millisecond: int) -> int:
    """Return a local time. Its parts may be too many or too few, as in days_of."""
    return days * DAY + hour * HOUR + minute * MINUTE + second * SECOND + millisecond


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    of_year = day_of_era - (365 * of_era + of_era // 4 - of_era // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + (3 if month_from_march < 10 else -9)
    return of_era + era * 400 + (month <= 2), month, day


def iso_days(year: int, week: int, day: int) -> int:
    """Return the days since 1970 of a day of an ISO year's week."""
    return iso_year_begin(year) + 7 * (week - 1) + day - 1


def iso_year_begin(year: int) -> int:
    """Return the Monday of an ISO year's first week, the one with January 4th, in days since 1970."""
    fourth = days_of(year, 1, 4)
    return fourth - (fourth + 3) % 7
