"""Named scenarios on whole members."""

from __future__ import annotations

import pytest

from tests.simulation.kit import scenarios


def test_a_failover_rolls_back_what_only_the_old_primary_had_and_keeps_it_in_files() -> None:
    (manifest,) = scenarios.failover_with_rollback()
    assert manifest["state"] == "finished"
    assert manifest["range"]["operations"] == {"d": 1, "i": 1, "u": 1}
    counts = {file["kind"]: file["count"] for file in manifest["files"]}
    # The inserted and the updated document are not as they were any more, and the updated one was there before;
    # the deleted one is back.
    assert counts == {"documents": 2, "before": 1, "oplog": 3}


def test_a_stale_primary_acknowledges_no_majority_write() -> None:
    write = scenarios.stale_primary()
    assert write.outcome == "unknown"


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenarios.figure_eight, id="figure-eight"),
        pytest.param(scenarios.vote_over_restart, id="vote-over-restart"),
        pytest.param(scenarios.candidate_behind, id="candidate-behind"),
        pytest.param(scenarios.emptied_voter, id="emptied-voter"),
        pytest.param(scenarios.journaled_then_dark, id="journaled-then-dark"),
    ],
)
def test_every_invariant_holds_in(scenario: scenarios.Scenario) -> None:
    scenario()


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("after_steps", range(0, 56, 8))
def test_a_rollback_goes_on_after_any_death(after_steps: int, power_loss: bool) -> None:
    interrupted = scenarios.rollback_interrupted(after_steps, power_loss=power_loss)
    assert interrupted or after_steps > 16, "it died before the rollback was over"


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("after_steps", range(0, 180, 36))
def test_an_initial_sync_begins_again_after_any_death(after_steps: int, power_loss: bool) -> None:
    interrupted = scenarios.initial_sync_interrupted(after_steps, power_loss=power_loss)
    assert interrupted or after_steps > 72, "it died before the sync was over"
