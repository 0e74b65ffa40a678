"""What replSetRepairDocuments refuses before it compares anything, and what it reports before an error."""

from __future__ import annotations

import pytest

from replset.bson import Binary, Int64
from replset.errors import SnapshotTooOldError
from replset.features.scrub.document_check import ComparedRange, Difference
from replset.features.scrub.document_ranges import RangeRequest
from replset.features.scrub.document_repair import DocumentRepair, RepairedRange
from replset.ids import OpTime
from replset.member.member import RunningMember
from tests.rig import Client


@pytest.mark.parametrize("ns", ["config.transactions", "no.such", "local.oplog.rs"])
def test_only_collections_that_are_compared_are_repaired(client: Client, ns: str) -> None:
    """Records of sessions change with every write, and a retried write is known by them."""
    session = {"id": Binary(bytes(16), 4)}
    client.ok({"insert": "c", "documents": [{"_id": 1}], "lsid": session, "txnNumber": Int64(1)})
    reply = client.run({"replSetRepairDocuments": ns}, "admin")
    assert (reply["ok"], reply["code"]) == (0.0, 26), reply


def test_what_was_corrected_is_reported_before_an_error(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    next_key = b"next"

    async def repair(ns: str, low: bytes, *_: object) -> RepairedRange:
        if low == next_key:
            raise SnapshotTooOldError("the state is no longer kept")
        compared = ComparedRange(RangeRequest(ns, OpTime(1, 1), 0), next_key, 1, 1)
        return RepairedRange(compared, [Difference(ns, b"k", {})], [], [], ["rollback-1"])

    monkeypatch.setattr(member[DocumentRepair], "repair", repair)
    reply = client.ok({"replSetRepairDocuments": "test.c"}, "admin")
    assert (len(reply["corrected"]), reply["records"], reply["next"]) == (1, ["rollback-1"], next_key)
    assert client.code({"replSetRepairDocuments": "test.c", "after": Binary(next_key)}, "admin") == 239
