"""Rules of a set that follows another one, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import pytest

from replset.cli import follow as command_line
from replset.commands.streams.consumer_directory import ConsumerDirectory
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.followed import FollowState
from replset.runtime.jobs import set_follower
from replset.runtime.jobs.set_follower import SetFollower
from tests.simulation.kit.kinds import FOLLOW_RUNS
from tests.simulation.kit.mutant import Mutant


def followed_from_saved_position(patch: pytest.MonkeyPatch) -> None:
    """A set that follows another one goes on from the saved position, whatever it has applied since."""

    def position_in(_: object, state: FollowState) -> OpTime:
        return state.position

    patch.setattr(set_follower, "position_in", position_in)


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


FOLLOW_MUTANTS = (
    Mutant(followed_from_saved_position, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(followed_acknowledged_too_early, (0,), "invariant 21", FOLLOW_RUNS),
    Mutant(nothing_kept_for_followers, (30,), "invariant 21", FOLLOW_RUNS),
    Mutant(switch_over_does_not_wait, (1,), "invariant 21", FOLLOW_RUNS),
)
