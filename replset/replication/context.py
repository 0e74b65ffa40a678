"""What the parts of one running member share: its store, its ports to the outside and what they report to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replset.core.messages import Report
from replset.ids import HostPort
from replset.replication.ports import Clock, Workers
from replset.replication.write_queue import WriteQueue
from replset.storage.disk import Disk
from replset.storage.store import Store


@dataclass(frozen=True, slots=True)
class Identity:
    """Names the member in a rollback's manifest. mongodb_layout: its rollback files come in MongoDB's layout too."""

    set_name: str
    member: HostPort
    mongodb_layout: bool = False


@dataclass(slots=True, kw_only=True)
class MemberContext:
    """Holds what replication and the runtime share of one member.

    store: the store that is open now. An initial sync replaces it, so read it again after each await.
    on_report: gives the core the result of finished work. on_undone: called after each undo step, when the store's
    newest entry moved back. on_broken: storage failed or an invariant broke; the member must stop.
    """

    disk: Disk
    dbpath: str
    clock: Clock
    workers: Workers
    store: Store
    write_queue: WriteQueue
    identity: Identity
    on_report: Callable[[Report], None]
    on_undone: Callable[[], None]
    on_broken: Callable[[BaseException], None]
