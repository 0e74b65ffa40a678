"""Tailing, the checks on every page, draining, and the server's long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Int64, RawDocument, Timestamp, encode, encode_key
from replset.core.member_state import MemberState
from replset.core.messages import MemberProgress, Position, ProgressRequest, SourceBatch, SourceFailed, SourceProblem
from replset.errors import NotPrimaryOrSecondaryError, OutOfDiskSpaceError, RemoteProtocolError, ReplError
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime
from replset.member.peers import oplog_fetch as oplog_fetch_module
from replset.member.peers.majority_first import MajorityFirst
from replset.member.peers.message_documents import request_document
from replset.member.peers.oplog_fetch import Look, OplogFetches, fetch_now, has_news, oplog_probe
from replset.oplog_entry import OplogEntry
from replset.oplog_row import DamagedEntryError, OplogRow, chain_after
from replset.query.diff import apply_update_bytes
from replset.replication import applier as applier_module
from replset.replication import fetcher as fetcher_module
from replset.replication.applier import LargeUpdateError
from replset.replication.protocol import Awaited, FetchReply, FetchRequest, ProbeReply, ProbeRequest
from tests.unit.replication.kit import (
    NS,
    SOURCE,
    WALL_MS,
    Member,
    Pair,
    catch_up,
    copy_log,
    numbered,
    pair,
    run,
    trim,
    until,
)


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    source, mine = pair(tmp_path, 5, shared=True)
    source.node.state = MemberState.PRIMARY
    return source, mine


async def test_tailing_keeps_up_with_a_writer(source: Member, mine: Member) -> None:
    mine.fetcher.start(SOURCE)
    for number in range(100, 400):
        source.insert(NS, {"_id": number, "text": "x" * 50})
        if number % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: mine.store.last_applied == source.store.last_applied)
    assert mine.fetcher.source == SOURCE
    mine.fetcher.stop()
    assert mine.fetcher.source is None
    assert mine.everything() == source.everything()
    assert mine.store.chain == source.store.chain
    batches = [report for report in mine.reports if isinstance(report, SourceBatch)]
    assert len(batches) == len(mine.reports) > 1, "pages are bounded, so there are several"
    assert batches[-1].source_is_primary
    assert mine.moves >= len(batches) - 1


async def test_a_new_entry_is_there_long_before_the_poll_ends(source: Member, mine: Member) -> None:
    mine.node.timeout_ms = 40_000
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.reports)
    loop = asyncio.get_running_loop()
    for number in range(100, 110):
        began = loop.time()
        at = source.insert(NS, {"_id": number})
        await until(lambda at=at: mine.store.last_applied == at)
        assert loop.time() - began < 1
    mine.fetcher.stop()


async def test_the_commit_point_comes_at_once(source: Member, mine: Member) -> None:
    mine.node.timeout_ms = 40_000
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.reports)
    source.node.commit_point = source.store.last_applied
    source.moved()
    await until(lambda: mine.reports[-1] == SourceBatch(SOURCE, 1, source.store.last_applied, True))
    count = len(mine.network.calls)
    await asyncio.sleep(5)
    assert len(mine.network.calls) <= count + 1, "no answer twice for the same news"
    mine.fetcher.stop()


def fetches(mine: Member) -> list[dict[str, object]]:
    return [call for call in mine.network.calls if "replSetOplogFetch" in call]


@pytest.mark.parametrize("awaited", ["", "applied", "durable"])
async def test_the_next_request_waits_for_the_position_that_is_awaited(
    source: Member, mine: Member, awaited: Awaited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It carries the position then, so no report is needed."""
    monkeypatch.setattr(fetcher_module, "SETTLE_MS", 60_000)
    source.awaited = awaited
    mine.node.timeout_ms = 40_000
    mine.durable = mine.store.last_applied
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.reports)
    count = len(fetches(mine))
    at = source.insert(NS, {"_id": "new"})
    await until(lambda: mine.store.last_applied == at)
    if awaited != "durable":
        await until(lambda: len(fetches(mine)) == count + 1)
    else:
        await asyncio.sleep(5)
        assert len(fetches(mine)) == count
        assert mine.fetcher.is_settling
        mine.durable = at
        mine.fetcher.on_moved()
        await until(lambda: len(fetches(mine)) == count + 1)
    assert not mine.fetcher.is_settling
    assert (mine.fetcher.is_awaited, mine.fetcher.awaited) == (bool(awaited), awaited)
    mine.fetcher.stop()
    assert mine.fetcher.is_awaited, "as long as no source says otherwise"


async def test_a_slow_sync_does_not_hold_back_the_next_request(source: Member, mine: Member) -> None:
    source.awaited = "durable"
    mine.node.timeout_ms = 40_000
    mine.durable = mine.store.last_applied
    mine.fetcher.start(SOURCE)
    for name in ("one", "two"):
        at = source.insert(NS, {"_id": name})
        await until(lambda at=at: mine.store.last_applied == at)
    mine.fetcher.stop()


async def test_a_full_buffer_leaves_the_position_to_reports(source: Member, mine: Member) -> None:
    """No request is about to go then, for hours on a delayed member."""
    mine.node.timeout_ms = 40_000
    mine.durable = mine.store.last_applied
    mine.node.delay_ms = 3_600_000
    mine.fetcher.start(SOURCE)
    for name in ("applied", "waits", "fills"):
        at = source.insert(NS, {"_id": name})
        await until(lambda at=at: mine.fetcher.last_fetched == at)
    assert not mine.fetcher.is_settling
    mine.fetcher.stop()


async def test_pages_are_fetched_ahead_while_the_source_has_more(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "SETTLE_MS", 60_000)
    source.awaited = "durable"
    source.insert(NS, *numbered(range(100, 200)))
    mine.node.timeout_ms = 40_000
    mine.durable = mine.store.last_applied
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.store.last_applied == source.store.last_applied)
    assert len(fetches(mine)) > 2
    mine.fetcher.stop()


async def test_the_position_comes_with_the_request(source: Member, mine: Member) -> None:
    rows = (MemberProgress(MemberId(3), "inc", Position(OpTime(1, 5), OpTime(1, 4), 0, 0)),)
    progress = ProgressRequest(MemberId(3), 1, 2, 1, rows)
    mine.progress = RawDocument(encode(request_document(progress)))
    mine.awaits_commit_point = True
    mine.fetcher.start(SOURCE)
    await until(lambda: source.told)
    mine.fetcher.stop()
    assert source.told[0] == progress
    assert fetches(mine)[0]["awaitsCommitPoint"] is True


async def test_each_request_says_what_is_known_here(source: Member, mine: Member) -> None:
    """Of what a page said and of what came by other ways the newer; the first answer comes at once."""
    begin, chain = mine.store.last_applied, mine.store.chain
    commit_point = source.node.commit_point = source.store.oldest
    source.node.term, mine.node.term, mine.node.timeout_ms = 2, 1, 9_000
    at = source.insert(NS, {"_id": "new"})
    mine.fetcher.start(SOURCE)
    await until(lambda: len(fetches(mine)) == 2)
    mine.node.term, mine.node.commit_point = 3, at
    await until(lambda: len(fetches(mine)) == 3)
    mine.fetcher.stop()
    asked = [FetchRequest.parse(RawDocument(encode(call))) for call in fetches(mine)]
    assert [(one.after, one.chain) for one in asked] == [(begin, chain), *[(at, source.store.chain)] * 2]
    assert [one.max_await_ms for one in asked] == [0, 4_500, 4_500]
    assert [one.term for one in asked] == [1, 2, 3]
    assert [one.known_commit_point for one in asked] == [OPTIME_NULL, commit_point, at]
    assert [one.known_rollback_id for one in asked] == [-1, *[source.store.rollback_id] * 2]


async def test_so_many_pages_wait_at_most(source: Member, mine: Member) -> None:
    source.insert(NS, *numbered(range(100, 300)))
    mine.node.delay_ms = 3_600_000
    mine.fetcher.start(SOURCE)
    await asyncio.sleep(5)
    assert len(fetches(mine)) == 3, "one is looked at, two wait"
    mine.fetcher.stop()


async def test_a_delayed_member_looks_again_when_an_entry_is_old_enough(source: Member, mine: Member) -> None:
    clock, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
    mine.clock.wall_ms = lambda: WALL_MS + round((clock() - began) * 1_000)  # type: ignore[method-assign]
    mine.node.delay_ms = 1_500
    source.clock.ms = 300
    at = source.insert(NS, {"_id": "new"})
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.store.last_applied == at)
    assert clock() - began == pytest.approx(1.8, abs=0.03)
    mine.fetcher.stop()


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_commit_point_alone_waits_for_entries_unless_somebody_waits_for_it(
    source: Member, is_awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oplog_fetch_module, "COMMIT_POINT_DELAY_MS", 60_000)
    asked = replace(request(source.store.last_applied, 50_000), awaits_commit_point=is_awaited)
    poll = asyncio.get_running_loop().create_task(source.fetch(RawDocument(encode(asked.document()))))
    await asyncio.sleep(1)
    source.node.commit_point = source.store.last_applied
    source.moved()
    await asyncio.sleep(1)
    assert poll.done() == is_awaited
    source.insert(NS, {"_id": "with it"})
    assert FetchReply.parse(RawDocument(encode(await poll))).commit_point == source.node.commit_point


def failure_of(mine: Member) -> SourceFailed:
    run(lambda: mine.fetcher.run(SOURCE))
    failed = mine.reports[-1]
    assert mine.fetcher.source is None
    return failed


def test_a_diverged_source_is_reported_with_its_ends(source: Member, mine: Member) -> None:
    mine.insert(NS, {"_id": "mine"})
    source.node.term = 3
    source.noop()
    failed = failure_of(mine)
    assert failed.problem is SourceProblem.DIVERGED
    assert (failed.term, failed.newest, failed.oldest) == (3, source.store.last_applied, source.store.oldest)


def test_entries_of_a_term_in_which_their_source_is_not_are_not_applied(source: Member, mine: Member) -> None:
    source.node.term = 3
    source.noop()
    before = mine.store.last_applied

    def in_an_earlier_term(_command: Reply, reply: Reply) -> None:
        if "term" in reply:
            reply["term"] = Int64(2)

    mine.network.before_reply = in_an_earlier_term
    failed = failure_of(mine)
    assert "an entry of term 3 from a source in term 2" in failed.detail
    assert mine.store.last_applied == before


def test_a_source_behind_me_is_reported(mine: Member) -> None:
    mine.insert(NS, {"_id": "mine"})
    failed = failure_of(mine)
    assert (failed.problem, failed.newest < mine.store.last_applied) == (SourceProblem.DIVERGED, True)


Reply = dict[str, Any]


def another_chain(mine: Member, reply: Reply) -> None:
    """At my newest entry; who goes on fails."""
    reply["prev"]["chain"] = Int64(int(reply["prev"]["chain"]) ^ 1)
    reply["endChain"] = Int64(chain_after(reply["batch"], int(reply["prev"]["chain"])))
    mine.network.before_call = lambda command: mine.network.down.add(SOURCE)


def another_entry(_mine: Member, reply: Reply) -> None:
    reply["batch"][1] = reply["batch"][1].replace(b"GOOD", b"FOUL")


def another_end(_mine: Member, reply: Reply) -> None:
    reply["endChain"] = Int64(reply["endChain"] ^ 1)


def another_begin(mine: Member, reply: Reply) -> None:
    oldest = mine.network.members[SOURCE].store.oldest
    reply["prev"] = {**ProbeRequest([oldest]).document().decode()["optimes"][0], "chain": Int64(1)}


def no_entry(_mine: Member, reply: Reply) -> None:
    reply["batch"] = [b"no entry"]


def no_operation(_mine: Member, reply: Reply) -> None:
    reply["batch"] = [encode({"op": "z"})]


@pytest.mark.parametrize(
    ("forge", "problem"),
    [
        (another_chain, SourceProblem.CHAIN_DIFFERS),
        *((forge, SourceProblem.NOT_READABLE) for forge in (another_entry, another_end, another_begin)),
        *((forge, SourceProblem.NOT_READABLE) for forge in (no_entry, no_operation)),
    ],
)
def test_nothing_of_a_page_that_is_not_the_source_s_is_applied(
    source: Member, mine: Member, forge: Callable[[Member, Reply], None], problem: SourceProblem
) -> None:
    """The sound entry before the other included."""
    before = mine.store.last_applied
    source.insert(NS, {"_id": "next", "text": "GOOD"}, {"_id": "and the next", "text": "GOOD"})
    mine.network.before_reply = lambda command, reply: forge(mine, reply)
    failed = failure_of(mine)
    assert failed.problem is problem
    assert "damaged" in failed.detail or forge not in (another_entry, another_end)
    assert (mine.store.last_applied, mine.broken) == (before, [])


@pytest.mark.parametrize("column", ["entry", "hash", "chain"])
def test_a_source_serves_what_stands_before_a_damaged_entry_and_then_says_so(
    source: Member, mine: Member, column: str
) -> None:
    source.insert(NS, *numbered(range(100, 110)))
    rows = source.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30)
    row = rows[-5]  # the disk changes it, and the member does not have it in memory any more
    changed = row.entry.replace(b"text", b"tess") if column == "entry" else getattr(row, column) ^ 1
    source.store._connection.execute(f"UPDATE oplog SET {column} = ? WHERE ts = ?", (changed, row.ts))
    source.store.tail.clear()
    failed = failure_of(mine)
    assert failed.problem is SourceProblem.NOT_READABLE
    assert "is not the one that was written" in failed.detail
    assert mine.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30) == rows[:-5]
    assert source.damage
    with pytest.raises(DamagedEntryError):
        asyncio.run(oplog_probe(source, RawDocument(encode(ProbeRequest([row.optime]).document()))))


def test_a_source_hears_that_the_chain_of_who_fetches_differs(source: Member) -> None:
    newest = source.store.last_applied
    assert fetch_now(source, request(newest, chain=source.store.chain)).matched
    assert source.doubts == []
    assert fetch_now(source, request(newest, chain=source.store.chain ^ 1)).matched
    assert source.doubts == [newest]


@pytest.mark.parametrize("state", [None, MemberState.ROLLBACK, MemberState.STARTUP2, MemberState.ARBITER])
def test_a_source_that_is_down_or_serves_nothing(source: Member, mine: Member, state: MemberState | None) -> None:
    if state is None:
        mine.network.down.add(SOURCE)
    source.node.state = state
    assert failure_of(mine).problem is (SourceProblem.NOT_READABLE if state else SourceProblem.UNREACHABLE)


def test_a_page_whose_entries_go_back_in_time_is_noticed_at_its_end(source: Member, mine: Member) -> None:
    """The entry that goes back is left out, so this oplog is not the source's. Its commit point means nothing here."""
    source.insert(NS, {"_id": "next"})

    def damage(command: dict[str, object], reply: dict[str, object]) -> None:
        batch, prev = reply["batch"], reply["prev"]
        batch.append(batch[-1])
        reply["endChain"] = Int64(chain_after(batch, prev["chain"]))

    mine.network.before_reply = damage
    assert failure_of(mine).problem is SourceProblem.CHAIN_DIFFERS
    assert not [report for report in mine.reports if isinstance(report, SourceBatch)]
    assert mine.broken == []


def test_an_entry_that_does_not_fit_this_disk_is_reported_and_stops_nothing(source: Member, mine: Member) -> None:
    coll = mine.store.collection(NS)
    with mine.store.maintenance() as txn:
        txn.connection.execute(coll.sql_update, (b"\x07 no document", encode_key(1)))
    source.change(NS, 1, {"u": {"a": 2}})
    before = mine.store.last_applied
    for _start in range(2):
        failed = failure_of(mine)
        assert failed.problem is SourceProblem.NOT_APPLIED
        assert "'u' of app.orders" in failed.detail
    assert mine.store.last_applied == before
    assert mine.broken == []


def test_what_came_before_a_failure_is_applied(source: Member, mine: Member) -> None:
    source.insert(NS, *numbered(range(100, 200)))
    target = source.store.last_applied

    def later(command: dict[str, object], reply: dict[str, object]) -> None:
        if FetchRequest.parse(RawDocument(encode(command))).after == target:
            source.node.state = MemberState.ROLLBACK
            mine.network.down.add(SOURCE)

    mine.network.before_reply = later
    assert failure_of(mine).problem is SourceProblem.UNREACHABLE
    assert mine.store.last_applied == target


async def test_nothing_is_applied_after_stop(source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    source.insert(NS, *numbered(range(100, 300)))
    monkeypatch.setattr("replset.replication.applier.MAX_GROUP_ENTRIES", 2)
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.moves > 2)
    mine.fetcher.stop()
    at, reports = mine.store.last_applied, len(mine.reports)
    await asyncio.sleep(5)
    assert mine.store.last_applied == at < source.store.last_applied
    assert len(mine.reports) == reports
    assert mine.broken == []


async def test_stop_from_inside_a_report_ends_the_session(source: Member, mine: Member) -> None:
    source.insert(NS, *numbered(range(100, 200)))
    mine.context.on_report = lambda report: mine.fetcher.stop()
    await mine.fetcher.run(SOURCE)
    assert mine.store.last_applied < source.store.last_applied


async def test_drain_applies_all_that_was_fetched_and_reports_nothing(source: Member, mine: Member) -> None:
    source.insert(NS, *numbered(range(100, 300)))
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.fetcher.last_fetched > mine.store.last_applied)
    fetched = mine.fetcher.last_fetched
    reports = len(mine.reports)
    await mine.fetcher.drain()
    assert mine.store.last_applied >= fetched
    assert len(mine.reports) == reports
    assert mine.fetcher.source is None
    at = mine.store.last_applied
    await asyncio.sleep(5)
    assert mine.store.last_applied == at
    await mine.fetcher.drain()  # nothing to do


async def test_updates_of_large_documents_are_evaluated_beside_the_loop(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.insert(NS, {"_id": "large", "a": list(range(20_000)), "n": 0}, {"_id": "small", "n": 0})
    copy_log(source, mine)
    for number in range(3):
        source.change(NS, "small", {"u": {"n": number}})
        source.change(NS, "large", {"u": {"n": number}, "sa": {"a": True, "u5": number}})
    source.change(NS, "large", {"i": {"more": "x"}})
    on_loop: list[int] = []
    beside: list[int] = []

    def noted(before: bytes, o: RawDocument) -> bytes:
        (beside if mine.workers.work else on_loop).append(len(before))
        return apply_update_bytes(before, o)

    monkeypatch.setattr(applier_module, "apply_update_bytes", noted)
    await catch_up(source, mine)
    assert (len(on_loop), len(beside)) == (3, 4)
    assert max(on_loop) < 100 < min(beside)
    assert mine.everything() == source.everything()
    assert mine.oplog() == source.oplog()


async def test_a_large_update_that_is_no_difference_is_the_sources_fault(mine: Member) -> None:
    o = RawDocument(encode({"$v": 2, "diff": {"x": {"a": 1}}}))
    with pytest.raises(RemoteProtocolError, match="unknown section"):
        await mine.fetcher._evaluate(LargeUpdateError(encode({"_id": 1}), o))


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int = 1_000_000) -> None:
    apply_batch, left = fetcher_module.apply_batch, iter(range(times))

    def apply(*arguments: object, **more: object) -> int:
        if next(left, None) is not None:
            raise error
        return apply_batch(*arguments, **more)

    monkeypatch.setattr(fetcher_module, "apply_batch", apply)


async def test_a_full_disk_is_waited_out(source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    source.insert(NS, {"_id": "next"})
    failing(monkeypatch, OutOfDiskSpaceError("full"), 2)
    await catch_up(source, mine)


async def test_a_drain_does_not_wait_for_a_full_disk(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.insert(NS, {"_id": "next"})
    failing(monkeypatch, OutOfDiskSpaceError("full"))
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.fetcher.last_fetched == source.store.last_applied)
    await mine.fetcher.drain()
    assert (mine.fetcher.source, mine.reports, mine.broken) == (None, [], [])


async def test_a_broken_store_stops_the_member(source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    source.insert(NS, {"_id": "next"})
    failing(monkeypatch, OSError(5, "Input/output error"))
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.broken)
    assert mine.fetcher.source is None


async def test_a_delayed_member_holds_entries_back(source: Member, mine: Member) -> None:
    mine.node.delay_ms = 60_000
    old = source.insert(NS, {"_id": "old"})
    source.clock.ms += 50_000
    young = source.insert(NS, {"_id": "young"})
    mine.clock.ms = 61_000
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.store.last_applied >= old)
    await asyncio.sleep(5)
    assert mine.store.last_applied == old
    assert mine.fetcher.last_fetched == young
    mine.clock.ms = 109_999
    mine.fetcher.stop()
    mine.clock.ms = 110_000
    mine.fetcher.start(SOURCE)
    await until(lambda: mine.store.last_applied == young)
    mine.fetcher.stop()


@pytest.mark.parametrize(
    ("wall_ahead_ms", "own_ahead_ms"),
    [
        pytest.param(0, 0, id="clocks-right"),
        pytest.param(3650 * 86_400_000, 0, id="the-primarys-was-ahead-once"),
        pytest.param(-3650 * 86_400_000, 0, id="the-primarys-was-behind-once"),
        pytest.param(0, 3650 * 86_400_000, id="its-own-is-ahead"),
        pytest.param(0, -3650 * 86_400_000, id="its-own-is-behind"),
    ],
)
async def test_a_delay_is_measured(source: Member, mine: Member, wall_ahead_ms: int, own_ahead_ms: int) -> None:
    mine.node.delay_ms = 60_000
    mine.clock.ms += own_ahead_ms
    source.clock.ms += wall_ahead_ms
    first = source.insert(NS, {"_id": "by a clock that is wrong"})
    source.clock.ms -= wall_ahead_ms
    second = source.insert(NS, {"_id": "by one that is right"})
    mine.node.ages.note(mine.store.last_applied, Millis(0))
    mine.node.ages.note(first, Millis(100_000))
    mine.node.ages.note(second, Millis(130_000))
    mine.fetcher.start(SOURCE)
    for now, reached in ((159_999, None), (160_000, first), (189_999, first), (190_000, second)):
        mine.clock.ms += now - mine.node.now
        mine.node.now = Millis(now)
        if reached is not None:
            await until(lambda newest=reached: mine.store.last_applied >= newest)
        await asyncio.sleep(0.02)
        assert mine.store.last_applied == (reached or mine.store.last_applied)
        assert reached is not None or mine.store.last_applied < first
    mine.fetcher.stop()


# --- the serving side -------------------------------------------------------------------------------------------


def request(after: OpTime, wait_ms: int = 0, **changed: object) -> FetchRequest:
    fields: dict[str, object] = {"chain": 0, "max_bytes": 1 << 20, "term": 1, "known_commit_point": OPTIME_NULL}
    return FetchRequest(after=after, max_await_ms=wait_ms, known_rollback_id=-1, **{**fields, **changed})


def test_private_documents_round_trip(source: Member) -> None:
    asked = request(source.store.oldest, 5)
    assert FetchRequest.parse(RawDocument(encode(asked.document()))) == asked
    reply = fetch_now(source, asked)
    assert reply.matched
    assert len(reply.entries) == 5
    assert FetchReply.parse(RawDocument(encode(reply.document()))) == reply
    probe = ProbeReply([None, -(1 << 63), (1 << 63) - 1], 7, 3, source.store.last_applied, source.store.oldest)
    assert ProbeReply.parse(RawDocument(encode(probe.document()))) == probe


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("after", 5),
        ("after", {"ts": 5, "t": 1}),
        ("after", {"ts": Timestamp(5, 1), "t": 1}),
        ("maxBytes", "x"),
        ("maxBytes", True),
        ("term", None),
        ("knownCommitPoint", {}),
        ("progress", 5),
        ("progress", {"replSetHeartbeat": "rs0"}),
        ("progress", {"replSetUpdatePosition": 1, "optimes": [{}], "senderId": 1, "term": Int64(1)}),
    ],
)
def test_a_malformed_request_is_the_askers_fault(source: Member, field: str, value: object) -> None:
    body = RawDocument(encode({**request(source.store.oldest).document().decode(), field: value}))
    with pytest.raises(RemoteProtocolError):
        asyncio.run(source.fetch(body))


def test_an_unknown_place_is_answered_at_once(source: Member) -> None:
    newest = source.store.last_applied
    for after in (OPTIME_NULL, OpTime(1, newest.ts + 1), OpTime(2, newest.ts), OpTime(1, source.store.oldest.ts - 1)):
        reply = fetch_now(source, request(after))
        assert not reply.matched
        assert reply.entries == []
        assert has_news(Look(source).state, request(after))
    assert fetch_now(source, request(newest)).matched
    assert not has_news(Look(source).state, request(newest))


def test_a_changed_rollback_id_or_term_is_news(source: Member) -> None:
    newest, rollback_id = source.store.last_applied, source.store.rollback_id
    asked = request(newest)
    known = FetchRequest(asked.after, 0, 1, 1, 1, OPTIME_NULL, rollback_id)
    assert not has_news(Look(source).state, known)
    assert has_news(Look(source).state, FetchRequest(asked.after, 0, 1, 1, 1, OPTIME_NULL, rollback_id - 1))
    source.node.term = 2
    assert has_news(Look(source).state, asked)


def test_the_commit_point_told_is_never_beyond_the_log(source: Member) -> None:
    newest = source.store.last_applied
    source.node.commit_point = OpTime(9, newest.ts + 5)
    assert fetch_now(source, request(newest)).commit_point == newest


async def test_a_poll_ends_when_its_time_is_over(source: Member) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    body = RawDocument(encode(request(source.store.last_applied, 50).document()))
    reply = await source.fetch(body)
    assert reply.get("batch") == []
    assert 0.03 < loop.time() - began < 5


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_poll_ends_when_the_member_stops_serving(source: Member, is_noted: bool) -> None:
    """The time may be over before the change of state has reached those who wait for it."""
    body = RawDocument(encode(request(source.store.last_applied, 10_000 if is_noted else 30).document()))
    poll = asyncio.get_running_loop().create_task(source.fetch(body))
    await asyncio.sleep(0.01)
    source.node.state = MemberState.ROLLBACK
    if is_noted:
        source.moved()
    with pytest.raises(NotPrimaryOrSecondaryError):
        await poll


def becomes_primary(source: Member) -> None:
    source.node.state = MemberState.PRIMARY


def rolls_back(source: Member) -> None:
    """Nothing of it, but that it did is to be known."""
    source.store.rollback_id += 1


def is_in_a_newer_term(source: Member) -> None:
    source.node.term += 1


def commits(source: Member) -> None:
    source.node.commit_point = source.store.last_applied


def writes(source: Member) -> None:
    source.insert(NS, {"_id": "new"}, {"_id": "and another"})


@pytest.mark.parametrize(
    ("change", "ahead", "after_s"),
    [
        (writes, 0, 0),
        (rolls_back, 0, 0),
        (is_in_a_newer_term, 0, 0),
        (commits, 0, 60 - 2),
        (lambda source: None, 0, 90 - 2),
        (lambda source: None, 1, 120 - 2),
        (writes, 1, 0),
        (becomes_primary, 1, 0),
    ],
    ids=["entry", "rollback", "term", "commit-point", "deadline", "not-there", "comes", "primary"],
)
async def test_a_poll_that_was_looked_at_ends_for_each_reason(
    source: Member, change: Callable[[Member], None], ahead: int, after_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ahead: it asks for what is behind an entry that this secondary does not have yet."""
    monkeypatch.setattr(oplog_fetch_module, "COMMIT_POINT_DELAY_MS", 60_000)
    monkeypatch.setattr(oplog_fetch_module, "BEHIND_MS", 120_000)
    monkeypatch.setattr(oplog_fetch_module, "MAX_AWAIT_MS", 90_000)
    source.node.state = MemberState.SECONDARY
    newest, loop = source.store.last_applied, asyncio.get_running_loop()
    asked = request(OpTime(newest.term, newest.ts + ahead), 90_000)
    asked = replace(asked, known_rollback_id=source.store.rollback_id)
    poll = loop.create_task(source.fetch(RawDocument(encode(asked.document()))))
    for _ in range(2):
        source.moved()
        await asyncio.sleep(1)
    assert not poll.done()
    began = loop.time()
    change(source)
    source.moved()
    await poll
    assert loop.time() - began == pytest.approx(after_s, abs=0.01)


async def test_a_poll_is_not_looked_at_again_before_something_changes_for_it(
    source: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oplog_fetch_module, "COMMIT_POINT_DELAY_MS", 20_000)
    looks: list[object] = []
    due_of = OplogFetches._due_of
    monkeypatch.setattr(OplogFetches, "_due_of", lambda *given: looks.append(given[1]) or due_of(*given))
    source.insert(NS, *numbered(range(100, 104)))
    newest = source.store.last_applied
    asked = request(newest, 25_000), request(newest, 25_000, known_commit_point=newest), request(newest, 9_000)
    polls = [asyncio.get_running_loop().create_task(source.fetch(RawDocument(encode(a.document())))) for a in asked]
    for point in [OPTIME_NULL, *(OplogEntry(raw).optime for raw in source.oplog()[-4:])]:
        source.node.commit_point = point
        source.moved()
        await asyncio.sleep(1)
    assert len(looks) == 3 + 2, "when it comes, and when the commit point gets beyond the known one, where it does"
    await asyncio.wait(polls[2:])
    assert len(looks) == 3 + 2 + 1, "the timer looks at what is due"
    await asyncio.wait(polls)
    assert len(looks) == 3 + 2 + 1 + 2


async def test_a_drain_does_not_touch_the_session_that_follows_it(source: Member, mine: Member) -> None:
    """The member won, began to drain, and heard of the next primary in the same turn of the loop."""
    mine.fetcher.start(SOURCE)
    drained = mine.fetcher.drain()
    mine.fetcher.stop()
    mine.fetcher.start(SOURCE)
    await drained
    assert mine.fetcher.source == SOURCE
    at = source.insert(NS, {"_id": "later"})
    await until(lambda: mine.store.last_applied == at)
    mine.fetcher.stop()


async def test_a_member_far_behind_gets_no_more_than_the_set_s_limit(source: Member) -> None:
    """One that keeps up gets everything at once."""
    source.insert(NS, {"_id": "old"})
    old, chain = source.store.last_applied, source.store.chain
    source.insert(NS, *({"_id": number, "x": "x" * 500} for number in range(20)))
    source.clock.ms += 60_000
    source.node.bytes_per_s = 3_000

    async def fetch(after: OpTime, chain: int) -> FetchReply:
        body = RawDocument(encode(request(after, chain=chain).document()))
        return FetchReply.parse(RawDocument(encode(await source.fetch(body))))

    loop = asyncio.get_running_loop()
    began = loop.time()
    first = await fetch(old, chain)
    first_size = sum(map(len, first.entries))
    assert 0 < first_size <= 3_000
    assert loop.time() - began >= 0.99  # the first second has its limit, too
    second = await fetch(old, chain)
    second_size = sum(map(len, second.entries))
    assert second_size
    assert loop.time() - began > 1.5
    assert source.flows.of(None).bytes_per_s() in (0, first_size, second_size)
    await asyncio.sleep(10)
    began = loop.time()
    third_size = sum(map(len, (await fetch(old, chain)).entries))
    assert third_size
    assert loop.time() - began >= 0.99  # nor is a pause saved up
    flow = source.flows.of(None)
    assert (flow.sent, flow.limit) == (first_size + second_size + third_size, 3_000)
    assert flow.held_s >= 2.4, "it waited before each of the three answers"
    flow.rate.sent_until = loop.time() + 60
    empty = await fetch(old, chain)  # after an entry larger than the rate
    assert (empty.matched, len(empty.entries), empty.end_chain) == (True, 0, empty.prev_chain)
    after = OplogEntry(first.entries[0]).optime
    source.clock.ms -= 55_000
    assert len((await fetch(after, 0)).entries) == 19
    assert flow.limit == 0, "it is not far behind any more"


class Older:
    """An archive that holds the first rows of an oplog."""

    def __init__(self, rows: list[OplogRow]) -> None:
        self.rows = rows
        self.missing_through = 0
        self.failure: ReplError | None = None

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        if self.failure is not None:
            raise self.failure
        return [row for row in self.rows if row.ts > position.ts][:3]


def archived(source: Member) -> Older:
    """The source's oplog keeps its newest entries alone; the archive has the others."""
    source.insert(NS, *numbered(range(500, 520)))
    older = Older(source.store.oplog_after(OPTIME_NULL, limit=100_000, max_bytes=1 << 30)[:-1])
    source.history.older = older
    trim(source, oplog_max_bytes=1, snapshot_history_s=0)
    return older


def test_a_stale_member_goes_on_from_the_archive(source: Member, mine: Member) -> None:
    archived(source)
    assert mine.store.last_applied < source.store.oldest
    run(lambda: catch_up(source, mine))
    assert mine.everything() == source.everything()
    assert mine.store.chain == source.store.chain


@pytest.mark.parametrize("why", ["another history", "a gap", "an archive that fails"])
def test_where_the_archive_does_not_continue_a_member_it_is_too_stale(source: Member, mine: Member, why: str) -> None:
    older = archived(source)
    if why == "another history":
        mine.noop()
    elif why == "a gap":
        older.missing_through = source.store.last_applied.ts
    else:
        older.failure = ReplError("the archive is damaged", code=1)
    failed = failure_of(mine)
    assert failed.problem is SourceProblem.DIVERGED
    assert failed.oldest == source.store.oldest > mine.store.last_applied


@pytest.mark.parametrize(
    ("change", "awaits_commit_point", "after_s"),
    [
        (lambda source: None, False, 5),
        (commits, False, 5 - 2),
        (rolls_back, False, 0),
        (is_in_a_newer_term, False, 0),
        (lambda source: None, True, 0),
    ],
    ids=["never-committed", "committed", "rollback", "term", "awaited-at-the-other-end"],
)
async def test_a_page_that_may_come_later_comes_at_last(
    source: Member,
    change: Callable[[Member], None],
    awaits_commit_point: bool,
    after_s: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the entry that it asks from is a new one, two seconds after it began to ask."""
    monkeypatch.setattr(oplog_fetch_module, "COMMIT_POINT_DELAY_MS", 60_000)
    monkeypatch.setattr(oplog_fetch_module, "LATER_MS", 5_000)
    monkeypatch.setattr(MajorityFirst, "comes_later", lambda *_: True)
    newest, loop = source.store.last_applied, asyncio.get_running_loop()
    source.node.commit_point = newest
    known = newest if awaits_commit_point else OPTIME_NULL
    asked = request(newest, 90_000, known_commit_point=known, awaits_commit_point=awaits_commit_point)
    asked = replace(asked, known_rollback_id=source.store.rollback_id)
    poll = loop.create_task(source.fetch(RawDocument(encode(asked.document()))))
    await asyncio.sleep(2)
    assert not poll.done()
    began = loop.time()
    writes(source)
    source.moved()
    await asyncio.sleep(0)
    change(source)
    source.moved()
    page = FetchReply.parse(await poll)
    assert loop.time() - began == pytest.approx(after_s, abs=0.01)
    assert page.entries


async def test_one_that_is_ahead_in_the_same_term_is_told_so_at_once(
    source: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oplog_fetch_module, "LATER_MS", 5_000)
    monkeypatch.setattr(MajorityFirst, "comes_later", lambda *_: True)
    newest, loop = source.store.last_applied, asyncio.get_running_loop()
    asked = replace(request(OpTime(1, newest.ts + 1), 90_000), known_rollback_id=source.store.rollback_id)
    began = loop.time()
    page = FetchReply.parse(await source.fetch(RawDocument(encode(asked.document()))))
    assert (page.matched, loop.time() - began) == (False, 0)
