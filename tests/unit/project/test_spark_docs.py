"""docs/spark.md says what `oplog-spark` and `format("oplog")` do: all of it, and nothing else."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replset.storage.file_names import DATABASE_FILE
from spark import jobs
from spark.cli import app, main
from spark.columns import SPARK_TYPES
from spark.command_run import tables_of
from spark.members import open_members
from spark.oplog import Oplog
from spark.reports import elections, elections_text, export, lag, summary, summary_text
from spark.reports.diff import classify
from spark.reports.diff import report as diff_report
from spark.reports.diff.documents import DIFFERING
from spark.reports.diff.local_engine import local_diff
from spark.reports.replay import replay
from spark.reports.tail import Second, TailPrinter, second_document
from spark.reports.verify import check as verify
from spark.reports.verify import report as verify_report
from spark.shipping import WORKERS_NEED
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


def test_columns_and_their_types() -> None:
    documented = {quoted(name)[0]: kind for name, kind, _ in rows("| column | type |")}
    assert list(documented.items()) == list(SPARK_TYPES.items())


def test_options_of_the_data_source() -> None:
    documented = {quoted(name)[0]: default for name, default, _ in rows("| option | default |")}
    assert list(documented) == list(_OPTIONS)
    assert int(documented["rowsPerTask"]) == Options.parse({"path": "x"}).rows_per_task == jobs.ROWS_PER_TASK
    assert int(documented["maxEntriesPerBatch"]) == MAX_ENTRIES
    assert documented["onTrimmed"] == "`fail`"
    assert not Options.parse({"path": "x"}).skip_trimmed
    assert Options.parse({"path": "x", "onTrimmed": "skip"}).skip_trimmed


def test_kinds_and_verdicts_of_a_diff() -> None:
    assert [quoted(kind)[0] for kind, _ in rows("| kind |")] == list(classify.Kind)
    (verdicts,) = re.findall(r"The verdict on a pair is the first that holds: (.*?)\.\s", PAGE, re.DOTALL)
    assert quoted(verdicts) == list(classify.Verdict)


def test_kinds_of_faults_and_sources_of_lag() -> None:
    (kinds,) = re.findall(r"Kinds of faults: (.*)\.", PAGE)
    assert quoted(kinds) == list(verify.KINDS)
    (sources,) = re.findall(r"from three sources: (.*?)\. An oplog", PAGE, re.DOTALL)
    assert set(quoted(sources)) == {lag.WALLS, lag.COMMIT_POINT, lag.STATUS}


def test_what_executors_need() -> None:
    (needed,) = re.findall(r"Their Python must have (.*?);", PAGE, re.DOTALL)
    assert set(quoted(needed)) == set(WORKERS_NEED)


# --- results ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """Of each command the tables that `--parquet` writes, and the document that `--json` prints."""

    tables: dict[str, dict[str, list[str]]]
    documents: dict[str, dict[str, Any]]


def empty(ddl: str) -> pa.Table:
    """A table with the columns of a Spark schema."""
    columns = [column.split()[0] for column in ddl.split(", ")]
    return pa.table({name: pa.array([], pa.string()) for name in columns})


def results_of(oplogs: list[Oplog]) -> Results:
    found = {
        "diff": local_diff(oplogs),
        "verify": verify.local_verify(oplogs),
        "summary": summary.local_summary(oplogs),
    }
    terms = elections.Elections(
        None, *(empty(ddl) for ddl in (elections.TERMS_SCHEMA, elections.LOST_SCHEMA, elections.ROLLBACKS_SCHEMA))
    )
    tables = {
        **{name: {part: table.column_names for part, table in tables_of(one).items()} for name, one in found.items()},
        "elections": {part: table.column_names for part, table in tables_of(terms).items()},
        "lag": {"lag": empty(lag.LAG_SCHEMA).column_names},
        "replay": {"documents": empty(replay.DOCUMENTS_SCHEMA).column_names},
    }
    tables["diff"]["documents_at"] = DIFFERING.names
    return Results(
        tables,
        {
            "diff": {"ns": None, **diff_report.document_of(found["diff"], oplogs)},
            "verify": verify_report.document_of(found["verify"], oplogs),
            "summary": summary_text.document_of(found["summary"]),
            "elections": elections_text.document_of(terms),
            "lag": lag.document_of(empty(lag.LAG_SCHEMA)),
            "export": export.document_of(empty("member string, ns string, file string"), "exported"),
        },
    )


@pytest.fixture
def results(members: dict[str, str]) -> Results:
    return results_of(open_members([members["m1"], members["short"]]))


def table_rows() -> Iterator[tuple[str, str, list[str]]]:
    """(command, table, columns) of the page; "as `members`" stands for that table's columns behind the first."""
    of_members: list[str] = []
    for name, columns in rows("| table | columns |"):
        command, table = quoted(name)
        own, _, rest = columns.partition(", and as ")
        if (command, table) == ("summary", "members"):
            of_members = quoted(columns)[1:]
        yield command, table, quoted(own) + (of_members if rest else [])


def test_every_column_of_every_table(results: Results) -> None:
    documented: dict[str, dict[str, list[str]]] = {}
    for command, table, columns in table_rows():
        documented.setdefault(command, {})[table] = columns
    assert documented == results.tables


def test_every_field_of_every_document(results: Results) -> None:
    documented = {quoted(command)[0]: quoted(fields) for command, fields in rows("| command | fields |")}
    real = {command: list(document) for command, document in results.documents.items()}
    inside = {"lag": ["source", "now", "worst", "optime", "points", "member"]}
    for command, fields in real.items():
        assert documented[command][: len(fields)] == fields, command
        assert set(documented[command][len(fields) :]) <= set(inside.get(command, [])), command
    assert set(documented) == set(real)


def test_a_second_of_a_tail() -> None:
    (fields,) = re.findall(r"`tail` a line a second and member: (.*)\.", PAGE)
    assert quoted(fields) == list(second_document(Second("m1", 0, 0, {}, {})))
