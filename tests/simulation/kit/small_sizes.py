"""Sizes of pages, batches and caches that a run makes so small that each comes to its end again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from replset.features.compared_copies import difference_copy, differences
from replset.features.scrub import scrubber
from replset.features.scrub.auto_repair import AutoRepair
from replset.replication import applier, common_point, rollback_files
from replset.storage import copies, index_build, natural_order, oplog, retention, snapshot, sqlite, store

Size = tuple[ModuleType, str, tuple[int, ...]]
UNTIMED: tuple[Size, ...] = (
    (oplog, "ROW_BYTES", (400, 60_000)),  # so that the rows in memory, up to 8 MiB, are some of a run's
    (sqlite, "PAGE_BYTES", (100, 256 << 10)),
    (natural_order, "PAGE_BYTES", (100, 256 << 10)),
    (natural_order, "PAGE_ROWS", (3, 256)),
    (snapshot, "_CHANGES", (3, 1000)),
    (store, "SESSIONS_IN_MEMORY", (1, 10_000)),
    (rollback_files, "PAGE_ENTRIES", (1, 3, 1000)),
    (rollback_files, "PAGE_BYTES", (300, 4 << 20)),
    (rollback_files, "TOUCHED_PAGE", (1, 3, 1000)),
    (rollback_files, "_BUFFER_BYTES", (300, 4 << 20)),
    (copies, "_PAGES_A_STEP", (1, 1024)),
    (copies, "_ROWS_A_STEP", (3, 1000)),
)
"""They change no moment of a run, so each seed draws them."""
TIMED: tuple[Size, ...] = (
    (retention, "_ROWS", (3, 1000)),
    (store, "_SAVE_SIZE_EVERY", (2_000, 64 << 20)),
    (applier, "MAX_GROUP_ENTRIES", (2, 500)),
    (applier, "MAX_GROUP_BYTES", (1_000, 1 << 20)),
    (applier, "MAX_RUN", (2, 100)),
    (common_point, "PROBE_POINTS", (2, 16)),
    (difference_copy, "SPANS_ASKED", (1, 512)),
    (index_build, "CHECK_ROWS", (1, 100)),
    (index_build, "VERIFY_ROWS", (2, 2000)),
)
"""They do, so only seeds draw them that are not recorded for what happens in them."""

LATER: tuple[Size, ...] = (
    (differences, "_READ_ROWS", (2, 1024)),
    (rollback_files, "WRITTEN_PAGE", (2, 20_000)),
)
"""Untimed too; from a generator of their own, so that the others stay as they were drawn."""


@contextmanager
def small_sizes(seed: int, *, timed: bool) -> Iterator[None]:
    """Some of the sizes are small meanwhile, those that the seed draws."""
    rng, before = random.Random(f"{seed} sizes"), list[tuple[ModuleType, str, int]]()
    later = random.Random(f"{seed} later sizes")
    drawn = [(size, rng.choice(size[2])) for size in (*UNTIMED, *(TIMED if timed else ()))]
    drawn += [(size, later.choice(size[2])) for size in LATER]
    for (module, name, _), value in drawn:
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


SCRUB_TIMES = {"START_AFTER_S": 1.0, "PAUSE_S": 2.0, "RETRY_S": 1.0}


@contextmanager
def scrub_times(auto_repair: bool | None) -> Iterator[None]:
    """Documents are compared in the background all the time. None: as rarely as ever, and nothing is repaired."""
    before = {name: getattr(scrubber, name) for name in SCRUB_TIMES}
    allows = AutoRepair.allows
    if auto_repair is None:
        AutoRepair.allows = lambda _: False  # type: ignore[method-assign]
    else:
        vars(scrubber).update(SCRUB_TIMES)
    try:
        yield
    finally:
        vars(scrubber).update(before)
        AutoRepair.allows = allows  # type: ignore[method-assign]
