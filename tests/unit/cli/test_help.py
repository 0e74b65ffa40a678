"""Every subcommand explains itself, and says what is wrong with how it was called in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from replset.cli.main import main
from tests.unit.cli.commands import COMMANDS, options_of

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help(path: tuple[str, ...], capsys: Capture) -> None:
    assert main([*path, "--help"]) == 0
    out, err = capsys.readouterr()
    assert (err, f"replset {' '.join(path)}".strip() in out) == ("", True)
    assert "<bool>" not in out, "a flag takes no value"
    for name, text in options_of(path).items():
        assert text or not path, f"replset {' '.join(path)}: {name} has no help"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "No such command 'frobnicate' (see `replset --help`)"),
        (["status", "--frobnicate"], "No such option: --frobnicate (see `replset status --help`)"),
        (["add"], "Missing argument 'HOST:PORT' (see `replset add --help`)"),
        (["cluster", "up", "--members", "x"], "Invalid value for '--members': "),
        (["reconfig", "/no/such/file"], "cannot read /no/such/file: "),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], words: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"replset: {words}")
    assert err.count("\n") == 1


def test_without_a_command_the_help_says_what_there_is(capsys: Capture) -> None:
    assert main([]) == 2
    assert "add-arbiter" in "".join(capsys.readouterr())


def test_subcommands_start_without_the_storage_and_the_query_language() -> None:
    """These take as long to import as all the rest; the few subcommands that need them import them when they run."""
    names = ("replset.query", "replset.storage.store", "replset.replication", "asyncio")
    code = f"import sys, replset.cli.administer; print([name for name in sys.modules if name.startswith({names!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
