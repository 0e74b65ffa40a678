"""Lets a secondary take over by itself what a majority has of a document that its own disk changed, within a bound."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from replset.core.member_state import MemberState
from replset.core.node import Node
from replset.errors import ReplError
from replset.features.scrub.document_check import ComparedRange, Difference
from replset.features.scrub.document_repair import DocumentRepair
from replset.ids import HostPort, OpTime
from replset.replication.context import MemberContext
from replset.replication.rollback_list import RollbackList
from replset.storage.member_file import MemberFile

log = logging.getLogger("replset.scrub")

DOCUMENTS_AN_HOUR: Final = 100
"""More differ only where a disk is bad, or where this member is right and the others are not: a person has to look."""
HOUR_MS: Final = 3_600_000
REPAIRED, STOPPED, GOES_ON = "auto repair", "auto repair stopped", "auto repair goes on"
"""Events of the journal. A start reads them, so that a member that starts again and again has one bound."""


def other_members(node: Node, mine: HostPort) -> list[HostPort]:
    """The members with documents, but for `mine`."""
    return [] if node.config is None else [one.host for one in node.config.data_bearing if one.host != mine]


def reached(node: Node, others: Sequence[HostPort]) -> OpTime | None:
    """How far the one of them is that is farthest behind of those that can be compared; None: there is none."""
    peers = [node.peer_at(host) for host in others]
    return min((peer.position.last_applied for peer in peers if peer and peer.state.is_readable), default=None)


def is_clear(difference: Difference, mine: HostPort, voters: frozenset[HostPort]) -> bool:
    """Whether this member alone has another version, and more than half of the `voters`, all with data, have one."""
    others = {host: None if row is None else row.hash for host, row in difference.rows.items() if host != mine}
    return len(set(others.values())) == 1 and len(voters & others.keys()) > len(voters) // 2


class AutoRepair:
    """Repairs ranges of a secondary as a person does. repaired: documents so far. stopped: why it does so no more,
    until all documents are alike again.
    """

    def __init__(
        self,
        context: MemberContext,
        node: Node,
        repair: DocumentRepair,
        file: MemberFile,
        rollbacks: RollbackList,
    ) -> None:
        self._context = context
        self._node = node
        self._repair = repair
        self._file = file
        self._rollbacks = rollbacks
        self._recent: list[tuple[int, int]] | None = None
        self.repaired = 0
        self.stopped = ""

    def allows(self) -> bool:
        """Whether this member may change its documents by itself now.

        A primary does not: clients read and change its documents, and whoever saw the version that goes would find no
        entry that says so. A member that found damage in its oplog is in RECOVERING.
        """
        node = self._node
        is_wanted = node.config is not None and node.config.settings.auto_repair
        return is_wanted and node.state is MemberState.SECONDARY and not self.stopped

    async def put_right(self, compared: ComparedRange, source: HostPort) -> ComparedRange:
        """Repair what a comparison with `source` found. Return what is left, with who did not answer meanwhile."""
        mine, request = self._context.identity.member, compared.request
        others = other_members(self._node, mine)
        if not self.allows():
            return compared
        try:
            if self._recent is None:
                self._recent = await self._read_journal()
            if self.stopped:
                return compared
            at = reached(self._node, others)
            done = await self._repair.repair(request.ns, request.low, others, None, at, restraint=self)
        except ReplError as error:  # as a full disk, where what was there cannot be kept
            log.warning("documents of %s that differ cannot be repaired now: %s", request.ns, error.message)
            return compared
        if done.corrected:
            self.repaired += len(done.corrected)
            await self._rollbacks.refresh()
        if source in done.compared.failed:
            return compared
        differing = [
            one
            for one in done.compared.differing
            if one not in done.corrected and one.hash_of(mine) != one.hash_of(source)
        ]
        return replace(done.compared, differing=differing, failed=done.compared.failed if differing else {})

    async def choose(self, ns: str, wanted: Sequence[Difference]) -> Sequence[Difference]:
        """See Restraint: those that are clear, all of them or none."""
        config, mine = self._node.config, self._context.identity.member
        voters = frozenset(one.host for one in config.voters if one.bears_data) if config else frozenset()
        clear = [one for one in wanted if is_clear(one, mine, voters)]
        now = self._context.clock.now()
        self._recent = [row for row in self._recent or [] if now - row[0] < HOUR_MS]
        if not clear:
            return []
        if sum(count for _, count in self._recent) + len(clear) > DOCUMENTS_AN_HOUR:
            self.stopped = f"more than {DOCUMENTS_AN_HOUR} documents within an hour, {len(clear)} more of {ns}"
            log.error("documents that differ are repaired no more: %s", self.stopped)
            await self._note(STOPPED, self.stopped)
            return []
        self._recent.append((now, len(clear)))
        await self._note(REPAIRED, f"{len(clear)} documents of {ns}")
        return clear

    async def on_all_alike(self) -> None:
        """A pass over all documents found none that differs."""
        if self.stopped:
            self.stopped = ""
            with suppress(ReplError):
                await self._note(GOES_ON, "all documents are as the primary has them")

    async def _note(self, event: str, detail: str) -> None:
        wall_ms, term = self._context.clock.wall_ms(), self._node.term
        await self._context.workers.run(
            lambda: self._file.append_journal(wall_ms=wall_ms, term=term, event=event, detail=detail)
        )

    async def _read_journal(self) -> list[tuple[int, int]]:
        """How many documents were repaired within the last hour, and when, before this start."""
        lines = await self._context.workers.run(lambda: self._file.journal(1000))
        last = next((line for line in lines if line.event in (STOPPED, GOES_ON)), None)
        self.stopped = last.detail if last is not None and last.event == STOPPED else ""
        now, wall_ms = self._context.clock.now(), self._context.clock.wall_ms()
        ages = [(max(0, wall_ms - line.wall_ms), line) for line in lines if line.event == REPAIRED]
        return [(now - age, int(line.detail.split()[0])) for age, line in ages if age < HOUR_MS]
