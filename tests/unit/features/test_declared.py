"""What is refused of the declared operations, over the wire and over HTTP: the cases are made of the declarations."""

from __future__ import annotations

from dataclasses import MISSING

import pytest

from replset.features.administration.operations import StepDown
from replset.features.all import COMMANDS
from replset.operations.declared import Declaration, DeclaredField, declarations, document_of
from tests.rig import Client
from tests.unit.api.kit import Api, refused

ROWS = [(one, row) for one in declarations() for row in one.fields]
OVER_HTTP = [one for one in declarations() if one.http]
WITH_LEAST = [pair for pair in ROWS if "minimum" in pair[1].kind.schema]


def named(rows: list[tuple[Declaration, DeclaredField]]) -> list[str]:
    return [f"{one.name}-{row.name}" for one, row in rows]


def command_with(one: Declaration, row: DeclaredField, value: object) -> dict[str, object]:
    return {one.name: 1, one.name if row.is_own else row.name: value}


@pytest.mark.parametrize(("one", "row"), ROWS, ids=named(ROWS))
def test_a_value_of_another_type_is_refused_and_named(client: Client, one: Declaration, row: DeclaredField) -> None:
    reply = client.run(command_with(one, row, {"a": 1}), "admin")
    assert reply["code"] == 14, reply
    assert f"{one.name}.{one.name if row.is_own else row.name}" in reply["errmsg"]


@pytest.mark.parametrize(("one", "row"), WITH_LEAST, ids=named(WITH_LEAST))
def test_a_value_below_the_least_is_refused(client: Client, one: Declaration, row: DeclaredField) -> None:
    reply = client.run(command_with(one, row, row.kind.schema["minimum"] - 1), "admin")
    assert reply["code"] in {2, 51024}, reply


@pytest.mark.parametrize("one", declarations(), ids=lambda one: str(one.name))
def test_another_field_and_another_database_are_refused(client: Client, one: Declaration) -> None:
    assert client.code({one.name: 1, "another": 1}, "admin") == 40415
    assert client.code({one.name: 1}, "other") == 13
    assert COMMANDS[one.name].run.__doc__ == one.summary


@pytest.mark.parametrize("one", OVER_HTTP, ids=lambda one: str(one.name))
def test_over_http_what_must_be_given_and_what_is_unknown_is_named(one: Declaration) -> None:
    api = Api()
    refused(api.post(f"/v1/replset/{one.http}", {"another": 1}), 400, 40415, "'another'")
    for row in one.fields:
        if row.default is MISSING:
            refused(api.post(f"/v1/replset/{one.http}", {}), 400, 40414, f"'{row.name}'")
    assert api.command_names() == []


def test_what_is_none_is_left_out() -> None:
    assert document_of(StepDown(force=True)) == {"replSetStepDown": 60, "force": True}
