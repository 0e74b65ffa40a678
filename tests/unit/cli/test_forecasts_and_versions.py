"""`replset what-if`, `confirm` and `feature-version` on a real set of one simulated member: what a person sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replset.cli import calls
from replset.cli.calls import CommandFailedError
from replset.cli.main import main
from replset.ejson import to_ejson_value
from tests.rig import Rig, a_set


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with a_set(3) as rig:

        def ask(host: str, command: dict[str, Any], timeout_s: float = 30.0, *, database: str = "admin") -> Any:
            reply = rig.client(host.partition(":")[0]).run(command, database)
            if reply["ok"] != 1:
                raise CommandFailedError(f"{host}: {reply['errmsg']}", code=reply["code"])
            return reply

        monkeypatch.setattr(calls, "ask", ask)
        yield rig


def test_the_feature_version_is_shown_and_changed(three: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["feature-version", "--host", "b:27017"]
    assert main([*command, "1.0"]) != 0
    assert "confirm: true" in capsys.readouterr().err
    assert main([*command, "7.0", "--confirm"]) != 0
    assert "expected '1.0' or '1.1'" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out == "1.1\n"
    assert main(["feature-version", "--host", "a:27017", "1.0", "--confirm"]) == 0
    assert capsys.readouterr().out == "1.0\n"


def test_a_lost_disk_and_another_configuration_are_foreseen(
    three: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play = ["--host", "a:27017", "--plays", "3"]
    assert main(["what-if", "lose-disk", "b:27017", *play]) == 0
    said = capsys.readouterr().out
    assert "what if: lose-disk b:27017" in said
    assert "primary: a:27017 as now, in 3 of 3" in said

    config = to_ejson_value(three.client().ok({"replSetGetConfig": 1}, "admin")["config"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "members": [*config["members"], {"_id": 3, "host": "d:27017"}]}))
    assert main(["what-if", "reconfig", str(file), *play]) == 0
    said = capsys.readouterr().out
    assert "what if: reconfig to a:27017, b:27017, c:27017, d:27017" in said
    assert "majority writes go on: yes" in said

    file.write_text(json.dumps({**config, "members": config["members"][:1]}))
    assert main(["what-if", "reconfig", str(file), *play]) == 0
    assert "the primary refuses it, in 3 of 3: " in capsys.readouterr().out


def test_what_is_not_confirmed_is_named_and_makes_the_status_1(three: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    at = three.client().ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 1}})["opTime"]
    known, unknown = f"{at['t']}:{at['ts'].time}:{at['ts'].inc}", "9:4000000000:1"
    command = ["confirm", "--host", "c:27017", "--timeout", "1"]
    assert main([*command, known]) == 0
    assert capsys.readouterr().out == "1 write confirmed\n"
    assert main([*command, known, unknown]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{unknown}  unknown: ")
    assert main([*command, "--json", "--wait", "members:3", known]) == 0
    assert json.loads(capsys.readouterr().out) == {"confirmed": 1, "notConfirmed": []}
