"""Extended JSON v2: every type in its canonical and relaxed form, and what is no Extended JSON."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime

import pytest

from replset.bson import (
    MAX_DEPTH,
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    ExtendedJSONError,
    Int64,
    InvalidBSONError,
    MaxKey,
    MinKey,
    ObjectId,
    RawDocument,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    encode,
)
from replset.ejson import from_ejson, from_ejson_value, to_ejson, to_ejson_value

OID = ObjectId("0123456789abcdeffedcba98")
OID_JSON = '{"$oid":"0123456789abcdeffedcba98"}'

# id: (value, canonical, relaxed; None where it is the same)
TYPES: dict[str, tuple[object, str, str | None]] = {
    "double": (1.5, '{"$numberDouble":"1.5"}', "1.5"),
    "double whole": (1.0, '{"$numberDouble":"1.0"}', "1.0"),
    "double negative zero": (-0.0, '{"$numberDouble":"-0.0"}', "-0.0"),
    "double large": (1.2345678921232e18, '{"$numberDouble":"1.2345678921232E+18"}', "1.2345678921232e+18"),
    "double million": (1000000.0, '{"$numberDouble":"1E+06"}', "1000000.0"),
    "double below a million": (999999.5, '{"$numberDouble":"999999.5"}', "999999.5"),
    "double small": (0.0001, '{"$numberDouble":"0.0001"}', "0.0001"),
    "double smaller": (-0.000012, '{"$numberDouble":"-1.2E-05"}', "-0.000012"),
    "double least": (5e-324, '{"$numberDouble":"5E-324"}', "5e-324"),
    "double most": (1.7976931348623157e308, '{"$numberDouble":"1.7976931348623157E+308"}', "1.7976931348623157e+308"),
    "double infinity": (math.inf, '{"$numberDouble":"Infinity"}', None),
    "double minus infinity": (-math.inf, '{"$numberDouble":"-Infinity"}', None),
    "string": ('é"\\\n\0/<', '"é\\"\\\\\\n\\u0000/<"', None),
    "string line separators": ("\u2028\u2029", '"\\u2028\\u2029"', None),
    "document": ({"x": 1}, '{"x":{"$numberInt":"1"}}', '{"x":1}'),
    "document empty": ({}, "{}", None),
    "array": ([1, None], '[{"$numberInt":"1"},null]', "[1,null]"),
    "binary": (Binary(b"\xff\xff", 0), '{"$binary":{"base64":"//8=","subType":"00"}}', None),
    "binary empty": (Binary(b"", 0), '{"$binary":{"base64":"","subType":"00"}}', None),
    "binary old": (Binary(b"\xff\xff", 2), '{"$binary":{"base64":"//8=","subType":"02"}}', None),
    "binary user": (Binary(b"\xff\xff", 0x80), '{"$binary":{"base64":"//8=","subType":"80"}}', None),
    "undefined": (Undefined(), '{"$undefined":true}', None),
    "object id": (OID, OID_JSON, None),
    "true": (True, "true", None),
    "false": (False, "false", None),
    "null": (None, "null", None),
    "date": (
        DateTime(1_356_351_330_501),
        '{"$date":{"$numberLong":"1356351330501"}}',
        '{"$date":"2012-12-24T12:15:30.501Z"}',
    ),
    "date whole second": (DateTime(0), '{"$date":{"$numberLong":"0"}}', '{"$date":"1970-01-01T00:00:00Z"}'),
    "date ten milliseconds": (DateTime(10), '{"$date":{"$numberLong":"10"}}', '{"$date":"1970-01-01T00:00:00.010Z"}'),
    "date before 1970": (DateTime(-1), '{"$date":{"$numberLong":"-1"}}', None),
    "date last of 9999": (
        DateTime(253_402_300_799_999),
        '{"$date":{"$numberLong":"253402300799999"}}',
        '{"$date":"9999-12-31T23:59:59.999Z"}',
    ),
    "date year 10000": (DateTime(253_402_300_800_000), '{"$date":{"$numberLong":"253402300800000"}}', None),
    "regex": (Regex("a/b", "im"), '{"$regularExpression":{"pattern":"a/b","options":"im"}}', None),
    "db pointer": (DBPointer("a.b", OID), '{"$dbPointer":{"$ref":"a.b","$id":' + OID_JSON + "}}", None),
    "code": (Code("f()"), '{"$code":"f()"}', None),
    "code with scope": (
        CodeWithScope("f()", {"x": 1}),
        '{"$code":"f()","$scope":{"x":{"$numberInt":"1"}}}',
        '{"$code":"f()","$scope":{"x":1}}',
    ),
    "symbol": (Symbol("s"), '{"$symbol":"s"}', None),
    "int32": (-5, '{"$numberInt":"-5"}', "-5"),
    "int32 most": (2**31 - 1, '{"$numberInt":"2147483647"}', "2147483647"),
    "int64": (Int64(2**31), '{"$numberLong":"2147483648"}', "2147483648"),
    "int64 least": (Int64(-(2**63)), '{"$numberLong":"-9223372036854775808"}', "-9223372036854775808"),
    "timestamp": (Timestamp(2**32 - 1, 42), '{"$timestamp":{"t":4294967295,"i":42}}', None),
    "decimal": (Decimal128("1.50"), '{"$numberDecimal":"1.50"}', None),
    "decimal infinity": (Decimal128("-Infinity"), '{"$numberDecimal":"-Infinity"}', None),
    "min key": (MinKey(), '{"$minKey":1}', None),
    "max key": (MaxKey(), '{"$maxKey":1}', None),
}


@pytest.mark.parametrize(("value", "canonical", "relaxed"), TYPES.values(), ids=TYPES)
def test_each_type_both_ways(value: object, canonical: str, relaxed: str | None) -> None:
    relaxed = canonical if relaxed is None else relaxed
    assert to_ejson({"a": value}, canonical=True) == '{"a":' + canonical + "}"
    # Numbers as such: how many digits an exponent has is the JSON writer's affair.
    assert repr(json.loads(to_ejson({"a": value}))) == repr(json.loads('{"a":' + relaxed + "}"))
    assert to_ejson(value).startswith(relaxed[:1])
    assert to_ejson(value, canonical=True) == canonical
    assert to_ejson_value(value, canonical=True) == json.loads(canonical)
    for text in (canonical, relaxed):
        back = from_ejson('{"a":' + text + "}")
        assert repr(back) == repr({"a": value})
        assert encode(back) == encode({"a": value})
        assert repr(from_ejson_value(json.loads(text))) == repr(value)


def test_nan() -> None:
    assert to_ejson({"a": math.nan}) == '{"a":{"$numberDouble":"NaN"}}'
    assert math.isnan(from_ejson('{"a":{"$numberDouble":"NaN"}}')["a"])
    assert to_ejson(Decimal128("NaN")) == '{"$numberDecimal":"NaN"}'


def test_regex_options_are_sorted() -> None:
    assert to_ejson(Regex("a", "xmi")) == '{"$regularExpression":{"pattern":"a","options":"imx"}}'
    text = '{"a":{"$regularExpression":{"options":"mix","pattern":"a"}}}'
    assert from_ejson(text) == {"a": Regex("a", "imx")}


def test_small_int64_loses_its_type_in_relaxed_form_only() -> None:
    assert to_ejson({"a": Int64(1)}, canonical=True) == '{"a":{"$numberLong":"1"}}'
    assert to_ejson({"a": Int64(1)}) == '{"a":1}'


@pytest.mark.parametrize(
    ("value", "relaxed"),
    [
        (b"\xff\xff", '{"$binary":{"base64":"//8=","subType":"00"}}'),
        (uuid.UUID(int=1), '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}'),
        (datetime(1970, 1, 1, tzinfo=UTC), '{"$date":"1970-01-01T00:00:00Z"}'),
        ((1, 2), "[1,2]"),
        (2**40, "1099511627776"),
        (RawDocument(encode({"x": [RawDocument(encode({}))]})), '{"x":[{}]}'),
    ],
)
def test_what_else_is_written(value: object, relaxed: str) -> None:
    assert to_ejson(value) == relaxed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2147483648", Int64(2**31), id="int64 by size"),
        pytest.param("9223372036854775807", Int64(2**63 - 1), id="int64 most"),
        pytest.param("9223372036854775808", 2.0**63, id="beyond int64"),
        pytest.param("18446744073709551616", 2.0**64, id="beyond 64 bits"),
        pytest.param("-9223372036854775809", -(2.0**63), id="below int64"),
        pytest.param("123456789012345678901234567890", 123456789012345678901234567890.0, id="thirty digits"),
        pytest.param("1e2", 100.0, id="exponent"),
        pytest.param('{"$numberDouble":"1e5"}', 1e5, id="numberDouble small e"),
        pytest.param('{"$numberDouble":"-1"}', -1.0, id="numberDouble without a point"),
        pytest.param('{"$numberLong":"-0"}', Int64(0), id="numberLong minus zero"),
        pytest.param('{"$binary":{"subType":"5","base64":"//8="}}', Binary(b"\xff\xff", 5), id="one hex digit"),
        pytest.param('{"$binary":"//8=","$type":"80"}', Binary(b"\xff\xff", 0x80), id="binary version 1"),
        pytest.param('{"$type":"00","$binary":""}', Binary(b"", 0), id="binary version 1 reversed"),
        pytest.param('{"$binary":"//8="}', {"$binary": "//8="}, id="half a binary is a document"),
        pytest.param('{"$scope":{},"$code":"x"}', CodeWithScope("x", {}), id="scope first"),
        pytest.param(
            '{"$uuid":"73ffd264-44b3-4c69-90e8-e7d1dfc035d4"}',
            Binary.from_uuid(uuid.UUID("73ffd264-44b3-4c69-90e8-e7d1dfc035d4")),
            id="uuid",
        ),
        pytest.param('{"$date":"1970-01-01T00:00:00.5Z"}', DateTime(500), id="date tenth"),
        pytest.param('{"$date":"1970-01-01T00:00:00.123999Z"}', DateTime(123), id="date microseconds are cut"),
        pytest.param('{"$date":"1970-01-01T01:00:00+01:00"}', DateTime(0), id="date with zone"),
        pytest.param('{"$date":"1969-12-31T23:30:00-0030"}', DateTime(0), id="date with zone without colon"),
        pytest.param('{"$date":"1970-01-01T00:01Z"}', DateTime(60_000), id="date without seconds"),
        pytest.param('{"$date":"1960-01-01T00:00:00.5Z"}', DateTime(-315_619_199_500), id="date before 1970"),
        pytest.param('{"$gt":1}', {"$gt": 1}, id="operator"),
        pytest.param('{"$regex":"a","$options":"i"}', {"$regex": "a", "$options": "i"}, id="$regex is an operator"),
        pytest.param(
            '{"$regex":{"$regularExpression":{"pattern":"a","options":""}},"$options":"i"}',
            {"$regex": Regex("a"), "$options": "i"},
            id="$regex of a regular expression",
        ),
        pytest.param('{"$type":"string"}', {"$type": "string"}, id="$type is an operator"),
        pytest.param('{"$ref":"c","$id":1,"$db":"d"}', {"$ref": "c", "$id": 1, "$db": "d"}, id="DBRef"),
        pytest.param('{"$options":"i"}', {"$options": "i"}, id="$options alone"),
    ],
)
def test_what_else_is_read(text: str, expected: object) -> None:
    value = from_ejson('{"a":' + text + "}")["a"]
    assert value == expected
    assert type(value) is type(expected)


def refused(reason: str, *texts: str) -> list[tuple[str, str]]:
    return [(text, reason) for text in texts]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"$oid":42}', "$oid takes a string, not a number"),
        ('{"$oid":"0123"}', "24 hex digits"),
        ('{"$oid":"0123456789abcdeffedcba98","x":1}', "$oid does not go with x"),
        ('{"x":1,"$oid":"0123456789abcdeffedcba98"}', "$oid does not go with x"),
        ('{"$numberInt":42}', "$numberInt takes a string"),
        ('{"$numberInt":"2147483648"}', "from -2147483648 to 2147483647"),
        *refused("$numberInt takes an integer", '{"$numberInt":"1.0"}', '{"$numberInt":" 1"}'),
        ('{"$numberInt":"1_0"}', "$numberInt takes an integer"),
        ('{"$numberInt":"1","x":1}', "$numberInt does not go with x"),
        *refused("$numberLong takes a string", '{"$numberLong":42}', '{"$date":{"$numberLong":42}}'),
        ('{"$numberLong":"9223372036854775808"}', "$numberLong takes an integer"),
        ('{"$numberLong":"' + "9" * 5000 + '"}', "$numberLong takes an integer"),
        ('{"$numberDouble":42}', "$numberDouble takes a string"),
        *refused("$numberDouble takes a double", '{"$numberDouble":"x"}', '{"$numberDouble":"inf"}'),
        *refused("$numberDouble takes a double", '{"$numberDouble":"1_0.0"}', '{"$numberDouble":"1e999"}'),
        ('{"$numberDecimal":42}', "$numberDecimal takes a string"),
        ('{"$numberDecimal":"x"}', "not a decimal number"),
        ('{"$numberDecimal":"1E+7000"}', "too large"),
        *refused("just base64 and subType", '{"$binary":0}', '{"$binary":{"base64":""}}'),
        ('{"$binary":{"base64":"","subType":"00","x":1}}', "just base64 and subType"),
        ('{"$binary":{"base64":"","subType":0}}', "subType of $binary takes a string"),
        ('{"$binary":{"base64":0,"subType":"00"}}', "base64 of $binary takes a string"),
        ('{"$binary":{"base64":"a","subType":"00"}}', "not base64"),
        ('{"$binary":{"base64":"//8=!","subType":"00"}}', "not base64"),
        ('{"$binary":{"base64":"é","subType":"00"}}', "not base64"),
        ('{"$binary":{"base64":"","subType":"100"}}', "hex digits"),
        ('{"$binary":{"base64":"","subType":"00"},"x":1}', "$binary does not go with x"),
        *refused("$binary takes a string", '{"$binary":0,"$type":"00"}', '{"$binary":"","$type":0}'),
        ('{"$uuid":"73ffd26444b34c6990e8e7d1dfc035d4"}', "8-4-4-4-12"),
        ('{"$uuid":{}}', "$uuid takes a string"),
        *refused("$code takes a string", '{"$code":42}', '{"$code":42,"$scope":{}}'),
        ('{"$code":"","$scope":42}', "$scope takes a document"),
        ('{"$code":"","$scope":{"$oid":"0123456789abcdeffedcba98"}}', "$scope takes a document"),
        ('{"$code":"","x":1}', "$code does not go with x"),
        ('{"$code":"","$scope":{},"x":1}', "$code does not go with $scope, x"),
        ('{"$scope":{}}', "$scope does not go with nothing"),
        ('{"$scope":{},"x":1}', "$scope does not go with x"),
        *refused("just t and i", '{"$timestamp":42}', '{"$timestamp":{"t":1}}', '{"$timestamp":{"t":1,"i":2,"x":3}}'),
        ('{"$timestamp":{"t":"1","i":2}}', "integers from 0 to 4294967295"),
        ('{"$timestamp":{"t":1,"i":true}}', "integers from 0 to 4294967295"),
        ('{"$timestamp":{"t":4294967296,"i":0}}', "integers from 0 to 4294967295"),
        ('{"$timestamp":{"t":1,"i":-1}}', "integers from 0 to 4294967295"),
        *refused("just pattern and options", '{"$regularExpression":"a"}', '{"$regularExpression":{"pattern":"a"}}'),
        ('{"$regularExpression":{"pattern":"a","options":"","x":1}}', "just pattern and options"),
        ('{"$regularExpression":{"pattern":1,"options":""}}', "takes a string"),
        ('{"$regularExpression":{"pattern":"","options":1}}', "takes a string"),
        ('{"$regularExpression":{"pattern":"b\\u0000","options":""}}', "zero byte"),
        ('{"$regularExpression":{"pattern":"b","options":"i\\u0000"}}', "zero byte"),
        ('{"$dbPointer":{"$ref":"a"}}', "just $ref and $id"),
        ('{"$dbPointer":{"$ref":1,"$id":' + OID_JSON + "}}", "$ref of $dbPointer takes a string"),
        ('{"$dbPointer":{"$ref":"a","$id":1}}', "just $oid"),
        ('{"$dbPointer":{"$ref":"a","$id":{"$oid":1}}}', "$oid takes a string"),
        ('{"$dbPointer":{"$ref":"a","$id":' + OID_JSON + "}, " + '"x":1}', "$dbPointer does not go with x"),
        ('{"$date":42}', "$date takes a string"),
        *refused("ISO 8601", '{"$date":"2020-01-01"}', '{"$date":"2020-01-01T00:00:00"}'),
        *refused("bad $date", '{"$date":"2020-13-01T00:00:00Z"}', '{"$date":"2020-02-30T00:00:00Z"}'),
        *refused("bad $date", '{"$date":"0000-01-01T00:00:00Z"}', '{"$date":"2020-01-01T00:00:00+99:00"}'),
        ('{"$date":"0001-01-01T00:00:00+01:00"}', None),
        ('{"$date":{"$numberLong":"42","x":1}}', "just $numberLong"),
        ('{"$date":"1970-01-01T00:00:00Z","x":1}', "$date does not go with x"),
        *refused("$minKey takes 1 only", '{"$minKey":true}', '{"$minKey":0}', '{"$minKey":1.0}'),
        ('{"$minKey":1,"x":1}', "$minKey does not go with x"),
        *refused("$maxKey takes 1 only", '{"$maxKey":true}', '{"$maxKey":2}'),
        *refused("$undefined takes true only", '{"$undefined":false}', '{"$undefined":1}'),
        ('{"$symbol":1}', "$symbol takes a string"),
        ('{"b\\u0000":1}', "zero byte in a name"),
    ],
)
def test_refused_with_the_path(text: str, reason: str | None) -> None:
    document = '{"list":[1,' + text + "]}"
    if reason is None:  # before year 1 in UTC, but a moment that 64 bits of milliseconds hold
        assert from_ejson(document)["list"] == [1, DateTime(-62_135_600_400_000)]
        return
    with pytest.raises(ExtendedJSONError) as caught:
        from_ejson(document)
    assert caught.value.code == 9
    assert reason in str(caught.value)
    assert "at 'list.1" in str(caught.value)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("{", "line 1 column"),
        ('{"a":1}\n{', "line 2 column 1"),
        ('{"a":1,}', "line 1 column"),
        ("{'a':1}", "line 1 column"),
        ('{"a":NaN}', "line 1 column"),
        ('{"a":Infinity}', "line 1 column"),
        ('{"a":1e400}', "infinity"),
        ('{"a":01}', "line 1 column"),
        ('{"a":"\\ud800"}', "surrogate"),
        ('{"a":"\ud800"}', "surrogate"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ("[]", "not an array"),
        ("1", "not a number"),
        ("null", "not null"),
        (OID_JSON, "type wrapper"),
        ("[" * 100_000, "malformed JSON"),
        ('{"a":' * 100_000, "malformed JSON"),
    ],
)
def test_not_json_or_no_document(text: str | bytes, reason: str) -> None:
    with pytest.raises(ExtendedJSONError) as caught:
        from_ejson(text)
    assert caught.value.code == 9
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [('{"a":', "}"), ("[", "]"), ('{"$code":"","$scope":{"a":', "}}")],
    ids=["documents", "arrays", "scopes"],
)
def test_nesting_limit(opening: str, closing: str) -> None:
    def text(levels: int) -> str:
        return '{"a":' + opening * (levels - 2) + "{}" + closing * (levels - 2) + "}"

    document = from_ejson(text(MAX_DEPTH))
    assert to_ejson(document) == text(MAX_DEPTH)
    assert from_ejson(to_ejson(document, canonical=True)) == document
    assert len(encode(document)) > 1000
    with pytest.raises(ExtendedJSONError, match="more than 200 levels"):
        from_ejson(text(MAX_DEPTH + 1))
    with pytest.raises(InvalidBSONError, match="more than 200 levels"):
        to_ejson({"a": document})


@pytest.mark.parametrize(
    "value",
    [
        {"a": object()},
        {"a": {1, 2}},
        {"a": 2**63},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a\0": 1},
        {1: 2},
        {"a": Regex("\0", "")},
        {"a": datetime(2020, 1, 1)},  # noqa: DTZ001 - the case
    ],
)
def test_what_has_no_bson_form_is_not_written(value: object) -> None:
    with pytest.raises(InvalidBSONError):
        to_ejson(value)


@pytest.mark.parametrize("value", [object(), {"a": {1}}, {"a": 10**400}, {"a": b"x"}])
def test_what_is_no_json_value_is_not_read(value: object) -> None:
    with pytest.raises(ExtendedJSONError):
        from_ejson_value(value)


def test_parsed_json_with_wide_integers() -> None:
    assert from_ejson_value(10**30) == 1e30


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a":1,"b":{"c":[{"x":1,"x":2}]}}',
        '{"a" :1,"a":2}',
        '{"a"\n:1,"b\\":":1,"a"\t:2}',
        '{"\\u0061": 1, "a": 2}',
        '{"a": "\\":", "b": 1, "b": 2}',
        '{"a": {"$oid": "000000000000000000000000", "$oid": "000000000000000000000000"}}',
        '{"a":1,"a":' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_equal_keys_are_refused(text: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(ExtendedJSONError, match="twice in one object"):
            from_ejson(form)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"b":1},"b":{"a":1}}',
        '{"a" : "\\":", "\\":": "x\\\\", "b": ["a", "a" , {"a": "a:"}]}',
        ' { "a" : "\\\\" , "b" : { } } ',
    ],
)
def test_keys_of_several_objects_and_texts_that_look_like_keys_are_none_twice(text: str) -> None:
    assert to_ejson(from_ejson(text)) == to_ejson(json.loads(text))
