"""What a member and the process of its archive tell each other: pickled values, each behind its length.

They are in a module of their own, since the process runs worker.py under the name `__main__`.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from struct import Struct

from replset.ids import OpTime

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


def frame(value: object) -> bytes:
    data = pickle.dumps(value)
    return HEADER.pack(len(data)) + data


def unframe(data: bytes) -> object:
    """Read what follows the header."""
    value: object = pickle.loads(data)
    return value
