"""Stories of small sets of cores, each as it was written down."""

from __future__ import annotations

import os

import pytest

from tests.simulation.core_kit.stories import FOLDER, STORIES, transcript_of


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_as_before(name: str) -> None:
    """With REWRITE_TRANSCRIPTS=1 in the environment it is written down anew; read the difference."""
    path, transcript = FOLDER / f"{name}.txt", transcript_of(name)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(transcript)
    assert transcript == path.read_text()


def test_each_transcript_has_its_story() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(STORIES)
