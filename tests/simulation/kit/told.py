"""Scenarios of whole members, stories of cores and checks of the wiring, as runs with a number each."""

from __future__ import annotations

import inspect
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from tests.simulation.core_kit import stories
from tests.simulation.core_kit.stories import STORIES
from tests.simulation.kit.kinds import Kind
from tests.simulation.kit.runs import Outcome
from tests.simulation.kit.scenarios import SCENARIOS
from tests.simulation.kit.wiring import CHECKS

TRANSCRIPTS = Path(__file__).parent.parent / "transcripts"


def transcript_of(name: str) -> str:
    scenario = SCENARIOS[name]
    return "\n".join([inspect.getdoc(scenario) or "", "", *scenario(), ""])


def transcript_path(name: str) -> Path:
    return TRANSCRIPTS / f"{SCENARIOS[name].__name__}.txt"


def run_scenario(number: int) -> Outcome:
    """As a seeded run: the scenario with this number."""
    name = list(SCENARIOS)[number % len(SCENARIOS)]
    return _compared(number, transcript_of(name), transcript_path(name))


def run_story(number: int) -> Outcome:
    """As a seeded run: the story with this number."""
    name = list(STORIES)[number % len(STORIES)]
    return _compared(number, stories.transcript_of(name), stories.FOLDER / f"{name}.txt")


def _compared(number: int, transcript: str, path: Path) -> Outcome:
    lines = zip_longest(transcript.splitlines(), path.read_text().splitlines())
    error = next((f"it goes on with {told!r}, not {before!r}" for told, before in lines if told != before), None)
    return Outcome(number, error, "", (), "", Counter(), "")


def run_check(number: int) -> Outcome:
    """As a seeded run: the check of the wiring with this number."""
    CHECKS[number % len(CHECKS)]()
    return Outcome(number, None, "", (), "", Counter(), "")


SCENARIO_RUNS = Kind("--scenarios", run_scenario)
STORY_RUNS = Kind("--stories", run_story)
WIRING_RUNS = Kind("--wiring", run_check)
