"""The trace of a run: what happened, line by line. Its hash says whether two runs were the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from tests.simulation.kit.loop import SimLoop


@dataclass(slots=True)
class Trace:
    """What happened, in fixed columns: virtual milliseconds, who, what. root: a folder whose name does not count."""

    loop: SimLoop
    root: str
    lines: list[str] = field(default_factory=list)

    def add(self, who: str, what: str) -> None:
        self.lines.append(f"{self.loop.now_ms:>8} {who:<8} {what}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).replace(self.root, "").encode()).hexdigest()
