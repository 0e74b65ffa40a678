"""Real processes on loopback, in a temporary folder, ended whatever happens: a set per file or per test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from replset.client import PASSWORD_VARIABLE, USER_VARIABLE
from replset.local_set import LocalMember, LocalSet, free_ports, wait_until
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import all_counted, configuration, heal, reconfigure, run

FAST: dict[str, object] = {"electionTimeoutMillis": 1500, "heartbeatIntervalMillis": 250, "heartbeatTimeoutSecs": 2}
_blocks = itertools.count()


def next_ports(count: int) -> list[int]:
    """Free ports that no other test process looks at: each worker of pytest-xdist has a range of its own.

    A process beside the workers has the fifth range: `./dev test` runs the tests of Spark beside four workers.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw4").removeprefix("gw"))
    return free_ports(count, 20_000 + worker * 2_500 + next(_blocks) * 20 % 900)


def leads_at_once(member: LocalMember) -> bool:
    """Ask it to stand, rather than wait for an election timeout; the others vote once they have its data."""
    member.command({"replSetStepUp": 1})
    return bool(member.command({"hello": 1}).get("isWritablePrimary"))


def start_set(
    local: LocalSet, *, members: int = 3, arbiters: int = 0, flags: Sequence[str] = (), **settings: object
) -> None:
    """Start and initiate a set; on return every member is counted."""
    for number, port in enumerate(next_ports(members + arbiters)):
        local.add(port, flags=["--enable-test-commands", *flags], arbiter=number >= members)
    local.initiate({**FAST, **settings})
    wait_until(lambda: leads_at_once(local.members[0]), 60, "the first election")
    all_counted(local)


ROOT, PASSWORD = "root", "tea"


def begin_with_logins(local: ForkedSet, patch: pytest.MonkeyPatch) -> None:
    """Make a set of members that run with --auth, and its first user; what connects from here on is that user."""
    local.initiate(FAST)
    wait_until(lambda: leads_at_once(local.members[0]), 60, "the first election")
    assert local.members[0].command({"createUser": ROOT, "pwd": PASSWORD, "roles": ["root"]})["ok"] == 1.0
    patch.setenv(USER_VARIABLE, ROOT)
    patch.setenv(PASSWORD_VARIABLE, PASSWORD)
    all_counted(local)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedSet]:
    """Three members for all tests of a file, which take them as `local`."""
    with running_set(tmp_path_factory.mktemp("shared") / "set") as made:
        start_set(made)
        yield made


@pytest.fixture
def local(shared: ForkedSet) -> Iterator[ForkedSet]:
    """The three members of this file. What a test changes of them is put right behind it, whatever it was."""
    config, own = configuration(shared), list(shared.members)
    yield shared
    for member in own:
        if not member.is_running():
            shared.start(member)
        heal(member)
    reconfigure(shared, config["settings"], config["members"])
    for member in (member for member in shared.members if member not in own):
        shared.kill(member)
    shared.members[:] = own
    all_counted(shared)
    primary = shared.wait_for_primary()
    for row in run(primary, {"listDatabases": 1, "nameOnly": True}, "admin")["databases"]:
        if row["name"] not in ("admin", "config", "local"):
            run(primary, {"dropDatabase": 1, "writeConcern": {"w": 3}}, row["name"])


MakeSet = Callable[..., ForkedSet]


@pytest.fixture
def make_set(tmp_path: Path) -> Iterator[MakeSet]:
    """Start and initiate sets: make_set(members=3, arbiters=0)."""
    with ExitStack() as stack:

        def make(members: int = 3, arbiters: int = 0, name: str = "rs0", **settings: object) -> ForkedSet:
            local = stack.enter_context(running_set(tmp_path / f"set{next(_blocks)}", name))
            start_set(local, members=members, arbiters=arbiters, **settings)
            return local

        yield make
