"""Expressions on strings, dates and types: what each operator makes of its values, and each way to be refused."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Binary, Code, DateTime, Decimal128, Int64, MinKey, ObjectId, Regex, Symbol, Timestamp, encode
from replset.errors import ReplError
from replset.query.expressions import compile_expression
from replset.query.expressions.time_zones import DAY, civil, days_of, parts_of, zone_of
from replset.query.order import MISSING
from tests.examples import examples


def ms(text: str) -> DateTime:
    return DateTime.from_datetime(datetime.fromisoformat(text).replace(tzinfo=UTC))


OID = ObjectId("507c7f79bcf86cd7994f6c0e")  # 2012-10-15T21:26:17Z
D = ms("2020-11-01T18:23:36.045")
DOC: dict[str, Any] = {
    "s": "Grüße, Welt",
    "n": None,
    "i": 5,
    "long": Int64(7),
    "d": D,
    "t": Timestamp(1350336377, 9),
    "id": OID,
    "utc": "UTC",
    "obj": {"a": 1},
}


def value_of(expression: Any) -> Any:
    return compile_expression(expression).evaluate(DOC, {})


def of(operator: str, *rows: tuple[Any, ...]) -> list[Any]:
    """Rows that begin with this operator's argument."""
    return [({operator: argument}, *rest) for argument, *rest in rows]


STRINGS: list[tuple[Any, Any]] = [
    *of("$concat", (["a", "$s", "!"], "aGrüße, Welt!"), ([], ""), ("$s", "Grüße, Welt"), (["a", "$nowhere", 5], None)),
    ({"$toUpper": "$s"}, "GRüßE, WELT"),
    *of("$toLower", ("ÄBC", "Äbc"), ("$nowhere", "")),
    *of("$toUpper", ([1.5], "1.5"), ([Timestamp(1350336377, 31)], "OCT 15 21:26:17:1F")),
    *of("$toLower", (Code("A b"), "a b"), (Symbol("X"), "x"), (Decimal128("1E3"), "1e+3")),
    *of("$strcasecmp", (["abc", "ABD"], -1), (["$n", "a"], -1), (["X", "x"], 0), (["b", "A"], 1)),
    ({"$substrBytes": ["$s", 0, 4]}, "Grü"),
    *of("$substr", (["hello", 1.9, -1], "ello"), (["hello", 9, 2], ""), ([12345, 1, 2], "23")),
    ({"$substr": [D, 0, -1]}, "2020-11-01T18:23:36.045Z"),
    *of("$substrCP", (["$s", 2, 3], "üße"), (["$n", 0, 3], ""), (["abc", 5, 1], "")),
    ({"$strLenBytes": "$s"}, 13),
    ({"$strLenCP": "$s"}, 11),
    *of("$split", (["a-b--c", "-"], ["a", "b", "", "c"]), (["abc", "x"], ["abc"]), (["$n", 5], None)),
    ({"$indexOfBytes": ["$s", "W"]}, 9),
    *of("$indexOfCP", (["$s", "W"], 7), (["$s", "e", 5], 8), (["$s", "e", 5, 8.0], -1), (["abc", "", 3], 3)),
    *of("$indexOfCP", (["abc", "", 4], -1), (["abc", "a", 2, 1], -1)),
    ({"$indexOfBytes": ["$nowhere", 7]}, None),
    *of("$trim", ({"input": " \t\u00a0a b\0\n"}, "a b"), ({"input": "xxaxyx", "chars": "xy"}, "a")),
    ({"$ltrim": {"input": "xxax", "chars": "x"}}, "ax"),
    ({"$rtrim": {"input": " a "}}, " a"),
    *of("$trim", ({"input": " a", "chars": ""}, " a"), ({"input": "a", "chars": "$nowhere"}, None)),
    ({"$trim": {"input": "$n"}}, None),
    ({"$replaceOne": {"input": "a.a.a", "find": ".", "replacement": ""}}, "aa.a"),
    ({"$replaceAll": {"input": "a.a.a", "find": ".", "replacement": "--"}}, "a--a--a"),
    ({"$replaceAll": {"input": "äb", "find": "", "replacement": "-"}}, "-ä-b-"),
    ({"$replaceAll": {"input": "a", "find": "$n", "replacement": "b"}}, None),
    ({"$regexMatch": {"input": "$s", "regex": "^gr", "options": "i"}}, True),
    *of("$regexMatch", ({"input": "$s", "regex": Regex("^gr", "")}, False), ({"input": "$n", "regex": "a"}, False)),
    ({"$regexMatch": {"input": "a", "regex": "$n", "options": "$n"}}, False),
    ({"$regexFind": {"input": "$s", "regex": "(ß)(e)(x)?"}}, {"match": "ße", "idx": 3, "captures": ["ß", "e", None]}),
    *of("$regexFind", ({"input": "$s", "regex": "zz"}, None), ({"input": "$nowhere", "regex": "a"}, None)),
    (
        {"$regexFindAll": {"input": "xaxbx", "regex": Regex("X(.)?", "i")}},
        [
            {"match": "xa", "idx": 0, "captures": ["a"]},
            {"match": "xb", "idx": 2, "captures": ["b"]},
            {"match": "x", "idx": 4, "captures": [None]},
        ],
    ),
    (
        {"$regexFindAll": {"input": "äb", "regex": "x*"}},
        [{"match": "", "idx": place, "captures": []} for place in range(3)],
    ),
    ({"$regexFindAll": {"input": "aaa", "regex": "^a"}}, [{"match": "a", "idx": 0, "captures": []}]),
    ({"$regexFindAll": {"input": "a", "regex": "$nowhere"}}, []),
]
PARIS = {"timezone": "Europe/Paris"}
DATES: list[tuple[Any, Any]] = [
    ({"$year": "$d"}, 2020),
    ({"$month": ["$d"]}, 11),
    ({"$dayOfMonth": {"date": "$d", "timezone": "+0600"}}, 2),
    ({"$hour": {"date": "$d", "timezone": "America/New_York"}}, 13),
    ({"$minute": "$d"}, 23),
    ({"$second": "$d"}, 36),
    ({"$millisecond": "$d"}, 45),
    ({"$dayOfYear": "$d"}, 306),
    ({"$dayOfWeek": "$d"}, 1),
    ({"$week": "$d"}, 44),
    ({"$isoWeek": "$d"}, 44),
    ({"$isoDayOfWeek": "$d"}, 7),
    ({"$isoWeekYear": ms("2021-01-01T00:00:00")}, Int64(2020)),
    ({"$isoWeek": ms("2021-01-01T00:00:00")}, 53),
    ({"$week": ms("2021-01-01T00:00:00")}, 0),
    ({"$year": "$id"}, 2012),
    ({"$second": "$t"}, 17),
    *of("$year", (DateTime(-62_198_755_200_000), -1), ("$nowhere", None), ({"date": "$d", "timezone": "$n"}, None)),
    ({"$year": {"$literal": D}}, 2020),
    (
        {"$dateToParts": {"date": "$d", **PARIS}},
        {"year": 2020, "month": 11, "day": 1, "hour": 19, "minute": 23, "second": 36, "millisecond": 45},
    ),
    (
        {"$dateToParts": {"date": "$d", "iso8601": True}},
        {"isoWeekYear": 2020, "isoWeek": 44, "isoDayOfWeek": 7, "hour": 18, "minute": 23, "second": 36}
        | {"millisecond": 45},
    ),
    *of("$dateToParts", ({"date": "$n"}, None), ({"date": "$d", "iso8601": "$n"}, None)),
    ({"$dateFromParts": {"year": 2017, "month": 2, "day": 29}}, ms("2017-03-01T00:00:00")),
    ({"$dateFromParts": {"year": 2017, "month": 14, "day": 0, "hour": 25}}, ms("2018-02-01T01:00:00")),
    ({"$dateFromParts": {"year": 2017, "month": 0, "minute": -1}}, ms("2016-11-30T23:59:00")),
    ({"$dateFromParts": {"year": 2017, "hour": 3, **PARIS}}, ms("2017-01-01T02:00:00")),
    ({"$dateFromParts": {"year": 2017, "month": 3, "day": 26, "hour": 2, **PARIS}}, ms("2017-03-26T01:00:00")),
    ({"$dateFromParts": {"year": 2017, "month": 10, "day": 29, "hour": 2, **PARIS}}, ms("2017-10-29T00:00:00")),
    ({"$dateFromParts": {"isoWeekYear": 2020, "isoWeek": 53, "isoDayOfWeek": 5}}, ms("2021-01-01T00:00:00")),
    ({"$dateFromParts": {"isoWeekYear": 2017.0, "second": Int64(90)}}, ms("2017-01-02T00:01:30")),
    *of("$dateFromParts", ({"year": 2017, "month": "$n"}, None), ({"year": 2017, "timezone": "$n"}, None)),
    ({"$dateToString": {"date": "$d"}}, "2020-11-01T18:23:36.045Z"),
    ({"$dateToString": {"date": "$d", **PARIS}}, "2020-11-01T19:23:36.045"),
    ({"$dateToString": {"date": "$id", "format": "%d.%m.%Y %H:%M:%S"}}, "15.10.2012 21:26:17"),
    (
        {"$dateToString": {"date": "$d", "timezone": "-03:30", "format": "%j %w %u %U %V %G %z %Z %L%%"}},
        "306 1 7 44 44 2020 -0330 -210 045%",
    ),
    *of("$dateToString", ({"date": "$n", "onNull": "none"}, "none"), ({"date": "$n"}, None)),
    ({"$dateToString": {"date": "$d", "format": "$n", "onNull": 1}}, None),
    ({"$dateToString": {"date": "$d", "timezone": "$nowhere"}}, None),
    ({"$dateFromString": {"dateString": "2020-11-01T18:23:36.045Z"}}, D),
    ({"$dateFromString": {"dateString": "2020-11-01"}}, ms("2020-11-01T00:00:00")),
    ({"$dateFromString": {"dateString": "2020-11-01 10:20", **PARIS}}, ms("2020-11-01T09:20:00")),
    ({"$dateFromString": {"dateString": "2020-11-01T10:20:30+02:00"}}, ms("2020-11-01T08:20:30")),
    ({"$dateFromString": {"dateString": "2020-11-01 10:20:30.5 GMT-3"}}, ms("2020-11-01T13:20:30.5")),
    ({"$dateFromString": {"dateString": "2020-07-01 10:20 America/New_York"}}, ms("2020-07-01T14:20:00")),
    ({"$dateFromString": {"dateString": "20201101"}}, ms("2020-11-01T00:00:00")),
    ({"$dateFromString": {"dateString": "2020-W44-7"}}, ms("2020-11-01T00:00:00")),
    ({"$dateFromString": {"dateString": "July 4th, 2017 11:56:02 PM"}}, ms("2017-07-04T23:56:02")),
    ({"$dateFromString": {"dateString": "Tue, 4 Jul 2017 11:56:02 +0200"}}, ms("2017-07-04T09:56:02")),
    ({"$dateFromString": {"dateString": "7/4/2017"}}, ms("2017-07-04T00:00:00")),
    ({"$dateFromString": {"dateString": "04-07-2017 5h", "format": "%d-%m-%Y %Hh"}}, ms("2017-07-04T05:00:00")),
    (
        {"$dateFromString": {"dateString": "2017 07 3.9 +0130", "format": "%G %V %u.%L %z"}},
        ms("2017-02-14T22:30:00.009"),
    ),
    ({"$dateFromString": {"dateString": "2017/032 -90", "format": "%Y/%j %Z"}}, ms("2017-02-01T01:30:00")),
    ({"$dateFromString": {"dateString": "soon", "onError": "$s"}}, "Grüße, Welt"),
    ({"$dateFromString": {"dateString": 5, "onError": "no"}}, "no"),
    ({"$dateFromString": {"dateString": "$n", "onNull": "none", "onError": "no"}}, "none"),
    ({"$dateFromString": {"dateString": "2017-01-01", "format": "$n"}}, None),
    ({"$dateFromString": {"dateString": "2017-01-01", "timezone": "$n"}}, None),
    # as in MongoDB's own tests
    (
        {"$dateAdd": {"startDate": ms("2020-10-24T18:10:00"), "unit": "hour", "amount": 24, **PARIS}},
        ms("2020-10-25T18:10:00"),
    ),
    (
        {"$dateAdd": {"startDate": ms("2020-10-24T18:10:00"), "unit": "day", "amount": 1, **PARIS}},
        ms("2020-10-25T19:10:00"),
    ),
    (
        {"$dateAdd": {"startDate": ms("2021-01-30T23:30:00"), "unit": "month", "amount": 1, **PARIS}},
        ms("2021-02-27T23:30:00"),
    ),
    (
        {"$dateSubtract": {"startDate": ms("2021-01-31T03:00:00"), "unit": "month", "amount": 2}},
        ms("2020-11-30T03:00:00"),
    ),
    ({"$dateSubtract": {"startDate": "$d", "unit": "quarter", "amount": Int64(2)}}, ms("2020-05-01T18:23:36.045")),
    ({"$dateAdd": {"startDate": "$id", "unit": "week", "amount": 1.0}}, ms("2012-10-22T21:26:17")),
    ({"$dateAdd": {"startDate": "$d", "unit": "year", "amount": "$n"}}, None),
    (
        {"$dateDiff": {"startDate": ms("2020-11-01T18:23:36"), "endDate": ms("2020-11-02T00:00:00"), "unit": "hour"}},
        Int64(6),
    ),
    (
        {
            "$dateDiff": {
                "startDate": ms("2021-01-17T05:00:00"),
                "endDate": ms("2021-01-17T04:59:00"),
                "unit": "week",
                "timezone": "America/New_York",
                "startOfWeek": "SUN",
            }
        },
        Int64(-1),
    ),
    ({"$dateDiff": {"startDate": "$id", "endDate": "$d", "unit": "year"}}, Int64(8)),
    ({"$dateDiff": {"startDate": "$id", "endDate": "$d", "unit": "quarter"}}, Int64(32)),
    ({"$dateDiff": {"startDate": "$id", "endDate": "$d", "unit": "month", "startOfWeek": 5}}, Int64(97)),
    ({"$dateDiff": {"startDate": "$d", "endDate": "$id", "unit": "day"}}, Int64(-2939)),
    ({"$dateDiff": {"startDate": "$d", "endDate": "$d", "unit": "millisecond"}}, Int64(0)),
    ({"$dateDiff": {"startDate": 1, "endDate": 2, "unit": "week", "startOfWeek": "$n", "timezone": 1}}, None),
    ({"$dateTrunc": {"date": "$d", "unit": "week"}}, ms("2020-11-01T00:00:00")),
    (
        {
            "$dateTrunc": {
                "date": ms("2000-01-30T18:00:00"),
                "unit": "week",
                "binSize": 2,
                "timezone": "America/New_York",
                "startOfWeek": "mon",
            }
        },
        ms("2000-01-17T05:00:00"),
    ),
    (
        {
            "$dateTrunc": {
                "date": ms("2021-12-01T18:23:36"),
                "unit": "hour",
                "binSize": 4,
                "timezone": "America/New_York",
            }
        },
        ms("2021-12-01T17:00:00"),
    ),
    ({"$dateTrunc": {"date": "$id", "unit": "minute", "binSize": Decimal128("10")}}, ms("2012-10-15T21:20:00")),
    ({"$dateTrunc": {"date": "$d", "unit": "quarter"}}, ms("2020-10-01T00:00:00")),
    ({"$dateTrunc": {"date": "$d", "unit": "month", "binSize": 5}}, ms("2020-11-01T00:00:00")),
    ({"$dateTrunc": {"date": ms("1999-05-05T00:00:00"), "unit": "year", "binSize": 3}}, ms("1997-01-01T00:00:00")),
    ({"$dateTrunc": {"date": "$d", "unit": "day", **PARIS}}, ms("2020-10-31T23:00:00")),
    ({"$dateTrunc": {"unit": "H", "date": "$n", "binSize": "string", "timezone": 1}}, None),
]
TYPES: list[tuple[Any, Any]] = [
    *of("$toInt", ("-12", -12), (5.9, 5), ([Decimal128("-5.9")], -5), (True, 1), ("$nowhere", None)),
    *of("$toLong", (5, Int64(5)), (D, Int64(D.ms)), ("9223372036854775807", Int64((1 << 63) - 1))),
    *of("$toDouble", ("1e3", 1000.0), (Decimal128("0.5"), 0.5), (D, float(D.ms)), ("-inf", float("-inf"))),
    *of("$toDecimal", (2.5, Decimal128("2.50000000000000")), ("1.25", Decimal128("1.25"))),
    *of("$toDecimal", (Int64(3), Decimal128("3")), (False, Decimal128("0"))),
    *of("$toBool", ("false", True), (0.0, False), (MinKey(), True), ([[]], True)),
    *of("$toString", (2.5, "2.5"), (1.0, "1"), (-0.0, "-0"), (float("inf"), "Infinity"), (1e20, "1e+20")),
    *of("$toString", (Decimal128("1.0"), "1.0"), (True, "true"), ("$id", str(OID))),
    *of("$toString", ("$d", "2020-11-01T18:23:36.045Z"), (Int64(4), "4")),
    *of("$toDate", (Int64(5), DateTime(5)), (5.7, DateTime(5)), ("2020-11-01T18:23:36.045Z", D)),
    *of("$toDate", ("$id", ms("2012-10-15T21:26:17")), ("$t", ms("2012-10-15T21:26:17"))),
    ({"$toObjectId": str(OID)}, OID),
    *of("$convert", ({"input": "5", "to": "int"}, 5), ({"input": "5", "to": 1}, 5.0)),
    ({"$convert": {"input": "x", "to": "int", "onError": "$i"}}, 5),
    *of("$convert", ({"input": "$n", "to": "int", "onNull": -1}, -1), ({"input": 5, "to": "$n"}, None)),
    ({"$convert": {"input": {"a": 1}, "to": "int", "onError": {"$concat": ["no", "!"]}}}, "no!"),
    *of("$type", ("$nowhere", "missing"), ("$i", "int"), ([[]], "array")),
    *of("$isNumber", ("$long", True), ("$s", False)),
    *of("$binarySize", ("$s", 13), (Binary(b"abc", 5), 3), ("$n", None)),
    *of("$bsonSize", ("$obj", 12), ("$nowhere", None)),
    ({"$tsSecond": "$t"}, Int64(1350336377)),
    ({"$tsIncrement": "$t"}, Int64(9)),
    ({"$tsSecond": "$n"}, None),
    *of("$bitAnd", ([7, "$i"], 5), ([], -1)),
    ({"$bitOr": ["$long", 8]}, Int64(15)),
    *of("$bitXor", ([1, 3, -1], -3), ([1, None], None)),
    *of("$bitNot", ("$i", -6), ("$long", Int64(-8))),
]


@pytest.mark.parametrize(("expression", "wanted"), STRINGS + DATES + TYPES, ids=str)
def test_what_comes_out(expression: Any, wanted: Any) -> None:
    found = value_of(expression)
    assert found is not MISSING
    assert encode({"": found}) == encode({"": wanted})


START = {"startDate": "$d", "unit": "day", "amount": 1}
DIFF = {"startDate": "$d", "endDate": "$d", "unit": "week"}
TRUNC = {"date": "$d", "unit": "week"}
REFUSALS: list[tuple[Any, int]] = [
    ({"$concat": ["a", 5]}, 16702),
    *of("$toUpper", ([["a"]], 16007), (["a", "b"], 16020)),
    *of("$substr", (["a", "0", 1], 16034), (["a", 0, Decimal128("1")], 16035), (["a", -1, 1], 50752)),
    *of("$substrBytes", (["$s", 3, 1], 28656), (["$s", 0, 3], 28657)),
    *of("$substrCP", (["a", "x", 1], 34450), (["a", 0.5, 1], 34451), (["a", 0, None], 34452), (["a", 0, 1e10], 34453)),
    *of("$substrCP", (["a", 0, -1], 34454), (["a", -1, 1], 34455)),
    ({"$strLenBytes": "$n"}, 34473),
    ({"$strLenCP": 5}, 34471),
    *of("$split", ([5, "a"], 40085), (["a", 5], 40086), (["a", ""], 40087)),
    *of("$indexOfBytes", ([5, "a"], 40091), (["a", "$n"], 40092)),
    *of("$indexOfCP", ([5, "a"], 40093), (["a", 5], 40094), (["a", "a", "x"], 40096), (["a", "a", 0, -1], 40097)),
    ({"$indexOfCP": ["a"]}, 28667),
    *of("$trim", ("a", 50696), ({"input": "a", "x": 1}, 50694)),
    ({"$ltrim": {"chars": "a"}}, 50695),
    *of("$rtrim", ({"input": 5}, 50699), ({"input": "a", "chars": 5}, 50700)),
    *of("$replaceOne", ("a", 51751), ({"x": 1}, 51750), ({"find": "a", "replacement": "a"}, 51749)),
    *of("$replaceAll", ({"input": "a", "replacement": "a"}, 51748), ({"input": "a", "find": "a"}, 51747)),
    ({"$replaceAll": {"input": 5, "find": "a", "replacement": "a"}}, 51746),
    ({"$replaceAll": {"input": "a", "find": 5, "replacement": "a"}}, 51745),
    ({"$replaceAll": {"input": "$n", "find": "a", "replacement": 5}}, 51744),
    *of("$regexFind", ("a", 51103), ({"input": "a", "x": 1}, 31024), ({"regex": "a"}, 31022), ({"input": "a"}, 31023)),
    *of("$regexMatch", ({"input": 5, "regex": "a"}, 51104), ({"input": "a", "regex": 5}, 51105)),
    ({"$regexMatch": {"input": "a", "regex": "a", "options": 5}}, 51106),
    ({"$regexMatch": {"input": "a", "regex": Regex("a", "i"), "options": "i"}}, 51107),
    *of("$regexMatch", ({"input": "a", "regex": "a", "options": "q"}, 51108), ({"input": "a", "regex": "a\0"}, 51109)),
    *of("$regexMatch", ({"input": "a", "regex": "a", "options": "\0"}, 51110), ({"input": "a", "regex": "("}, 51111)),
    *of("$year", ("soon", 16006), ({"date": "$d", "x": 1}, 40535), ({"timezone": "UTC"}, 40539), (["$d", 1], 40536)),
    *of("$year", ({"date": "$d", "timezone": 5}, 40533), ({"date": "$d", "timezone": "Europe/Nowhere"}, 40485)),
    *of("$hour", ({"date": "$d", "timezone": "../../etc/passwd"}, 40485), ({"date": "$d", "timezone": "+2"}, 40485)),
    *of("$dateToParts", ("$d", 40524), ({"x": 1}, 40520), ({"timezone": "UTC"}, 40522)),
    *of("$dateToParts", ({"date": "$d", "iso8601": 1}, 40521), ({"date": "$d", "timezone": 1}, 40517)),
    *of("$dateFromParts", (5, 40519), ({"x": 1}, 40518), ({"month": 1}, 40516), ({"year": 1, "isoWeek": 1}, 40489)),
    *of("$dateFromParts", ({"isoWeekYear": 1, "month": 1}, 40525), ({"year": "x"}, 40515), ({"year": 10_000}, 40523)),
    *of("$dateFromParts", ({"isoWeekYear": -1}, 31095), ({"year": 1, "month": 40_000}, 31034)),
    ({"$dateFromParts": {"year": 1, "second": Int64(1 << 60)}}, 159),
    *of("$dateToString", ("$d", 18629), ({"x": 1}, 18534), ({"format": "%Y"}, 18628)),
    *of("$dateToString", ({"date": "$n", "format": 5}, 18533), ({"date": "$n", "format": "5%"}, 18535)),
    *of("$dateToString", ({"date": "$n", "format": "%q"}, 18536), ({"date": DateTime(-1 << 62)}, 18537)),
    ({"$dateToString": {"date": "$s"}}, 16006),
    *of("$dateFromString", ("x", 40540), ({"x": 1}, 40541), ({"format": "%Y"}, 40542)),
    *of("$dateFromString", ({"dateString": "x", "format": 5}, 40684), ({"dateString": "x", "format": "%w"}, 18536)),
    ({"$dateFromString": {"dateString": 5}}, 241),
    *(
        ({"$dateFromString": {"dateString": text, **PARIS}}, 241)
        for text in ("", "soon", "2017", "2017-02-30", "2017-13-01", "2017-01-01T25:00", "2017-01-01Z", "x" * 300)
    ),
    ({"$dateFromString": {"dateString": "2017-01-01 10:00 Europe/Nowhere"}}, 241),
    ({"$dateFromString": {"dateString": "2017-01", "format": "%Y-%m"}}, 241),
    ({"$dateFromString": {"dateString": "2017 2017", "format": "%Y %Y"}}, 241),
    *of("$dateAdd", (5, 5166400), ({**START, "x": 1}, 5166401)),
    ({"$dateSubtract": {"startDate": "$d", "unit": "day"}}, 5166402),
    *of("$dateAdd", ({**START, "startDate": "$s"}, 5166403), ({**START, "unit": 1}, 5166404)),
    *of("$dateAdd", ({**START, "unit": "epoch"}, 9), ({**START, "amount": 1.001}, 5166405)),
    *of("$dateAdd", ({**START, "amount": Int64(1 << 62)}, 5166406), ({**START, "timezone": "Unknown"}, 40485)),
    *of("$dateDiff", (5, 5166301), ({**DIFF, "x": 1}, 5166302), ({"endDate": "$d", "unit": "day"}, 5166303)),
    *of("$dateDiff", ({"startDate": "$d", "unit": "day"}, 5166304), ({"startDate": "$d", "endDate": "$d"}, 5166305)),
    ({"$dateDiff": {**DIFF, "endDate": 1}}, 5166307),
    (
        {"$dateDiff": {"startDate": DateTime(-1 << 63), "endDate": DateTime((1 << 63) - 1), "unit": "millisecond"}},
        5166308,
    ),
    *of("$dateDiff", ({**DIFF, "unit": 5}, 5439013), ({**DIFF, "unit": "decade"}, 5439014)),
    *of("$dateDiff", ({**DIFF, "startOfWeek": 1}, 5439015), ({**DIFF, "startOfWeek": "FRIDIE"}, 5439016)),
    ({"$dateDiff": {**DIFF, "timezone": 1}}, 40517),
    *of("$dateTrunc", ("A", 5439007), ({"endDate": 1}, 5439008), ({"unit": "week"}, 5439009)),
    *of("$dateTrunc", ({"date": "$d"}, 5439010), ({**TRUNC, "date": "string"}, 5439012)),
    *of("$dateTrunc", ({**TRUNC, "binSize": 2.5}, 5439017), ({**TRUNC, "binSize": 0}, 5439018)),
    ({"$dateTrunc": {**TRUNC, "unit": 1}}, 5439013),
    *of("$convert", (5, 9), ({"input": 1}, 9), ({"input": 1, "to": "int", "x": 1}, 9)),
    *of("$convert", ({"input": 1, "to": "integer"}, 2), ({"input": 1, "to": 1.5}, 9), ({"input": 1, "to": 100}, 9)),
    ({"$convert": {"input": 1, "to": {}}}, 9),
    ({"$toInt": [1, 2]}, 50723),
    *(({"$toInt": text}, 241) for text in ("", " 1", "1_0", "1.5", "0x1", "2147483648", "\uff11")),
    *(({"$toInt": value}, 241) for value in (1e10, Int64(1 << 40), float("nan"), float("inf"), D, Decimal128("NaN"))),
    *(({"$toLong": value}, 241) for value in (1e19, Decimal128("1E400"), "9223372036854775808")),
    *(({"$toDouble": value}, 241) for value in ("1e999", "1_0", " 1", Decimal128("1E400"), Decimal128("1E-6000"))),
    *(({"$toDecimal": value}, 241) for value in ("1e99999", "0x1", "")),
    *(({"$toObjectId": value}, 241) for value in ("x", 5, "z" * 24)),
    *(({"$toDate": value}, 241) for value in (5, True, "soon")),
    *(({"$toString": value}, 241) for value in ({"$literal": {}}, Binary(b"x"), Regex("a"))),
    ({"$type": [1, 2]}, 16020),
    ({"$binarySize": 5}, 51276),
    ({"$bsonSize": "x"}, 31393),
    ({"$tsSecond": "$d"}, 5687301),
    ({"$tsIncrement": 1}, 5687302),
    ({"$bitAnd": [1.0]}, 14),
    *of("$bitNot", ("x", 28765), (1.0, 14)),
    *of("$rand", (5, 10065), ({"x": 1}, 3040501)),
]


@pytest.mark.parametrize(("expression", "code"), REFUSALS, ids=str)
def test_refusals(expression: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        value_of(expression)
    assert failure.value.code == code


def test_a_random_number_is_not_folded() -> None:
    expression = compile_expression({"$rand": {}})
    assert not expression.is_constant
    found = {expression.evaluate({}, {}) for _ in range(5)}
    assert len(found) == 5
    assert all(0 <= number < 1 for number in found)


@pytest.mark.parametrize(
    "expression",
    [
        {"$replaceAll": {"input": "$long", "find": "", "replacement": "$long"}},
        {"$concat": ["$long"] * 110},
        {"$split": ["$long", "a"]},
    ],
    ids=str,
)
def test_no_operator_takes_memory_without_a_limit(expression: Any) -> None:
    with pytest.raises(ReplError) as failure:
        compile_expression(expression).evaluate({"long": "a" * 2_000_000}, {})
    assert failure.value.code == 146


@examples(150)
@given(st.dates(), st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Asia/Kathmandu", "-0330"]))
def test_the_calendar_is_pythons(day: date, name: str) -> None:
    days = (day - date(1970, 1, 1)).days
    assert civil(days) == (day.year, day.month, day.day)
    assert days_of(day.year, day.month, day.day) == days
    parts = parts_of(days * DAY)
    assert (parts.iso_week_year, parts.iso_week, parts.iso_weekday) == tuple(day.isocalendar())
    assert (parts.weekday, parts.week) == (int(day.strftime("%w")) + 1, int(day.strftime("%U")))
    assert parts.day_of_year == day.timetuple().tm_yday
    if not 2 < day.year < 9999:
        return
    zone = zone_of(name)
    local = zone.to_local(days * DAY)
    wanted = datetime(day.year, day.month, day.day, tzinfo=UTC)
    if zone.place is not None:
        shown = wanted.astimezone(ZoneInfo(name)).replace(tzinfo=UTC, microsecond=0)
        assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=local) == shown
    assert zone.to_utc(local) in (days * DAY, days * DAY - 3_600_000)


@given(st.integers(-62_135_000_000_000, 253_402_000_000_000).map(DateTime), st.integers(-5000, 5000))
def test_months_are_added_as_by_hand(begin: DateTime, months: int) -> None:
    start = begin.to_datetime()
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    if not 1 <= year <= 9998:
        return
    wanted = start.replace(year=year, month=month + 1, day=min(start.day, calendar.monthrange(year, month + 1)[1]))
    found = value_of({"$dateAdd": {"startDate": begin, "unit": "month", "amount": months}})
    assert found == DateTime.from_datetime(wanted)
    back = {"$dateDiff": {"startDate": begin, "endDate": found, "unit": "month"}}
    assert value_of(back) == months
