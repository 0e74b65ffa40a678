"""What a client waits for before it is answered: a real core, real waiters, virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replset.bson import RawDocument, encode
from replset.config import Settings
from replset.config.durability_rules import parse_rules
from replset.core.effects import CommitPointAdvanced, Effect, ProgressChanged, StateChanged
from replset.core.member_state import MemberState
from replset.core.messages import LocalPosition, Position
from replset.core.quorum import WriteConcern
from replset.errors import (
    FailedToParseError,
    MaxTimeMSExpiredError,
    NotPrimaryOrSecondaryError,
    NotWritablePrimaryError,
    PrimarySteppedDownError,
)
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.operations.command import CommandContext
from replset.operations.read_concern import ReadConcern, read_point
from replset.operations.slow_operations import Work
from replset.operations.waiters import Notifier, WaiterList
from replset.operations.write_concern import (
    LONGEST_KEPT,
    SURVIVAL_MS,
    _kept,
    _level_of,
    end_waits_in_vain,
    parse_write_concern,
    survives,
    wait_until_met,
)
from tests.simulation.core_kit.machine import host, members_of
from tests.simulation.kit.clock import SimClock
from tests.unit.core.single_node import NOW, SingleNode, at, lead, leading_three, named, place, single_node
from tests.unit.member.kit import settle


@dataclass
class Applied:
    """What concerns read of a store."""

    last_applied: OpTime


class Rig:
    """Member 0 of three, which leads term 2; what its core says reaches the waiters as a member would pass it on."""

    def __init__(self, clock: SimClock, node: SingleNode) -> None:
        self.node = node
        self.store = Applied(node.position.last_applied)
        self.changes = Notifier()
        self.wait_for_change = self.changes.wait
        self.clock = clock
        self.write_waiters = WaiterList()
        self.awaited: list[str] = []
        self.on_awaited = self.awaited.append

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StateChanged(state=state) if state is not MemberState.PRIMARY:
                    self.write_waiters.fail_all(lambda: PrimarySteppedDownError("the primary stepped down"))
                case CommitPointAdvanced() | ProgressChanged():
                    self.write_waiters.release()
            self.changes.notify()

    def apply(self, optime: OpTime) -> None:
        """Committed here, not synced yet."""
        self.store.last_applied = optime
        self.take(self.node.receive(LocalPosition(place(optime, self.node.position.last_durable)), NOW))

    def sync(self) -> None:
        self.take(self.node.receive(LocalPosition(place(self.store.last_applied)), NOW))

    def receive_heartbeat(self, number: int, position: Position, now: int = NOW) -> None:
        self.node.tick(Millis(NOW + 2_000))
        self.take(self.node.receive_heartbeat(number, now, config_term=self.node.term, position=position))

    def write(
        self, w: int | str, j: bool | None = None, wtimeout_ms: int = 0, deadline_ms: int | None = None
    ) -> asyncio.Task[Any]:
        """A client that waits for the newest entry."""
        deadline = None if deadline_ms is None else Millis(self.clock.now() + deadline_ms)
        concern = WriteConcern(w, j, wtimeout_ms)
        return asyncio.get_running_loop().create_task(wait_until_met(self, self.store.last_applied, concern, deadline))

    def read(self, level: Any, after: int | None = None, deadline_ms: int | None = None) -> asyncio.Task[Any]:
        deadline = None if deadline_ms is None else Millis(self.clock.now() + deadline_ms)
        ctx = SimpleNamespace(member=self, deadline=deadline, work=Work())
        return asyncio.get_running_loop().create_task(read_point(ctx, ReadConcern(level, after)))


@pytest.fixture
def rig(clock: SimClock) -> Rig:
    return Rig(clock, leading_three())


NEXT = at(2, 2)

# --- writes ----------------------------------------------------------------------------------------------------------


async def test_one_member_is_enough_at_once_and_its_disk_once_it_is_synced(rig: Rig) -> None:
    rig.apply(NEXT)
    plain, journaled = rig.write(1), rig.write(1, j=True)
    await settle()
    assert plain.result() is None
    assert not journaled.done()
    rig.sync()
    await settle()
    assert journaled.result() is None


async def test_two_members_and_two_disks_are_waited_for_each_by_itself(rig: Rig) -> None:
    rig.apply(NEXT)
    rig.sync()
    plain, journaled, majority = rig.write(2), rig.write(2, j=True), rig.write("majority")
    await settle()
    rig.receive_heartbeat(1, place(NEXT, at(2)))
    await settle()
    assert (plain.done(), journaled.done(), majority.done()) == (True, False, False)
    assert plain.result() is None
    rig.node.tick(Millis(NOW + 4_000))
    rig.receive_heartbeat(2, place(NEXT), NOW + 4_000)
    await settle()
    assert (journaled.result(), majority.result()) == (None, None)


async def test_what_more_members_than_there_are_should_hold_is_refused_at_once(rig: Rig) -> None:
    failure = await rig.write(4)
    assert (failure.code, failure.timed_out) == (100, False)


@pytest.mark.parametrize(
    ("wtimeout_ms", "deadline_ms", "code"), [(300, None, 64), (0, 300, 50), (300, 900, 64), (900, 300, 50)]
)
async def test_who_waits_in_vain_is_told_so_in_time(
    rig: Rig, wtimeout_ms: int, deadline_ms: int | None, code: int
) -> None:
    rig.apply(NEXT)
    began = rig.clock.now()
    failure = await rig.write(3, None, wtimeout_ms, deadline_ms)
    assert (failure.code, failure.timed_out) == (code, code == 64)
    assert 300 <= rig.clock.now() - began < 320
    assert [row["_id"] for row in failure.progress] == [0, 1, 2]


async def test_who_waits_without_a_limit_is_told_at_once_when_the_wait_is_in_vain(rig: Rig) -> None:
    """Map D9. With a limit the wait lasts as long as the client asked."""
    rig.apply(NEXT)
    endless, limited = rig.write(3), rig.write(3, None, 60_000)
    await settle()
    end_waits_in_vain(rig)
    await settle()
    assert not endless.done()
    down = rig.node.peer_at(host(2))
    down.state, down.last_contact = MemberState.DOWN, Millis(NOW - 60_000)
    end_waits_in_vain(rig)
    await settle()
    assert (endless.done(), limited.done()) == (True, False)
    for failure in (endless.result(), await rig.write(3)):
        assert (failure.code, failure.timed_out) == (100, False)
        assert host(2) in failure.message
        assert host(2) in [row.host for row in failure.waiting_for]
    limited.cancel()


async def test_a_time_out_names_who_is_waited_for(rig: Rig) -> None:
    rig.apply(NEXT)
    failure = await rig.write("majority", None, 100)
    assert failure.message.startswith("waiting for replication timed out; not yet on ")
    assert [row.host for row in failure.waiting_for] == [host(0), host(1), host(2)]


async def test_a_stepdown_ends_every_wait_at_once(rig: Rig) -> None:
    rig.apply(NEXT)
    waits = [rig.write(3), rig.write("majority"), rig.write(2, j=True)]
    await settle()
    rig.take(rig.node.receive_heartbeat(1, term=5))
    await settle()
    assert [wait.result().code for wait in waits] == [189, 189, 189]
    assert (await rig.write(1)).code == 189


THIRD = at(3, 3)


@pytest.mark.parametrize(
    ("rows", "applied", "committed", "state", "expected"),
    [
        pytest.param((NEXT,), NEXT, NEXT, MemberState.SECONDARY, True, id="committed"),
        pytest.param((NEXT, THIRD), THIRD, THIRD, MemberState.SECONDARY, True, id="behind-it"),
        pytest.param((NEXT,), NEXT, THIRD, MemberState.SECONDARY, False, id="not-fetched"),
        pytest.param((THIRD,), THIRD, THIRD, MemberState.SECONDARY, False, id="rolled-back"),
        pytest.param((NEXT,), THIRD, THIRD, MemberState.SECONDARY, False, id="another-history"),
        pytest.param((NEXT,), NEXT, at(1, 1), MemberState.SECONDARY, False, id="not-committed"),
        pytest.param((NEXT,), NEXT, NEXT, MemberState.ROLLBACK, False, id="rolls-back"),
    ],
)
async def test_a_write_survives_a_stepdown_if_its_entry_is_still_here_and_committed(
    clock: SimClock, rows: tuple[OpTime, ...], applied: OpTime, committed: OpTime, state: MemberState, expected: bool
) -> None:
    found = []
    for now in (committed, at(1, 1)):  # it is known at once, or learned while the client waits
        node: Any = SimpleNamespace(commit_point=now, state=state, config=None)
        changes = Notifier()
        member: Any = SimpleNamespace(
            node=node,
            clock=clock,
            shutting_down=False,
            wait_for_change=changes.wait,
            store=SimpleNamespace(last_applied=applied, oplog_row_at=lambda at: at if at in rows else None),
        )
        began = clock.now()
        task = asyncio.ensure_future(survives(member, NEXT, WriteConcern("majority"), None))
        await settle()
        node.commit_point = committed
        changes.notify()
        found.append(await task)
        assert clock.now() <= began + SURVIVAL_MS
    assert found == [expected, expected]


async def test_a_write_survives_once_what_is_committed_behind_it_has_been_fetched(clock: SimClock) -> None:
    rows, changes = [NEXT], Notifier()
    node: Any = SimpleNamespace(commit_point=THIRD, state=MemberState.SECONDARY, config=None)
    store: Any = SimpleNamespace(last_applied=NEXT, oplog_row_at=lambda at: at if at in rows else None)
    member: Any = SimpleNamespace(
        node=node, clock=clock, shutting_down=False, wait_for_change=changes.wait, store=store
    )
    task = asyncio.ensure_future(survives(member, NEXT, WriteConcern("majority"), None))
    await settle()
    rows.append(THIRD)
    store.last_applied = THIRD
    changes.notify()
    assert await task


async def test_an_entry_of_an_old_term_is_not_acknowledged_by_where_it_stands(rig: Rig) -> None:
    """It may have been rolled back before this member led again."""
    assert rig.node.term > 1
    for w in (1, "majority"):
        failure = await wait_until_met(rig, at(1, 1), WriteConcern(w), None)
        assert failure is not None
        assert failure.code == 189


# --- reads -----------------------------------------------------------------------------------------------------------


async def test_a_new_primary_s_majority_read_waits_for_an_entry_of_its_own_term(clock: SimClock) -> None:
    node = single_node(config=named(*members_of(3)))
    node.receive_heartbeat(1, commit_point=at(1))
    node.tick(Millis(NOW + 2_000))
    rig = Rig(clock, lead(node))
    assert at(1) == node.commit_point
    assert node.commit_point.term < node.term
    with pytest.raises(MaxTimeMSExpiredError):
        await rig.read("majority", deadline_ms=100)
    waiting = rig.read("majority")
    await settle()
    assert not waiting.done()
    rig.sync()
    node.tick(Millis(NOW + 4_000))
    for number in (1, 2):
        rig.take(node.receive_heartbeat(number, NOW + 4_000, config_term=2, position=place(at(2))))
    await settle()
    assert waiting.result() == at(2)


async def test_an_idle_primary_writes_an_entry_for_a_read_after_a_cluster_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(operation: Any) -> None:
        assert operation.keywords == {"after": NEXT.ts}
        rig.apply(NEXT)

    assert await rig.read("majority") == at(2)
    assert await rig.read("local") is None
    monkeypatch.setattr(rig, "write", write)
    local, majority = rig.read("local", NEXT.ts), rig.read("majority", NEXT.ts)
    await settle()
    assert (local.done(), majority.done()) == (True, False)
    rig.sync()
    rig.receive_heartbeat(1, place(NEXT))
    await settle()
    assert majority.result() == NEXT


async def test_a_majority_read_never_sees_beyond_what_is_applied_here(rig: Rig) -> None:
    rig.store.last_applied = at(1)  # a rollback or a copy took it back; the core hears of it next
    with pytest.raises(MaxTimeMSExpiredError):
        await rig.read("majority", deadline_ms=50)


async def test_what_a_member_in_this_state_does_not_answer(clock: SimClock) -> None:
    config = named(*members_of(3))
    secondary = Rig(clock, single_node(config=config))
    with pytest.raises(NotWritablePrimaryError):
        await secondary.read("linearizable")
    assert await secondary.read("local") is None
    copying = Rig(clock, single_node(config=config, position=place(OPTIME_NULL), initial_sync_pending=True))
    with pytest.raises(NotPrimaryOrSecondaryError):
        await copying.read("local", 1)


def test_a_long_write_concern_is_not_kept_in_memory() -> None:
    kept = _kept.cache_info().currsize
    for length in (LONGEST_KEPT, 1 << 20):
        concern = encode({"w": 1, "provenance": "x" * length})
        assert parse_write_concern(concern, lambda: 1) == WriteConcern(1)
    assert _kept.cache_info().currsize == kept


@pytest.mark.parametrize("w", [{}, {"dc": 0}, {"dc": "x"}, {"dc": 1.5}, [1]])
def test_tags_that_make_no_write_concern(w: object) -> None:
    with pytest.raises(FailedToParseError):
        parse_write_concern(encode({"w": w}), lambda: 1)


def test_tags_in_a_write_concern() -> None:
    assert parse_write_concern(encode({"w": {"dc": 2.0, "disk": 1}}), lambda: 1).w == (("dc", 2), ("disk", 1))


def test_the_durability_level_is_that_of_the_named_collection_and_large_values_are_not_decoded() -> None:
    class Body(RawDocument):
        def get(self, name: str, default: object = None) -> object:
            assert name != "applyOps"
            return super().get(name, default)

    def level_of(name: str, value: object) -> WriteConcern | None:
        settings = Settings(durability_levels=parse_rules({"shop.log": {"level": 0}}))
        node = lead(single_node(config=named(*members_of(3), settings=settings)))
        ctx = SimpleNamespace(
            member=SimpleNamespace(node=node),
            transaction=None,
            database="shop",
            name=name,
            body=Body(encode({name: value})),
        )
        return _level_of(cast("CommandContext", ctx))

    level = level_of("insert", "log")
    assert level is not None
    assert level.w == 1
    assert level_of("insert", "orders") is None
    assert level_of("applyOps", [{"op": "i", "ns": "shop.log"}]) is None
