"""One restore of one rollback: what is asked for, whether it can be done, and its record."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from replset.commands.namespaces import writable_namespace
from replset.errors import BadValueError, CorruptDataError, IllegalOperationError
from replset.recovery.audit import AuditLog
from replset.recovery.compare import Comparison
from replset.recovery.live_set import LiveSet
from replset.recovery.lost_writes import LostWrites
from replset.recovery.policy import Policy
from replset.recovery.restore import Choose, Outcome, PuttingBack, Result
from replset.replication.rollback_manifest import Manifest, RollbackState, read_manifest, verify_file

POLICIES = "skip, overwrite, keep-newer, merge, or to-collection NAME"


def policy_of(name: str, collection: str) -> Policy:
    """The policy of this name, which needs a collection or takes none. BadValueError."""
    if name not in {policy.value for policy in Policy}:
        raise BadValueError(f"no policy {name!r}; there are {POLICIES}")
    policy = Policy(name)
    if (policy is Policy.TO_COLLECTION) != bool(collection):
        raise BadValueError(f"{name} takes {'the NAME of a collection' if not collection else 'no NAME'}")
    return policy


def readable(path: Path) -> Manifest:
    """The manifest, when its rollback is over and its files are sound; IllegalOperationError, CorruptDataError."""
    manifest = read_manifest(path)
    if manifest.state is RollbackState.PLANNED:
        raise IllegalOperationError(
            f"{manifest.id} is planned, not settled yet: start {manifest.member}, then come back"
        )
    if manifest.state is RollbackState.ABANDONED:
        raise IllegalOperationError(f"{manifest.id} is abandoned: nothing was undone, so there is nothing to put back")
    for file in manifest.files:
        problem = verify_file(path.parent, file)
        if problem is not None:
            raise CorruptDataError(f"{file.name}: {problem} (see `rollback-tools verify {path}`)")
    return manifest


class Restoring:
    """Puts the lost writes of one rollback back. counts: by result, of the outcomes so far."""

    def __init__(
        self, lost: LostWrites, live: LiveSet, policy: Policy, *, collection: str = "", choose: Choose | None = None
    ) -> None:
        """collection, choose: as PuttingBack takes them. InvalidNamespaceError where nobody can copy to it."""
        self._lost = lost
        self._live = live
        self._policy = policy
        self._collection = collection
        self._choose = choose
        with_entries = policy is Policy.KEEP_NEWER or choose is not None
        self._comparing = Comparison(lost, live, with_entries=with_entries)
        if policy is Policy.TO_COLLECTION:
            for database in {row.ns.partition(".")[0] for row in self._comparing.documents}:
                writable_namespace(database, collection)
        self._run: PuttingBack | None = None
        self.counts: Counter[str] = Counter({result.value: 0 for result in Result})

    @property
    def has_written(self) -> bool:
        """Whether anything was sent that changes the set."""
        return self._run is not None and self._run.has_written

    def head(self, record: AuditLog | None) -> dict[str, Any]:
        manifest = self._lost.manifest
        return {
            "id": manifest.id,
            "set": manifest.set_name,
            "primary": self._live.primary,
            "policy": f"{self._policy.value} {self._collection}".rstrip(),
            "dryRun": record is None,
            "audit": None if record is None else str(record.path),
        }

    def run(self, record: AuditLog | None, now: Callable[[], datetime.datetime]) -> Generator[Outcome]:
        """Each outcome once it is certain. record: None is a dry run; else close this before it."""
        self._run = PuttingBack(
            self._comparing,
            self._live,
            self._policy,
            collection=self._collection,
            audit=record,
            choose=self._choose,
        )
        if record is not None:
            record.add({"restore": {**self.head(record), "at": now().isoformat()}})
        try:
            for outcome in self._run.run():
                self.counts[outcome.result.value] += 1
                yield outcome
        except BaseException as error:  # also when nobody wants to hear more
            if record is not None:
                record.add({"error": str(error) or "broken off", "counts": dict(self.counts), "at": now().isoformat()})
            raise
        if record is not None:
            record.add({"counts": dict(self.counts), "at": now().isoformat()})


def stamp_of(now: datetime.datetime) -> str:
    """For the record's name."""
    return now.strftime("%Y-%m-%dT%H-%M-%S")
