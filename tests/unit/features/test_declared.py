"""What is refused of the declared operations, over the wire and over HTTP: the cases are made of the declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
import pytest

from replset.bson import RawDocument, encode
from replset.errors import ReplError
from replset.features.administration.operations import StepDown
from replset.features.all import COMMANDS
from replset.operations.declared import Declaration, DeclaredField, declarations, document_of
from tests.rig import Client, Rig, a_set
from tests.unit.api.kit import Api, refused

ROWS = [(one, row) for one in declarations() for row in one.fields]
TYPED = [(one, row) for one, row in ROWS if "type" in row.kind.schema]
MUST_BE_GIVEN = [(one, row) for one, row in ROWS if row.default is MISSING and not row.is_own]
LIMITS = [
    pytest.param(one, row, row.kind.schema[limit], beyond, id=f"{one.name}-{row.name}-{limit}")
    for one, row in ROWS
    for limit, beyond in (("minimum", -1), ("maximum", 1))
    if limit in row.kind.schema
]
OVER_HTTP = [one for one in declarations() if one.path]
INVALID_TOKEN = 260
DOCS = Path(__file__).parents[3] / "docs"
COMMANDS_PAGE, HTTP_PAGE = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("commands", "http"))


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One for all tests, which are refused before anything is done."""
    with a_set() as made:
        yield made


@pytest.fixture
def api(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Api:
    return Api(rig, monkeypatch)


def named(rows: list[tuple[Declaration, DeclaredField]]) -> list[str]:
    return [f"{one.name}-{row.name}" for one, row in rows]


def a_value(schema: Mapping[str, Any]) -> object:
    """A value that the kind takes."""
    likely = {"boolean": True, "array": [], "object": {}, "string": "a"}
    number = schema.get("minimum", 1)
    return schema.get("example", schema.get("enum", [likely.get(schema.get("type", ""), number)])[0])


def wire_name(one: Declaration, row: DeclaredField) -> str:
    return one.name if row.is_own else row.name


def command_with(one: Declaration, row: DeclaredField | None = None, value: object = None) -> dict[str, object]:
    """The command with what must be given, and this field."""
    needed = [other for other in one.fields if other.default is MISSING]
    given = {one.name: 1} | {wire_name(one, other): a_value(other.kind.schema) for other in needed}
    return given if row is None else given | {wire_name(one, row): value}


def ask(api: Api, one: Declaration) -> httpx.Response:
    """Send the request with all its fields; the placeholder of the path stands for itself."""
    given = {row.name: a_value(row.kind.schema) for row in one.in_body}
    path = one.path.replace("{", "").replace("}", "")
    return api.request(one.method, path, json=given if one.method == "POST" else None)


@pytest.mark.parametrize(("one", "row"), TYPED, ids=named(TYPED))
def test_a_value_of_another_type_is_refused_and_named(client: Client, one: Declaration, row: DeclaredField) -> None:
    value = 1 if row.kind.schema["type"] == "object" else {"a": 1}
    reply = client.run(command_with(one, row, value), "admin")
    assert reply["code"] in {14, INVALID_TOKEN}, reply
    assert reply["code"] == INVALID_TOKEN or f"{one.name}.{wire_name(one, row)}" in reply["errmsg"]


@pytest.mark.parametrize(("one", "row", "limit", "beyond"), LIMITS)
def test_numbers_have_limits(one: Declaration, row: DeclaredField, limit: float, beyond: int) -> None:
    name = wire_name(one, row)
    assert row.kind.read(RawDocument(encode({name: limit})), name, one.name) == limit
    with pytest.raises(ReplError) as error:
        row.kind.read(RawDocument(encode({name: limit + beyond})), name, one.name)
    assert error.value.code in {2, 51024}


@pytest.mark.parametrize(("one", "row"), MUST_BE_GIVEN, ids=named(MUST_BE_GIVEN))
def test_what_must_be_given_is_named(client: Client, one: Declaration, row: DeclaredField) -> None:
    command = command_with(one, row, None)
    without = {name: value for name, value in command.items() if name != row.name}
    for given in (command, without):
        reply = client.run(given, "admin")
        assert (reply["code"], f"'{one.name}.{row.name}'" in reply["errmsg"]) == (40414, True), reply


@pytest.mark.parametrize("one", declarations(), ids=lambda one: str(one.name))
def test_another_field_and_another_database_are_refused(client: Client, one: Declaration) -> None:
    assert client.code({one.name: 1, "another": 1}, "admin") == 40415
    assert client.code({one.name: 1}, "other") == 13
    assert COMMANDS[one.name].run.__doc__ == one.summary


@pytest.mark.parametrize("one", OVER_HTTP, ids=lambda one: str(one.name))
def test_over_http_what_must_be_given_and_what_is_unknown_is_named(api: Api, one: Declaration) -> None:
    path = one.path
    if one.method == "POST":
        refused(api.post(path, {"another": 1}), 400, 40415, "'another'")
    for row in one.in_body:
        assert row.help, "/openapi.json says what it is for"
        if row.default is MISSING:
            needed = {other.name: 1 for other in one.in_body if other.default is MISSING and other is not row}
            refused(api.post(path, needed), 400, 40414, f"'{row.name}'")
    assert api.command_names() == []


@pytest.mark.parametrize("one", OVER_HTTP, ids=lambda one: str(one.name))
def test_over_http_an_unknown_outcome_is_no_promise_that_nothing_was_applied(api: Api, one: Declaration) -> None:
    api.answers[one.name] = {"ok": 0.0, "code": 11602, "errmsg": "interrupted"}
    refused(ask(api, one), 504, 11602, "interrupted")


@pytest.mark.parametrize("one", OVER_HTTP, ids=lambda one: str(one.name))
def test_over_http_it_is_the_command(api: Api, one: Declaration) -> None:
    api.answers[one.name] = {"ok": 1.0}
    assert ask(api, one).status_code in {200, 201}
    expected = {wire_name(one, row): a_value(row.kind.schema) for row in one.in_body}
    assert api.command == {one.name: one.in_path or 1} | expected


def test_the_docs_have_every_field_and_default() -> None:
    rows = {row[1]: row[0] for row in re.finditer(r"^\| `([^`]+)` .*", COMMANDS_PAGE + HTTP_PAGE, re.MULTILINE)}
    for one in declarations():
        for row in one.fields:
            default = row.default.value if isinstance(row.default, Enum) else row.default
            shown = f'`"{default}"`' if isinstance(default, str) else default
            has_default = not row.is_own and row.default is not MISSING and default
            assert row.is_own or f"`{row.name}`{f' ({shown})' if has_default else ''}" in rows[one.name], row
        if one.method == "POST":
            names = [f'"{row.name}"{"" if row.default is MISSING else "?"}' for row in one.in_body]
            assert f"`{{{', '.join(names)}}}`" in rows[f"{one.method} {one.path}"], one


def test_what_is_none_is_left_out() -> None:
    assert document_of(StepDown(force=True)) == {"replSetStepDown": 60, "force": True}
