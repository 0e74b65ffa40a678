"""What one member is given of the outside, and how large its steps are."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from replset.replication.copy_transfer import InitialSyncOptions
from replset.replication.fetcher import FetchOptions
from replset.replication.index_builder import IndexBuildOptions
from replset.replication.ports import Clock, Network, SyncThread, Workers
from replset.storage.disk import Disk
from replset.storage.store import StoreOptions


@dataclass(frozen=True, slots=True)
class MemberPorts:
    """Holds everything outside of one member; the simulator has its own implementations.

    rng: for secrets and ids. core_rng: for the times of the core, which restarts its election timer with each page.
    """

    network: Network
    disk: Disk
    clock: Clock
    workers: Workers
    rng: random.Random
    core_rng: random.Random
    sync_thread: SyncThread


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Limits the work of one step. The simulator makes the limits small, so that a short run has several steps."""

    store: StoreOptions = field(default_factory=StoreOptions)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    initial_sync: InitialSyncOptions = field(default_factory=InitialSyncOptions)
    index_build: IndexBuildOptions = field(default_factory=IndexBuildOptions)
