"""Three members, started as the integration tests do, with fail points and short timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.conftest import start_set
from tests.integration.forked import ForkedSet, running_set


@contextmanager
def real_set(folder: Path) -> Iterator[ForkedSet]:
    """Start a set in `folder`; its processes end with the block."""
    with running_set(folder / "set") as local:
        start_set(local, members=3)
        yield local
