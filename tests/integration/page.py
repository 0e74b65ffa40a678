"""Runs the commands of a page in docs/ in order, each in a shell, and compares what they print with the page.

On a page `…` stands for any text within a line, a line with nothing else for any lines, and the ports are others here.
Where a page shows figures that are others in each run, any figure stands for any other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replset.local_set import HTTP_OFFSET
from tests.programs import all_ended

DOCS = Path(__file__).parents[2] / "docs"
FIRST_PORT = 27017
FIGURE = re.compile(r"""(?<![\w.:])(?<!": )(?!127\.)(\d+ min )?\d([\d,.:T-]*\d)?""")
"""A number, a time, a duration, an optime; no part of a name or an address, and no value in a document."""


def commands(page: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints) of each command on the page. Lines that begin with four spaces go on with it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            ends = next((n for n, line in enumerate(lines) if n and not line.startswith("    ")), len(lines))
            yield "\n".join(lines[:ends]), "\n".join(lines[ends:])


class Shell:
    """Runs a page's commands in a folder of its own, with the ports of this run.

    Functions, variables and the last exit status stay. names: what else is called otherwise here than on the page.
    """

    def __init__(
        self, folder: Path, ports: list[int], environment: dict[str, str], names: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self._ports = {
            str(FIRST_PORT + offset + n): str(port + offset)
            for offset in (0, HTTP_OFFSET)
            for n, port in enumerate(ports)
        }
        self._names = names or {}
        self._defined, self._status = "", 0
        self._programs = folder / ".programs"  # scripts, so that `$!` of one in the background is its own process
        self._programs.mkdir()
        for name, module in {
            "python": "",
            "replset": "replset.cli.main",
            "rollback-tools": "rollback_tools.main",
        }.items():
            arguments = f"-m {module} " if module else ""
            script = self._programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
            script.chmod(0o755)

    def run(self, command: str) -> str:
        """Return what it prints, on standard output and standard error, with the page's ports."""
        here = self.here(command)
        if re.match(r"\w+\(\) \{|\w+=\S+$", here):
            self._defined += f"{here}\n"
            return ""
        done = subprocess.run(
            ["bash", "-c", f"{self._defined}(exit {self._status})\n{here}"],
            cwd=self.folder,
            env={
                **self.environment,
                "PYTHONPATH": str(DOCS.parent),
                "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self._status = done.returncode
        return self.as_on_the_page(done.stdout)

    def here(self, text: str) -> str:
        """Return what a page shows with the ports of this run."""
        for mine, there in self._names.items():
            text = text.replace(mine, there)
        return self._replaced(text, self._ports)

    def as_on_the_page(self, text: str) -> str:
        """Return what was printed with the page's ports."""
        for mine, there in self._names.items():
            text = text.replace(there, mine)
        return self._replaced(text, {there: mine for mine, there in self._ports.items()})

    def _replaced(self, text: str, names: dict[str, str]) -> str:
        return re.sub(r"\b\d{5}\b", lambda match: names.get(match[0], match[0]), text)


@contextmanager
def running_shell(folder: Path, ports: list[int], names: dict[str, str] | None = None) -> Iterator[Shell]:
    """A shell; whatever its commands have started and left ends with the block."""
    with all_ended() as environment:
        yield Shell(folder, ports, environment, names)


def without_widths(text: str) -> str:
    """Make the lines of tables as short as can be: their lengths depend on names and figures."""
    return re.sub(r"([━─])+", r"\1", text)


def without_figures(text: str) -> str:
    """Put `#` for each figure."""
    return without_widths(FIGURE.sub("#", text))


def is_as_told(expected: str, found: str) -> bool:
    """Compare line by line, and word by word in a line: the widths of columns depend on names."""
    lines = [" ".join(line.split()) for line in expected.splitlines()]
    wanted = "".join(r"(.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines)
    return re.fullmatch(wanted, "".join(" ".join(line.split()) + "\n" for line in found.splitlines())) is not None


def differences(page: str, shell: Shell, compared: Callable[[str], str] = str) -> list[str]:
    """Run the page; return each command that printed something else. compared: what of a text must be the same."""
    found = [(command, compared(expected), shell.run(command)) for command, expected in commands(page)]
    assert found, f"{page} has no commands"
    wrong = [(command, printed) for command, expected, printed in found if not is_as_told(expected, compared(printed))]
    return [f"$ {command}\n{printed}" for command, printed in wrong]
