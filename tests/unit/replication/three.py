"""Three members with the same documents, and disks that change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from replset.bson import decode, encode, encode_key
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.features.scrub.auto_repair import AutoRepair
from replset.features.scrub.document_check import DocumentCheck
from replset.features.scrub.document_repair import DocumentRepair, RepairedRange
from replset.ids import HostPort
from replset.replication.rollback_list import RollbackList
from replset.storage.member_file import MemberFile
from tests.unit.replication.kit import Member, Network

NS = "db.c"
A, B, C = (HostPort(f"{name}:1") for name in "abc")


class Three:
    """Three members with the same entries; all is committed."""

    def __init__(self, folder: Path, documents: int = 20) -> None:
        self.network = Network()
        self.members = {host: Member(host, folder, self.network) for host in (A, B, C)}
        self.a, self.b, self.c = self.members.values()
        self.a.create(NS)
        self.a.insert(NS, *({"_id": number, "n": number} for number in range(documents)))
        self.replicate()

    def replicate(self) -> None:
        newest = self.a.store.last_applied
        for member in self.members.values():
            rows = self.a.store.oplog_after(member.store.last_applied, limit=100_000, max_bytes=1 << 30)
            for row in rows:
                member.apply(row.entry)
            member.store.set_commit_point(newest)

    def close(self) -> None:
        for member in self.members.values():
            member.store.close()

    def check(self, member: Member) -> DocumentCheck:
        return DocumentCheck(member.context, self.network)

    def differing(self, member: Member) -> list[object]:
        """The `_id`s that differ, over all ranges."""
        found: list[object] = []
        low: bytes | None = b""
        others = [host for host in self.members if host != member.host]
        while low is not None:
            one = asyncio.run(self.check(member).compare(NS, low, others))
            assert not one.failed, one.failed
            found += [difference.id for difference in one.differing]
            assert one.next is None or one.next > low
            low = one.next
        return found

    def repair(
        self, member: Member, trusted: HostPort | None = None, is_held: Callable[[Any], bool] = lambda _: False
    ) -> RepairedRange:
        work = DocumentRepair(member.context, self.check(member), is_held)
        others = [host for host in self.members if host != member.host]
        return asyncio.run(work.repair(NS, b"", others, trusted))


def rot(member: Member, _id: int, document: dict[str, object] | bytes | None) -> None:
    """Change the file behind the member's back; None: the document is gone."""
    coll = member.store.collection(NS)
    connection, key = member.store._connection, encode_key(_id)
    connection.execute(f"DELETE FROM {coll.table} WHERE key = ?", (key,))
    if document is not None:
        doc = document if isinstance(document, bytes) else encode(document)
        connection.execute(coll.sql_insert, (key, doc))


def document(member: Member, _id: int) -> dict[str, Any] | None:
    coll = member.store.collection(NS)
    with member.store.read() as snapshot:
        found = snapshot.get(coll, encode_key(_id))
    return None if found is None else decode(found)


def auto_repair(three: Three, member: Member, *, wanted: bool = True, **fields: dict[str, object]) -> AutoRepair:
    """What repairs the documents of this secondary by itself. fields: of members of the configuration, by name."""
    rows = [{"_id": n, "host": host, **fields.get(host[0], {})} for n, host in enumerate(three.members)]
    settings = {} if wanted else {"autoRepair": False}
    node: Any = SimpleNamespace(
        config=ReplSetConfig.parse({"_id": "rs0", "version": 1, "members": rows, "settings": settings}),
        state=MemberState.SECONDARY,
        term=1,
        peer_at=lambda host: None,
    )
    context = member.context
    repair = DocumentRepair(context, three.check(member), lambda _: False)
    file = MemberFile.open(member.disk, member.dbpath)
    return AutoRepair(context, node, repair, file, RollbackList(member.disk, member.dbpath, member.workers))
