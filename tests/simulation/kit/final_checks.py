"""The invariants at the end of a run, after heal and quiet: what clients were promised against the final history."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from replset.features.administration.write_state import MemberView, WriteState, has_entry
from tests.simulation.kit.cluster import CONVERGES_WITHIN_S
from tests.simulation.kit.entries import mark_of_optime, mark_of_write, rolled_back_marks
from tests.simulation.kit.replay import (
    Documents,
    balances_of,
    counted,
    documents_of,
    first_difference,
    moments_of,
    replay,
    state_at,
)
from tests.simulation.kit.workload import UNSYNCED, Read

if TYPE_CHECKING:
    from tests.simulation.kit.checkers import Checkers


class FinalChecks:
    """Judges what the checkers have seen, on a set that is well again."""

    def __init__(self, seen: Checkers) -> None:
        self._seen = seen

    def run(self, primary: str) -> None:
        """primary: what it holds is the final history."""
        self.reads_were_right(primary)
        self.promise(primary)
        self.each_is_applied_once(primary)
        self.transactions_are_whole(primary)
        self.write_states_are_right(primary)
        self.documents_are_the_oplog()
        self.members_are_equal()

    def reads_were_right(self, primary: str) -> None:
        """Invariant 3: a majority read shows the collection as it was at one moment of the final history, and not
        before what a majority had acknowledged: no insert, update or delete is missing, and none is there too early.
        """
        moments = moments_of(self._seen.mirrors[primary].entries)
        refused = {write.token for write in self._seen.history.writes if write.outcome == "fail"}
        seen = {mark for entry in self._seen.known.values() for mark in entry.marks}
        for read in self._seen.history.reads:
            if read.found is None:
                continue
            self._cursor_ended_in_time(read)
            if read.level == "majority":
                if moments.get(frozenset(read.found.items()), -1) < read.after:
                    self._seen.fail("3", f"{read}: {self._why_wrong(read, primary)}")
                continue
            for token in read.found.values():
                if token in refused or f"w {token}" not in seen:
                    self._seen.fail("4", f"a local read returned {token}, which was refused or never written: {read}")

    def _cursor_ended_in_time(self, read: Read) -> None:
        """A cursor does not go on in what a rollback or a copy has put in the place of what it began with."""
        name = self._seen.cluster.name_of(read.target)
        if any(read.first_ms < when < read.asked_ms for when in self._seen.replaced_ms[name]):
            self._seen.fail("3", f"a cursor of {name} outlived a rollback or a copy: {read}")

    def _why_wrong(self, read: Read, primary: str) -> str:
        """In words, for a person: what is wrong with a majority read."""
        found = read.found or {}
        entries = self._seen.mirrors[primary].entries
        stayed = self._seen.mirrors[primary].marks
        wrong = [token for token in found.values() if f"w {token}" not in stayed]
        if wrong:
            return f"{wrong} are not in the final history"
        held = state_at(entries, read.after)
        missing = {key: token for key, token in held.items() if found.get(key) != token}
        more = {key: token for key, token in found.items() if held.get(key) != token}
        return f"at {read.after} there was {missing}, and it found {more}"

    def promise(self, primary: str) -> None:
        """Invariant 4: every acknowledged write is in the history or in a finished rollback's oplog file.

        So is every entry that a rollback undid, acknowledged or not.
        """
        kept = self._seen.mirrors[primary].marks
        files = {mark for machine in self._seen.cluster.machines.values() for mark in rolled_back_marks(machine.disk)}
        for write in self._seen.history.writes:
            mark = mark_of_write(write)
            if write.outcome == "fail" and mark in kept and write.kind != "delete":
                self._seen.fail("4", f"refused, and yet applied: {write}")
            if not write.acknowledged or mark in kept or mark in files:
                continue
            if write.concern in UNSYNCED and mark in self._seen.lost_in_crashes:
                continue  # T2: not synced on any holder when the power went
            if write.concern != "majority" and mark in self._seen.erased_by_hand:
                continue
            self._seen.fail("4", f"neither in the set nor in a rollback file: {write}")
        for operation in self._seen.operations:
            mark = mark_of_optime(operation.optime)
            if not operation.acknowledged or mark in kept:
                continue
            if operation.concern == "majority":
                self._seen.fail("3", f"the primary {primary} lacks {operation}")
            if mark in files or mark in self._seen.erased_by_hand:
                continue
            if operation.concern == "w1" and mark in self._seen.lost_in_crashes:
                continue
            self._seen.fail("4", f"neither in the set nor in a rollback file: {operation}")
        recorded = kept | files | self._seen.erased_by_hand
        for entry in self._seen.undone.values():
            if entry.marks[0] not in recorded:
                self._seen.fail("4", f"undone, and in no rollback file: {entry.body}")

    def write_states_are_right(self, primary: str) -> None:
        """Invariant 4, as clients may ask: of every entry ever written, no member says that it is committed when it is
        not in the final history, nor that it is not in the set when it is.
        """
        kept = self._seen.mirrors[primary].marks
        right = {WriteState.COMMITTED: True, WriteState.NOT_IN_SET: False}
        running = [self._seen.cluster.machines[name].running for name in self._seen.mirrors]
        asked = [member for member in running if member is not None and member.node.state.is_readable]
        for place, member in enumerate(asked):
            through = min(member.node.commit_point, member.store.last_applied)
            for number, optime in enumerate(self._seen.known):
                is_kept = mark_of_optime(optime) in kept
                if is_kept and number % len(asked) != place:
                    continue  # one member is asked of each entry that all have, and all of one that is gone
                state = MemberView(member.host, has_entry(member.store, optime), through).state_of(optime)
                if right.get(state, is_kept) is not is_kept:
                    self._seen.fail("4", f"{member.host} says that {optime} is {state.value}")

    def each_is_applied_once(self, primary: str) -> None:
        """Invariant 13: a write that was sent several times is in the history at most once, once if a majority
        acknowledged it, and its answer is that of its entry.
        """
        values = counted(self._seen.mirrors[primary].entries)
        for write in self._seen.retried:
            if write.wrong:
                self._seen.fail("13", f"{write}")
            for token in write.tokens:
                found = values.get(token, [])
                if len(found) > 1:
                    self._seen.fail("13", f"applied {len(found)} times: {write}")
                if write.is_certain and not found:
                    self._seen.fail("13", f"acknowledged, and not applied: {write}")
                if write.is_certain and write.value is not None and found != [write.value]:
                    self._seen.fail("13", f"answered {write.value}, and applied as {found}: {write}")
        self._numbers_only_grow(primary)

    def _numbers_only_grow(self, primary: str) -> None:
        """Invariant 13: in a history a session, until it is forgotten, uses no number behind a later one."""
        newest: dict[str, int] = {}
        for entry in self._seen.mirrors[primary].entries:
            body = entry.body
            if body["op"] == "n" and body["o"].get("msg") == "sessions expired":
                for lsid in body["o"]["sessions"]:
                    newest.pop(repr(lsid), None)
            if "txnNumber" in body:
                number, lsid = int(body["txnNumber"]), repr(body["lsid"])
                if number < newest.get(lsid, 0):
                    self._seen.fail("13", f"number {number} of a session came behind {newest[lsid]}: {body}")
                newest[lsid] = number

    def transactions_are_whole(self, primary: str) -> None:
        """Invariant 14: a transaction is there as a whole or not at all, none overlapped with another that wrote the
        same, and every read inside, or at level snapshot, saw one moment.
        """
        if self._seen.transfers is None:
            return
        moments = balances_of(self._seen.mirrors[primary].entries)
        for ts, balances in moments:
            if sum(balances.values()):
                self._seen.fail("14", f"after {ts} the sum is {sum(balances.values())}: {balances}")
        for read in self._seen.transfers.reads:
            if sum(read.found.values()):
                self._seen.fail("14", f"a read saw two moments: {read}")
            at = bisect_right(moments, read.ts, key=lambda row: row[0]) - 1
            expected = moments[at][1] if at >= 0 else {}
            if read.ts and read.found != expected:
                self._seen.fail("14", f"{read}, where there was {expected}")
        kept = self._seen.mirrors[primary].marks
        files = {mark for machine in self._seen.cluster.machines.values() for mark in rolled_back_marks(machine.disk)}
        for move in self._seen.transfers.history:
            mark = f"t {move.token}"
            if move.outcome == "fail" and mark in kept:
                self._seen.fail("14", f"aborted, and yet applied: {move}")
            if not move.acknowledged or mark in kept:
                continue
            if move.concern == "majority":
                self._seen.fail("14", f"the primary {primary} lacks {move}")
            if mark not in files and mark not in self._seen.lost_in_crashes | self._seen.erased_by_hand:
                self._seen.fail("14", f"neither in the set nor in a rollback file: {move}")

    def documents_are_the_oplog(self) -> None:
        """Invariant 5."""
        for name, mirror in self._seen.mirrors.items():
            expected = replay([] if self._seen.cluster.machines[name].witness else mirror.entries)
            found = self._documents(name)
            if found != expected:
                self._seen.fail("5", f"{name}: {first_difference(expected, found)}")
            if not self._seen.cluster.machines[name].witness:
                self._seen.check_indexes(name, mirror.entries)
            self._seen.check_stored(name)
            self._seen.check_rollbacks(name)

    def _documents(self, name: str) -> Documents:
        found = documents_of(self._seen.cluster.machines[name].disk)
        assert found is not None, f"{name} runs and nothing is under way"
        return found

    def members_are_equal(self) -> None:
        """Invariant 6. The checks before it took time, in which the primary may have written something by itself."""
        self._seen.cluster.run_until(
            self._seen.cluster.converged, CONVERGES_WITHIN_S, "converged before the last check"
        )
        logs = {name: [(e.optime, e.hash) for e in mirror.entries] for name, mirror in self._seen.mirrors.items()}
        documents = {name: self._documents(name) for name in self._seen.mirrors}
        first, *others = self._seen.mirrors
        for other in others:
            if logs[other] != logs[first]:
                self._seen.fail("6", f"the oplogs of {first} and {other} differ")
            if documents[other] != documents[first] and not self._seen.cluster.machines[other].witness:
                self._seen.fail("6", f"{first} and {other}: {first_difference(documents[first], documents[other])}")
