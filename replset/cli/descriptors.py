"""Divides the file descriptors of the process of `replset start` among both ports and what else needs some."""

from __future__ import annotations

import logging
import resource
from typing import Final

from replset.member.net.connections import BACKLOG, SPARE_DESCRIPTORS, ConnectionSlots

log = logging.getLogger("replset.server")

MOST_DESCRIPTORS: Final = 1 << 20
RESERVED_DESCRIPTORS: Final = 256
"""Descriptors for files, threads and connections to other members; a quarter of all where there are few."""
FEW_DESCRIPTORS: Final = 8192
"""How many descriptors are few: with fewer the backlog is an eighth, since few connections can be accepted at once."""


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return MOST_DESCRIPTORS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def backlog_for(limit: int) -> int:
    """Return how many connections may wait to be accepted."""
    return BACKLOG if limit >= FEW_DESCRIPTORS else BACKLOG // 8


def share_descriptors(limit: int, wire: ConnectionSlots, http: ConnectionSlots) -> None:
    """Lower the limits of both ports to what `limit` descriptors allow. Three quarters of the rest are for files."""
    available = limit - min(RESERVED_DESCRIPTORS, limit // 4)
    if wire.most + http.most > available:
        http.most = min(http.most, max(available // 4, available - wire.most))
        wire.most = min(wire.most, available - http.most)
        log.warning(
            "%d file descriptors: at most %d connections on the wire port and %d on the HTTP port (see ulimit -n)",
            *(limit, wire.most, http.most),
        )
    left = limit - wire.most - http.most
    wire.spare = http.spare = max(1, min(SPARE_DESCRIPTORS, left // 8))
