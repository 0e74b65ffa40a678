"""What replSetRepairDocuments refuses before it compares anything."""

from __future__ import annotations

import pytest

from replset.bson import Binary, Int64

from .conftest import Client


@pytest.mark.parametrize("ns", ["config.transactions", "no.such", "local.oplog.rs"])
def test_only_collections_that_are_compared_are_repaired(client: Client, ns: str) -> None:
    """Records of sessions change with every write, and a retried write is known by them."""
    session = {"id": Binary(bytes(16), 4)}
    client.ok({"insert": "c", "documents": [{"_id": 1}], "lsid": session, "txnNumber": Int64(1)})
    reply = client.run({"replSetRepairDocuments": ns}, "admin")
    assert (reply["ok"], reply["code"]) == (0.0, 26), reply
