"""The archive of the oplog, as a feature of a member."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from replset.core.status import Remark
from replset.features.archive.archive_lease import COMMANDS, ArchiveLease
from replset.features.archive.archiver import ArchivedEntries, Archiver
from replset.features.archive.jobs import ArchivePort
from replset.ids import OpTime
from replset.member.disk.writer import Writer
from replset.member.feature import Feature, FeaturePart, Figure
from replset.member.options import BadOptionError, FeatureOptions, option, options
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext
from replset.replication.ports import SetMemberClient

SEGMENT_BYTES: Final = 16 << 20


@options
class ArchiveOptions(FeatureOptions):
    archive: str | None = option(
        "URL",
        "folder or address (s3://...), the same on all members, to which the oplog is archived before trimming",
        None,
    )
    archive_secs: float = option(
        "SECONDS", "how old an entry becomes before it is archived, where few are written (300)", 300.0, above_0=True
    )

    def check(self) -> None:
        if self.archive is not None and not self.archive.strip():
            raise BadOptionError("--archive: '' is neither a folder nor an address")


class ArchivePart(FeaturePart):
    """Gives the lease on a primary; on a member with --archive it archives, and reads what is trimmed from there."""

    def __init__(self, member: Kernel, archive: ArchivePort | None, segment_bytes: int) -> None:
        self._member = member
        lease = ArchiveLease(member.clock.now)
        member.add(lease)
        self.archiver: Archiver | None = None
        given = member[ArchiveOptions]
        if archive is None and given.archive is not None:
            # Its module is imported only for the option. The process itself starts with the first request.
            from replset.features.archive.archive_process import ArchiveProcess

            archive = ArchiveProcess(given.archive)
        if archive is None:
            return
        context, write, peer = member[MemberContext], member[Writer].write, member[SetMemberClient]
        age_ms = int(given.archive_secs * 1000)
        self.archiver = Archiver(context, member.node, archive, peer, write, lease, member.rng, segment_bytes, age_ms)
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
    """archive: in the place of that of --archive. segment_bytes: of entries that make a segment of it."""
    return Feature("archive", COMMANDS, lambda member: ArchivePart(member, archive, segment_bytes), ArchiveOptions)
