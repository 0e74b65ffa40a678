"""How many examples hypothesis draws for a test. Each run draws others, so `./dev test` draws fewer a time."""

from __future__ import annotations

from hypothesis import settings

IN_ALL, OF_THE_DAY = "replset", "replset of the day"
OF_EACH = 100
settings.register_profile(IN_ALL, deadline=None, print_blob=True, max_examples=OF_EACH)
settings.register_profile(OF_THE_DAY, settings.get_profile(IN_ALL), max_examples=OF_EACH // 4)


def examples(most: int) -> settings:
    """The settings of a test that needs another number of examples than most tests do."""
    return settings(max_examples=most * settings().max_examples // OF_EACH)
