"""Which positions are awaited here, and how this member's own reaches its sync source (map R8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import get_args

from replset.bson import RawDocument
from replset.core.effects import Send
from replset.core.messages import ReplyBody, Response
from replset.core.node import Node
from replset.ids import Millis
from replset.member.peers.repeated_fetch import FetchDocuments
from replset.operations.kernel import What
from replset.replication.fetcher import Fetcher
from replset.replication.ports import Clock
from replset.replication.progress import ProgressReporter
from replset.replication.protocol import Awaited, FetchRequest

AWAITED_MS = 1_000
"""How long a wait for positions or for the commit point is remembered: others then tell them without delay."""


class Positions:
    """Remembers what clients wait for here, and reports this member's position where no fetch is about to do so."""

    def __init__(
        self,
        node: Node,
        clock: Clock,
        fetcher: Fetcher,
        exchange: Callable[[Send], Awaitable[ReplyBody]],
        report: Callable[[Response], None],
    ) -> None:
        """exchange, report: see `ProgressReporter`."""
        self._node = node
        self._clock = clock
        self._fetcher = fetcher
        self._awaited_until: dict[What, int] = dict.fromkeys(get_args(What), 0)
        self._fetch_documents = FetchDocuments()
        self._reporter = ProgressReporter(
            clock=clock,
            source=lambda: node.sync_source,
            request=node.progress_request,
            exchange=exchange,
            interval_ms=lambda: Millis(node.election_timeout_ms() // 2),
            report=report,
        )
        self.run = self._reporter.run

    @property
    def awaited(self) -> Awaited:
        """Which positions of other members a client waits for here, or waited for a moment ago."""
        config, now, until = self._node.config, self._clock.now(), self._awaited_until
        if now < until["applied"] or (config and not config.write_concern_majority_journal_default):
            return "applied"
        if now < until["durable"]:
            return "durable"
        return "" if self._node.writable else self._fetcher.awaited

    @property
    def awaits_only_majority(self) -> bool:
        """Whether clients wait here, or did a moment ago, and none for more than a majority."""
        now, until = self._clock.now(), self._awaited_until
        return now < until["durable"] and now >= max(until["applied"], until["members"])

    def is_awaited(self, what: What) -> bool:
        until = self._awaited_until[what]
        return until > 0 and self._clock.now() < until

    def on_awaited(self, what: What) -> None:
        """See `Kernel`."""
        self._awaited_until[what] = self._clock.now() + AWAITED_MS
        if what == "commit point":
            self._reporter.notify()

    def report(self) -> None:
        """Report the positions of this member, and of those that fetch from it, unless a fetch is about to do so."""
        if self._node.sync_source is None or self._fetcher.is_settling:
            return
        if self._fetcher.is_awaited:
            self._reporter.notify()
        else:
            self._reporter.notify_soon()

    def fetch_document(self, request: FetchRequest) -> RawDocument:
        """The document of a fetch, with this member's position if that counts."""
        return self._fetch_documents(request, self._node.progress_request())
