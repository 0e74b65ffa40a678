"""Named scenarios on whole members."""

from __future__ import annotations

import os

import pytest

from tests.simulation.kit import scenarios
from tests.simulation.kit.scenarios import SCENARIOS
from tests.simulation.kit.told import TRANSCRIPTS, transcript_of, transcript_path

REWRITE = "REWRITE_TRANSCRIPTS"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_equals_its_transcript(name: str) -> None:
    """With REWRITE_TRANSCRIPTS=1 in the environment it is written down anew; read the difference."""
    path, transcript = transcript_path(name), transcript_of(name)
    if os.environ.get(REWRITE):
        path.write_text(transcript)
    assert transcript == path.read_text()


def test_every_transcript_has_its_scenario() -> None:
    assert {path.stem for path in TRANSCRIPTS.iterdir()} == {scenario.__name__ for scenario in SCENARIOS.values()}


@pytest.mark.in_turns
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("after_steps", range(0, 56, 8))
def test_a_rollback_goes_on_after_any_death(after_steps: int, power_loss: bool) -> None:
    interrupted = scenarios.rollback_interrupted(after_steps, power_loss=power_loss)
    assert interrupted or after_steps > 16, "it died before the rollback was over"


@pytest.mark.in_turns
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("after_steps", range(0, 180, 36))
def test_an_initial_sync_begins_again_after_any_death(after_steps: int, power_loss: bool) -> None:
    interrupted = scenarios.initial_sync_interrupted(after_steps, power_loss=power_loss)
    assert interrupted or after_steps > 72, "it died before the sync was over"
