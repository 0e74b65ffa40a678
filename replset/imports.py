"""Keeps modules from being imported that a library loads for what is not used here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_out(*names: str) -> Iterator[None]:
    """Let an import of these modules fail meanwhile, unless they are there already."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
