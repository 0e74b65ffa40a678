"""What a member asks of its archive, and the answers.

The runtime has the archive in a process of its own, the simulator in memory.

Between the two go pickled values, each behind its length. They are not in worker.py, since
the process runs that under the name `__main__`.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from replset.features.archive.segments import Position, Segment
from replset.ids import OpTime
from replset.oplog_row import OplogRow


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Asks for the next segment: the entries behind `after` up to `through`, which are committed, some `max_bytes`.

    after: None where nothing is archived yet. archive_id: of the archive that the set writes to, empty for a new one,
    which gets new_id.
    member, written: for the manifest. may_leave_gap: no other member has the entry behind `after`, which is gone here.
    """

    dbpath: str
    set_name: str
    set_id: str
    archive_id: str
    new_id: str
    after: Position | None
    through: OpTime
    max_bytes: int
    member: str
    written: str
    may_leave_gap: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Answers a WriteJob. segment: None where nothing is to be archived. It may be another member's, found there.

    is_gap: this segment does not continue the one before it, since no entry of this member does.
    """

    archive_id: str
    segment: Segment | None
    is_gap: bool


class ArchivePort(Protocol):
    """Raises ArchiveError, CorruptDataError and BadValueError of the archive."""

    async def write(self, job: WriteJob) -> Written: ...

    async def read(self, after: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        """Rows of committed entries right behind `after` (OPTIME_NULL: from the oldest) in order, checked; empty where
        nothing newer is archived. CappedPositionLostError: those behind `after` are not in the archive.
        """
        ...

    async def oldest(self) -> Segment | None:
        """The oldest segment there is."""
        ...

    async def close(self) -> None: ...


HEADER = Struct("<I")


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Asks for rows, as ArchivePort.read."""

    after: OpTime
    limit: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class OldestJob:
    """Asks for the oldest segment."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Answers a request that failed."""

    code: int
    message: str


def pack(value: object) -> bytes:
    data = pickle.dumps(value)
    return HEADER.pack(len(data)) + data


def unpack(data: bytes) -> object:
    """Read what follows the header."""
    value: object = pickle.loads(data)
    return value
