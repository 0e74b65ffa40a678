"""oplog-spark before any Spark: help, options, points in time, what is missing, errors on one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

from replset.errors import BadValueError
from replset.ids import pack_ts
from spark import command_run as run_module
from spark.cli import app, main
from spark.command_run import (
    JAVA_OPTIONS,
    QUICK_DIFF_ROWS,
    QUICK_JAVA,
    QUICK_ROWS,
    CommandRun,
    first_line,
    one_line_error,
    point_of,
    span_of,
)
from spark.oplog import Bounds, OplogError, Span
from tests.spark.kit import T0, insert, write_oplog
from tests.unit.cli.commands import commands_of, parameters_of

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[3]
COMMANDS = {path[0]: command for path, command in commands_of(app).items() if path}


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_says_what_each_option_is(command: tuple[str, ...], capsys: Capture) -> None:
    assert main([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert " ".join(("oplog-spark", *command)) in out
    for name in command:
        options = parameters_of(COMMANDS[name])
        assert {"--engine", "--master", "--format", "--json"} <= set(options)
        assert all(options.values()), f"oplog-spark {name}: an option has no help"


def test_help_loads_nothing_heavy() -> None:
    """So that it answers at once: neither Spark nor Arrow nor numpy."""
    program = (
        "import sys; from spark.cli import main; main(['--help'])\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'adbc_driver_sqlite'} & set(sys.modules)\n"
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_without_the_extra_it_says_what_to_install(engine: str, tmp_path: Path) -> None:
    """The package installed alone brings `oplog-spark`, and none of what it reads with."""
    program = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'numpy', 'pandas', 'adbc_driver_sqlite'):\n"
        "    sys.modules[name] = None\n"
        "from spark.cli import main\n"
        f"sys.exit(main(['diff', 'm1', 'm2', '--engine', '{engine}']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert 'here: pip install ".[spark]" in the clone of replset' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["-m", "spark"], [str(ROOT / "spark/__main__.py")], ["-c", "import spark.cli as c; c.main(['--help'])"]]
)
def test_it_runs_as_a_module_and_as_a_file(command: list[str], tmp_path: Path) -> None:
    """As a file it is what spark-submit starts; the modules beside it must not pass for others' of the same names."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, "--help"], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "elections" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["elections", "m7"], "m7: there is no such file or folder"),
        (["frobnicate"], "No such command 'frobnicate' (see `oplog-spark --help`)"),
        (["summary"], "Missing argument 'MEMBER' (see `oplog-spark summary --help`)"),
        (["summary", "m1", "--frobnicate"], "No such option: --frobnicate"),
        (["summary", "m1", "--engine", "duck"], "Invalid value for '--engine': "),
        (["summary", "m1", "--format", "pdf"], "Invalid value for '--format': "),
        (["lag", "m1", "--engine", "local"], "lag needs --engine spark (local does diff, summary and verify)"),
        (["elections", "m1", "--engine", "local"], "elections needs --engine spark"),
        (["replay", "m1", "--ns", "a.b", "--engine", "local"], "replay needs --engine spark"),
        (["export", "m1", "--parquet", "x", "--engine", "local"], "export needs --engine spark"),
        (["replay", "m1"], "Missing option '--ns'"),
        (["replay", "m1", "--ns", "a.b", "--at", "yesterday"], "--at: "),
        (["replay", "m1", "--ns", "a.b", "--format", "html"], "replay has no page: --format table or json"),
        (["export", "m1", "--parquet", "x", "--append", "--overwrite"], "--append or --overwrite, not both"),
        (["export", "m1"], "Missing option '--parquet'"),
        (["lag", "m1", "--from", "soon"], "--from: 'soon' is neither TERM:SECONDS:INC nor a time such as"),
        (["lag", "m1", "--from", "1:9:1", "--to", "1:8:1"], "--to 1:8:1 is before --from 1:9:1"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"oplog-spark: {words}")
    assert err.count("\n") == 1


def test_the_local_engine_needs_no_spark(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    write_oplog(tmp_path / "m1", [insert(n) for n in range(3)])
    monkeypatch.setattr(run_module, "NEEDS", ("numpy", "pyspark_is_not_here"))
    monkeypatch.setattr(run_module, "NOT_FOR_LOCAL", ("pyspark_is_not_here",))
    assert main(["summary", str(tmp_path / "m1"), "--engine", "local"]) == 0
    assert "3 entries" in capsys.readouterr().out


# --- points in time --------------------------------------------------------------------------------------------


def test_points_in_time() -> None:
    ends = {"3:1760000000:7": pack_ts(T0, 7) + 1, "2025-10-09T10:53:20+02:00": pack_ts(T0, 0)}
    assert {text: point_of(text, "--to", end=True) for text in ends} == ends
    begins = {"3:1760000000:7": pack_ts(T0, 7), "2025-10-09": pack_ts(1_759_968_000, 0), "1960-01-01": 0}
    begins |= dict.fromkeys(("2025-10-09T08:53:20Z", "2025-10-09T08:53:20"), pack_ts(T0, 0))
    assert {text: point_of(text, "--from", end=False) for text in begins} == begins
    assert span_of(None, None) == Span(0, (1 << 63) - 1)
    assert span_of("1:5:1", "1:5:1") == Span(pack_ts(5, 1), pack_ts(5, 1) + 1)
    with pytest.raises(BadValueError, match="is before"):
        span_of("2025-10-09", "2025-10-08")


def test_it_says_of_which_members_there_are_only_entries(tmp_path: Path, capsys: Capture) -> None:
    member = write_oplog(tmp_path / "m1", [insert(n) for n in range(5)])
    dump = tmp_path / "oplog.rs.bson"
    dump.write_bytes(b"".join(insert(n)[6] for n in range(5)))
    assert main(["diff", "--engine", "local", str(member), f"d={dump}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Compared by the hashes stored beside the entries" in said
    assert "Of d there are only entries, without hashes or a chain: theirs were computed." in said
    assert main(["diff", "--engine", "local", f"e={dump}", f"d={shutil.copy(dump, tmp_path / 'copy')}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Compared by hashes computed of the entries' bytes. Of d and e there are only entries" in said
    assert main(["verify", "--engine", "local", f"d={dump}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Of d there are only entries, without hashes or a chain: these alone were checked." in said


def test_the_newest_entry_told_is_the_newest_that_was_compared(tmp_path: Path, capsys: Capture) -> None:
    members = [str(write_oplog(tmp_path / name, map(insert, range(20)))) for name in ("m1", "m2")]
    assert main(["diff", "--engine", "local", "--to", f"1:{T0}:7", *members]) == 0
    assert capsys.readouterr().out.startswith(
        f"The oplogs of m1 and m2 are the same. 7 entries, the newest 1:{T0}:7.\n"
    )
    assert main(["diff", "--engine", "local", members[0]]) == 2
    assert capsys.readouterr() == ("", "oplog-spark: m1 is alone: give two members or more to compare\n")


# --- errors ----------------------------------------------------------------------------------------------------


def test_a_worker_s_error_comes_home_with_the_member_s_name(tmp_path: Path) -> None:
    """Spark's workers may be other machines; what they miss may be there where the command was given."""

    def from_worker(reason: str) -> str:
        text = "".join(traceback.format_exception(OplogError("m2", reason)))
        return one_line_error(PythonException(text)).message

    here, nowhere = tmp_path / "replset.db", tmp_path / "none"
    here.touch()
    assert from_worker("database disk image is malformed") == "m2: database disk image is malformed"
    assert from_worker(f"{here} does not exist").startswith(f"m2: {here} does not exist where a worker runs, only here")
    assert from_worker(f"{nowhere} does not exist") == f"m2: {nowhere} does not exist"


def test_an_error_of_spark_s_is_its_first_line_and_a_bug_is_not_hidden() -> None:
    found = one_line_error(AnalysisException("\n[NO_SUCH_TABLE] there is none\n  at org.apache.spark.Stack\n  at ..."))
    assert found.message == "[NO_SUCH_TABLE] there is none"
    assert first_line(ValueError("")) == "ValueError"
    trace = (
        "Traceback (most recent call last):\n  File x, line 1, in y\n    z()\nValueError: odd\n\n\tat org.apache.Frame"
    )
    assert first_line(Exception(f"[PYTHON_EXCEPTION] thrown from the Python worker: {trace}")) == "ValueError: odd"
    with pytest.raises(ZeroDivisionError):
        one_line_error(ZeroDivisionError("a bug of ours"))


def test_leaving_early_closes_what_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_oplog(tmp_path / "m1", [insert(0)])
    stopped: list[str] = []

    class Session:
        def stop(self) -> None:
            stopped.append("stopped")

    run = CommandRun("diff")
    with suppress(KeyboardInterrupt), run:
        run.open([str(tmp_path / "m1")])
        session: Any = Session()
        run._session = session
        raise KeyboardInterrupt
    assert stopped == ["stopped"]


@pytest.mark.parametrize(
    ("option", "target", "words"),
    [
        ("--html", "", "is a folder"),
        ("--html", "nowhere/page.html", "there is no folder"),
        ("--parquet", "full", "is there already, and not empty"),
        ("--parquet", "full/file", "is a file"),
        ("--parquet", "full/file/tables", "cannot be made"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_begun(
    option: str, target: str, words: str, tmp_path: Path, capsys: Capture
) -> None:
    member = write_oplog(tmp_path / "m1", [insert(0)])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["elections", str(member), option, str(tmp_path / target)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"oplog-spark: {option}: ")
    assert words in err
    assert err.count("\n") == 1
    assert "Java" not in err


def test_parquet_goes_into_an_empty_folder_once(tmp_path: Path, capsys: Capture) -> None:
    member = write_oplog(tmp_path / "m1", [insert(n) for n in range(3)])
    (tmp_path / "out").mkdir()
    command = ["summary", str(member), "--engine", "local", "--parquet", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    assert (tmp_path / "out/namespaces/part-00000.parquet").is_file()
    capsys.readouterr()
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.in_turns
def test_a_terminal_that_cannot_show_a_letter_stops_nothing(tmp_path: Path) -> None:
    entries = [insert(n, ns="shop.\u00fcbel") for n in range(3)]
    member = write_oplog(tmp_path / "m1", entries)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    found = {}
    for option in ("--json", "--format=table"):
        command = [sys.executable, "-m", "spark", "summary", "--engine", "local", str(member), option]
        done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr  # a progress line may be there, where the machine is slow
        found[option] = done.stdout
    assert json.loads(found["--json"])["namespaces"][0]["ns"] == "shop.\u00fcbel"
    assert b"bel" in found["--format=table"]


# --- Java for a short job --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "rows", "given", "seen"),
    [
        ("diff", 400, None, QUICK_JAVA),
        ("diff", QUICK_DIFF_ROWS, None, QUICK_JAVA),
        ("diff", QUICK_DIFF_ROWS + 1, None, None),
        ("diff --html", QUICK_ROWS + 1, None, None),
        ("summary", QUICK_ROWS, None, QUICK_JAVA),
        ("summary", QUICK_ROWS + 1, None, None),
        ("tail", 400, None, None),
        ("diff", 400, "-Xss2m", "-Xss2m"),
    ],
)
def test_a_short_job_gets_a_java_that_starts_quickly(
    command: str, rows: int, given: str | None, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    context: Any = object()

    def started(**_options: object) -> Any:
        found.append(os.environ.get(JAVA_OPTIONS))
        return context

    monkeypatch.setattr("spark.session.spark_context", started)
    monkeypatch.delenv(JAVA_OPTIONS, raising=False)
    if given is not None:
        monkeypatch.setenv(JAVA_OPTIONS, given)
    name = command.removesuffix(" --html")
    run = CommandRun(name, html=Path("page") if command != name else None, bounds=[Bounds(rows=rows)])
    assert run.context is context
    assert found == [seen]
    assert os.environ.get(JAVA_OPTIONS) == given


def test_with_a_session_spark_writes_the_tables_of_this_process_too(tmp_path: Path) -> None:
    """So the folder of a `diff` has the same form, whether few entries differ or many."""
    written: list[tuple[Any, str]] = []

    def frame_of(table: Any) -> Any:
        return SimpleNamespace(write=SimpleNamespace(parquet=lambda target: written.append((table, target))))

    table = pa.table({"n": [1]})
    session: Any = SimpleNamespace(createDataFrame=frame_of)
    CommandRun("diff", parquet=tmp_path, _context=session, _session=session).write_tables({"pairs": table})
    assert written == [(table, str(tmp_path / "pairs"))]
