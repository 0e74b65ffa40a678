"""Operators on dates: their parts, their distance, their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from replset.bson import DateTime, Int64, ObjectId, Timestamp
from replset.errors import ErrorCode, FailedToParseError, ReplError
from replset.query.errors import show
from replset.query.expressions.compiler import Expression, Operator, Scope, apply, arguments, combine, fault, named
from replset.query.expressions.date_text import ISO, check_reading, check_writing, date_text, read_date
from replset.query.expressions.shared import ABSENT, NO_INPUT, conversion_failure, with_fallbacks
from replset.query.expressions.time_zones import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    ZULU,
    Parts,
    Zone,
    days_of,
    iso_days,
    local_ms,
    parts_of,
    zone_of,
)
from replset.query.numbers import INT64, whole_number
from replset.query.order import is_null, type_name

_NO_ZONE: Final = "UTC"
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_DAYS: Final = {"day": 1, "week": 7}
_FIXED: Final = {"millisecond": 1, "second": SECOND, "minute": MINUTE, "hour": HOUR}
UNITS: Final = frozenset({*_MONTHS, *_DAYS, *_FIXED})
_WEEKDAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


def ms_of(value: Any) -> int | None:
    """Return the milliseconds of what counts as a date: a date, a timestamp, an ObjectId; None for other values."""
    if type(value) is DateTime:
        return value.ms
    if type(value) is Timestamp:
        return value.time * SECOND
    return value.seconds * SECOND if type(value) is ObjectId else None


def _date(value: Any) -> int:
    ms = ms_of(value)
    if ms is None:
        raise fault(16006, f"can't convert from BSON type {type_name(value)} to Date")
    return ms


def _made(ms: int, name: str) -> DateTime:
    if not -INT64 <= ms < INT64:
        raise fault(ErrorCode.DURATION_OVERFLOW, f"{name} makes a date beyond 64 bits")
    return DateTime(ms)


# --- one part -----------------------------------------------------------------------------------------------------

_PARTS: Final[dict[str, Callable[[Parts], int]]] = {
    "$year": lambda parts: parts.year,
    "$month": lambda parts: parts.month,
    "$dayOfMonth": lambda parts: parts.day,
    "$hour": lambda parts: parts.hour,
    "$minute": lambda parts: parts.minute,
    "$second": lambda parts: parts.second,
    "$millisecond": lambda parts: parts.millisecond,
    "$dayOfYear": lambda parts: parts.day_of_year,
    "$dayOfWeek": lambda parts: parts.weekday,
    "$week": lambda parts: parts.week,
    "$isoDayOfWeek": lambda parts: parts.iso_weekday,
    "$isoWeek": lambda parts: parts.iso_week,
    "$isoWeekYear": lambda parts: Int64(parts.iso_week_year),
}


def _part(name: str, part: Callable[[Parts], int]) -> Operator:
    """Return the operator of one part. It takes a date, alone or in an array, or {date, timezone}."""

    def compute(date: Any, zone: Any) -> object:
        if is_null(date):
            return None
        ms = _date(date)
        if is_null(zone):
            return None
        if not isinstance(zone, str):
            raise fault(40533, f"{name} requires a string for the timezone argument, but was given a {type_name(zone)}")
        return part(parts_of(zone_of(zone).to_local(ms)))

    def build(argument: Any, scope: Scope) -> Expression:
        if isinstance(argument, Mapping) and not next(iter(argument), "").startswith("$"):
            given = arguments(name, argument, ("date",), ("timezone",), 40535, 40535, 40539)
        else:
            values = argument if type(argument) is list else [argument]
            if len(values) != 1:
                raise fault(
                    40536, f"{name} accepts exactly one argument if given an array, but was given {len(values)}"
                )
            given = {"date": values[0]}
        return apply(compute, [scope.compile(given["date"]), scope.compile(given.get("timezone", _NO_ZONE))])

    return Operator(name, build)


# --- all parts ----------------------------------------------------------------------------------------------------


def _to_parts(date: Any, timezone: Any, iso8601: Any) -> object:
    if is_null(timezone):
        return None
    zone = zone_of(timezone)
    if is_null(iso8601):
        return None
    if type(iso8601) is not bool:
        raise fault(40521, f"iso8601 must evaluate to a bool, found {type_name(iso8601)}")
    if is_null(date):
        return None
    parts = parts_of(zone.to_local(_date(date)))
    if iso8601:
        days = {"isoWeekYear": parts.iso_week_year, "isoWeek": parts.iso_week, "isoDayOfWeek": parts.iso_weekday}
    else:
        days = {"year": parts.year, "month": parts.month, "day": parts.day}
    time = {"hour": parts.hour, "minute": parts.minute, "second": parts.second, "millisecond": parts.millisecond}
    return days | time


_DAY_PARTS: Final = {"year": 1970, "month": 1, "day": 1}
_ISO_PARTS: Final = {"isoWeekYear": 1970, "isoWeek": 1, "isoDayOfWeek": 1}
_TIME_PARTS: Final = {"hour": 0, "minute": 0, "second": 0, "millisecond": 0}
_ANY_SIZE: Final = frozenset({"second", "millisecond"})
_MAX_PART: Final = 32767


def _from_parts(argument: Any, scope: Scope) -> Expression:
    name = "$dateFromParts"
    fields = (*_DAY_PARTS, *_ISO_PARTS, *_TIME_PARTS, "timezone")
    given = arguments(name, argument, (), fields, 40519, 40518)
    if "year" not in given and "isoWeekYear" not in given:
        raise fault(40516, f"{name} requires either 'year' or 'isoWeekYear' to be present")
    is_iso = "isoWeekYear" in given
    if "year" in given and not given.keys().isdisjoint(_ISO_PARTS):
        raise fault(40489, f"{name} does not allow mixing natural dates with ISO dates")
    if is_iso and not given.keys().isdisjoint(_DAY_PARTS):
        raise fault(40525, f"{name} does not allow mixing ISO dates with natural dates")
    defaults = {**_TIME_PARTS, **(_ISO_PARTS if is_iso else _DAY_PARTS)}
    parts = {field: scope.compile(given.get(field, default)) for field, default in defaults.items()}
    zone = scope.compile(given.get("timezone", _NO_ZONE))

    def run(root: Any, variables: Any) -> object:
        numbers: dict[str, int] = {}
        for field, part in parts.items():
            value = part.run(root, variables)
            if is_null(value):
                return None
            numbers[field] = _part_number(field, value)
        timezone = zone.run(root, variables)
        if is_null(timezone):
            return None
        days = (iso_days if is_iso else days_of)(*[numbers[field] for field in (_ISO_PARTS if is_iso else _DAY_PARTS)])
        return _made(zone_of(timezone).to_utc(local_ms(days, *[numbers[field] for field in _TIME_PARTS])), name)

    return combine(run, *parts.values(), zone)


def _part_number(field: str, value: Any) -> int:
    number = whole_number(value)
    if number is None:
        raise fault(40515, f"'{field}' must evaluate to an integer, found {type_name(value)} with value {show(value)}")
    if field in ("year", "isoWeekYear"):
        if not 0 <= number <= 9999:
            raise fault(
                40523 if field == "year" else 31095,
                f"'{field}' must evaluate to an integer in the range 0 to 9999, found {number}",
            )
    elif field not in _ANY_SIZE and not -_MAX_PART - 1 <= number <= _MAX_PART:
        raise fault(
            31034,
            f"'{field}' must evaluate to a value in the range [{-_MAX_PART - 1}, {_MAX_PART}]; value {number} is not in"
            " range",
        )
    return number


# --- text ---------------------------------------------------------------------------------------------------------


def _check_format(name: str, code: int, check: Callable[[str], None], format_: Any) -> None:
    if format_ is ABSENT or is_null(format_):
        return
    if not isinstance(format_, str):
        raise fault(code, f"{name} requires that 'format' be a string, found: {type_name(format_)}")
    check(format_)


def _to_string(date: Any, format_: Any, timezone: Any) -> object:
    _check_format("$dateToString", 18533, check_writing, format_)
    zone = None if is_null(timezone) else zone_of(timezone)
    if is_null(date):
        return NO_INPUT
    if zone is None or is_null(format_):
        return None
    if format_ is ABSENT:
        format_ = f"{ISO}Z" if zone.is_utc else ISO
    return date_text(format_, _date(date), zone)


def _from_string(text: Any, format_: Any, timezone: Any) -> object:
    _check_format("$dateFromString", 40684, check_reading, format_)
    zone = None if is_null(timezone) else zone_of(timezone)
    if is_null(text):
        return NO_INPUT
    if not isinstance(text, str):
        raise conversion_failure(
            f"$dateFromString requires that 'dateString' be a string, found: {type_name(text)} with value {show(text)}"
        )
    if zone is None or is_null(format_):
        return None
    return read_date(text, zone, None if format_ is ABSENT else format_)


# --- arithmetic ---------------------------------------------------------------------------------------------------


def _add(name: str, sign: int, date: Any, unit: Any, amount: Any, timezone: Any) -> object:
    if any(map(is_null, (date, unit, amount, timezone))):
        return None
    zone, start = zone_of(timezone), ms_of(date)
    if start is None:
        raise fault(5166403, f"{name} requires startDate to be convertible to a date")
    if not isinstance(unit, str):
        raise fault(5166404, f"{name} expects string defining the time unit")
    if unit not in UNITS:
        raise FailedToParseError(f"unknown time unit value: {show(unit)}")
    count = whole_number(amount)
    if count is None:
        raise fault(5166405, f"{name} expects integer amount of time units")
    ms = shifted(start, unit, sign * count, zone)
    if not -INT64 <= ms < INT64:
        raise fault(5166406, f"{name} overflowed")
    return DateTime(ms)


def shifted(start: int, unit: str, count: int, zone: Zone) -> int:
    """Return a date so many units later. A day that the month has not becomes its last one."""
    if unit in _FIXED:
        return start + count * _FIXED[unit]
    local = zone.to_local(start)
    if unit in _DAYS:
        return zone.to_utc(local + count * _DAYS[unit] * DAY)
    parts = parts_of(local)
    month = parts.month + count * _MONTHS[unit]
    days = min(days_of(parts.year, month, parts.day), days_of(parts.year, month + 1, 1) - 1)
    return zone.to_utc(days * DAY + local % DAY)


def _unit(name: str, unit: Any) -> str:
    if not isinstance(unit, str):
        raise fault(5439013, f"{name} requires 'unit' to be a string, but got {type_name(unit)}")
    if unit not in UNITS:
        raise fault(5439014, f"{name} parameter 'unit' value cannot be recognized as a time unit: {show(unit)}")
    return unit


def _weekday(name: str, unit: str, value: Any) -> int:
    """Return the first day of a week, 0 for Sunday. It is read for weeks only."""
    if unit != "week":
        return 0
    if not isinstance(value, str):
        raise fault(5439015, f"{name} requires 'startOfWeek' to be a string, but got {type_name(value)}")
    wanted = value.lower()
    for number, day in enumerate(_WEEKDAYS):
        if wanted in (day, day[:3]):
            return number
    raise fault(5439016, f"{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {show(value)}")


def _difference(start: Any, end: Any, unit: Any, timezone: Any, start_of_week: Any) -> object:
    """Return how many beginnings of a unit lie between two dates."""
    name = "$dateDiff"
    if any(map(is_null, (start, end, unit, timezone))) or (unit == "week" and is_null(start_of_week)):
        return None
    zone = zone_of(timezone)
    moments = ms_of(start), ms_of(end)
    for field, moment, value in zip(("startDate", "endDate"), moments, (start, end), strict=True):
        if moment is None:
            raise fault(5166307, f"{name} requires '{field}' to be a date, but got {type_name(value)}")
    known = _unit(name, unit)
    first_day = _weekday(name, known, start_of_week)
    begin, finish = (_place(moment or 0, known, zone, first_day) for moment in moments)
    if not -INT64 <= finish - begin < INT64:
        raise fault(5166308, f"{name} overflowed")
    return Int64(finish - begin)


def _place(ms: int, unit: str, zone: Zone, first_day: int) -> int:
    """Return the number of the unit in which a date lies, counted from some day."""
    if unit in _FIXED:
        return (ms + zone.offset(ms) % _FIXED[unit]) // _FIXED[unit]  # an hour that the clock shows twice counts twice
    local = zone.to_local(ms)
    if unit == "week":
        return (local // DAY + 4 - first_day) // 7
    if unit == "day":
        return local // DAY
    parts = parts_of(local)
    return (parts.year * 12 + parts.month - 1) // _MONTHS[unit]


_BINS_FROM: Final = days_of(2000, 1, 1)
_SATURDAY: Final = 6
"""Of this day."""


def _truncate(date: Any, unit: Any, bin_size: Any, timezone: Any, start_of_week: Any) -> object:
    name = "$dateTrunc"
    if any(map(is_null, (date, unit, bin_size, timezone))) or (unit == "week" and is_null(start_of_week)):
        return None
    zone, ms = zone_of(timezone), ms_of(date)
    if ms is None:
        raise fault(5439012, f"{name} requires 'date' to be a date, but got {type_name(date)}")
    return _made(truncated(ms, *_bins(unit, bin_size, zone, start_of_week)), name)


def _bins(unit: Any, bin_size: Any, zone: Zone, start_of_week: Any) -> tuple[str, int, Zone, int]:
    """Return unit, size, zone and first day of a week as `truncated` takes them."""
    name = "$dateTrunc"
    size = whole_number(bin_size)
    if size is None:
        raise fault(5439017, f"{name} requires 'binSize' to be a 64-bit integer, but got value {show(bin_size)}")
    if size <= 0:
        raise fault(5439018, f"{name} requires 'binSize' to be greater than 0, but got value {size}")
    known = _unit(name, unit)
    return known, size, zone, _weekday(name, known, start_of_week)


_TRUNCATE: Final = named(
    "$dateTrunc",
    _truncate,
    ("date", "unit"),
    {"binSize": 1, "timezone": _NO_ZONE, "startOfWeek": "sunday"},
    5439007,
    5439008,
    {"date": 5439009, "unit": 5439010},
)


def _build_truncate(argument: Any, scope: Scope) -> Expression:
    """Return the expression of $dateTrunc. All but the date is looked at once if it is constant."""
    expression = _TRUNCATE.build(argument, scope)
    if expression.is_constant or expression.error is not None:
        return expression
    given = {"binSize": 1, "timezone": _NO_ZONE, "startOfWeek": "sunday", **argument}
    date = scope.compile(given.pop("date"))
    parts = {field: scope.compile(value) for field, value in given.items()}
    if not all(part.is_constant for part in parts.values()):
        return expression
    values = {field: part.value for field, part in parts.items()}
    try:
        bins = _bins(values["unit"], values["binSize"], zone_of(values["timezone"]), values["startOfWeek"])
    except ReplError:
        return expression

    def run(root: Mapping[str, Any], variables: Mapping[str, Any]) -> Any:
        value = date.run(root, variables)
        ms = value.ms if type(value) is DateTime else ms_of(value)
        return expression.run(root, variables) if ms is None else _made(truncated(ms, *bins), "$dateTrunc")

    return replace(expression, run=run, is_light=date.needs_no_limit)


def truncated(ms: int, unit: str, size: int, zone: Zone, first_day: int) -> int:
    """Return the begin of the bin of `size` units in which a date lies. Bins are counted from January 1, 2000."""
    if zone is ZULU and unit not in _FIXED:
        return _begin_of_days(ms // DAY, unit, size, first_day)
    return _begin(ms, unit, size, zone, first_day)


@lru_cache(4096)
def _begin_of_days(day: int, unit: str, size: int, first_day: int) -> int:
    """Do as `truncated` with any moment of a day: bins of days and longer ones begin with a day of UTC."""
    return _begin(day * DAY, unit, size, ZULU, first_day)


def _begin(ms: int, unit: str, size: int, zone: Zone, first_day: int) -> int:
    if unit in _FIXED:
        begin, length = zone.to_utc(_BINS_FROM * DAY), size * _FIXED[unit]
        return begin + (ms - begin) // length * length
    local = zone.to_local(ms)
    if unit in _DAYS:
        begin, length = _BINS_FROM, size * _DAYS[unit]
        if unit == "week":
            begin += (first_day - _SATURDAY) % 7
        return zone.to_utc((begin + (local // DAY - begin) // length * length) * DAY)
    parts, length = parts_of(local), size * _MONTHS[unit]
    months = ((parts.year - 2000) * 12 + parts.month - 1) // length * length
    return zone.to_utc(days_of(2000, months + 1, 1) * DAY)


_WEEK: Final = {"timezone": _NO_ZONE, "startOfWeek": "sunday"}

OPERATORS: Final = (
    *(_part(name, part) for name, part in _PARTS.items()),
    named("$dateToParts", _to_parts, ("date",), {"timezone": _NO_ZONE, "iso8601": False}, 40524, 40520, 40522),
    Operator("$dateFromParts", _from_parts),
    with_fallbacks(
        "$dateToString",
        _to_string,
        ("date",),
        {"format": ABSENT, "timezone": _NO_ZONE},
        (18629, 18534, 18628),
        ("onNull",),
    ),
    with_fallbacks(
        "$dateFromString",
        _from_string,
        ("dateString",),
        {"format": ABSENT, "timezone": _NO_ZONE},
        (40540, 40541, 40542),
        ("onNull", "onError"),
    ),
    *(
        named(
            name,
            partial(_add, name, sign),
            ("startDate", "unit", "amount"),
            {"timezone": _NO_ZONE},
            5166400,
            5166401,
            5166402,
        )
        for name, sign in (("$dateAdd", 1), ("$dateSubtract", -1))
    ),
    named(
        "$dateDiff",
        _difference,
        ("startDate", "endDate", "unit"),
        _WEEK,
        5166301,
        5166302,
        {"startDate": 5166303, "endDate": 5166304, "unit": 5166305},
    ),
    Operator("$dateTrunc", _build_truncate),
)
