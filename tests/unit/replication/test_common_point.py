"""The search for the newest entry that two members share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from replset.errors import UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.common_point import CommonPoint, NoCommonPointError, SourceChangedError
from replset.storage.undo import undo_step
from tests.unit.replication.diverged import diverge
from tests.unit.replication.kit import NS, SOURCE, Member, copy_log, pair, trim


@pytest.mark.parametrize("shared", [1, 2, 3, 17, 64, 299])
def test_common_point_is_found_with_few_probes(tmp_path: Path, shared: int) -> None:
    source, mine = pair(tmp_path)
    source.create(NS)
    for number in range(shared - 1):
        source.clock.ms += (number % 7) * 1_000 * (number % 5)
        source.insert(NS, {"_id": number})
    copy_log(source, mine)
    common = mine.store.last_applied
    mine.clock.ms = source.clock.ms
    for number in range(300 - shared):
        mine.clock.ms += (number % 3) * 2_000
        mine.insert(NS, {"_id": f"mine {number}"})
    source.node.term = 2
    for number in range(50):
        source.clock.ms += 3_000
        source.insert(NS, {"_id": f"theirs {number}"})

    found = asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())

    assert found == (common if shared < 300 else mine.store.last_applied)
    assert len(mine.network.calls) <= 10


def test_common_point_when_the_source_trimmed_its_oldest(source: Member, mine: Member) -> None:
    mine.insert(NS, {"_id": "mine"})
    source.node.term = 2
    source.noop()
    halve(source)
    oldest = source.store.oldest
    assert mine.store.oldest < oldest <= mine.store.last_applied
    assert (
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())
        == mine.store.row_at_or_before(OpTime(1, mine.store.last_applied.ts - 1)).optime
    )


def test_the_only_entry_that_both_have_is_the_oldest_one_there(source: Member, mine: Member) -> None:
    common = mine.store.last_applied
    mine.insert(NS, {"_id": "mine"})
    source.node.term = 2
    source.noop()
    trim(source, oplog_max_bytes=sum(map(len, source.oplog()[-2:])))
    assert source.store.oldest == common
    assert asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find()) == common


def halve(member: Member) -> None:
    """All is committed, and the oldest half of the oplog goes."""
    rows = member.store.oplog_after(OPTIME_NULL, limit=10_000, max_bytes=1 << 30)
    trim(member, oplog_max_bytes=sum(len(row.entry) for row in rows[len(rows) // 2 :]))


def test_common_point_trimmed_away_is_too_stale(source: Member, mine: Member) -> None:
    mine.insert(NS, {"_id": "mine"})
    source.clock.ms += 100_000
    source.node.term = 2
    for number in range(100):
        source.insert(NS, {"_id": f"theirs {number}"})
    halve(source)
    assert source.store.oldest > mine.store.last_applied
    with pytest.raises(NoCommonPointError):
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())


@pytest.mark.parametrize("more", [-1, 1])
async def test_an_answer_to_other_questions_is_no_answer(source: Member, mine: Member, more: int) -> None:
    diverge(source, mine)

    def distort(_command: dict[str, object], reply: dict[str, object]) -> None:
        chains = reply["chains"]
        assert isinstance(chains, list)
        reply["chains"] = [*chains, *chains][: len(chains) + more]

    source.network.before_reply = distort
    with pytest.raises(SourceChangedError, match=r"answered \d of \d questions"):
        await CommonPoint(source.network, mine.store, SOURCE).find()


def test_common_point_with_an_unreachable_source(source: Member, mine: Member) -> None:
    diverge(source, mine)
    mine.network.down.add(SOURCE)
    with pytest.raises(SourceChangedError):
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())


def test_the_store_refuses_to_undo_below_the_commit_point(mine: Member) -> None:
    mine.store.set_commit_point(mine.store.last_applied)
    common = mine.store.oldest
    with pytest.raises(UnrecoverableRollbackError):
        undo_step(mine.store, common, stem="x")
