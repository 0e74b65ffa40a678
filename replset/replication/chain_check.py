"""Finds out whose hash chain the set has at one entry: this member's own, or another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from replset.core.messages import ChainsCompared, DamageFound
from replset.errors import ReplError
from replset.ids import HostPort, Millis, OpTime
from replset.oplog_row import DamagedEntryError
from replset.replication.context import MemberContext
from replset.replication.ports import MemberClient
from replset.replication.protocol import ProbeReply, ProbeRequest

PROBE_TIMEOUT_MS: Final = Millis(5_000)


async def compare_chains(context: MemberContext, peer: MemberClient, at: OpTime, hosts: Sequence[HostPort]) -> None:
    """Check the own entry `at`, ask `hosts` for their chain there, and report ChainsCompared.

    DamageFound is reported instead when the own entry does not even fit its own hash and chain. Carries out the core's
    effect CompareChains.
    """
    try:
        row = context.store.sound_row_at(at)
    except DamagedEntryError as error:
        context.on_report(DamageFound(error.message))
        return
    answers = dict(zip(hosts, await asyncio.gather(*(_chain_at(peer, host, at) for host in hosts)), strict=True))
    others = Counter(chain for chain in answers.values() if chain is not None)
    mine = None if row is None else row.chain
    same = 0 if mine is None else 1 + others.pop(mine, 0)
    unknown = sum(chain is None for chain in answers.values())
    text = ", ".join(f"{host} {'unknown' if chain is None else chain}" for host, chain in answers.items())
    context.on_report(
        ChainsCompared(at, same, max(others.values(), default=0), unknown, f"mine is {mine}, others: {text}")
    )


async def _chain_at(peer: MemberClient, host: HostPort, at: OpTime) -> int | None:
    try:
        reply = ProbeReply.parse(await peer.call(host, ProbeRequest([at]).document(), timeout_ms=PROBE_TIMEOUT_MS))
    except ReplError:
        return None
    return reply.chains[0] if reply.chains else None
