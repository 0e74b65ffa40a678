"""docs/after-a-failover.md, word for word: its commands are run in order and print what it says.

On the page `…` stands for any text. Hosts, paths, times and hashes are those of the run; `Page` knows both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from replset.cli.local_set import wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import run_program
from tests.integration.test_restore import Story, lose_writes

PAGE = Path(__file__).parents[2] / "docs" / "after-a-failover.md"
ROLLBACK = "rollback-2026-09-21T14-13-25.0"


@dataclass
class Page:
    """What the page calls a thing -> what it is called here."""

    story: Story
    names: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def __post_init__(self) -> None:
        old = self.story.old
        others = [member for member in self.story.local.members if member is not old]
        hosts = [old.host, self.story.new.host, *(m.host for m in others if m is not self.story.new)]
        self.names = {f"127.0.0.1:{27017 + number}": host for number, host in enumerate(hosts)}
        self.names |= {"/data/m1": str(old.dbpath), ROLLBACK: self.story.manifest.stem}

    def run(self, command: str) -> str:
        """What it prints, in the page's words."""
        if command == "echo $?":
            return f"{self.status}\n"
        for name, value in self.names.items():
            command = command.replace(name, value)
        if match := re.fullmatch(r"(\w+)=(\S+)", command):
            self.variables[match[1]] = match[2]
            return ""
        program, *arguments = re.sub(r"\$(\w+)", lambda match: self.variables[match[1]], command).split()
        module = {"replset": "replset.cli.main", "rollback-tools": "rollback_tools.main"}[program]
        done = run_program(module, *arguments, environment={"COLUMNS": "200"})
        assert done.stderr == "", done.stderr
        self.status = done.returncode
        return self.in_the_words_of_the_page(done.stdout)

    def in_the_words_of_the_page(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace(value, name)
        text = text.replace(self.story.manifest.stem.removeprefix("rollback-"), ROLLBACK.removeprefix("rollback-"))
        return text.replace(str(self.story.manifest.parent), "/data/m1/rollback")


def commands() -> Iterator[tuple[str, str]]:
    """(command, what it prints) of each command on the page."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def pattern(text: str) -> str:
    """Widths of columns depend on names; each line is compared word by word, `…` is anything."""
    lines = [re.escape(" ".join(line.split())).replace("…", ".*") for line in text.splitlines()]
    return "\n".join(lines)


def words(text: str) -> str:
    return "\n".join(" ".join(re.sub("[━─]+", "-", line).split()) for line in text.splitlines())


def test_the_page_is_true(make_set: MakeSet) -> None:
    local = make_set()
    page = Page(lose_writes(local))

    def heard() -> bool:  # a heartbeat brings the others the number
        replies = [member.command({"replSetGetStatus": 1}) for member in local.members]
        return all(reply.get("unacknowledgedRollbacks") == 1 for reply in replies)

    wait_until(heard, 60, "all members to hear of the rollback")
    wrong: list[str] = []
    seen = 0
    for command, expected in commands():
        found = page.run(command)
        seen += 1
        if not re.fullmatch(pattern(words(expected)), words(found), re.DOTALL):
            wrong.append(f"$ {command}\n{found}")
    assert seen == 13
    assert wrong == [], "\n".join(wrong)
