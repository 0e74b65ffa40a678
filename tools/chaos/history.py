"""The clients' commands and the answers, as plain data: all that the checker knows of the run."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Record = TypeVar("Record", bound="Write | Read | Absence | Attack | Loss | Breach")

NOT_APPLIED = frozenset({94, 189, 10107, 11600, 13388, 13435, 13436, 14031, 91})
"""Codes of replies that report that nothing was done."""


@dataclass(slots=True)
class Write:
    """One write. began, ended: seconds since the run began. outcome: ok | refused (not applied, for sure) | unknown.

    An insert makes the document `key`, an update appends its number to the list of the document `key`, a delete
    removes the document `key`, which an insert of before made.
    """

    number: int
    kind: str  # insert | update | delete
    key: int
    concern: str  # one of clients.CONCERNS
    member: str
    began: float
    ended: float = -1.0
    outcome: str = "unknown"
    operation_time: int = 0
    detail: str = ""


@dataclass(slots=True)
class Read:
    """A majority read of all documents, not older than `after`. found: the numbers of the writes that it shows."""

    member: str
    after: int
    began: float
    ended: float = -1.0
    found: list[int] | None = field(default=None, repr=False)
    keys: list[int] = field(default_factory=list, repr=False)
    detail: str = ""


@dataclass(slots=True)
class Absence:
    """The process of `member` ran not at all from `began` to `ended`: it was dead or stopped."""

    member: str
    began: float
    ended: float = math.inf


@dataclass(slots=True)
class Attack:
    """Something that may cause at most `most_terms` elections. terms: the set's term before it and after it.

    stalled_s: how long at most this process was kept from the CPU meanwhile; a stalled machine elects too. waited_s:
    how much CPU at most the member attacked used while another client waited for the answer to a ping. memory_mb: what
    it took at most.
    """

    what: str
    began: float
    terms: tuple[int, int] = (0, 0)
    most_terms: int = 0
    stalled_s: float = 0.0
    waited_s: float = 0.0
    memory_mb: int = 0
    ended: float = math.inf


@dataclass(slots=True)
class Loss:
    """At `at` the disk of `member` lost what was written last, or all: what that member alone held may be gone."""

    member: str
    at: float
    what: str


@dataclass(slots=True)
class Breach:
    """What a fault saw and must not be."""

    at: float
    what: str


class History:
    """Grows from several threads. Every record is also a line of `path`, written when it is done.

    members: the names of the data-bearing members.
    """

    def __init__(self, path: Path | None = None, members: Sequence[str] = ()) -> None:
        self.members = tuple(members)
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.absences: list[Absence] = []
        self.attacks: list[Attack] = []
        self.losses: list[Loss] = []
        self.breaches: list[Breach] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._file = None if path is None else path.open("a", encoding="utf-8")

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 4)

    def begin(self, record: Record) -> Record:
        with self._lock:
            match record:
                case Write():
                    self.writes.append(record)
                case Read():
                    self.reads.append(record)
                case Absence():
                    self.absences.append(record)
                case Attack():
                    self.attacks.append(record)
                case Loss():
                    self.losses.append(record)
                case Breach():
                    self.breaches.append(record)
        return record

    def end(self, record: Write | Read | Absence | Attack | Loss | Breach) -> None:
        if self._file is not None:
            line = json.dumps({"record": type(record).__name__, **asdict(record)}) + "\n"
            with self._lock:
                self._file.write(line)
                self._file.flush()

    def note(self, record: Absence | Attack | Loss | Breach) -> None:
        """Add what is over already."""
        self.begin(record)
        self.end(record)

    def newest_majority_time(self) -> int:
        """The newest operation time that a majority acknowledged."""
        with self._lock:
            return max(
                (w.operation_time for w in self.writes if w.outcome == "ok" and w.concern == "majority"), default=0
            )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def fill_in(write: Write, reply: Mapping[str, Any]) -> None:
    """Set the outcome from the reply."""
    errors = reply.get("writeErrors")
    if reply.get("ok") != 1.0:
        write.outcome = "refused" if reply.get("code") in NOT_APPLIED else "unknown"
        write.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
    elif errors:
        write.outcome = "refused" if errors[0].get("code") in NOT_APPLIED else "unknown"
        write.detail = f"{errors[0].get('code')}: {errors[0].get('errmsg')}"
    elif reply.get("writeConcernError"):
        write.detail = str(reply["writeConcernError"].get("errmsg"))
    elif reply.get("n") != 1:
        write.detail = f"n: {reply.get('n')}"
    else:
        stamp = reply["operationTime"]
        write.outcome, write.operation_time = "ok", stamp.time << 31 | stamp.inc
