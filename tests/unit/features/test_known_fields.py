"""Every field that MongoDB 7.0 takes is read, taken without effect, or refused as not built; another one is a typo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replset.features.all import COMMANDS
from replset.operations.command import GENERIC_FIELDS, Command
from replset.operations.known_fields import HARMLESS, KNOWN, is_harmless
from tests.rig import Client, Rig, a_set

OURS = {
    "replSetConfirmWrites",
    "replSetAddMember",
    "replSetRemoveMember",
    "replSetResync",
    "replSetGetRollbacks",
    "replSetGetWriteState",
    "replSetTestCut",
} | {
    "replSetTestClock",
    "replSetGetElections",
    "replSetConsumers",
    "replSetDocumentHistory",
    "replSetUndo",
    "replSetWhatIf",
    *(
        f"replSetConsumer{name}"
        for name in ("Create", "Read", "ReadHere", "Ack", "Nack", "Seek", "Remove", "Parked", "Unpark", "Forget")
    ),
    "replSetCheckDocuments",
    "replSetRepairDocuments",
    "replSetBackup",
    "replSetForgetArchive",
    "replSetFollow",
    "replSetFollowStatus",
    "replSetFollowEntries",
}
"""Commands that MongoDB does not have."""
OUR_FIELDS = {"replSetStepDown": {"handOverTo"}}
"""Fields of MongoDB's commands that MongoDB does not have."""
CHECKED = {name: command for name, command in COMMANDS.items() if command.fields is not None and not command.private}
SENT_BY_THE_TOOLS = {
    "insert": "documents ordered bypassDocumentValidation bypassEmptyTsReplacement",
    "update": "updates ordered bypassDocumentValidation",
    "delete": "deletes ordered",
    "create": "capped size max validator validationLevel validationAction viewOn pipeline collation idIndex timeseries"
    " clusteredIndex changeStreamPreAndPostImages expireAfterSeconds storageEngine indexOptionDefaults autoIndexId",
    "createIndexes": "indexes ignoreUnknownIndexOptions",
    "collMod": "index",
    "find": "filter sort projection skip limit batchSize singleBatch hint noCursorTimeout tailable awaitData",
    "getMore": "collection batchSize",
    "listCollections": "filter nameOnly cursor authorizedCollections",
    "listIndexes": "cursor",
    "aggregate": "pipeline cursor allowDiskUse hint let collation",
    "count": "query limit skip hint collation",
    "applyOps": "alwaysUpsert preCondition",
    "renameCollection": "to dropTarget",
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One for all tests, which are refused before anything is done."""
    with a_set() as made:
        yield made


def body_of(command: Command, field: str) -> dict[str, object]:
    # A value that is not empty and, for most fields, of the wrong type: only the name is looked at here.
    return {command.name: 1, field: "x"}


def fields_of_commands(harmless: bool) -> Iterator[tuple[str, str]]:
    for name, command in CHECKED.items():
        for field in sorted(KNOWN.get(name, frozenset()) - (command.fields or frozenset()) - GENERIC_FIELDS):
            if is_harmless(name, field) == harmless:
                yield name, field


@pytest.mark.parametrize(("name", "field"), list(fields_of_commands(harmless=False)))
def test_a_field_that_is_not_built_is_refused_by_name(client: Client, name: str, field: str) -> None:
    reply = client.run(body_of(COMMANDS[name], field), "admin")
    assert (reply["code"], reply["codeName"]) == (238, "NotImplemented")
    assert f"{name}.{field}" in reply["errmsg"]


@pytest.mark.parametrize(("name", "field"), list(fields_of_commands(harmless=True)))
def test_a_field_without_meaning_here_is_taken(client: Client, name: str, field: str) -> None:
    reply = client.run(body_of(COMMANDS[name], field), "admin")
    assert reply.get("code") not in (238, 40415)


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_a_typo_is_an_unknown_field(client: Client, name: str) -> None:
    reply = client.run(body_of(COMMANDS[name], "nonsense"), "admin")
    assert reply["code"] == 40415
    assert f"'{name}.nonsense'" in reply["errmsg"]


@pytest.mark.parametrize("name", sorted(CHECKED.keys() - OURS))
def test_every_field_that_a_command_reads_is_mongodbs(name: str) -> None:
    read = CHECKED[name].fields or frozenset()
    assert name in KNOWN, "a new command needs its row in known_fields.py"
    assert read <= KNOWN[name] | GENERIC_FIELDS | OUR_FIELDS.get(name, set())
    assert not any(is_harmless(name, field) for field in read), "it is read, so it is not without meaning"


def test_the_table_is_used() -> None:
    taken = frozenset[str]().union(*KNOWN.values())
    assert HARMLESS.keys() <= taken | {f"{place}.{name}" for place, names in KNOWN.items() for name in names}
    assert "nonsense" not in taken


def test_no_empty_field_of_a_driver_is_refused(client: Client) -> None:
    client.ok({"find": "c", "collation": {}, "let": {}, "min": {}, "max": None, "returnKey": False})


@pytest.mark.parametrize("name", sorted(SENT_BY_THE_TOOLS))
def test_what_the_tools_send_is_known(name: str) -> None:
    assert set(SENT_BY_THE_TOOLS[name].split()) <= KNOWN[name]
