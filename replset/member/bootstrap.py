"""Makes the set of --expect-members, once all of its members answer and are empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from replset.config import Member, ReplSetConfig
from replset.core.messages import InitiateRequest, Refused, ReplyBody, RequestBody
from replset.core.node import Node
from replset.errors import ReplError
from replset.ids import MemberId
from replset.member.options import MemberOptions

log = logging.getLogger("replset.bootstrap")
ASK_EVERY_S: Final = 1
LISTEN_S: Final = 5
"""How long the first member waits before it asks, two heartbeats: were all disks of the list emptied, a member of the
set that is not in the list finds it before."""


async def begin_expected_set(
    options: MemberOptions,
    node: Node,
    ask: Callable[[RequestBody], Awaitable[ReplyBody]],
    on_waiting: Callable[[str], None],
) -> None:
    """Initiate the set again and again until this member has a configuration; only the first of the list does so.

    A member that has a configuration does nothing, so it may be started with the same list for ever. on_waiting: is
    called with the reason why there is no set yet.
    """
    expected = options.expected
    members = tuple(Member(MemberId(number), host) for number, host in enumerate(expected))
    said = ""
    may_ask_at = asyncio.get_running_loop().time() + LISTEN_S
    while node.config is None:
        reason = f"{expected[0]} makes the set once all of them answer"
        if options.host not in expected:
            reason = f"{options.host} is none of them, and waits until a set adds it"
        if options.host == expected[0] and asyncio.get_running_loop().time() >= may_ask_at:
            try:
                answer = await ask(InitiateRequest(ReplSetConfig(options.repl_set, 1, -1, members)))
                reason = answer.reason if isinstance(answer, Refused) else ""
            except ReplError as error:
                reason = error.message
        if reason and reason != said:
            said = reason
            on_waiting(reason)
            log.info("no configuration yet; --expect-members %s: %s", ",".join(expected), reason)
        await asyncio.sleep(ASK_EVERY_S)
