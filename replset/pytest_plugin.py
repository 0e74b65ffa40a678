"""The plugin that pytest finds where replset is installed: fixtures with a replica set (docs/testing.md).

It imports the set only for a test that wants one, since pytest loads it in every run.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from replset.testing import ReplicaSet


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("replica set")
    group.addoption("--replica-set-members", type=int, metavar="N", help="members with data of the tests' set (1)")
    group.addoption("--replica-set-arbiters", type=int, metavar="N", help="its arbiters (0)")
    group.addoption("--replica-set-uri", metavar="URI", help="take this set, and start none")
    parser.addini("replica_set_members", "members with data of the tests' set", default="1")
    parser.addini("replica_set_arbiters", "its arbiters", default="0")


@pytest.fixture(scope="session")
def replica_set(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    """A replica set that lives as long as the test run; each worker of pytest-xdist has its own.

    With --replica-set-uri there is none, and tests that ask for it are skipped.
    """
    from replset.testing import ReplicaSet

    config = request.config
    if config.getoption("--replica-set-uri"):
        pytest.skip("the set of --replica-set-uri is none that a test may kill or cut off")
    members, arbiters = (
        _number(config, option, ini)
        for option, ini in (
            ("--replica-set-members", "replica_set_members"),
            ("--replica-set-arbiters", "replica_set_arbiters"),
        )
    )
    with ReplicaSet(members, arbiters=arbiters) as running:
        yield running


def _number(config: pytest.Config, option: str, ini: str) -> int:
    given = config.getoption(option)
    try:
        return int(config.getini(ini) if given is None else given)
    except ValueError:
        raise pytest.UsageError(f"{ini} is no number: {config.getini(ini)!r}") from None


@pytest.fixture(scope="session")
def replica_set_uri(request: pytest.FixtureRequest) -> str:
    """What a driver connects with: the set of --replica-set-uri, else that of `replica_set`."""
    given = request.config.getoption("--replica-set-uri")
    return str(given or request.getfixturevalue("replica_set").uri)


@pytest.fixture
def fresh_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a database that no other test uses. It is dropped after the test, but for one of --replica-set-uri:
    there it stays, since only the test's own driver knows how to log in.
    """
    name = f"test_{secrets.token_hex(6)}"
    if request.config.getoption("--replica-set-uri"):
        yield name
        return
    running: ReplicaSet = request.getfixturevalue("replica_set")
    yield name
    from replset.errors import ReplError

    with suppress(ReplError):  # the test may have ended the set
        running.command({"dropDatabase": 1}, name)
