"""Declares an operation once: its fields, their kinds, defaults and help, who may run it, where, and its HTTP route.

From a declaration come the row of its command, the reading of its document with MongoDB's refusals, the HTTP route with
its part of the OpenAPI document, and the help of the command line's options. It imports little, for the command line.

Declared are operations with a body of their own over HTTP, or with a verb of the command line. What drivers send (find,
insert, users' commands and their like) stays a row of operations/command.py whose handler reads its document itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, Generic, TypeVar, dataclass_transform

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.config import parse_host
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.ids import HostPort
from replset.operations.fields import boolean, document, is_absent, missing, text, values, whole, wrong_type

T = TypeVar("T")
MAX_SECONDS: Final = 10 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of value. read: it from a body, by the field's name and the command's; ReplError. schema: OpenAPI's."""

    read: Callable[[RawDocument, str, str], T]
    schema: Mapping[str, Any]


def _seconds(body: RawDocument, name: str, command: str) -> int:
    seconds = whole(body, name, command)
    if not 0 <= seconds <= MAX_SECONDS:
        raise BadValueError(f"{name} must be from 0 to {MAX_SECONDS} seconds, not {seconds}")
    return seconds


def _host(body: RawDocument, name: str, command: str) -> HostPort:
    return parse_host(text(body, name, command), name)


def between(least: float, most: float) -> Kind[float]:
    """Any number from `least` to `most`; others are refused with 51024."""

    def read(body: RawDocument, name: str, command: str) -> float:
        value = body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(command, name, body.type_of(name), "double")
        if not least <= value <= most:
            raise ReplError(
                f"BSON field '{command}.{name}' value must be from {least} to {most}, actual value '{value}'",
                code=ErrorCode.NUMBER_OUT_OF_RANGE,
            )
        return float(value)

    return Kind(read, {"type": "number", "minimum": least, "maximum": most})


def whole_between(least: int, most: int) -> Kind[int]:
    """A whole number from `least` to `most`; others are refused with 51024."""

    def read(body: RawDocument, name: str, command: str) -> int:
        return whole(body, name, command, least=least, most=most)

    return Kind(read, {"type": "integer", "minimum": least, "maximum": most})


def one_of(make: Callable[[str], T], *texts: str) -> Kind[T]:
    """What is made of one of these texts; others are refused with 2."""

    def read(body: RawDocument, name: str, command: str) -> T:
        given = text(body, name, command)
        if given not in texts:
            raise BadValueError(f"{name} {given!r:.50} is none of {', '.join(texts)}")
        return make(given)

    return Kind(read, {"type": "string", "enum": list(texts)})


ANY: Final[Kind[object]] = Kind(lambda body, name, _: body.get(name), {})
BOOLEAN: Final = Kind(boolean, {"type": "boolean"})
DOCUMENT: Final = Kind(document, {"type": "object"})
TEXT: Final = Kind(text, {"type": "string"})
WHOLE: Final = Kind(whole, {"type": "integer"})
TEXTS: Final = Kind(values, {"type": "array", "items": TEXT.schema})
SECONDS: Final = Kind(_seconds, {"type": "integer", "minimum": 0})
HOST: Final = Kind(_host, {"type": "string", "example": "127.0.0.1:27018"})


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field. attribute: of the declaration. default: MISSING where it must be given. wire: its name, where that is
    not the attribute's. is_own: in the command's document it is the value of the command's name.
    """

    attribute: str
    default: Any
    kind: Kind[Any]
    help: str
    wire: str = ""
    is_own: bool = False

    @property
    def name(self) -> str:
        """In the command's document, and in an HTTP body."""
        return self.wire or self.attribute


@dataclass(frozen=True, slots=True)
class Declaration:
    """An operation. title: its class's name, as a route has it. summary: its docstring's first paragraph.

    on_primary: it is for the primary; over HTTP every member forwards it. method, path: of its HTTP route, whose
    placeholder is the command's own field; "": it has none.
    """

    name: str
    title: str
    summary: str
    needs: Action
    on_primary: bool
    method: str
    path: str
    fields: tuple[DeclaredField, ...]

    @property
    def names(self) -> frozenset[str]:
        """The fields beside the command's own."""
        return frozenset(row.name for row in self.fields if not row.is_own)

    def read(self, cls: type[T], body: RawDocument) -> T:
        """The operation that a command's document asks for. ReplError: it is refused."""
        found: dict[str, Any] = {}
        for row in self.fields:
            name = self.name if row.is_own else row.name
            is_left_out = is_absent(body, name) and not (row.is_own and row.default is MISSING)
            if is_left_out and row.default is MISSING:
                raise missing(self.name, name)
            found[row.attribute] = row.default if is_left_out else row.kind.read(body, name, self.name)
        return cls(**found)

    def command(self, given: Mapping[str, object]) -> dict[str, object]:
        """The command's document, of the fields of an HTTP body. ReplError: one is missing."""
        command: dict[str, object] = {self.name: 1}
        for row in self.fields:
            if row.default is MISSING and row.name not in given:
                raise ReplError(f"field '{row.name}' is missing but required: {row.help}", code=ErrorCode.MISSING_FIELD)
            if row.is_own or row.name in given:
                command[self.name if row.is_own else row.name] = given.get(row.name, row.default)
        return command

    @property
    def in_path(self) -> str:
        """The field whose value is a part of the path; "": none."""
        return self.path.partition("{")[2].partition("}")[0]

    @property
    def in_body(self) -> list[DeclaredField]:
        return [row for row in self.fields if row.name != self.in_path]

    def schema(self) -> dict[str, Any]:
        """The HTTP body, as OpenAPI has it."""
        required = [row.name for row in self.in_body if row.default is MISSING]
        properties = {row.name: {**row.kind.schema, "description": row.help} for row in self.in_body}
        return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def own(kind: Kind[Any], *, default: Any = MISSING, help: str = "") -> Any:
    """The value of the command's own name; over HTTP it has the name of the attribute."""
    return field(default=default, metadata={"kind": kind, "help": help, "is_own": True})


def value(kind: Kind[Any], *, default: Any = MISSING, name: str = "", help: str = "") -> Any:
    """A field. name: where it is not the attribute's."""
    return field(default=default, metadata={"kind": kind, "help": help, "wire": name})


_DECLARED: dict[type, Declaration] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(own, value))
def operation(name: str, *, needs: Action, on_primary: bool = False, http: str = "") -> Callable[[type[T]], type[T]]:
    """Make a class the declaration of this operation; its docstring says what it does. http: method and path."""

    def declare(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True)(cls)
        summary = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
        rows = tuple(DeclaredField(row.name, row.default, **row.metadata) for row in fields(made))  # type: ignore[arg-type]
        title = cls.__name__[0].lower() + cls.__name__[1:]
        method, _, path = http.partition(" ")
        _DECLARED[made] = Declaration(name, title, summary, needs, on_primary, method, path, rows)
        return made

    return declare


def declarations() -> list[Declaration]:
    """All that were declared. Whoever asks imports `features/all.py`, or what it asks for, first."""
    return list(_DECLARED.values())


def declaration_of(cls: type) -> Declaration:
    return _DECLARED[cls]


def document_of(given: object) -> dict[str, object]:
    """The command's document of a declared operation; what is None is left out."""
    declaration = declaration_of(type(given))
    found = {row.name: getattr(given, row.attribute) for row in declaration.fields}
    return declaration.command({name: one for name, one in found.items() if one is not None})


def help_of(cls: type, attribute: str) -> str:
    """What the command line says of a field."""
    return next(row.help for row in declaration_of(cls).fields if row.attribute == attribute)
