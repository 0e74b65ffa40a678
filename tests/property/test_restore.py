"""Random lost writes put back onto a random set: each policy does what it says, and a second run changes nothing."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import encode, encode_key
from replset.features.recovery.live_set import Write
from replset.features.recovery.lost_writes import LostWrites
from replset.features.recovery.policy import Policy
from replset.features.recovery.restore import AuditLog, Outcome, Restore, Result
from replset.replication.rollback_manifest import read_manifest
from tests.examples import examples
from tests.unit.rollback_tools.kit import ORDERS, Doc, FakeSet, LostHistory, unreachable

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EXAMPLES = examples(60)
NUMBERS = range(5)
FIELDS = st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(0, 2), st.just({"x": 1})), max_size=3)
STATES = st.dictionaries(st.sampled_from(NUMBERS), FIELDS, max_size=5)
CHANGES = st.lists(st.tuples(st.sampled_from(NUMBERS), st.one_of(st.none(), FIELDS)), max_size=8)
State = dict[int, Doc]
Changes = list[tuple[int, Doc | None]]


def documents(state: dict[int, Doc]) -> State:
    return {number: {"_id": number, **fields} for number, fields in state.items()}


def lose(before: State, changes: Changes) -> LostHistory:
    history = LostHistory(before)
    for number, fields in changes:
        there = number in history.now
        if fields is None:
            if there:
                history.delete(number)
        elif there:
            history.update({"_id": number, **fields})
        else:
            history.insert({"_id": number, **fields})
    history.noop()
    return history


def change(live: FakeSet, changes: Changes) -> set[int]:
    """Meanwhile the set did this; the documents that it wrote."""
    touched: set[int] = set()
    for number, fields in changes:
        if fields is not None:
            live.put(ORDERS, {"_id": number, **fields})
            touched.add(number)
        elif encode_key(number) in live.data[ORDERS]:
            live.remove(ORDERS, number)
            touched.add(number)
    return touched


def restore(path: Path, live: FakeSet, policy: Policy, *, dry: bool = False) -> list[Outcome]:
    with LostWrites(path.parent, read_manifest(path)) as lost:
        run = Restore(lost, live, policy, pause=lambda seconds: None)
        if dry:
            return list(run.run(None, lambda: NOW))
        with AuditLog.beside(path, NOW) as log:
            return list(run.run(log, lambda: NOW))


def state_of(live: FakeSet) -> State:
    return {int(str(row["_id"])): row for row in live.rows()}


def same(a: Doc | None, b: Doc | None) -> bool:
    return (None if a is None else encode(a)) == (None if b is None else encode(b))


def merged(before: Doc, lost: Doc, live: Doc) -> Doc | None:
    """Three versions merged the naive way, without an order of fields; None for a conflict."""
    result: Doc = {}
    for name in {*before, *lost, *live}:
        b, n, v = (version.get(name, ...) for version in (before, lost, live))
        if n != v and b not in (n, v):
            return None
        value = n if b == v else v
        if value is not ...:
            result[name] = value
    return result


def expected(policy: Policy, before: Doc | None, lost: Doc | None, live: Doc | None, touched: bool) -> Doc | None:
    """What must stand there in the end; fields in any order."""
    if same(lost, before) or same(lost, live):
        return live
    if same(live, before) and (lost is not None or not touched):
        return lost
    if before and lost and live and merged(before, lost, live) == live:
        return live
    if policy is Policy.OVERWRITE:
        return lost
    if policy is Policy.MERGE and before and lost and live:
        return merged(before, lost, live) or live
    return live


@pytest.mark.parametrize("policy", [policy for policy in Policy if policy is not Policy.TO_COLLECTION])
@EXAMPLES
@given(before=STATES, lost=CHANGES, meanwhile=CHANGES)
def test_each_policy_does_what_it_says_and_once(
    policy: Policy, before: dict[int, Doc], lost: Changes, meanwhile: Changes
) -> None:
    history = lose(documents(before), lost)
    live = FakeSet({ORDERS: documents(before).values()})
    touched = change(live, meanwhile)
    was = state_of(live)
    with tempfile.TemporaryDirectory() as folder:
        path = history.write(Path(folder))
        dry = restore(path, live, policy, dry=True)
        assert state_of(live) == was
        first = restore(path, live, policy)
        now = state_of(live)
        for number in {*history.before, *history.now, *was}:
            versions = (history.before.get(number), history.now.get(number), was.get(number))
            assert now.get(number) == expected(policy, *versions, number in touched), number
        would = [Result.DONE if row.result is Result.WOULD else row.result for row in dry]
        assert [row.result for row in first] == would
        writes = live.writes
        second = restore(path, live, policy)
        assert live.writes == writes
        assert state_of(live) == now
        again = [Result.THERE if row.result is Result.DONE else row.result for row in first]
        assert [row.result for row in second] == again


@EXAMPLES
@given(before=STATES, lost=CHANGES, meanwhile=CHANGES, faults=st.lists(st.sampled_from(["before", "after", ""])))
def test_connections_that_break_change_no_outcome(
    before: dict[int, Doc], lost: Changes, meanwhile: Changes, faults: list[str]
) -> None:
    history = lose(documents(before), lost)
    live, calm = (FakeSet({ORDERS: documents(before).values()}) for _ in range(2))
    for one in (live, calm):
        change(one, meanwhile)
    left = faults[:6]

    def fail(when: str) -> None:
        if left and left[0] == when:
            left.pop(0)
            unreachable()

    def before_write(writes: object) -> None:
        if left and not left[0]:
            left.pop(0)
        fail("before")

    live.before_write, live.after_write = before_write, lambda: fail("after")
    with tempfile.TemporaryDirectory() as folder:
        path = history.write(Path(folder))
        found = restore(path, live, Policy.OVERWRITE)
        wanted = restore(path, calm, Policy.OVERWRITE)
    assert live.data == calm.data
    assert [row.result for row in found] == [row.result for row in wanted]


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.KEEP_NEWER, Policy.MERGE])
@EXAMPLES
@given(before=STATES, lost=CHANGES, racing=CHANGES)
def test_a_write_that_comes_between_reading_and_writing_is_not_lost(
    policy: Policy, before: dict[int, Doc], lost: Changes, racing: Changes
) -> None:
    """Whatever another client writes at the worst moment stays, or is merged with what was lost."""
    history = lose(documents(before), lost)
    live = FakeSet({ORDERS: documents(before).values()})
    raced: State = {}

    def race(writes: list[Write]) -> None:
        change(live, racing)
        raced.update(state_of(live))
        live.before_write = lambda writes: None

    live.before_write = race
    with tempfile.TemporaryDirectory() as folder:
        path = history.write(Path(folder))
        restore(path, live, policy)
    if not raced:
        return  # nothing was written, or the race deleted all
    now = state_of(live)
    for number, fields in dict(racing).items():
        versions = (history.before.get(number), history.now.get(number), raced.get(number))
        if fields is None and number not in documents(before):
            continue
        changed = not same(versions[0], versions[2])  # written to what it was already, it is as if nobody had
        assert now.get(number) == expected(policy, *versions, changed), number
