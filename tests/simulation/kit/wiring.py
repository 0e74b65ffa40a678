"""What the parts of a member owe each other, each shown on whole members: a check raises SimulationError when a part
that decides well is not asked, or is not listened to.

Seeded runs meet these moments too rarely. To take away a connection is one of the faults that `./dev mutate` makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from replset.core.member_state import MemberState
from replset.core.quorum import WriteConcern
from replset.errors import NotWritablePrimaryError
from replset.ids import OpTime
from replset.member.member import RunningMember
from replset.operations import write_concern
from replset.replication.write_ops import WriteGroup
from tests.simulation.kit.cluster import SimCluster, quiet_logs
from tests.simulation.kit.environment import DEFAULT_ENVIRONMENT, Environment
from tests.simulation.kit.errors import SimulationError

DATABASE = "shop"
SLOW_DISK = 100_000.0


def expect(condition: object, what: str) -> None:
    if not condition:
        raise SimulationError(f"wiring: {what}")


class Trio:
    """Three members; a leads, b and c follow it."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.reader = cluster.client()  # one connection: a cursor ends with its client's

    def member(self, name: str) -> RunningMember:
        running = self.cluster.machines[name].running
        expect(running is not None, f"{name} runs")
        assert running is not None
        return running

    def is_in(self, name: str, state: MemberState) -> bool:
        running = self.cluster.machines[name].running
        return running is not None and running.node.state is state

    def become(self, name: str, state: MemberState, within_s: float = 60) -> None:
        self.cluster.run_until(lambda: self.is_in(name, state), within_s, f"{name} is {state.name}")

    def command(self, name: str, command: dict[str, Any], database: str = DATABASE) -> dict[str, Any]:
        return dict(self.cluster.command(name, command, database, timeout_s=20))

    def read(self, name: str, command: dict[str, Any], database: str = DATABASE) -> dict[str, Any]:
        """By the client that stays, who may go on with a cursor."""
        return dict(self.cluster.run(self.reader.call(self.cluster.host(name), database, command, 20)))

    def insert(self, name: str, *ids: int, **concern: Any) -> OpTime:
        """Insert documents {_id, n: 0}; where their last entry is."""
        documents = [{"_id": number, "n": 0} for number in ids]
        reply = self.command(
            name, {"insert": "orders", "documents": documents, "writeConcern": concern or {"w": "majority"}}
        )
        expect(reply.get("n") == len(ids) and "writeConcernError" not in reply, f"{name} takes the insert: {reply}")
        return self.member(name).store.last_applied

    def meanwhile(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """What goes on beside the check."""
        return self.cluster.loop.create_task(work, context=Context())

    def ask_meanwhile(self, name: str, command: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
        async def ask() -> dict[str, Any]:
            client = self.cluster.client()
            try:
                return await client.call(self.cluster.host(name), DATABASE, command, 30)
            finally:
                client.close()

        return self.meanwhile(ask())

    def until_rolled_back(self, name: str, before: int) -> None:
        """before: its rollback id."""
        self.cluster.run_until(lambda: self.member(name).store.rollback_id > before, 60, f"{name} rolls back")
        self.become(name, MemberState.SECONDARY)

    def leave_alone(self, name: str, rolled_back: int) -> OpTime:
        """`name` is cut off and writes what nobody else gets, until another one leads; where that entry is."""
        self.cluster.cut([name])
        optime = self.insert(name, rolled_back, w=1)
        self.cluster.run_until(lambda: self.cluster.primary() not in (None, name), 60, "another primary")
        self.insert(self.cluster.primary() or "", rolled_back + 1)
        return optime


@contextmanager
def three(environment: Environment = DEFAULT_ENVIRONMENT, *, seed: int = 1) -> Iterator[Trio]:
    quiet_logs()
    with SimCluster(3, seed=seed, environment=environment) as cluster:
        cluster.initiate(priorities={"a": 2})
        cluster.run_until(lambda: cluster.primary() == "a", 60, "a leads")
        yield Trio(cluster)
        cluster.check_unbroken()


# --- the checks ------------------------------------------------------------------------------------------------------


def cursor_of_an_undone_history() -> None:
    """A cursor that read entries which were rolled back is gone (43), also one that has its documents in memory."""
    with three() as group:
        group.insert("a", *range(10))
        group.leave_alone("a", 100)
        anywhere = {"$readPreference": {"mode": "secondaryPreferred"}}
        cursors = {}
        for database, query in (
            (DATABASE, {"find": "orders", "batchSize": 2}),
            (DATABASE, {"find": "orders", "batchSize": 2, "sort": {"n": 1, "_id": -1}}),
            ("local", {"find": "oplog.rs", "batchSize": 2}),
        ):
            reply = group.read("a", {**query, **anywhere}, database)
            cursors[reply["cursor"]["id"]] = (database, query["find"])
        expect(0 not in cursors, "there is more to read")
        before = group.member("a").store.rollback_id
        group.cluster.heal()
        group.until_rolled_back("a", before)
        for cursor, (database, collection) in cursors.items():
            reply = group.read("a", {"getMore": cursor, "collection": collection}, database)
            expect(reply.get("code") == 43, f"the cursor ended with the rollback: {reply}")


def entry_of_an_old_term() -> None:
    """A member that leads again does not acknowledge what it wrote before it rolled back (189)."""
    with three() as group:
        group.insert("a", 1)
        rolled_back = group.leave_alone("a", 100)
        group.cluster.heal()
        group.cluster.run_until(lambda: group.cluster.primary() == "a", 120, "a leads again")
        member = group.member("a")
        expect(member.node.term > rolled_back.term, "in a later term")
        expect(member.store.oplog_row_at(rolled_back) is None, "its entry was rolled back")
        for w in (1, "majority"):
            failure = group.cluster.run(write_concern.wait_until_met(member, rolled_back, WriteConcern(w), None))
            expect(failure is not None and failure.code == 189, f"w: {w} is not acknowledged: {failure}")


def journaled_beside_not_journaled() -> None:
    """`w: 2, j: true` waits for two disks, though somebody waits for `w: 2` without `j` at the same time."""
    with three() as group:
        cluster, member = group.cluster, group.member("a")
        group.insert("a", 0)
        for name in ("b", "c"):
            cluster.machines[name].slowness = SLOW_DISK
        cluster.cut(["a"])

        def write(document: int, concern: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
            return group.ask_meanwhile(
                "a", {"insert": "orders", "documents": [{"_id": document}], "writeConcern": concern}
            )

        before = member.store.last_applied
        plain = write(1, {"w": 2})
        cluster.run_until(lambda: member.store.last_applied > before, 5, "the one without j waits first")
        journaled = write(2, {"w": 2, "j": True})
        cluster.run_for(0.2)
        written = member.store.last_applied
        expect(not plain.done() and not journaled.done(), "both wait while nobody else has it")
        cluster.heal()

        def disks() -> int:
            return sum(group.member(name).durability.last_durable >= written for name in ("a", "b", "c"))

        on_disks: list[int] = []

        def look() -> None:
            if journaled.done() and not on_disks:
                on_disks.append(disks())

        cluster.on_step.append(look)
        cluster.run_until(plain.done, 30, "w: 2 is acknowledged")
        for name in ("b", "c"):
            cluster.machines[name].slowness = 1.0
        cluster.run_until(journaled.done, 60, "w: 2, j: true is acknowledged")
        expect("writeConcernError" not in journaled.result(), f"{journaled.result()}")
        expect(on_disks[0] >= 2, f"w: 2, j: true was acknowledged with {on_disks[0]} disk that holds it")


def majority_read_of_a_new_primary() -> None:
    """A primary's majority read waits for an entry of its own term: only then does it know what is committed."""
    with three() as group:
        group.insert("a", 1)
        group.cluster.run_until(group.cluster.converged, 30, "everybody has it")

        def cut_at_once() -> None:
            if group.is_in("b", MemberState.PRIMARY):
                group.cluster.on_step.remove(cut_at_once)
                group.cluster.cut(["b"])

        group.cluster.on_step.append(cut_at_once)
        group.command("b", {"replSetStepUp": 1, "skipDryRun": True}, "admin")
        expect(group.is_in("b", MemberState.PRIMARY), "b leads, and nobody hears of it")
        point = group.member("b").node.commit_point
        expect(0 < point.term < group.member("b").node.term, "it knows a commit point of the term before")
        reply = group.command("b", {"find": "orders", "readConcern": {"level": "majority"}, "maxTimeMS": 500})
        expect(reply.get("code") == 50, f"nothing of its own term is committed: {reply}")


def majority_cursor_with_its_pin() -> None:
    """A majority cursor reads on at its moment, though what is written since needs no undo any more."""
    with three(Environment(history_s=0)) as group:
        group.insert("a", *range(20))
        reply = group.read("a", {"find": "orders", "batchSize": 2, "readConcern": {"level": "majority"}})
        cursor, found = reply["cursor"]["id"], list(reply["cursor"]["firstBatch"])
        store = group.member("a").store
        for n in (1, 2, 3):
            group.command(
                "a",
                {
                    "update": "orders",
                    "updates": [{"q": {}, "u": {"$set": {"n": n}}, "multi": True}],
                    "writeConcern": {"w": "majority"},
                },
            )
            group.cluster.run_for(5)
        reply = group.read("a", {"getMore": cursor, "collection": "orders"})
        expect(reply["ok"] == 1, f"the cursor goes on: {reply}")
        found += reply["cursor"]["nextBatch"]
        expect([row["n"] for row in found] == [0] * 20, f"at the moment at which it was opened: {found}")
        expect(store.oldest_pin is None, "an exhausted cursor holds no undo")
        group.cluster.run_until(lambda: store.pruned_through > 0, 30, "undo is pruned once nobody needs it")


def noop_of_a_past_term() -> None:
    """A no-op that waited behind a save is not written once its primary has stepped down."""
    with three() as group:
        group.insert("a", 1)
        group.cluster.run_until(group.cluster.converged, 30, "everybody has it")
        member = group.member("a")
        term = member.node.term
        config = group.command("a", {"replSetGetConfig": 1}, "admin")["config"]
        group.cluster.machines["a"].slowness = SLOW_DISK  # the configuration takes long to save
        change = group.meanwhile(_reconfigured(group, config))
        group.cluster.run_until(lambda: member.node.config is not None and member.shell._persisting, 10, "it is saved")
        group.meanwhile(_stepped_down(group))
        group.become("a", MemberState.SECONDARY)
        newest = member.store.last_applied
        group.cluster.machines["a"].slowness = 1.0
        group.cluster.cut(["a"])  # nothing but its own comes into its oplog
        group.cluster.run_until(lambda: not member.shell._persisting, 60, "it is saved")
        group.cluster.run_for(1)
        expect(member.node.state is not MemberState.PRIMARY, "a leads no more")
        expect(member.store.last_applied == newest, f"nothing was written in term {term}: {member.store.newest_row()}")
        change.cancel()


def _reconfigured(group: Trio, config: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    client = group.cluster.client()
    config = {**config, "version": config["version"] + 1}
    return client.call(group.cluster.host("a"), "admin", {"replSetReconfig": config}, 60)


def _stepped_down(group: Trio) -> Coroutine[Any, Any, Any]:
    client = group.cluster.client()
    return client.call(group.cluster.host("a"), "admin", {"replSetStepDown": 60, "force": True}, 60)


def writes_behind_a_save() -> None:
    """A primary that stepped down takes no write, though its newest configuration is still being saved."""
    with three() as group:
        group.insert("a", 1)
        group.cluster.run_until(group.cluster.converged, 30, "everybody has it")
        member = group.member("a")
        config = group.command("a", {"replSetGetConfig": 1}, "admin")["config"]
        group.cluster.machines["a"].slowness = SLOW_DISK
        group.meanwhile(_reconfigured(group, config))
        group.cluster.run_until(lambda: member.shell._persisting, 10, "the configuration is being saved")
        group.meanwhile(_stepped_down(group))
        group.become("a", MemberState.SECONDARY)
        expect(member.shell._persisting, "it is still being saved")

        def operation(_group: WriteGroup) -> None:
            raise SimulationError("wiring: a write ran on a member that does not lead")

        async def write() -> None:
            try:
                await member.write(operation)
            except NotWritablePrimaryError:
                return

        group.cluster.run(write())


def rollback_id_of_a_copy() -> None:
    """The rollback id rises with a copy too, also above a source that rolled back less often: old fetches are void."""
    with three() as group:
        cluster = group.cluster
        group.insert("a", 0)
        for rolled_back in range(100, 1_000, 100):
            if group.member("a").store.rollback_id > group.member("b").store.rollback_id + 1:
                break
            before = group.member("a").store.rollback_id
            group.leave_alone("a", rolled_back)
            cluster.heal()
            group.until_rolled_back("a", before)
            cluster.run_until(lambda: cluster.primary() == "a" and cluster.all_counted(), 120, "a leads again")
        group.command("a", {"replSetStepDown": 60}, "admin")
        cluster.run_until(lambda: cluster.primary() not in (None, "a"), 60, "another one leads")
        rolled_back = group.member("a").store.rollback_id
        expect(rolled_back > group.member(cluster.primary() or "").store.rollback_id, "a rolled back more often")
        reply = group.command("a", {"replSetResync": 1}, "admin")
        expect(reply["ok"] == 1, f"a copies anew: {reply}")
        group.become("a", MemberState.SECONDARY)
        copied = group.member("a").store.rollback_id
        expect(copied > rolled_back, f"the rollback id is {copied} behind the copy, it was {rolled_back}")


def wtimeout_is_no_success() -> None:
    """Who waits in vain gets an error (64)."""
    with three() as group:
        group.cluster.cut(["c"])
        reply = group.command(
            "a", {"insert": "orders", "documents": [{"_id": 1}], "writeConcern": {"w": 3, "wtimeout": 300}}
        )
        error = reply.get("writeConcernError", {})
        expect(error.get("code") == 64 and error["errInfo"]["wtimeout"] is True, f"w: 3 was not met: {reply}")


CHECKS: tuple[Callable[[], None], ...] = (
    cursor_of_an_undone_history,
    entry_of_an_old_term,
    journaled_beside_not_journaled,
    majority_read_of_a_new_primary,
    majority_cursor_with_its_pin,
    noop_of_a_past_term,
    writes_behind_a_save,
    rollback_id_of_a_copy,
    wtimeout_is_no_success,
)
