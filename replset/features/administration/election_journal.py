"""replSetGetElections: the election journal, put together by elections (map D16). The core writes its lines.

Each member writes down the elections in which it was the candidate: why it stood, who was asked, who refused and why,
and how long each phase took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeGuard

from replset.auth.roles import Action
from replset.bson import DateTime, Int64
from replset.core.effects import ElectionEvent as Event
from replset.errors import ReplError
from replset.ids import HostPort, Millis
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.request import Reply
from replset.replication.context import MemberContext
from replset.storage.member_file import JournalLine, MemberFile

MEMBER_TIMEOUT_MS = Millis(3_000)
DEFAULT_LIMIT, MOST = 20, 1000
LINES_BEFORE = 5
DEFAULT_BEFORE_MS = 20_000
PHASE_OF: dict[str, str] = {
    Event.DRY_RUN: "dry run",
    Event.ELECTION: "election",
    Event.WON: "catch-up",
    Event.DRAINING: "drain",
}
"""The event that begins a phase."""
LOST = (Event.DRY_RUN_LOST, Event.ELECTION_LOST)


@dataclass(slots=True)
class RecordedElection:
    """One election of this member. lines: its own; before: what the journal has before it. ended: of its leadership."""

    before: list[JournalLine]
    lines: list[JournalLine] = field(default_factory=list)
    ended: JournalLine | None = None

    @property
    def outcome(self) -> str:
        events = {line.event for line in self.lines}
        if Event.WON in events:
            return "won"
        return "lost" if events & set(LOST) else "open"

    def detail(self, event: str) -> str:
        return next((line.detail for line in self.lines if line.event == event), "")

    def document(self) -> dict[str, object]:
        """Return it for a reply; times in UTC, durations in milliseconds."""
        asked = (self.detail(Event.DRY_RUN) or self.detail(Event.ELECTION)).partition(": asking ")[2].partition(";")[0]
        in_dry_run = self.detail(Event.ELECTION).partition("granted by ")[2]
        refused = [line.detail.partition(": ") for line in self.lines if line.event == Event.VOTE_NOT_GRANTED]
        document: dict[str, object] = {
            "term": Int64(self.lines[-1].term),
            "date": DateTime(self.lines[0].wall_ms),
            "reason": self.lines[0].detail.partition(": ")[0],
            "outcome": self.outcome,
            "asked": [host for host in asked.split(", ") if host and host != "nobody else"],
            "grantedInDryRun": in_dry_run.split(", ") if in_dry_run else [],
            "granted": [host for host in self.detail(Event.WON).partition("votes of ")[2].split(", ") if host],
            "refused": [{"member": host, "reason": reason} for host, _, reason in refused],
            "phases": [{"phase": name, "millis": Int64(ms)} for name, ms in self._phases()],
            "before": [_line_document(line) for line in self.before],
            "journal": [_line_document(line) for line in self.lines],
        }
        if self.outcome == "lost":
            document["why"] = self.lines[-1].detail
        if self.ended is not None:
            document["ended"] = _line_document(self.ended)
        return document

    def _phases(self) -> list[tuple[str, int]]:
        found = []
        marks = [line for line in self.lines if line.event in PHASE_OF or line.event in (*LOST, Event.LEADING)]
        for line, after in pairwise(marks):
            if line.event in PHASE_OF:
                found.append((PHASE_OF[line.event], max(0, after.wall_ms - line.wall_ms)))
        return found


def _line_document(line: JournalLine) -> dict[str, object]:
    return {
        "date": DateTime(line.wall_ms),
        "term": Int64(line.term),
        "event": line.event,
        "detail": line.detail,
    }


def find_elections(lines: Iterable[JournalLine], before_ms: int = DEFAULT_BEFORE_MS) -> list[RecordedElection]:
    """Put the lines of a journal, oldest first, together by elections, oldest first.

    before_ms: what came so long before an election belongs to its reasons.
    """
    found: list[RecordedElection] = []
    others: list[JournalLine] = []
    current: RecordedElection | None = None
    for line in lines:
        is_real = line.event == Event.ELECTION
        if line.event == Event.DRY_RUN or (is_real and not (is_open(current) and current.outcome == "open")):
            recent = [other for other in others if line.wall_ms - other.wall_ms <= before_ms]
            current = RecordedElection(recent[-LINES_BEFORE:], [line])
            found.append(current)
            others = []
        elif not is_open(current):
            if line.event == Event.STEPPED_DOWN and found and found[-1].outcome == "won" and found[-1].ended is None:
                found[-1].ended = line
            others.append(line)
        else:
            current.lines.append(line)
    return found


def is_open(election: RecordedElection | None) -> TypeGuard[RecordedElection]:
    """Whether further lines belong to this election: it is neither lost nor has its winner begun to accept writes."""
    return election is not None and election.lines[-1].event not in (*LOST, Event.LEADING, Event.STEPPED_DOWN)


async def get_elections(ctx: CommandContext) -> Reply:
    """The elections of this member, newest first. With `all`, those of every member, and the members that failed."""
    limit = fields.whole(ctx.body, "limit", ctx.name, DEFAULT_LIMIT, least=1)
    everywhere = fields.boolean(ctx.body, "all", ctx.name)
    member = ctx.member
    lines = await member[MemberContext].workers.run(lambda: member[MemberFile].journal(MOST))
    config = ctx.member.node.config
    before_ms = DEFAULT_BEFORE_MS if config is None else 2 * config.settings.election_timeout_ms
    found = find_elections(reversed(lines), before_ms)
    rows = [{"member": str(ctx.member.host), **each.document()} for each in found]
    reply: dict[str, object] = {}
    if everywhere:
        others = [] if config is None else [each.host for each in config.members if each.host != ctx.member.host]
        answers = await asyncio.gather(*(_ask_member(ctx, host, limit) for host in others))
        rows += [row for theirs, _ in answers for row in theirs]
        reply["unreachable"] = {str(host): why for host, (_, why) in zip(others, answers, strict=True) if why}
    return {"elections": newest_first(rows)[: min(limit, MOST)], **reply}


def newest_first(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Sort by term before time: the members' clocks differ."""

    def place(row: dict[str, object]) -> tuple[int, int]:
        term, date = row.get("term"), row.get("date")
        return (int(term) if isinstance(term, int) else 0, date.ms if isinstance(date, DateTime) else 0)

    return sorted(rows, key=place, reverse=True)


async def _ask_member(ctx: CommandContext, host: HostPort, limit: int) -> tuple[list[dict[str, object]], str]:
    """Ask one member for its elections. Returns them, or why it did not answer."""
    command: dict[str, object] = {"replSetGetElections": 1, "limit": limit}
    try:
        reply = await ctx.member.peer.call(host, command, timeout_ms=MEMBER_TIMEOUT_MS)
    except ReplError as error:
        return [], error.message
    rows = reply.get("elections")
    if not isinstance(rows, list):
        return [], str(reply.get("errmsg", "it gave no list of elections"))
    return [{**row, "member": str(host)} for row in rows if isinstance(row, dict)], ""


COMMANDS: tuple[Command, ...] = (
    Command(
        "replSetGetElections", get_elections, frozenset({"limit", "all"}), admin_only=True, needs=Action.SET_STATUS
    ),
)
