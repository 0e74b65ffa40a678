"""The archive of the oplog, as a feature of a member."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from replset.core.remarks import Remark
from replset.features.archive.archive_lease import COMMANDS, ArchiveLease
from replset.features.archive.archiver import SEGMENT_BYTES, ArchivedEntries, ArchiveOptions, Archiver
from replset.features.archive.jobs import ArchivePort
from replset.ids import OpTime
from replset.member.disk.writer import Writer
from replset.member.feature import Feature, FeaturePart, Figure
from replset.member.options import MemberOptions
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext
from replset.replication.ports import SetMemberClient


class ArchivePart(FeaturePart):
    """Gives the lease on a primary; on a member with --archive it archives, and reads what is trimmed from there."""

    def __init__(self, member: Kernel, archive: ArchivePort | None, segment_bytes: int) -> None:
        self._member = member
        lease = ArchiveLease(member.clock.now)
        member.add(lease)
        self.archiver: Archiver | None = None
        if archive is None:
            return
        context, write, peer = member[MemberContext], member[Writer].write, member[SetMemberClient]
        age_ms = int(member[MemberOptions].archive_secs * 1000)
        options = ArchiveOptions(segment_bytes=segment_bytes, age_ms=age_ms)
        self.archiver = Archiver(context, member.node, archive, peer, write, lease, member.rng, options)
        member[History].older = ArchivedEntries(archive, context, self.archiver.status)

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return () if self.archiver is None else (self.archiver.run(),)

    def needed(self) -> OpTime | None:
        return None if self.archiver is None else self.archiver.needed()

    def status(self) -> Mapping[str, object]:
        return {} if self.archiver is None else {"archive": self.archiver.status.document(self._member)}

    def remarks(self) -> Iterable[Remark]:
        if self.archiver is not None and (error := self.archiver.status.error):
            what = f"{self._member.host} cannot archive its oplog: {error}"
            yield Remark(what, "mend that before the oplog has reached --oplog-lagging-mb: then entries go unarchived")

    def figures(self) -> Iterable[Figure]:
        status = None if self.archiver is None else self.archiver.status
        lag_s, failing = (0, False) if status is None else (status.lag_s(self._member), bool(status.error))
        text = "how much of the committed oplog is not archived yet"
        yield Figure("replset_archive_lag_seconds", text, {"": float(lag_s)})
        text = "1 while this member cannot write or read the archive"
        yield Figure("replset_archive_failing", text, {"": float(failing)})


def archive_feature(archive: ArchivePort | None = None, segment_bytes: int = SEGMENT_BYTES) -> Feature:
    """archive: None where the member has no --archive."""
    return Feature("archive", COMMANDS, lambda member: ArchivePart(member, archive, segment_bytes))
