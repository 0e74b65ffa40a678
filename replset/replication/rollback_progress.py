"""The progress of a rollback, for `replSetGetStatus`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from replset.ids import HostPort, OpTime


class RollbackPhase(Enum):
    """settling: ends an earlier rollback, or this one. searching: for the common point. writing: the files."""

    SETTLING = "settling"
    SEARCHING = "searching"
    WRITING = "writing"
    UNDOING = "undoing"


@dataclass(slots=True)
class RollbackProgress:
    """Describes the rollback that runs; while none runs only `running` has a meaning.

    entries: how many lie behind the common point, 0 while that is not known. written, documents, size: entries,
    documents and bytes in the files so far. undone: entries that are taken back. manifest: the id, once it is there.
    waiting_for: what it cannot go on without, empty while it goes on.
    """

    running: bool = False
    phase: RollbackPhase = RollbackPhase.SETTLING
    source: HostPort | None = None
    began_wall_ms: int = 0
    common_point: OpTime | None = None
    entries: int = 0
    written: int = 0
    documents: int = 0
    size: int = 0
    undone: int = 0
    manifest: str = ""
    waiting_for: str = ""

    def begin(self, source: HostPort | None, wall_ms: int) -> None:
        self.__init__(True, RollbackPhase.SETTLING, source, wall_ms)  # type: ignore[misc]

    def search(self) -> None:
        """The files are begun anew after this."""
        self.phase, self.common_point = RollbackPhase.SEARCHING, None
        self.entries = self.written = self.documents = self.size = 0

    def write(self, common_point: OpTime) -> None:
        self.phase, self.common_point = RollbackPhase.WRITING, common_point

    def undo(self, manifest: str) -> None:
        self.phase, self.manifest = RollbackPhase.UNDOING, manifest

    def text(self) -> str:
        """One line for people."""
        towards = f" towards {self.source}" if self.source else ""
        if self.waiting_for:
            return f"rollback{towards} waits for {self.waiting_for}"
        if self.phase is RollbackPhase.WRITING:
            return f"rollback{towards}: {self.written} of {self.entries} entries and {self.documents} documents written"
        if self.phase is RollbackPhase.UNDOING:
            return f"rollback{towards}: {self.undone} of {self.entries} entries undone"
        return f"rollback{towards}: {self.phase.value}"
