"""Compares a secondary's documents with the primary's in the background, at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from replset.bson import DateTime, Int64
from replset.core.status import Remark
from replset.errors import ReplError
from replset.features.scrub.auto_repair import AutoRepair
from replset.features.scrub.document_check import DocumentCheck, ScrubStatus
from replset.ids import HostPort
from replset.member.feature import FeaturePart, Figure
from replset.replication.context import MemberContext

log = logging.getLogger("replset.scrub")

START_AFTER_S: Final = 60.0
PAUSE_S: Final = 3600.0
"""The pause from the end of one pass over all documents to the beginning of the next."""
SHORTEST_PAUSE_S: Final = 0.05
RETRY_S: Final = 10.0
TRIES: Final = 3
KEPT_MAX: Final = 1_000
NAMED_MAX: Final = 10
EACH_DOCUMENT_BYTES: Final = 100
"""What reading a document costs beside its bytes, so that many small ones take no more time than large ones."""


class Scrubber(FeaturePart):
    """Runs as a task of its own. It reads as any client does, in threads, and writes only what `auto` puts right."""

    def __init__(
        self,
        context: MemberContext,
        check: DocumentCheck,
        primary: Callable[[], HostPort | None],
        mb_per_sec: float,
        auto: AutoRepair,
    ) -> None:
        """primary: the member to compare with, or this one, which then compares nothing; None: not now."""
        self._context = context
        self._check = check
        self._primary = primary
        self._bytes_per_sec = mb_per_sec * (1 << 20)
        self._auto = auto
        self.found = ScrubStatus()

    def on_topology_changed(self) -> None:
        """Forget what differs where this member is primary now: others are compared with it."""
        if self._primary() == self._context.identity.member:
            self.found.differing.clear()

    def _source(self) -> HostPort | None:
        primary = self._primary()
        return None if primary == self._context.identity.member else primary

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    def status(self) -> Mapping[str, object]:
        scrub, auto = self.found, self._auto
        if not (scrub.passes or scrub.differing or auto.repaired):
            return {}
        document: dict[str, object] = {
            "passes": Int64(scrub.passes),
            "lastPassEnded": DateTime(scrub.ended_wall_ms),
            "documents": Int64(scrub.documents),
            "differing": len(scrub.differing),
            "repaired": Int64(auto.repaired),
        }
        if auto.stopped:
            document["autoRepairStopped"] = auto.stopped
        return {"documentCheck": document}

    def remarks(self) -> Iterable[Remark]:
        if summary := self.found.summary:
            stopped = f"; it repairs no more by itself: {self._auto.stopped}" if self._auto.stopped else ""
            yield Remark(
                f"documents of {self._context.identity.member} are not as the primary has them: {summary}{stopped}",
                "replset check names them; then replset repair DB.COLLECTION",
            )

    def figures(self) -> Iterable[Figure]:
        text = "documents of this member that are not as the primary has them"
        yield Figure("replset_documents_differing", text, {"": float(len(self.found.differing))})
        text = "documents of this member that it repaired by itself since its start"
        yield Figure("replset_documents_repaired", text, {"": float(self._auto.repaired)})

    async def run(self) -> None:
        """Work until cancelled."""
        if self._bytes_per_sec <= 0:
            return
        await asyncio.sleep(START_AFTER_S)
        while True:
            await self._pass()
            await asyncio.sleep(PAUSE_S)

    async def _pass(self) -> None:
        """Compare all documents once. What the pass before found stays known until this one has ended.

        A document that was put right after this pass had found it is in the status no more.
        """
        status, seen = self.found, set[tuple[str, bytes]]()
        status.documents = 0
        is_whole = all([await self._compare(ns, seen) for ns in self._check.namespaces()])
        status.passes += 1
        status.ended_wall_ms = self._context.clock.wall_ms()
        status.differing = found = {place: one for place, one in status.differing.items() if place in seen}
        if found:
            named = ", ".join(f"{one.ns} {one.id!r:.100}" for one in list(found.values())[:NAMED_MAX])
            log.error("documents differ from the primary's (%s): %s; see replset check", status.summary, named)
        elif is_whole:
            await self._auto.on_all_alike()

    async def _compare(self, ns: str, seen: set[tuple[str, bytes]]) -> bool:
        """Compare one collection. False: it cannot be compared, and is left to the next pass. It is gone, or the member
        is delayed by more than the primary can look back.
        """
        low: bytes | None = b""
        tries = waits = 0
        while low is not None and tries < TRIES:
            source = self._source()
            try:
                one = None if source is None else await self._check.compare(ns, low, [source])
            except ReplError as error:
                log.debug("%s is not compared now: %s", ns, error.message)
                one, tries = None, tries + 1
            if one is not None and one.failed:
                log.debug("%s is not compared now: %s", ns, "; ".join(one.failed.values()))
                one, tries = None, tries + 1
            if one is None or self._source() != source:
                await asyncio.sleep(RETRY_S)
                continue
            if one.differing and source is not None:
                one = await self._auto.put_right(one, source)
                if one.failed and waits < TRIES:  # it may answer soon, and decide which version is right
                    waits += 1
                    await asyncio.sleep(RETRY_S)
                    continue
            for difference in one.differing[: KEPT_MAX - len(seen)]:
                seen.add((ns, difference.key))
                self.found.differing[ns, difference.key] = difference
            self.found.on_compared(one)
            self.found.documents += one.documents
            low, tries = one.next, 0
            cost = one.size + one.documents * EACH_DOCUMENT_BYTES
            await asyncio.sleep(max(SHORTEST_PAUSE_S, cost / self._bytes_per_sec))
        return low is None
