"""Views, $lookup, $out and $merge on a real set: the same on every member, and whole through the death of a primary."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from replset.cli.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import all_counted, run

DOCUMENTS = 2_000
MAJORITY = {"writeConcern": {"w": "majority", "wtimeout": 20_000}}
JOIN = {"$lookup": {"from": "kinds", "localField": "k", "foreignField": "_id", "as": "kind"}}


def pipeline(member: LocalMember, over: str, *stages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The first batch, read on this member whatever it is."""
    preference = {"$readPreference": {"mode": "secondaryPreferred"}}
    command = {"aggregate": over, "pipeline": list(stages), "cursor": {"batchSize": 10_000}, **preference, **more}
    batch: list[dict[str, Any]] = run(member, command)["cursor"]["firstBatch"]
    return batch


def test_views_and_pipelines_that_write_through_a_failover(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    run(primary, {"insert": "kinds", "documents": [{"_id": k, "name": f"kind {k}"} for k in range(10)]})
    run(primary, {"insert": "orders", "documents": [{"_id": n, "k": n % 10} for n in range(DOCUMENTS)], **MAJORITY})
    run(primary, {"create": "named", "viewOn": "orders", "pipeline": [JOIN, {"$unwind": "$kind"}], **MAJORITY})
    done: list[int] = []
    mixed: list[object] = []
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(Exception):  # while there is no primary
                stages = [{"$set": {"g": number}}, {"$out": "copy"}]
                pipeline(local.wait_for_primary(), "orders", *stages, **MAJORITY)
                done.append(number)

    def generations(member: LocalMember) -> set[int]:
        """The runs of the pipeline that the copy is of: one, with all its documents."""
        counted = pipeline(member, "copy", {"$group": {"_id": "$g", "n": {"$sum": 1}}})
        if [row["n"] for row in counted] != [DOCUMENTS]:
            mixed.append(counted)
        return {row["_id"] for row in counted}

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        wait_until(lambda: len(done) > 2, 30, "the first copies")
        local.kill(primary)
        new = local.wait_for_primary()
        before = len(done)
        for _ in range(20):
            with suppress(AssertionError):  # 175: the copy was replaced while it was read
                generations(new)
        wait_until(lambda: len(done) > before + 1, 30, "copies on the new primary")
        local.start(primary)
        all_counted(local)
    finally:
        stop.set()
        writer.join()
    primary = local.wait_for_primary()
    merge = {"$merge": {"into": "totals", "whenMatched": [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]}}
    for _ in range(2):
        pipeline(primary, "named", {"$group": {"_id": "$kind.name", "n": {"$sum": 1}}}, merge, **MAJORITY)
    secondary = next(member for member in local.members if member is not primary)
    pipeline(secondary, "totals", {"$match": {"n": 400}}, {"$out": "sent"}, **MAJORITY)
    last = generations(primary)
    assert mixed == []
    assert max(last) >= max(done)

    def same(member: LocalMember) -> bool:
        totals = sorted(pipeline(member, "totals"), key=lambda row: str(row["_id"]))
        wanted = [{"_id": f"kind {k}", "n": 400} for k in range(10)]
        joined = pipeline(member, "named", {"$match": {"_id": 1234}})
        is_same = totals == wanted and joined == [{"_id": 1234, "k": 4, "kind": {"_id": 4, "name": "kind 4"}}]
        return is_same and generations(member) == last and len(pipeline(member, "sent")) == 10

    for member in local.members:
        wait_until(lambda member=member: same(member), 20, f"{member.host} to have it all")  # type: ignore[misc]
