"""Puts this member's documents right: those that are not as the majority of the data-bearing members has them.

A document's bytes may change on one member's disk, where no entry of the oplog says so. So the correction is no write
of the set either: it has no entry, and other members do not see it. What was there is kept in rollback files before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from replset.bson import is_document_of
from replset.errors import NamespaceNotFoundError, RemoteProtocolError
from replset.features.scrub.corrections import correct, written_after
from replset.features.scrub.document_check import ComparedRange, Difference, DocumentCheck
from replset.ids import HostPort, OpTime
from replset.oplog_row import entry_hash
from replset.replication.context import MemberContext
from replset.replication.held_keys import Place
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackState, utc_text

log = logging.getLogger("replset.repair")


@dataclass(frozen=True, slots=True)
class Correction:
    """One document of this member. before: its bytes now, after: those it gets; None: there is no document."""

    difference: Difference
    before: bytes | None
    after: bytes | None

    @property
    def is_sound(self) -> bool:
        """Whether the document gets bytes that are one, or goes."""
        return self.after is None or is_document_of(self.difference.key, self.after)


@dataclass(frozen=True, slots=True)
class RepairedRange:
    """What one step did. undecided: differing documents without a majority. skipped: those that somebody writes now.
    records: the ids of the manifests that have what was there.
    """

    compared: ComparedRange
    corrected: Sequence[Difference]
    undecided: Sequence[Difference]
    skipped: Sequence[Difference]
    records: Sequence[str]


class Restraint(Protocol):
    """What holds for a repair that no person asked for."""

    async def choose(self, ns: str, wanted: Sequence[Difference]) -> Sequence[Difference]:
        """Of these documents a majority has another version: which are corrected? The others are undecided."""

    def allows(self) -> bool:
        """Whether the repair may still be done; asked in the turn in which the documents are replaced."""


def majority_version(difference: Difference, members: int) -> tuple[bool, int | None]:
    """Whether more than half of so many data-bearing members have the same version, and its hash (None: it is absent).

    A member that did not answer counts for no version.
    """
    # With fewer than half, the members that did not answer could turn the count, and this member would take over what a
    # disk has damaged.
    versions = Counter(None if row is None else row.hash for row in difference.rows.values())
    version, count = versions.most_common(1)[0]
    return count > members // 2, version


class DocumentRepair:
    """Compares as DocumentCheck does, and corrects this member."""

    def __init__(self, context: MemberContext, check: DocumentCheck, is_held: Callable[[Place], bool]) -> None:
        """is_held: whether an open transaction has written the document."""
        self._context = context
        self._check = check
        self._is_held = is_held
        self._one_writer = asyncio.Lock()
        """Held while rollback files are written: two at once, of two collections, would take the same name."""

    async def repair(
        self,
        ns: str,
        low: bytes,
        others: Sequence[HostPort],
        trusted: HostPort | None,
        reached: OpTime | None = None,
        restraint: Restraint | None = None,
    ) -> RepairedRange:
        """Do the next range from the key `low` on. others: all other data-bearing members. trusted: whose version is
        taken where there is no majority. reached: see `DocumentCheck.compare`. restraint: None where a person asks.

        ReplError: this member cannot be read, or what was there cannot be kept; then nothing is changed.
        """
        compared = await self._check.compare(ns, low, others, reached)
        mine = self._context.identity.member
        wanted: dict[bytes, tuple[Difference, int | None]] = {}
        undecided: list[Difference] = []
        for difference in compared.differing:
            decided, version = majority_version(difference, len(others) + 1)
            if not decided and trusted is not None and trusted in difference.rows:
                row = difference.rows[trusted]
                decided, version = True, None if row is None else row.hash
            own = difference.rows[mine]
            if not decided:
                undecided.append(difference)
            elif version != (None if own is None else own.hash):
                wanted[difference.key] = difference, version
        if restraint is not None and wanted:
            chosen = {one.key for one in await restraint.choose(ns, [one for one, _ in wanted.values()])}
            undecided += [one for key, (one, _) in wanted.items() if key not in chosen]
            wanted = {key: wanted[key] for key in wanted if key in chosen}
        corrections = [await self._correction(compared, *one) for one in wanted.values()]
        if restraint is not None:  # a member that copied damaged bytes from another one has the same
            sound = await self._context.workers.run(lambda: [one for one in corrections if one.is_sound])
            undecided += [one.difference for one in corrections if one not in sound]
            corrections = sound
        if not corrections:
            return RepairedRange(compared, [], undecided, [], [])
        who = f"{'replset' if restraint is None else 'auto'} repair {ns}"
        async with self._one_writer:
            records = await self._keep_all(who, compared, corrections)
        done = await self._context.write_queue.write(
            lambda: [] if restraint and not restraint.allows() else self._apply(ns, compared.request.at, corrections)
        )
        await self._context.workers.run(self._context.store.wal.sync)
        skipped = [one.difference for one in corrections if one.difference not in done]
        kept = ", ".join(records) or "nothing"
        log.warning("%s: %d documents were replaced by the majority's; what was there: %s", who, len(done), kept)
        return RepairedRange(compared, done, undecided, skipped, records)

    async def _correction(self, compared: ComparedRange, difference: Difference, version: int | None) -> Correction:
        """Read what is here, and fetch that version of the document from a member that has it."""
        request, key = compared.request, difference.key
        own = await self._check.documents(self._context.identity.member, request, key)
        before = None if own is None else own.doc
        if version is None:
            return Correction(difference, before, None)
        source = next(host for host, row in difference.rows.items() if row is not None and row.hash == version)
        row = await self._check.documents(source, request, key)
        if row is None or row.doc is None or entry_hash(row.doc) != version:
            raise RemoteProtocolError(f"{source} gave another document than the one that it has by its hash")
        return Correction(difference, before, row.doc)

    async def _keep_all(self, who: str, compared: ComparedRange, corrections: Sequence[Correction]) -> list[str]:
        """Keep what is here; what is no document of its key any more by itself, as no tool can put that back."""
        kept: dict[bool, list[bytes]] = {True: [], False: []}

        def divide() -> None:
            for one in corrections:
                if one.before is not None:
                    kept[is_document_of(one.difference.key, one.before)].append(one.before)

        await self._context.workers.run(divide)  # it decodes each document, for seconds if they are large
        ns, at = compared.request.ns, compared.request.at
        return [await self._keep(who, ns, at, documents, is_sound) for is_sound, documents in kept.items() if documents]

    async def _keep(self, who: str, ns: str, at: OpTime, documents: Sequence[bytes], is_sound: bool) -> str:
        """Write documents into a rollback file, synced, with a manifest; return its id."""
        context, wall_ms = self._context, self._context.clock.wall_ms()
        what = "documents" if is_sound else "damaged bytes in the place of documents"
        coll = context.store.collection(ns)
        if coll is None:
            raise NamespaceNotFoundError(f"collection {ns} was dropped")
        uuid = UUID(bytes=coll.uuid)
        when = utc_text(wall_ms)
        manifest = Manifest(
            id="",
            state=RollbackState.EXPORTED,
            reason=f"{who}: {what} of this member, not as the majority has them",
            set_name=context.identity.set_name,
            member=context.identity.member,
            when=when,
            source=None,
            common_point=at,
            first=at,
            last=at,
            first_wall_ms=wall_ms,
            last_wall_ms=wall_ms,
            entries=0,
            operations={},
            files=(),
            settled=when,
        )

        def write() -> str:
            writer = RollbackWriter(
                context.disk, context.dbpath, wall_ms, mongodb_layout=context.identity.mongodb_layout
            )
            try:
                for document in documents:
                    writer.add(FileKind.DOCUMENTS, ns, uuid, document)
                return writer.write_manifest(replace(manifest, files=writer.finish())).id
            except BaseException:
                writer.discard()
                raise

        return await context.workers.run(write)

    def _apply(self, ns: str, at: OpTime, corrections: Sequence[Correction]) -> list[Difference]:
        """Replace the documents in one transaction, except those that were written since."""
        done: list[Difference] = []
        store = self._context.store
        # Entries since the comparison are trimmed, so nothing shows which documents were written since. To replace one
        # of these would take an acknowledged write away, with no entry that says so and no rollback file that has it.
        if store.trimmed_through > at.ts:
            return done
        with store.group() as txn:
            coll, written = txn.collection(ns), written_after(txn, ns, at.ts)
            if coll is None or written is None:
                return done
            for one in corrections:
                key = one.difference.key
                is_held = self._is_held((coll.uuid, key))
                here = txn.get(coll, key)  # b"": of a damaged row; a comparison sees no document there
                # The majority's version is that of the comparison. A document that was written since is newer, and one
                # that an open transaction holds is about to be: with the old version under it, its entry would give
                # another result here than on all other members.
                if not is_held and key not in written and (here or None) == one.before:
                    correct(txn, coll, key, here, one.after)
                    done.append(one.difference)
        return done
