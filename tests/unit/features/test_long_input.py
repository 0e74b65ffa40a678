"""Errors quote what was asked, but not all of it: no answer to a failed command is longer than some kilobytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replset.bson import Regex, encode
from replset.core.messages import Done
from replset.errors import LONGEST_MESSAGE, ReplError
from replset.features.all import COMMANDS
from replset.features.crud.write_batch import ERROR_BYTES
from replset.operations.command import GENERIC_FIELDS
from tests.rig import Client
from tests.unit.features.test_odd_input import CONFIG_FIELDS, EXTRA, MEMBER_FIELDS, fields_of
from tests.unit.features.test_set import STATUS, shows

LONG = 20_000
MAX_ERROR_BYTES = 16 << 10
FORMS: dict[str, Callable[[str], object]] = {
    "text": lambda text: text,
    "name": lambda text: {text: 1},
    "operator": lambda text: {f"${text}": 1},
    "path": lambda text: {f"a.{text}": {f"${text}": 1}},
    "expression": lambda text: Regex(f"({text}", "i"),
    "options": lambda text: {"$regex": "a", "$options": text},
    "array": lambda text: [text],
    "documents": lambda text: [{text: 1}],
    "query": lambda text: [{"q": {f"${text}": 1}, "u": {"$set": {"a": 1}}, "limit": 1}],
    "change": lambda text: [{"q": {}, "u": {f"${text}": {"a": text}}, "limit": 1}],
    "number": lambda text: {"w": text, "level": text, "mode": text, text: text},
    "_id": lambda text: [{"_id": {f"${text}": 1}}, {"_id": [text]}],
    "hosts": lambda text: {"members": [{"_id": 0, "host": text}], "_id": text},
    "host": lambda text: {"host": text},
}


def messages(value: object) -> Iterator[str]:
    """All error messages in a reply."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "errmsg":
                yield part
            else:
                yield from messages(part)
    elif isinstance(value, list):
        for part in value:
            yield from messages(part)


def check(reply: dict[str, object], what: object) -> None:
    assert [text for text in messages(reply) if len(text) > LONGEST_MESSAGE] == [], what
    assert reply["ok"] == 1.0 or len(encode(reply)) < MAX_ERROR_BYTES, what
    assert reply.get("code") != 1, (what, reply)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_error_is_long(client: Client, name: str) -> None:
    shows(client.member, STATUS)
    client.rig.answer_core(Done())
    command = COMMANDS[name]
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": {}}]})
    base: dict[str, object] = {name: "c" if "." not in name else 1, **EXTRA.get(name, {})}
    db = "admin" if command.admin_only else "test"
    for field, forms in fields_of(name, sorted(FORMS)):
        for form in forms:
            check(client.run({**base, field: FORMS[form]("é" * LONG)}, db), (field, form))
    check(client.run({**base, "x" * LONG: 1}, db), "an unknown field")
    check(client.run(base, "d" * LONG), "a database")


def test_no_error_of_a_configuration_is_long(client: Client) -> None:
    for form, make in FORMS.items():
        value = make("x" * LONG)
        documents = [{"_id": "rs0", field: value} for field in CONFIG_FIELDS]
        documents += [{"members": [{"_id": 0, "host": "a:1", field: value}]} for field in (*MEMBER_FIELDS, "x" * LONG)]
        for document in documents:
            check(client.run({"replSetInitiate": document}, "admin"), (form, list(document)))
            check(client.run({"replSetReconfig": document}, "admin"), (form, list(document)))


@pytest.mark.parametrize("name", ["x" * LONG, "é" * 1_000_000, "$" * LONG])
def test_no_name_of_a_command_comes_back_whole(client: Client, name: str) -> None:
    reply = client.run({name: 1})
    assert reply["code"] == 59
    assert reply["errmsg"].startswith("no such command: '")
    assert reply["errmsg"].endswith("'")
    check(reply, "command")


@settings(derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(GENERIC_FIELDS)), st.sampled_from(sorted(FORMS)), st.text(min_size=1, max_size=3))
def test_no_error_of_a_generic_field_is_long(client: Client, field: str, form: str, text: str) -> None:
    text = text.replace("\0", "0").encode(errors="replace").decode() * LONG
    for command in ({"find": "c"}, {"insert": "c", "documents": [{}]}, {"hello": 1}):
        check(client.run({**command, field: FORMS[form](text)}), (field, form))


def test_the_beginning_and_the_end_are_kept() -> None:
    error = ReplError(f"place: {'x' * 100_000} is no name")
    assert len(error.message) == len(str(error)) == LONGEST_MESSAGE
    assert error.message.startswith("place: xxx")
    assert error.message.endswith("xxx is no name")


def test_many_write_errors_say_in_the_end_only_which_and_why(client: Client) -> None:
    """The first ones in full, later ones by index and code alone, as MongoDB does after a megabyte."""
    documents = [{"_id": f"{number}{'x' * 400}"} for number in range(4_000)]
    client.ok({"insert": "c", "documents": documents})
    reply = client.ok({"insert": "c", "documents": documents, "ordered": False})
    errors = reply["writeErrors"]
    assert [error["index"] for error in errors] == list(range(4_000))
    assert {error["code"] for error in errors} == {11000}
    assert errors[0]["errmsg"].startswith("E11000")
    assert errors[0]["keyValue"] == documents[0]
    assert errors[-1] == {"index": 3_999, "code": 11000, "errmsg": ""}
    assert len(encode(reply)) < 1.2 * ERROR_BYTES
