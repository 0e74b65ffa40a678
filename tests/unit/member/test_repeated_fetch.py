"""A fetch that is read by its form says what the general reading of the same bytes says, and does the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import ObjectId, RawDocument
from replset.core.messages import MemberProgress, Position, ProgressRequest
from replset.errors import ReplError
from replset.ids import MemberId, OpTime
from replset.member.net import wire_connection
from replset.member.peers.member_commands import repeated_fetch
from replset.member.peers.message_documents import parse_progress, progress_document
from replset.member.peers.oplog_fetch import OplogFetches
from replset.member.peers.repeated_fetch import FetchDocuments, RepeatedFetch
from replset.operations.dispatcher import Dispatcher
from replset.replication.protocol import FetchRequest
from replset.wire.framing import FrameReader, encode_request
from tests.rig import Rig, a_set
from tests.unit.features.test_prepared import MAJORITY, Wire, insert

SET_ID = ObjectId(bytes(range(12)))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OPTIMES = st.builds(OpTime, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
POSITIONS = st.builds(Position, OPTIMES, OPTIMES, INT64, INT64)
IDS = st.integers(0, (1 << 31) - 1)


class Served:
    """In the place of a member and its OplogFetches: keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, ProgressRequest | None]] = []

    def __getitem__(self, kind: type) -> Served:
        assert kind is OplogFetches
        return self

    def serve(self, request: FetchRequest, progress: ProgressRequest | None, waiter: object) -> None:
        self.asked.append((request, progress))


def frame(
    after: OpTime, chain: int, known: OpTime, position: Position, number: int = 1, *, term: int = 3, rows: int = 1
) -> bytes:
    row = MemberProgress(MemberId(2), "incarnation", position)
    progress = ProgressRequest(MemberId(2), term, 5, 1, (row,) * rows, SET_ID)
    request = FetchRequest(after, chain, 4 << 20, 5_000, term, known, 7, False, progress_document(progress), SET_ID)
    return encode_request(number, request.document(), "admin")


def body_of(message: bytes) -> RawDocument:
    (found,) = FrameReader().feed(message)
    return found.body


def form_of(message: bytes) -> tuple[RepeatedFetch, Served]:
    served = Served()
    form = repeated_fetch(served, body_of(message), message)  # type: ignore[arg-type]
    assert form is not None
    return form, served


PLAIN = frame(OpTime(3, 17 << 31 | 4), -9, OpTime(3, 17 << 31), Position(OpTime(3, 6), OpTime(2, 5), 1, 2))


@given(OPTIMES, INT64, OPTIMES, POSITIONS, IDS)
def test_it_is_read_as_any_fetch_is(after: OpTime, chain: int, known: OpTime, position: Position, number: int) -> None:
    form, served = form_of(PLAIN)
    message = frame(after, chain, known, position, number)
    assert form.fits(message)
    form.begin(message, None)  # type: ignore[arg-type]
    usual = FetchRequest.parse(body_of(message))
    assert usual.progress is not None
    ((request, progress),) = served.asked
    assert progress == parse_progress(usual.progress)
    assert request == FetchRequest(**{**usual.__dict__, "progress": None})


@given(st.lists(st.tuples(OPTIMES, INT64, OPTIMES, POSITIONS, st.sampled_from(("", "term", "rows", "awaits")))))
def test_it_is_written_as_any_fetch_is(steps: list[tuple[OpTime, int, OpTime, Position, str]]) -> None:
    """What is the same each time changes now and then."""
    documents, term, rows, awaits = FetchDocuments(), 3, 1, False
    for after, chain, known, position, change in steps:
        term += change == "term"
        rows = (rows + (change == "rows")) % 3
        awaits = awaits is not (change == "awaits")
        row = MemberProgress(MemberId(2), "incarnation", position)
        progress = ProgressRequest(MemberId(2), term, 5, 1, (row,) * rows, SET_ID) if rows else None
        request = FetchRequest(after, chain, 4 << 20, 5_000, term, known, 7, awaits, None, SET_ID)
        whole = replace(request, progress=None if progress is None else progress_document(progress))
        assert documents(request, progress).raw == whole.document().raw


def test_every_byte_but_those_of_the_numbers_has_to_be_the_same() -> None:
    form, served = form_of(PLAIN)
    free = 0
    for at in range(len(PLAIN)):
        changed = bytearray(PLAIN)
        changed[at] ^= 0x55
        free += form.fits(bytes(changed))
        assert not form.fits(PLAIN[:at])
    assert free == 4 + 8 * 11, "the message's id, and eleven numbers of 64 bits"
    assert not form.fits(PLAIN + b"\0")
    assert not served.asked


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("at_byte", [7, 3])
def test_an_optime_that_cannot_be_is_refused(at_byte: int, which: int) -> None:
    """Its increment has a bit too many, or its term is below zero."""
    impossible = frame(OpTime(3, 9), 1, OpTime(3, 9), Position(OpTime(3, 6), OpTime(3, 6), 1, 2))
    form, served = form_of(impossible)
    places = [found.end() for found in re.finditer(b"\x11ts\0", impossible)]
    assert len(places) == 4
    place = places[which] + (0 if at_byte == 3 else 8 + len(b"\x12t\0"))
    changed = bytearray(impossible)
    changed[place + at_byte] |= 0x80
    assert form.fits(bytes(changed))
    with pytest.raises(ReplError):
        form.begin(bytes(changed), None)  # type: ignore[arg-type]
    assert not served.asked


def test_a_fetch_of_another_form_has_none() -> None:
    """With the positions of two members; without one; with its fields in another order."""
    two = frame(OpTime(3, 1), 1, OpTime(3, 1), Position(OpTime(3, 6), OpTime(3, 6), 1, 2), rows=2)
    request = FetchRequest.parse(body_of(PLAIN))
    alone = FetchRequest(**{**request.__dict__, "progress": None})
    turned = dict(reversed(body_of(PLAIN).decode().items()))
    for message in (two, encode_request(1, alone.document(), "admin"), encode_request(1, turned, "admin")):
        assert repeated_fetch(Served(), body_of(message), message) is None  # type: ignore[arg-type]


def insert_some(rig: Rig, first: int, number: int = 10) -> None:
    wire = Wire(rig)
    for n in range(first, first + number):
        assert wire.send(insert({"_id": n}, **MAJORITY))["n"] == 1


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each fetch that looked like the last one was taken by its form."""
    taken: list[bool] = []
    again = Dispatcher.again

    def counted(*given: object) -> bool:
        taken.append(again(*given))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(Dispatcher, "again", counted)
    return taken


def test_members_that_keep_up_are_served_by_form(repeats: list[bool]) -> None:
    with a_set(3) as rig:
        insert_some(rig, 0)
        counted = rig.member().dispatcher.counts["replSetOplogFetch"]
        taken = sum(repeats)
        insert_some(rig, 10)
        more = rig.member().dispatcher.counts["replSetOplogFetch"] - counted
        assert sum(repeats) - taken >= 10, "one for each write at least"
        assert more >= sum(repeats) - taken, "each is counted as any command"


def test_it_is_served_as_any_fetch_is(monkeypatch: pytest.MonkeyPatch, repeats: list[bool]) -> None:
    def state() -> list[object]:
        with a_set(3) as rig:
            insert_some(rig, 0, 20)
            rig.wait(5)
            members = [rig.member(name) for name in "abc"]
            return [
                (member.store.last_applied, member.store.chain, member.node.commit_point, member.node.member_progress())
                for member in members
            ]

    by_form = state()
    assert any(repeats)
    repeats.clear()
    monkeypatch.setattr(wire_connection, "MOST_IN_VAIN", 0)
    assert state() == by_form
    assert not repeats


def test_a_cut_and_a_fail_point_hold_it_as_any_fetch(repeats: list[bool]) -> None:
    with a_set(3) as rig:
        insert_some(rig, 0)
        fail_point = {"configureFailPoint": "failCommand", "data": {"failCommands": ["ping"]}}
        rig.client().ok({**fail_point, "mode": "alwaysOn"}, "admin")
        repeats.clear()
        insert_some(rig, 10, 3)
        assert not any(repeats)
        rig.client().ok({**fail_point, "mode": "off"}, "admin")
        insert_some(rig, 13, 3)
        assert any(repeats)
        hosts = [rig.member(name).host for name in "bc"]
        rig.client().ok({"replSetTestCut": 1, "hosts": hosts, "direction": "in"}, "admin")
        reply = Wire(rig).send(insert({"_id": 20}, writeConcern={"w": "majority", "wtimeout": 300}))
        assert reply["writeConcernError"]["code"] in (64, 100)
