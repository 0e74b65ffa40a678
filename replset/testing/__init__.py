"""A replica set for other people's tests (docs/testing.md): real members, which a test may kill, cut off, roll back."""

from replset.testing.async_replica_set import AsyncReplicaSet
from replset.testing.replica_set import ReplicaSet, RolledBack

__all__ = ["AsyncReplicaSet", "ReplicaSet", "RolledBack"]
