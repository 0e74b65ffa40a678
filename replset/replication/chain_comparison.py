"""Whose hash chain is the set's: the own entry is checked, and the others are asked for their chain there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from replset.core.messages import ChainsCompared, DamageFound
from replset.errors import DamagedEntryError, ReplError
from replset.ids import HostPort, Millis, OpTime
from replset.replication.context import MemberContext
from replset.replication.ports import Peer
from replset.replication.private_commands import ProbeReply, ProbeRequest

PROBE_TIMEOUT_MS: Final = Millis(5_000)


class ChainComparison:
    """Carries out `effects.CompareChains`."""

    def __init__(self, context: MemberContext, peer: Peer) -> None:
        self._context = context
        self._peer = peer

    async def run(self, at: OpTime, hosts: Sequence[HostPort]) -> None:
        """Report ChainsCompared, or DamageFound when the own entry does not even give its own hash and chain."""
        try:
            row = self._context.store.sound_row_at(at)
        except DamagedEntryError as error:
            self._context.on_report(DamageFound(error.message))
            return
        answers = dict(zip(hosts, await asyncio.gather(*(self._ask(host, at) for host in hosts)), strict=True))
        others = Counter(chain for chain in answers.values() if chain is not None)
        mine = None if row is None else row.chain
        same = 0 if mine is None else 1 + others.pop(mine, 0)
        silent = [chain for chain in answers.values() if chain is None]
        said = ", ".join(f"{host} {'cannot say' if chain is None else chain}" for host, chain in answers.items())
        self._context.on_report(
            ChainsCompared(at, same, max(others.values(), default=0), len(silent), f"mine is {mine}, others: {said}")
        )

    async def _ask(self, host: HostPort, at: OpTime) -> int | None:
        try:
            reply = ProbeReply.parse(
                await self._peer.call(host, ProbeRequest([at]).document(), timeout_ms=PROBE_TIMEOUT_MS)
            )
        except ReplError:
            return None
        return reply.chains[0] if reply.chains else None
