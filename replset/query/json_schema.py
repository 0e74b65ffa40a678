"""Compiles `$jsonSchema`: JSON Schema draft 4 by the library `jsonschema`, with MongoDB's `bsonType` and with BSON's
numbers, equality and types. The library is imported when the first schema is compiled, since few members need it.

`Schema.details` says what a document does not satisfy, in the form of MongoDB's validation errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from operator import ge, le
from typing import Any

from replset.bson import encode_key
from replset.bson.types import TYPE_BYTES, type_name
from replset.errors import FailedToParseError
from replset.query.conditions import type_predicate
from replset.query.errors import TypeMismatchError, show
from replset.query.order import Comparison, compares, equals, is_number
from replset.query.regex import regex_predicate
from replset.query.time_limit import check_time, count_part

Document = dict[str, Any]
Fails = Callable[[Any, Any, Mapping[str, Any]], bool]
"""Whether a value does not satisfy a keyword. The arguments: what the keyword wants, the value, the schema."""
_JSON_TYPES = {
    "object": "object",
    "array": "array",
    "number": "number",
    "boolean": "bool",
    "string": "string",
    "null": "null",
}
_OF_JSON_SCHEMA = frozenset({"$ref", "$schema", "default", "definitions", "format", "id"})
_REASONS = {
    "bsonType": "type did not match",
    "type": "type did not match",
    "minimum": "comparison failed",
    "maximum": "comparison failed",
    "enum": "value was not found in enum",
    "minLength": "specified string length was not satisfied",
    "maxLength": "specified string length was not satisfied",
    "pattern": "regular expression did not match",
    "minItems": "array did not match specified length",
    "maxItems": "array did not match specified length",
    "uniqueItems": "found a duplicate item",
    "minProperties": "specified number of properties was not satisfied",
    "maxProperties": "specified number of properties was not satisfied",
    "multipleOf": "considered value is not a multiple of the specified value",
    "not": "child expression matched",
}


class Schema:
    """A compiled schema."""

    def __init__(self, schema: object) -> None:
        """FailedToParseError (9) for a keyword that is not supported, TypeMismatchError (14) for a malformed one."""
        if not isinstance(schema, Mapping):
            raise TypeMismatchError("$jsonSchema must be an object")
        _check(schema)
        self._schema = schema
        self._validator = _library()(schema)

    def matches(self, document: Mapping[str, object]) -> bool:
        return bool(self._validator.is_valid(document))

    def details(self, document: Mapping[str, object]) -> Document:
        """What the document does not satisfy. It may be the whole of a large document: call it in a thread."""
        errors = [(list(error.relative_schema_path), error) for error in self._validator.iter_errors(document)]
        about = {name: self._schema[name] for name in ("title", "description") if name in self._schema}
        return {
            "operatorName": "$jsonSchema",
            **about,
            "schemaRulesNotSatisfied": list(_rules(self._schema, errors)),
        }


# --- checking a schema ------------------------------------------------------------------------------------------


def _check(schema: object) -> None:
    """Refuse keywords that MongoDB does not take, and values that the library would fail on."""
    if not isinstance(schema, Mapping):
        raise TypeMismatchError("a $jsonSchema keyword must be an object")
    for name, value in schema.items():
        if name in _OF_JSON_SCHEMA:
            raise FailedToParseError(f"$jsonSchema keyword '{name}' is not currently supported")
        if name not in _FORMS:
            raise FailedToParseError(f"Unknown $jsonSchema keyword: {name:.80}")
        wanted, holds = _FORMS[name]
        if not holds(value):
            raise TypeMismatchError(f"$jsonSchema keyword '{name}' must be {wanted}, not {show(value)}")
        for part in _parts(name, value):
            count_part()
            _check(part)
    for limit in ("Minimum", "Maximum"):
        if f"exclusive{limit}" in schema and limit.lower() not in schema:
            raise FailedToParseError(
                f"$jsonSchema keyword '{limit.lower()}' must be present if exclusive{limit} is present"
            )
    if "type" in schema and "bsonType" in schema:
        raise FailedToParseError("Cannot specify both $jsonSchema keywords 'type' and 'bsonType'")
    for name in ("type", "bsonType"):
        for kind in _listed(schema.get(name, [])):
            if name == "type" and kind == "integer":
                raise FailedToParseError("$jsonSchema type 'integer' is not currently supported.")
            if kind not in (_JSON_TYPES if name == "type" else {"number", *TYPE_BYTES}):
                raise FailedToParseError(f"Unknown type name alias: {kind}")
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", {})):
        regex_predicate(pattern, "")


def _is_count(value: object) -> bool:
    return is_number(value) and float(str(value)) >= 0 and float(str(value)).is_integer()


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


_LIST = ("a non-empty array", lambda value: isinstance(value, list) and bool(value))
_COUNT = ("a whole number from 0 on", _is_count)
_OBJECT = ("an object", _is(Mapping))
_TYPES = ("a string or an array of strings", lambda value: isinstance(value, str) or _are_strings(value))
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum"), _LIST),
    **dict.fromkeys(("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties"), _COUNT),
    **dict.fromkeys(("properties", "patternProperties", "dependencies", "not"), _OBJECT),
    **dict.fromkeys(("additionalItems", "additionalProperties"), ("an object or a boolean", _is(Mapping, bool))),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems"), ("a boolean", _is(bool))),
    **dict.fromkeys(("title", "description", "pattern"), ("a string", _is(str))),
    **dict.fromkeys(("type", "bsonType"), _TYPES),
    **dict.fromkeys(("maximum", "minimum"), ("a number", is_number)),
    "multipleOf": ("a number above 0", lambda value: is_number(value) and float(str(value)) > 0),
    "items": ("an object or an array of objects", _is(Mapping, list)),
    "required": ("an array of strings", _are_strings),
}


def _parts(name: str, value: Any) -> Iterator[object]:
    """The schemas inside of a keyword's value."""
    if name in ("properties", "patternProperties"):
        yield from value.values()
    elif name == "dependencies":
        for part in value.values():
            if not _are_strings(part):
                yield part
    elif name in ("allOf", "anyOf", "oneOf") or (name == "items" and isinstance(value, list)):
        yield from value
    elif name in ("not", "items", "additionalItems", "additionalProperties") and not isinstance(value, bool):
        yield value


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


# --- the library ------------------------------------------------------------------------------------------------

_classes: list[Any] = []


def _library() -> Any:
    """The library's class for our schemas, made once.

    Its messages would hold the value, which may be large, so what makes one is replaced.
    """
    if not _classes:
        from jsonschema import ValidationError, validators
        from jsonschema.validators import Draft4Validator

        def rule(fails: Fails) -> Any:
            """Return a keyword of the library from whether a value does not satisfy it."""

            def check(_validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
                if fails(wanted, value, schema):
                    yield ValidationError("")

            return check

        checker = Draft4Validator.TYPE_CHECKER.redefine_many(
            {
                "object": lambda _, value: isinstance(value, Mapping),
                "array": lambda _, value: type(value) is list,
                "number": lambda _, value: is_number(value),
                "string": lambda _, value: type(value) is str,
            }
        )

        def any_of(validator: Any, schemas: Any, value: Any, _schema: Any) -> Iterator[Any]:
            errors: list[Any] = []
            for index, inner in enumerate(schemas):
                found = list(validator.descend(value, inner, schema_path=index))
                if not found:
                    return
                errors += found
            yield ValidationError("", context=errors)

        def one_of(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[Any]:
            if sum(validator.evolve(schema=inner).is_valid(value) for inner in schemas) > 1:
                yield ValidationError("")
            else:
                yield from any_of(validator, schemas, value, schema)

        def none_of(validator: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[Any]:
            if validator.evolve(schema=wanted).is_valid(value):
                yield ValidationError("")

        def limited(keyword: Any) -> Any:
            """A document times a schema can take for ever, so each keyword checks the time."""

            def check(*about: Any) -> Any:
                check_time()
                return keyword(*about)

            return check

        def pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
            for pattern, inner in patterns.items() if isinstance(value, Mapping) else ():
                found = regex_predicate(pattern, "")
                for name in filter(found, value):
                    yield from validator.descend(value[name], inner, path=name, schema_path=pattern)

        def additional_properties(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
            more = _additional(value, schema) if isinstance(value, Mapping) else []
            if isinstance(wanted, Mapping):
                for name in more:
                    yield from validator.descend(value[name], wanted, path=name)
            elif more and not wanted:
                yield ValidationError("")

        rules = {**Draft4Validator.VALIDATORS, **{name: rule(fails) for name, fails in _RULES.items()}}
        rules |= {"patternProperties": pattern_properties, "additionalProperties": additional_properties}
        rules |= {"anyOf": any_of, "oneOf": one_of, "not": none_of}
        rules = {name: limited(keyword) for name, keyword in rules.items()}
        _classes.append(validators.extend(Draft4Validator, rules, type_checker=checker))
    return _classes[0]


def _wrong_type(wanted: object, value: object, _schema: Mapping[str, Any]) -> bool:
    return not type_predicate(wanted)(value)


def _wrong_json_type(wanted: object, value: object, schema: Mapping[str, Any]) -> bool:
    return _wrong_type([_JSON_TYPES[str(kind)] for kind in _listed(wanted)], value, schema)


def _beyond(
    operator: Comparison, or_equal: Comparison, exclusive: str
) -> Callable[[Any, Any, Mapping[str, Any]], bool]:
    def fails(limit: object, value: object, schema: Mapping[str, Any]) -> bool:
        if not is_number(value):
            return False
        return not compares(operator if schema.get(exclusive) else or_equal, limit)(value)

    return fails


def _additional(value: Mapping[str, object], schema: Mapping[str, Any]) -> list[str]:
    """The fields that neither `properties` nor `patternProperties` names."""
    patterns = [regex_predicate(pattern, "") for pattern in schema.get("patternProperties", {})]
    known = schema.get("properties", {})
    return [name for name in value if name not in known and not any(found(name) for found in patterns)]


def _has_double(wanted: object, value: object, _schema: Mapping[str, Any]) -> bool:
    return bool(wanted) and type(value) is list and _duplicate(value) is not None


def _duplicate(items: Sequence[object]) -> int | None:
    """The index of the first item that an earlier one equals."""
    seen: set[bytes] = set()
    for index, item in enumerate(items):
        check_time()
        key = encode_key(item)
        if key in seen:
            return index
        seen.add(key)
    return None


_EXACT = Context(prec=13_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""A Decimal128 has exponents from -6176 to 6111."""


def _no_multiple(wanted: object, value: object, _schema: Mapping[str, Any]) -> bool:
    if not is_number(value):
        return False
    number = Decimal(str(value))
    return not number.is_finite() or _EXACT.remainder(number, Decimal(str(wanted))) != 0


def _in_no_enum(wanted: Sequence[object], value: object, _schema: Mapping[str, Any]) -> bool:
    for one in wanted:
        check_time()
        if equals(one)(value):
            return False
    return True


def _size_is(kind: type[Sized], compare: Callable[[int, int], bool]) -> Fails:
    """The rule that a value of this type has a size that compares so with the one that is wanted."""
    return lambda wanted, value, _: isinstance(value, kind) and not compare(len(value), int(float(str(wanted))))


_RULES: dict[str, Fails] = {
    "minItems": _size_is(list, ge),
    "maxItems": _size_is(list, le),
    "minLength": _size_is(str, ge),
    "maxLength": _size_is(str, le),
    "minProperties": _size_is(dict, ge),
    "maxProperties": _size_is(dict, le),
    "bsonType": _wrong_type,
    "type": _wrong_json_type,
    "minimum": _beyond("$gt", "$gte", "exclusiveMinimum"),
    "maximum": _beyond("$lt", "$lte", "exclusiveMaximum"),
    "enum": _in_no_enum,
    "uniqueItems": _has_double,
    "multipleOf": _no_multiple,
    "pattern": lambda wanted, value, _: type(value) is str and not regex_predicate(wanted, "")(value),
}


# --- what is not satisfied --------------------------------------------------------------------------------------


def _rules(schema: Mapping[str, Any], errors: list[tuple[list[Any], Any]]) -> Iterator[Document]:
    """The rules of a schema that these errors are about, each once. An error comes with its place in the schema."""
    by_rule: dict[str, list[tuple[list[Any], Any]]] = {}
    for path, error in errors:
        by_rule.setdefault(path[0], []).append((path[1:], error))
    for rule, below in by_rule.items():
        if rule == "properties":
            yield {"operatorName": rule, "propertiesNotSatisfied": list(_properties(schema[rule], below))}
        elif rule in ("patternProperties", "items", "additionalProperties") and any(path for path, _ in below):
            yield {"operatorName": rule, "details": _children(rule, schema[rule], below)}
        elif rule == "allOf":
            yield {"operatorName": rule, "schemasNotSatisfied": _numbered(schema[rule], below)}
        else:
            yield _rule(rule, schema[rule], below[0][1])


def _properties(schemas: Mapping[str, Any], errors: list[tuple[list[Any], Any]]) -> Iterator[Document]:
    by_name: dict[str, list[tuple[list[Any], Any]]] = {}
    for path, error in errors:
        by_name.setdefault(path[0], []).append((path[1:], error))
    for name, below in by_name.items():
        about = {word: schemas[name][word] for word in ("title", "description") if word in schemas[name]}
        yield {"propertyName": name, **about, "details": list(_rules(schemas[name], below))}


def _children(rule: str, schema: Any, errors: list[tuple[list[Any], Any]]) -> list[Document]:
    """Describe a keyword that holds one schema, or one by pattern or index."""
    is_keyed = rule == "patternProperties" or isinstance(schema, list)
    found: list[Document] = []
    for path, error in errors:
        found += _rules(schema[path[0]], [(path[1:], error)]) if is_keyed else _rules(schema, [(path, error)])
    return found


def _numbered(schemas: Sequence[Any], errors: list[tuple[list[Any], Any]]) -> list[Document]:
    """Describe those of a keyword's several schemas that are not satisfied."""
    by_index: dict[int, list[tuple[list[Any], Any]]] = {}
    for path, error in errors:
        by_index.setdefault(path[0], []).append((path[1:], error))
    return [{"index": index, "details": list(_rules(schemas[index], below))} for index, below in by_index.items()]


def _rule(name: str, wanted: Any, error: Any) -> Document:
    value = error.instance
    match name:
        case "required":
            missing = [field for field in wanted if field not in value]
            return {"operatorName": name, "specifiedAs": {name: wanted}, "missingProperties": missing}
        case "additionalProperties":
            more = _additional(value, error.schema)
            return {"operatorName": name, "specifiedAs": {name: wanted}, "additionalProperties": more}
        case "anyOf" | "oneOf":
            if not error.context:
                return {"operatorName": name, "reason": "more than one subschema matched"}
            below = [(list(child.relative_schema_path), child) for child in error.context]
            return {"operatorName": name, "schemasNotSatisfied": _numbered(wanted, below)}
    rule: Document = {"operatorName": name, "specifiedAs": {name: wanted}, "reason": _REASONS.get(name, name)}
    if name == "not":
        del rule["specifiedAs"]
        return rule
    rule["consideredValue"] = value
    if name in ("bsonType", "type"):
        rule["consideredType"] = type_name(value)
    return rule
