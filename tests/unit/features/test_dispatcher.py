"""What every command has in common, commands about the process, and that docs/commands.md knows them all."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import NoReturn

import pytest

from replset.auth.roles import Action
from replset.bson import Binary, Int64, RawDocument, Timestamp, encode
from replset.errors import InvariantError, ReplError
from replset.features.all import COMMANDS
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.member.process.machine import RecentLog
from replset.operations.command import Command, CommandContext
from replset.operations.dispatcher import Dispatcher
from replset.operations.known_fields import NOT_BUILT, SEARCH_INDEX_COMMANDS
from replset.operations.request import CommandRequest
from tests.rig import Client

DOCS = Path(__file__).parents[3] / "docs" / "commands.md"


def test_every_command_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(COMMANDS) <= documented
    assert documented <= set(COMMANDS), "a command that does not exist"


def test_every_field_is_documented() -> None:
    rows = {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)`.*", DOCS.read_text(encoding="utf-8"), re.MULTILINE)}
    fields = [(name, field) for name, command in COMMANDS.items() for field in command.fields or ()]
    assert [(name, field) for name, field in fields if f"`{field}`" not in rows[name]] == []


def test_every_reply_tells_the_time(client: Client) -> None:
    client.ok({"create": "c"})
    reply = client.ok({"ping": 1})
    time = client.entries()[-1]["ts"]
    assert reply["operationTime"] == time
    signature = {"hash": Binary(bytes(20), 0), "keyId": Int64(0)}
    assert reply["$clusterTime"] == {"clusterTime": time, "signature": signature}
    assert client.run({"nonsense": 1})["operationTime"] == time


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"nonsense": 1}, 59),
        ({"find ": "c"}, 59),
        ({"mapReduce": "c"}, 238),
        ({"shutdown": 1}, 238),
        ({"createSearchIndexes": "c"}, 31082),
        ({"ping": 1, "nonsense": 1}, 40415),
        ({"ping": 1, "maxTimeMS": "x"}, 14),
        ({"ping": 1, "apiVersion": "2"}, 322),
    ],
)
def test_refusals(client: Client, command: dict[str, object], code: int) -> None:
    assert client.code(command) == code


def test_what_is_built_is_not_listed_as_not_built() -> None:
    assert not (NOT_BUILT | SEARCH_INDEX_COMMANDS) & set(COMMANDS)


def test_what_is_not_built_is_on_a_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
    assert {name for name in NOT_BUILT if f"`{name}`" not in page} == set()


def test_an_empty_command_is_unknown(client: Client) -> None:
    request = CommandRequest("test", RawDocument(b"\x05\0\0\0\0"))
    reply = client.reply(request)
    assert isinstance(reply, dict)
    assert reply["code"] == 59


@pytest.mark.parametrize(
    "generic",
    [
        {"lsid": {"id": Binary(bytes(16), 4)}},
        {"$clusterTime": {"clusterTime": Timestamp(1, 1)}},
        {"comment": "hi"},
        {"maxTimeMS": 5},
        {"apiVersion": "1", "apiStrict": False},
        {"readConcern": {"level": "local"}},
        {"$replsetForwarded": True},
        {"$readPreference": {"mode": "nearest"}},
    ],
)
def test_what_every_command_takes(client: Client, generic: dict[str, object]) -> None:
    client.ok({"ping": 1, **generic})


def test_only_hello_comes_the_old_way(client: Client) -> None:
    for name, expected in (("isMaster", 1.0), ("ping", 0.0)):
        request = CommandRequest("admin", RawDocument(encode({name: 1})), legacy=True)
        reply = client.reply(request)
        assert isinstance(reply, dict)
        assert reply["ok"] == expected
        assert reply.get("code", 352) == 352


def test_an_unforeseen_failure_is_a_reply_but_a_broken_invariant_is_not(
    client: Client, member: RunningMember, caplog: pytest.LogCaptureFixture
) -> None:
    async def bug(ctx: CommandContext) -> NoReturn:
        raise KeyError("bug")

    async def broken(ctx: CommandContext) -> NoReturn:
        raise InvariantError("broken")

    async def labelled(ctx: CommandContext) -> NoReturn:
        raise ReplError("no", code=112, labels=("TransientTransactionError",), details={"extra": 1})

    rows = (("bug", bug), ("broken", broken), ("labelled", labelled))
    commands = [Command(name, run, needs=Action.OPEN) for name, run in rows]
    member.dispatcher = Dispatcher(member, commands)
    with caplog.at_level(logging.ERROR, logger="replset"):
        assert client.code({"bug": 1}) == 1
    assert "command failed" in caplog.text
    assert "a logs an error: command failed" in client.rig.cluster.broken.pop()  # or the simulation would fail by it
    with pytest.raises(InvariantError):
        client.run({"broken": 1})
    reply = client.run({"labelled": 1})
    assert (reply["errorLabels"], reply["extra"]) == (["TransientTransactionError"], 1)
    assert client.dispatcher.failures == {1: 1, 112: 1}


# --- about the process ------------------------------------------------------------------------------------------


def test_build_info(client: Client) -> None:
    reply = client.ok({"buildInfo": 1})
    assert (reply["version"], reply["versionArray"], reply["maxBsonObjectSize"]) == ("7.0.14", [7, 0, 14, 0], 16 << 20)
    assert client.ok({"buildinfo": 1})["version"] == reply["version"]


def test_who_asks(client: Client) -> None:
    assert client.ok({"whatsmyuri": 1})["you"] == "127.0.0.1:5555"
    assert client.ok({"connectionStatus": 1})["authInfo"]["authenticatedUsers"] == []
    assert "authenticatedUserPrivileges" in client.ok({"connectionStatus": 1, "showPrivileges": True})["authInfo"]


def test_parameters(client: Client) -> None:
    assert client.ok({"getParameter": "*"}, "admin")["enableTestCommands"] is True
    reply = client.ok({"getParameter": 1, "featureCompatibilityVersion": 1}, "admin")
    assert reply["featureCompatibilityVersion"] == {"version": "1.1"}
    assert client.code({"getParameter": 1, "nonsense": 1}, "admin") == 72
    detailed = client.ok({"getParameter": {"allParameters": True, "showDetails": True}}, "admin")
    assert detailed["logLevel"] == {"value": 0, "settableAtRuntime": True, "settableAtStartup": False}
    assert client.ok({"getParameter": {"showDetails": True}, "quiet": 1}, "admin")["quiet"]["value"] is False


def test_the_log_is_made_more_detailed(client: Client) -> None:
    level = logging.getLogger("replset").level
    try:
        assert client.ok({"setParameter": 1, "logLevel": 2}, "admin")["was"] == 0
        assert client.ok({"getParameter": 1, "logComponentVerbosity": 1}, "admin")["logComponentVerbosity"] == {
            "verbosity": 1
        }
        command = {"setParameter": 1, "logComponentVerbosity": {"verbosity": 0}}
        assert client.ok(command, "admin")["was"] == {"verbosity": 1}
        assert client.ok({"getParameter": 1, "logLevel": 1}, "admin")["logLevel"] == 0
    finally:
        logging.getLogger("replset").setLevel(level)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"setParameter": 1}, 72),
        ({"setParameter": 1, "nonsense": 1}, 72),
        ({"setParameter": 1, "enableTestCommands": 1}, 20),
        ({"setParameter": 1, "logLevel": 9}, 51024),
        ({"setParameter": 1, "logLevel": "x"}, 14),
        ({"setParameter": 1, "logComponentVerbosity": {"storage": {"verbosity": 1}}}, 238),
        ({"profile": 1}, 238),
        ({"profile": "x"}, 14),
    ],
)
def test_parameters_that_are_refused(client: Client, command: dict[str, object], code: int) -> None:
    assert client.code(command, "admin") == code


def test_the_lifetime_of_transactions_is_set(client: Client) -> None:
    assert client.ok({"setParameter": 1, "transactionLifetimeLimitSeconds": 5}, "admin")["was"] == 60
    name = "transactionLifetimeLimitSeconds"
    assert client.ok({"getParameter": 1, name: 1}, "admin")[name] == 5
    assert client.ok({"serverStatus": 1})["transactions"]["currentOpen"] == 0


def test_nothing_is_profiled(client: Client) -> None:
    reply = client.ok({"profile": -1})
    assert (reply["was"], reply["slowms"], reply["sampleRate"]) == (0, 100, 1.0)


def test_process(client: Client) -> None:
    assert client.ok({"getCmdLineOpts": 1}, "admin")["argv"][:2] == ["replset", "start"]
    assert client.ok({"getLog": "startupWarnings"}, "admin")["log"] == []
    client.member.warnings = ["insecure"]
    (line,) = client.ok({"getLog": "startupWarnings"}, "admin")["log"]
    assert json.loads(line)["msg"] == "insecure"
    assert client.ok({"getLog": "global"}, "admin")["log"] == []
    for number in range(1100):
        client.member[RecentLog].add(f"line {number}")
    found = client.ok({"getLog": "global"}, "admin")
    assert (found["totalLinesWritten"], len(found["log"]), found["log"][-1]) == (1100, 1024, "line 1099")
    assert client.ok({"getLog": "*"}, "admin")["names"] == ["global", "startupWarnings"]
    assert client.code({"getLog": "x"}, "admin") == 2
    assert client.code({"getLog": 1}, "admin") == 14
    system = client.ok({"hostInfo": 1}, "admin")["system"]
    assert system["hostname"] == "a"
    assert min(system["numCores"], system["memSizeMB"]) > 0
    assert "find" in client.ok({"listCommands": 1})["commands"]


def test_what_other_servers_have_to_do_is_done_here_already(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    assert client.ok({"compact": "c", "force": True})["bytesFreed"] == 0
    assert client.code({"compact": "none"}) == 26
    client.ok({"planCacheClear": "c", "query": {"a": 1}})
    assert client.code({"fsync": 1, "lock": True}, "admin") == 238
    client.ok({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}})
    assert client.ok({"fsync": 1}, "admin")["numFiles"] == 1
    assert client.member.node.position.last_durable == client.member.store.last_applied, "until it is on disk"


def test_server_status(client: Client) -> None:
    before = client.ok({"serverStatus": 1})
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    reply = client.ok({"serverStatus": 1})
    opcounters = reply["opcounters"]
    assert (opcounters["insert"], opcounters["command"] - before["opcounters"]["command"]) == (1, 1)
    assert reply["repl"]["setName"] == "rs0"
    assert reply["oplog"]["latestOptime"]["ts"] == client.entries()[-1]["ts"]
    assert "repl" not in client.ok({"serverStatus": 1, "repl": 0})
    assert reply["network"]["numRequests"] == before["network"]["numRequests"] + 2
    assert reply["asserts"]["user"] == 0
    assert reply["mem"]["resident"] > 0
    client.code({"getMore": Int64(1), "collection": "c"})
    assert client.ok({"serverStatus": 1})["asserts"]["user"] == 1
    client.rig.wait(61)
    reply = client.ok({"serverStatus": 1})
    assert reply["uptime"] == reply["uptimeMillis"] // 1000 >= 61, "mongostat reads it as a whole number"


PRIVATE_NAMES = sorted(command.name for command in COMMANDS.values() if command.private)


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_what_members_ask_each_other_is_unknown_over_http(client: Client, name: str) -> None:
    assert client.code({name: 1}, "admin", source="http") == 59


@pytest.mark.parametrize("name", [name for name in PRIVATE_NAMES if name != "replSetProve"])
def test_members_alone_ask_what_members_ask_each_other(client: Client, name: str) -> None:
    client.proves = False
    assert client.code({name: 1, "x": 1}, "admin") == 13
    client.connection.member = HostPort("a:1")
    assert client.run({name: 1, "x": 1}, "admin").get("code") != 13
