"""Rules of what members keep and say beside their documents, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.core import reconfig, status
from replset.core.messages import Position
from replset.ids import OPTIME_NULL
from replset.replication.rollback_files import RollbackFiles
from replset.replication.rollback_manifest import FileKind
from replset.storage.store import Store
from tests.simulation.kit.kinds import ROLLBACK_RUNS
from tests.simulation.kit.mutant import Mutant


def trimmed_bytes_counted(patch: pytest.MonkeyPatch) -> None:
    """What is trimmed of an oplog goes on to count for its size."""
    real = Store.on_trimmed
    patch.setattr(Store, "on_trimmed", lambda self, through, _size: real(self, through, 0))


def peers_said_to_have_nothing(patch: pytest.MonkeyPatch) -> None:
    """A status says of the other members that they have no entries."""
    real = status._peer_status

    def peer_status(*arguments: Any) -> status.MemberStatus:
        found = real(*arguments)
        return replace(found, position=Position(OPTIME_NULL, OPTIME_NULL, 0, 0))

    patch.setattr(status, "_peer_status", peer_status)


def same_version_taken(patch: pytest.MonkeyPatch) -> None:
    """A primary takes whatever configuration comes next, also one of the same version."""
    patch.setattr(reconfig, "reconfig_refusal", lambda *_, **__: None)


def no_state_before(patch: pytest.MonkeyPatch) -> None:
    """The files of a rollback do not say how the documents had been at the common point."""
    real = RollbackFiles._add

    def add(self: RollbackFiles, writer: Any, kind: FileKind, *rest: Any) -> None:
        if kind is not FileKind.BEFORE:
            real(self, writer, kind, *rest)

    patch.setattr(RollbackFiles, "_add", add)


STATE_MUTANTS = (
    Mutant(trimmed_bytes_counted, (2,), "invariant 23"),
    Mutant(peers_said_to_have_nothing, (2,), "invariant 24"),
    Mutant(same_version_taken, (2,), "invariant 24"),
    Mutant(no_state_before, (16,), "invariant 4", ROLLBACK_RUNS),
)
