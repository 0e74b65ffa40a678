"""`oplog-spark` picks its engine by itself, says which, and shows how far it is."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replset.local_set import wait_until
from replset.long_work import LongWork
from spark import command_run
from spark.cli import main
from spark.columns import arrow_schema
from spark.command_run import CommandRun
from spark.members import open_members
from spark.runners import LocalRunner
from spark.session import GATEWAY, SparkTasks
from tests.spark.kit import insert, write_oplog

Capture = pytest.CaptureFixture[str]


class SparkWantedError(Exception):
    """Spark would be started."""


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def started(**_: object) -> None:
        raise SparkWantedError

    monkeypatch.setattr("spark.session.spark_context", started)
    monkeypatch.delenv(GATEWAY, raising=False)
    return [str(write_oplog(tmp_path / name, map(insert, range(20)))) for name in ("m1", "m2")]


@pytest.mark.parametrize("command", ["diff", "summary", "verify"])
def test_little_is_done_without_spark_and_one_line_says_so(command: str, members: list[str], capsys: Capture) -> None:
    assert main([command, *members]) == 0
    assert capsys.readouterr().err == ("oplog-spark: local engine, 40 entries; --engine spark or --master uses Spark\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "--engine", "spark"],
        ["diff", "--master", "local[2]"],
        ["diff", "--format", "html"],
        ["elections"],
        ["lag"],
    ],
)
def test_spark_is_used_where_it_is_asked_for_or_alone_can(arguments: list[str], members: list[str]) -> None:
    with pytest.raises(SparkWantedError):
        main([*arguments, *members])


def test_spark_is_used_under_spark_submit(members: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Its standard error is in its standard output, so nothing but the result may be there."""
    monkeypatch.setenv(GATEWAY, "1")
    monkeypatch.setattr("replset.long_work.LINE_EVERY_S", 0.0001)
    with pytest.raises(SparkWantedError):
        main(["diff", *members])
    assert capsys.readouterr() == ("", "")


def test_much_is_done_by_spark_where_it_is_installed(
    members: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(command_run.LOCAL_ROWS, "verify", 39)
    with pytest.raises(SparkWantedError):
        main(["verify", *members])
    assert "oplog-spark: spark engine, 40 entries; --engine local does without Spark" in capsys.readouterr().err
    monkeypatch.setattr(command_run, "NOT_FOR_LOCAL", ("not_installed_here",))
    assert main(["verify", *members]) == 0


def test_the_local_engine_says_how_many_parts_it_has_read(members: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    runner = LocalRunner(lambda done, total: seen.append((done, total)))
    found = runner.read(
        open_members(members), ("ts",), lambda _, batches: batches, arrow_schema(("ts",)), rows_per_task=10
    )
    assert found.num_rows == 40
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_spark_says_how_many_tasks_are_done() -> None:
    class Tracker:
        def getActiveStageIds(self) -> list[int]:
            return [4, 5, 6]

        def getStageInfo(self, stage: int) -> Any:
            return None if stage == 6 else SimpleNamespace(numTasks=10, numCompletedTasks=stage)

    context: Any = SimpleNamespace(statusTracker=Tracker)
    out = io.StringIO()
    with LongWork("oplog-spark", out=out, line_every_s=0.01) as work:
        work.begin("diff", unit="tasks")
        tasks = SparkTasks(context, work)
        wait_until(lambda: "oplog-spark: diff: 9 of 20 tasks (45 %)" in out.getvalue(), 60, "the line")
        tasks.close()


def test_long_work_of_a_command_is_shown_until_its_result(
    members: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("replset.long_work.LINE_EVERY_S", 0.01)
    run = CommandRun("diff", engine=command_run.Engine.LOCAL)
    with run:
        run.open(members)
        run.on_part(1, 4)
        said = ""
        while "oplog-spark: diff of 40 entries: 1 of 4 parts (25 %)" not in said:
            said += capsys.readouterr().err
        run.end_work()
        capsys.readouterr()
        time.sleep(0.05)
        assert capsys.readouterr().err == ""
