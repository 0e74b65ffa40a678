"""Members that the tests of a module share: what a test writes is dropped behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replset.operations.admission import Admission
from tests.rig import Rig, a_set
from tests.unit.api.kit import Api


@pytest.fixture(scope="module")
def one() -> Iterator[Rig]:
    with a_set() as made:
        yield made


@pytest.fixture(scope="module")
def three() -> Iterator[Rig]:
    with a_set(3) as made:
        yield made


def shared(rig: Rig, patch: pytest.MonkeyPatch, name: str) -> Iterator[Api]:
    before = rig.newest()
    patch.setattr(rig.member(name), "admission", Admission())
    yield Api(rig, patch, name)
    patch.undo()
    if rig.newest() != before:
        for database in rig.client().ok({"listDatabases": 1, "nameOnly": True}, "admin")["databases"]:
            if database["name"] not in ("admin", "config", "local"):
                rig.client().ok({"dropDatabase": 1}, database["name"])


@pytest.fixture
def api(one: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API of a primary."""
    yield from shared(one, monkeypatch, "a")


@pytest.fixture
def secondary(three: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API of a secondary whose primary is OTHER."""
    yield from shared(three, monkeypatch, "b")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API of a member that the test alone has, to change what it is."""
    with a_set() as made:
        yield Api(made, monkeypatch)
