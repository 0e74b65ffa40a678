"""docs/spark.md has the commands of `oplog-spark`, their options and exit statuses, and the options of the source."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replset.storage import DATABASE_FILE
from spark import jobs
from spark.cli import app, main
from spark.reports.tail import TailPrinter
from spark.source import _OPTIONS, MAX_ENTRIES, Options
from tests.spark.kit import insert, write_oplog
from tests.unit.cli.commands import commands_of, parameters_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
COMMANDS = {path[0]: command for path, command in commands_of(app).items() if path}


def rows(head: str) -> list[list[str]]:
    """The cells of the table whose first line begins with `head`."""
    (found,) = re.findall(rf"^{re.escape(head)}.*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    split = re.compile(r"(?<!\\)\|")
    return [[cell.strip() for cell in split.split(line)[1:-1]] for line in found.splitlines()]


def quoted(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


# --- commands, options, statuses -------------------------------------------------------------------------------


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(re.findall(r"^### `oplog-spark (\w+)`$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_options_of_the_commands() -> None:
    documented = {}
    for option, who, _ in rows("| option | commands |"):
        (words,) = quoted(option)
        documented[words.split()[0]] = set(COMMANDS) if who == "all" else set(quoted(who))
    real: dict[str, set[str]] = {}
    for name, command in COMMANDS.items():
        for option in parameters_of(command):
            if option.startswith("--"):
                real.setdefault(option, set()).add(name)
    assert documented == real


@pytest.mark.parametrize("page", ["docs/spark.md", "docs/spark-at-scale.md", "README.md"])
def test_what_the_examples_run_exists(page: str) -> None:
    found = re.findall(r"^\$ oplog-spark (\w+) (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    assert page != "docs/spark.md" or {name for name, _ in found} == set(COMMANDS)
    for name, rest in found:
        for option in re.findall(r"--[\w-]+", rest):
            assert option in parameters_of(COMMANDS[name]), f"{name} {option}"


@pytest.fixture
def members(tmp_path: Path) -> dict[str, str]:
    """`short` lacks the last entries of the other two; `torn` has one whose hash is wrong."""
    made = {name: write_oplog(tmp_path / name, map(insert, range(20))) for name in ("m1", "m2", "torn")}
    made["short"] = write_oplog(tmp_path / "short", map(insert, range(15)))
    with closing(sqlite3.connect(made["torn"] / DATABASE_FILE)) as connection:
        connection.execute("UPDATE oplog SET hash = hash + 1 WHERE ts = (SELECT max(ts) FROM oplog)")
        connection.commit()
    return {name: str(folder) for name, folder in made.items()}


def test_exit_statuses(members: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    m1, m2, short, torn = (members[name] for name in ("m1", "m2", "short", "torn"))
    local = ["--engine", "local"]
    given = {
        0: [main(["diff", *local, m1, m2]), main(["verify", *local, m1])],
        1: [main(["diff", *local, m1, short]), main(["verify", *local, torn])],
        2: [
            main(["diff", *local, m1, "/no/such/member"]),
            main(["diff", *local, m1]),
            main(["lag", *local, m1]),
            main(["diff", "--no-such-option", m1]),
        ],
        130: [TailPrinter(as_json=True).status()],
    }
    assert {status: set(found) for status, found in given.items()} == {status: {status} for status in given}
    assert [int(status) for status, _ in rows("| exit status |")] == list(given)
    assert len(capsys.readouterr().err.splitlines()) == len(given[2])


# --- the data source -------------------------------------------------------------------------------------------


def test_options_of_the_data_source() -> None:
    documented = {quoted(name)[0]: default for name, default, _ in rows("| option | default |")}
    assert list(documented) == list(_OPTIONS)
    assert int(documented["rowsPerTask"]) == Options.parse({"path": "x"}).rows_per_task == jobs.ROWS_PER_TASK
    assert int(documented["maxEntriesPerBatch"]) == MAX_ENTRIES
    assert documented["onTrimmed"] == "`fail`"
    assert not Options.parse({"path": "x"}).skip_trimmed
    assert Options.parse({"path": "x", "onTrimmed": "skip"}).skip_trimmed
