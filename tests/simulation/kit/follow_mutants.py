"""Rules of a set that follows another one, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from replset.cli import follow as command_line
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.features.follower import set_follower
from replset.features.follower.set_follower import SetFollower
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.followed import FollowState, Place
from tests.simulation.kit import follow as runs
from tests.simulation.kit.kinds import FOLLOW_RUNS
from tests.simulation.kit.mutant import Mutant


def followed_from_saved_position(patch: pytest.MonkeyPatch) -> None:
    """A set that follows another one goes on from the saved position, whatever it has applied since."""

    def position_in(_: object, state: FollowState) -> Place:
        return Place(state.position, 0)

    patch.setattr(set_follower, "position_in", position_in)


def followed_from_near_the_end_alone(patch: pytest.MonkeyPatch) -> None:
    """Where the source is, a follower finds only among the last few entries of its oplog."""
    real = set_follower.position_in

    def position_in(connection: apsw.Connection, state: FollowState) -> Place:
        found = real(connection, state)
        return found if found.looked_at <= FEW_ENTRIES else Place(state.position, FEW_ENTRIES)

    patch.setattr(set_follower, "position_in", position_in)


def no_room_for_followers(patch: pytest.MonkeyPatch) -> None:
    """A primary writes entries as large as any may be."""
    patch.setattr(runs, "LARGEST", runs.LARGEST_OWN)


def followed_acknowledged_too_early(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges at the source what it has applied, committed or not."""
    real = SetFollower._save

    async def save(self: SetFollower, *args: Any) -> OpTime:
        await real(self, *args)
        return OpTime(0, 1)

    patch.setattr(SetFollower, "_save", save)


def nothing_kept_for_followers(patch: pytest.MonkeyPatch) -> None:
    """The oplog of a source is trimmed whatever its consumers lack."""
    patch.setattr(ConsumerDirectory, "needed", lambda _: None)


def switch_over_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A switch-over does not wait until the follower has everything."""
    patch.setattr(command_line, "_newest_entry", lambda *_: OPTIME_NULL)


FEW_ENTRIES = 20
FOLLOW_MUTANTS = (
    Mutant(followed_from_saved_position, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(followed_from_near_the_end_alone, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(no_room_for_followers, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(followed_acknowledged_too_early, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(nothing_kept_for_followers, (30,), "invariant 21", FOLLOW_RUNS),
    Mutant(switch_over_does_not_wait, (1,), "invariant 21", FOLLOW_RUNS),
)
