"""Any history, cut anywhere, really rolled back and put back with `overwrite` onto an untouched set, is there again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from replset.bson import decode
from replset.features.recovery.policy import Policy
from replset.features.recovery.restore import Result
from replset.ids import HostPort
from replset.replication.rollback_manifest import list_manifests
from tests.examples import examples
from tests.property.test_restore import restore
from tests.unit.replication.kit import Member, Network, copy_log
from tests.unit.rollback_tools.kit import FakeSet

SOURCE = HostPort("source:1")
SPACES = ("app.orders", "app.parts", "other.things")
VALUES = st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 2), max_size=2))
STEPS = st.tuples(
    st.sampled_from(["create", "drop", "write", "write", "write", "write", "delete", "noop"]),
    st.sampled_from(SPACES),
    st.integers(0, 3),
    st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3),
)
Step = tuple[str, str, int, dict[str, object]]


def do(member: Member, step: Step) -> None:
    """One step, if it can be done."""
    what, ns, number, fields = step
    there = member.store.collection(ns) is not None
    document = {"_id": number, **fields}
    match what:
        case "create" if not there:
            member.create(ns)
        case "drop" if there:
            member.drop(ns)
        case "write" if there and number in member.documents(ns):
            member.update(ns, document)
        case "write" if there:
            member.insert(ns, document)
        case "delete" if there and number in member.documents(ns):
            member.delete(ns, number)
        case _:
            member.noop()


def by_namespace(member: Member) -> dict[str, dict[bytes, bytes]]:
    return {name.partition(" ")[2]: rows for name, rows in member.everything().items()}


def as_set(member: Member) -> FakeSet:
    """A set that holds what this member does."""
    live = FakeSet({ns: map(decode, rows.values()) for ns, rows in by_namespace(member).items()})
    live.uuids = {coll.ns: coll.uuid for coll in member.store.collections()}
    return live


@examples(40)
@given(st.lists(STEPS, max_size=12), st.lists(STEPS, min_size=1, max_size=20))
def test_a_history_that_was_rolled_back_is_put_back_whole(common: list[Step], lost: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        network = Network()
        source, mine = Member(SOURCE, Path(folder), network), Member("mine:1", Path(folder), network)
        try:
            source.create(SPACES[0])
            for step in common:
                do(source, step)
            copy_log(source, mine)
            shared, common_point = by_namespace(mine), mine.store.last_applied
            for step in lost:
                do(mine, step)
            wanted, nothing_was_done = by_namespace(mine), mine.store.last_applied == common_point
            source.node.term = 2
            source.noop()
            asyncio.run(mine.rollback.run(SOURCE))
            assert by_namespace(mine) == shared
            if nothing_was_done:  # an update to what is there already has no entry
                assert list_manifests(mine.folder) == []
                return
            live = as_set(mine)
            (manifest,) = list_manifests(mine.folder)
            path = mine.folder / "rollback" / f"{manifest.id}.json"
            outcomes = restore(path, live, Policy.OVERWRITE)
            assert {row.result for row in outcomes} <= {Result.DONE, Result.THERE}
            assert live.data == wanted
            assert {row.result for row in restore(path, live, Policy.OVERWRITE)} <= {Result.THERE}
        finally:
            for member in (source, mine):
                member.close()
