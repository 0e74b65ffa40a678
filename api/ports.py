"""What the HTTP API needs of the member that it speaks for; runtime/member.py implements `ApiMember`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from replset.commands.ports import CommandRequest, Reply
from replset.core.node import Node
from replset.ids import HostPort, Millis
from replset.replication.ports import Clock, Peer, Workers
from replset.replication.rollback_list import RollbackList
from replset.runtime.admission import Admission
from replset.storage.store import Store


class ApiDispatcher(Protocol):
    """One command in, one reply out. `counts` and `failures`: how many so far, by command name and by error code."""

    @property
    def counts(self) -> Mapping[str, int]: ...

    @property
    def failures(self) -> Mapping[int, int]: ...

    async def run(self, request: CommandRequest) -> Reply: ...


class ApiMember(Protocol):
    """One running member, as far as the HTTP API looks at it."""

    @property
    def host(self) -> HostPort: ...

    @property
    def http_address(self) -> str: ...

    @property
    def set_name(self) -> str: ...

    @property
    def node(self) -> Node: ...

    @property
    def store(self) -> Store:
        """The store of this moment: an initial sync replaces it, so nobody keeps it across an await."""
        ...

    @property
    def peer(self) -> Peer: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def started_at(self) -> Millis: ...

    @property
    def shutting_down(self) -> bool: ...

    @property
    def rollbacks(self) -> RollbackList: ...

    @property
    def admission(self) -> Admission: ...

    @property
    def connection_count(self) -> int: ...

    @property
    def rollback_folder(self) -> str:
        """Where the rollback files and their manifests are; the folder need not exist."""
        ...

    def http_address_of(self, host: HostPort) -> str | None:
        """HOST:PORT of that member's HTTP API as it told it, None when it has not."""
        ...
