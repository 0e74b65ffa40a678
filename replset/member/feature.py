"""What the member knows of a feature: its operations, and the part of it that runs on a member.

`features/all.py` lists them. A member that is started without a feature lacks it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from replset.core.status import Remark
from replset.ids import OpTime
from replset.member.options import FeatureOptions
from replset.operations.command import Command
from replset.operations.kernel import Kernel
from replset.storage.txn import Txn


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of /metrics. values: by the value of `label`; without one, under ""."""

    name: str
    help: str
    values: Mapping[str, float]
    label: str = ""


class FeaturePart:
    """The part of a feature that runs on one member. What a feature has not, it leaves as it is here."""

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What runs in the background from the member's start to its end, a task each."""
        return ()

    def does_own_work(self) -> bool:
        """Whether this set expires documents and ends index builds by itself. It may be asked within a group."""
        return True

    def holds_role(self) -> bool:
        """Whether something outside of the set may still act for this member as primary (core/role.py)."""
        return False

    def needed(self) -> OpTime | None:
        """The newest entry up to which the oplog may be trimmed for this feature; None: it needs none."""
        return None

    def needed_in_copies(self) -> OpTime | None:
        """As `needed`, also of a copy that another member gets."""
        return None

    def newer_content(self, txn: Txn) -> str:
        """What it has that release 1.0 cannot read; empty for nothing. Asked within a group."""
        return ""

    def status(self) -> Mapping[str, object]:
        """Rows of replSetGetStatus."""
        return {}

    def remarks(self) -> Iterable[Remark]:
        """What an operator should know, and do."""
        return ()

    def figures(self) -> Iterable[Figure]:
        """Figures of /metrics."""
        return ()

    def on_committed(self) -> None:
        """Called after each group of clients' writes or of applied entries."""

    def listens_to_commits(self) -> bool:
        """Whether it has an `on_committed` of its own: a commit on one connection calls nobody in vain."""
        return type(self).on_committed is not FeaturePart.on_committed

    def on_topology_changed(self) -> None:
        """Called when the member's state or the configuration is another one."""

    async def hand_over(self) -> None:
        """Called before the member stops, when it is primary no more."""

    async def close(self) -> None:
        """Called when the member stops; its jobs have ended."""


class Features(list[FeaturePart]):
    """The parts that run on this member, in the order in which its features were listed."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A folder of `replset/features`. part: makes what runs of it on a member, once the kernel
    is there; None where the member's options leave it out. options: what it adds to those of `replset start`; the part
    asks the member for them by this type.
    """

    name: str
    commands: tuple[Command, ...] = ()
    part: Callable[[Kernel], FeaturePart | None] | None = None
    options: type[FeatureOptions] | None = None
