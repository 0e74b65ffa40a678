"""The commit point: tables for sets with arbiters and non-voters, old terms, and a naive oracle (map C8, K1)."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.core.member_state import MemberState
from replset.core.messages import LocalPosition, Request, StepUpRequest
from replset.core.quorum import commit_point, has_majority
from replset.errors import InvariantError
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime
from tests.unit.core.single_node import CONFIG, NOW, at, grant, lead, place, shaped, single_node

A, B, C = (MemberId(number) for number in range(3))
OLD, NEW, NEWER = at(1), at(2, 1), at(2, 2)


@pytest.mark.parametrize(
    ("shape", "durable", "expected"),
    [
        pytest.param("PSS", [NEW, NEW, OLD], NEW, id="PSS-two-of-three"),
        pytest.param("PSS", [NEW, OLD, OLD], OPTIME_NULL, id="PSS-one-of-three"),
        pytest.param("PSS", [NEWER, NEW, OLD], NEW, id="PSS-the-second-highest"),
        pytest.param("PSS", [OLD, OLD, OLD], OPTIME_NULL, id="PSS-older-term-not-directly"),
        pytest.param("PSS", [NEW], OPTIME_NULL, id="PSS-silent-others"),
        pytest.param("PSA", [NEW, NEW, NEWER], NEW, id="PSA-both"),
        pytest.param("PSA", [NEW, OLD, NEWER], OPTIME_NULL, id="PSA-arbiter-holds-nothing"),
        pytest.param("PAA", [NEW, NEWER, NEWER], NEW, id="PAA-primary-alone"),
        pytest.param("PAA", [OLD, NEWER, NEWER], OPTIME_NULL, id="PAA-older-term"),
        pytest.param("PSSAA", [NEW, NEW, NEW, NEWER, NEWER], NEW, id="PSSAA-all-three"),
        pytest.param("PSSAA", [NEW, NEW, OLD, NEWER, NEWER], OPTIME_NULL, id="PSSAA-two-are-too-few"),
        pytest.param("PSSNN", [NEW, OLD, OLD, NEW, NEW], OPTIME_NULL, id="non-voters-do-not-count"),
        pytest.param("PSSNN", [NEW, NEW, OLD, OLD, OLD], NEW, id="non-voters-do-not-hold-back"),
        pytest.param("PSS+", [NEW, OLD, OLD, NEW], OPTIME_NULL, id="newly-added-does-not-count"),
        pytest.param("PSS+", [NEW, NEW, OLD, OLD], NEW, id="newly-added-does-not-hold-back"),
        pytest.param("P", [NEW], NEW, id="one-member"),
        pytest.param("PS", [NEW, OLD], OPTIME_NULL, id="two-members-need-both"),
        pytest.param("PSSSS", [NEWER, NEWER, NEW, OLD, OLD], NEW, id="five"),
    ],
)
def test_commit_point(shape: str, durable: list[OpTime], expected: OpTime) -> None:
    """The commit point is the writeMajority-th highest last_durable of voting data-bearing members, in this term."""
    config = shaped(shape)
    held = {MemberId(number): optime for number, optime in enumerate(durable)}
    holders = [member.id for member in config.oplog_voters]
    assert commit_point(held, holders, config.write_majority, 2) == expected


@pytest.mark.parametrize("majority", [0, 4])
def test_a_write_majority_is_made_of_data_bearing_voters(majority: int) -> None:
    with pytest.raises(InvariantError):
        commit_point({}, [A, B, C], majority, 1)


def oracle(held: dict[MemberId, OpTime], holders: list[MemberId], majority: int, term: int) -> OpTime:
    """Naive: the newest optime of `term` for which some group of `majority` holders all have at least that."""
    found = OPTIME_NULL
    for group in combinations(holders, majority):
        common = min(held.get(member, OPTIME_NULL) for member in group)
        found = max(found, common)
    return found if found.term == term else OPTIME_NULL


OPTIMES = st.builds(at, st.integers(1, 4), st.integers(1, 5))


@given(
    held=st.dictionaries(st.integers(0, 6).map(MemberId), OPTIMES),
    holders=st.lists(st.integers(0, 6).map(MemberId), min_size=1, unique=True),
    term=st.integers(1, 4),
    data=st.data(),
)
def test_commit_point_equals_the_naive_one(
    held: dict[MemberId, OpTime], holders: list[MemberId], term: int, data: st.DataObject
) -> None:
    majority = data.draw(st.integers(1, len(holders)))
    assert commit_point(held, holders, majority, term) == oracle(held, holders, majority, term)


@pytest.mark.parametrize(
    ("votes", "voters", "enough"),
    [(1, 1, True), (1, 2, False), (2, 2, True), (1, 3, False), (2, 3, True), (2, 4, False), (3, 4, True), (3, 5, True)],
)
def test_a_primary_needs_more_than_half(votes: int, voters: int, enough: bool) -> None:
    """Map H5: it steps down when votes of up members * 2 <= total voters."""
    assert has_majority(votes, voters) is enough


def test_entries_that_the_primary_never_wrote_commit_nothing() -> None:
    """Two others named them before it won the term: forged, or of another primary of it after a forced reconfig.

    What a majority has of this term is then not this primary's entry, and its own is on one disk.
    """
    node = single_node(config=CONFIG)
    for number in (1, 2):
        node.receive_heartbeat(number)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    later = Millis(NOW + 2_000)
    node.tick(later)
    for number in (1, 2):
        node.receive_heartbeat(number, later, term=2, position=place(at(2, 9)))
    grant(node, 1)
    assert node.state is MemberState.PRIMARY
    node.receive(LocalPosition(place(at(2, 1))), NOW)
    assert node.commit_point == OPTIME_NULL


@pytest.mark.parametrize(
    ("optime", "why"),
    [
        pytest.param(at(1, 2), "of its own term", id="of-an-older-term"),
        pytest.param(at(2, 9), "has the entry", id="that-is-not-here"),
    ],
)
def test_a_primary_commits_no_entry(optime: OpTime, why: str) -> None:
    """An older one may still be rolled back by another primary (Raft, 5.4.2)."""
    node = lead(single_node(config=CONFIG))
    with pytest.raises(InvariantError, match=why):
        node._leader.advance_commit_point(optime, 2)
