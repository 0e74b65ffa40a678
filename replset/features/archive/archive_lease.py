"""The set's record of its archive, a document of config.archive: who writes it, until when, and what is in it.

Only the primary writes the record. It measures how long the lease has not been renewed: by the time of day, one whose
clock was ahead once would leave the lease with a dead holder until then. The lease saves work and nothing else: two
members that write at once write the same entries. What the record calls archived has a manifest, so it is true even if
the record is rolled back later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from replset.auth.roles import Action
from replset.bson import DateTime, Int64, RawDocument, encode, encode_key
from replset.errors import FailedToParseError
from replset.features.archive.segments import Position
from replset.ids import HostPort, Millis, OpTime, invariant
from replset.member.peers.member_commands import refuse_foreign_member
from replset.message_fields import parse_chain
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where
from replset.operations.kernel import Kernel
from replset.operations.lag import behind_ms
from replset.operations.request import Reply
from replset.operations.write_concern import write_and_wait
from replset.optime import optime_document, parse_optime
from replset.replication.write_ops import ReplicatedDocument, WriteGroup
from replset.storage.store import Store

NAMESPACE: Final = "config.archive"
NAME: Final = "replSetArchiveLease"
LEASE_MS: Final = Millis(60_000)
GAPS_MAX: Final = 100
_ID: Final = "archive"
_RECORD: Final = ReplicatedDocument(NAMESPACE, encode_key(_ID))


@dataclass(frozen=True, slots=True)
class ArchiveStart:
    """oldest: the first entry behind which nothing is missing. after: everything behind this one is there."""

    oldest: OpTime
    after: OpTime

    def document(self) -> dict[str, object]:
        return {"oldest": optime_document(self.oldest), "after": optime_document(self.after)}

    @classmethod
    def parse(cls, document: Mapping[str, object]) -> Self:
        return cls(parse_optime(document.get("oldest")), parse_optime(document.get("after")))


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """set_id: of the set that wrote it, in hex. holder: may write. until_ms: about how long, for people.
    through: the newest entry that is archived. start: from where on the archive has everything. gaps: of entries that
    no member had any more when they were to be archived, as documents {after, before}.
    """

    set_id: str = ""
    holder: str = ""
    until_ms: int = 0
    archive_id: str = ""
    through: Position | None = None
    start: ArchiveStart | None = None
    gaps: tuple[Mapping[str, object], ...] = field(default=())

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {"_id": _ID, "setId": self.set_id, "holder": self.holder}
        document["until"] = DateTime(self.until_ms)
        if self.through is not None:
            document |= {"archiveId": self.archive_id, "through": position_document(self.through)}
        if self.start is not None:
            document["start"] = self.start.document()
        return document | ({"gaps": list(self.gaps)} if self.gaps else {})

    @classmethod
    def parse(cls, document: Mapping[str, object]) -> Self:
        until, through, start, gaps = (document.get(name) for name in ("until", "through", "start", "gaps"))
        return cls(
            str(document.get("setId", "")),
            str(document.get("holder", "")),
            until.ms if isinstance(until, DateTime) else 0,
            str(document.get("archiveId", "")),
            None if through is None else _position(through),
            ArchiveStart.parse(start) if isinstance(start, dict) else None,
            tuple(gap for gap in gaps if isinstance(gap, dict)) if isinstance(gaps, list) else (),
        )


@dataclass(slots=True)
class ArchiveStatus:
    """What a member knows of the set's archive. error: why its last attempt failed, empty when it did not."""

    record: ArchiveRecord = field(default_factory=ArchiveRecord)
    segments_written: int = 0
    error: str = ""

    def lag_s(self, member: Kernel) -> int:
        """For how long something committed has waited to be archived; 0 before the first segment."""
        through = self.record.through
        if through is None or through.optime >= member.node.commit_point:
            return 0
        return behind_ms(member, through.optime) // 1000

    def document(self, member: Kernel) -> dict[str, object]:
        """Return what replSetGetStatus shows."""
        record = self.record
        document: dict[str, object] = {"holder": record.holder, "segmentsWritten": self.segments_written}
        if record.through is not None:
            document["archivedThrough"] = optime_document(record.through.optime)
            document |= {"lagSecs": self.lag_s(member), "gaps": len(record.gaps)}
        return document | ({"error": self.error} if self.error else {})


def position_document(position: Position) -> dict[str, object]:
    return {**optime_document(position.optime), "chain": Int64(position.chain)}


def _position(value: object) -> Position:
    chain = value.get("chain") if isinstance(value, dict) else None
    return Position(parse_optime(value), parse_chain(chain))


def read_record(store: Store, set_id: str) -> ArchiveRecord:
    """Return the record as this member has it."""
    return _record_of(_RECORD.read(store), set_id)


def _record_of(document: bytes | None, set_id: str) -> ArchiveRecord:
    """Parse the record; one of the set from whose backup this set was made is none."""
    record = ArchiveRecord() if document is None else ArchiveRecord.parse(RawDocument(document).decode())
    return record if record.set_id == set_id else ArchiveRecord(set_id)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the member `holder` asks for: the lease; and with `through` to note what it has archived.

    start: where that begins the archive, or goes on behind a gap.
    """

    holder: HostPort
    archive_id: str = ""
    through: Position | None = None
    start: ArchiveStart | None = None

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {NAME: 1, "holder": self.holder}
        if self.through is not None:
            document |= {"archiveId": self.archive_id, "through": position_document(self.through)}
        return document | ({} if self.start is None else {"start": self.start.document()})


class ArchiveLease:
    """Gives the lease on a primary."""

    def __init__(self, now: Callable[[], Millis]) -> None:
        """now: by the clock that only moves on."""
        self._now = now
        self._known: tuple[str, int] = ("", 0)
        self._since = Millis(0)

    def grant(self, group: WriteGroup, claim: Claim, set_id: str) -> ArchiveRecord:
        """Give or renew the lease in this group, unless another member has it; return the record as it is then."""
        record = _record_of(_RECORD.read_in(group.txn), set_id)
        if record.holder not in ("", claim.holder) and not self._has_ended(record):
            return record
        granted = _with_progress(replace(record, holder=claim.holder, until_ms=group.wall_ms + LEASE_MS), claim)
        self._note(granted)
        known, through = record.through, granted.through
        # The oplog is trimmed up to there. If it fell, what lies between would have to be archived anew, and is gone.
        invariant(
            known is None or (through is not None and through.optime.ts >= known.optime.ts),
            "what is archived stays archived",
        )
        _RECORD.put(group, encode(granted.document()))
        return granted

    def _has_ended(self, record: ArchiveRecord) -> bool:
        """Whether it was not renewed for so long since this member first saw it so."""
        if (record.holder, record.until_ms) != self._known:
            self._note(record)
        return self._now() - self._since >= LEASE_MS

    def _note(self, record: ArchiveRecord) -> None:
        self._known, self._since = (record.holder, record.until_ms), self._now()


def _with_progress(record: ArchiveRecord, claim: Claim) -> ArchiveRecord:
    """Note what the claim says is archived; what is archived never becomes less."""
    known, through = record.through, claim.through
    if through is None or (known is not None and through.optime.ts <= known.optime.ts):
        return record
    gaps = record.gaps
    if claim.start is not None and known is not None:
        gaps = (*gaps, {"after": optime_document(known.optime), "before": optime_document(claim.start.oldest)})
    start = claim.start or record.start
    return replace(record, archive_id=claim.archive_id, through=through, start=start, gaps=gaps[-GAPS_MAX:])


async def archive_lease(ctx: CommandContext) -> Reply:
    """Let a member write to the set's archive, and note what it has archived."""
    refuse_foreign_member(ctx)
    holder = HostPort(fields.text(ctx.body, "holder", ctx.name))
    if ctx.member.node.config is None or holder not in {one.host for one in ctx.member.node.config.members}:
        raise FailedToParseError(f"{ctx.name}.holder is no member of the set: {holder:.200}")
    through, start = (fields.document(ctx.body, name, ctx.name) for name in ("through", "start"))
    claim = Claim(
        holder,
        fields.text(ctx.body, "archiveId", ctx.name, ""),
        None if through is None else _position(through.decode()),
        None if start is None else ArchiveStart.parse(start.decode()),
    )
    set_id = str(ctx.member.node.set_id)
    record = await ctx.member.write(lambda group: ctx.member[ArchiveLease].grant(group, claim, set_id))
    return {"record": record.document()}


async def forget_archive(ctx: CommandContext) -> Reply:
    """Forget the set's archive, so that the next segment begins a new one at the members' address."""
    _, reply = await write_and_wait(ctx, _RECORD.remove)
    return reply


COMMANDS: tuple[Command, ...] = (
    Command(NAME, archive_lease, None, where=Where.PRIMARY, admin_only=True, private=True, needs=Action.INTERNAL),
    Command(
        "replSetForgetArchive",
        forget_archive,
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
        needs=Action.CONFIGURE_SET,
    ),
)
