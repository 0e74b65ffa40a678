"""Before a member stops: a primary steps down, if it can to a member that has everything (map E15)."""

from __future__ import annotations

import asyncio
from typing import Final

from replset.core.member_state import MemberState
from replset.core.messages import StepDownRequest
from replset.core.node import Node
from replset.ids import HostPort
from replset.runtime.shell import Shell

TRIES: Final = 10
"""Each waits a second for an electable member to catch up."""


async def hand_over_primary(node: Node, shell: Shell, host: HostPort) -> None:
    """Step down if this member is primary: for ten seconds only to a member that caught up, then in any case."""
    for _ in range(TRIES):
        if node.state is not MemberState.PRIMARY:
            break
        config = node.config
        others = () if config is None else (m for m in config.members if m.is_electable and m.host != host)
        if not any((peer := node.peer_at(m.host)) is not None and peer.is_up for m in others):
            break
        await shell.ask(StepDownRequest(60_000, 1_000, force=False))
    if node.state is MemberState.PRIMARY:
        await shell.ask(StepDownRequest(60_000, 0, force=True))
    await asyncio.sleep(0.05)  # the request to the next primary is on its way
