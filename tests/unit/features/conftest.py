"""A set of one member, which leads, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replset.member.member import RunningMember
from tests.rig import Client, Rig, a_set


@pytest.fixture
def rig() -> Iterator[Rig]:
    with a_set() as made:
        yield made


@pytest.fixture
def member(rig: Rig) -> RunningMember:
    return rig.member()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.client()
