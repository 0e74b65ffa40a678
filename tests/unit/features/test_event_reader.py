"""Reading change events in pieces: nothing is left out or told twice, however they are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from replset.bson import Int64, decode
from replset.features.change_streams.event_reader import EventOptions, EventReader, ToldEvent
from replset.ids import pack_ts
from replset.query.change_events import Watched
from replset.query.change_tokens import Kind, Token, behind, in_front_of
from tests.rig import Client, Rig

ITEMS, DATABASE, DEPLOYMENT = Watched("test", "items"), Watched("test"), Watched()
LARGE = 1 << 30


def transaction(client: Client, number: int, *commands: dict[str, Any]) -> None:
    session = {"lsid": {"id": client.ok({"startSession": 1})["id"]["id"]}, "txnNumber": Int64(number)}
    for place, command in enumerate(commands):
        begins = {"startTransaction": True} if place == 0 else {}
        client.ok({**command, **session, "autocommit": False, **begins})
    client.ok({"commitTransaction": 1, **session, "autocommit": False}, "admin")


def inserted(*ids: int, coll: str = "items") -> dict[str, Any]:
    return {"insert": coll, "documents": [{"_id": number, "a": 0} for number in ids]}


def updated(number: int, a: int) -> dict[str, Any]:
    return {"update": "items", "updates": [{"q": {"_id": number}, "u": {"$set": {"a": a, "x": "x" * 50 * a}}}]}


@pytest.fixture
def past(client: Client) -> Client:
    """Events of one document and of several in one entry, beside those of another collection."""
    for command in (inserted(1, 2), inserted(1, coll="others"), updated(1, 1)):
        client.ok(command)
    transaction(client, 1, inserted(3), inserted(2, coll="others"), updated(1, 2), updated(1, 3))
    transaction(client, 2, updated(3, 1), updated(1, 4), inserted(3, 4, coll="others"))
    client.ok({"delete": "items", "deletes": [{"q": {"_id": 2}, "limit": 1}]})
    client.ok(inserted(5, coll="others"))
    return client


def pages(
    client: Client, reader: EventReader, at: Token, limit: int, max_bytes: int
) -> list[tuple[list[ToldEvent], Token]]:
    """Read to the end; the last page is empty and goes no further."""
    found: list[tuple[list[ToldEvent], Token]] = []
    while not found or found[-1][0] or found[-1][1] != at:
        at = found[-1][1] if found else at
        found.append(client.rig.do(reader.read(at, limit=limit, max_bytes=max_bytes)))
    return found


def events_of(found: list[tuple[list[ToldEvent], Token]]) -> list[ToldEvent]:
    return [event for events, _ in found for event in events]


OPTIONS = [
    EventOptions(ITEMS),
    EventOptions(DATABASE),
    EventOptions(DEPLOYMENT, expanded=True),
    EventOptions(ITEMS, full_document="required", before_change="required"),
    EventOptions(ITEMS, full_document="updateLookup"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_pieces_make_the_whole(past: Client, options: EventOptions) -> None:
    """With each limit of events and bytes, by one reader or by another one for each piece."""
    begin, end = in_front_of(0), behind(past.member.store.last_applied)
    whole = events_of(pages(past, EventReader(past.member, options), begin, 1_000, LARGE))
    assert [event.token for event in whole] == sorted({event.token for event in whole})
    for limit, max_bytes in ((1, LARGE), (2, LARGE), (3, LARGE), (1_000, 1), (1_000, 400), (2, 400)):
        reader = EventReader(past.member, options)
        found = pages(past, reader, begin, limit, max_bytes)
        assert events_of(found) == whole
        assert found[-1][1] == end
        assert (reader.is_at_end(found[-1][1]), reader.is_at_end(found[0][1])) == (True, False)
        assert reader.kept_bytes == 0
        for events, reached in found:
            assert len(events) <= limit
            assert all(event.token <= reached for event in events)
        if not options.is_plain:  # the images are what is large
            assert all(sum(len(one.raw) for one in events[:-1]) < max_bytes for events, _ in found)
    for number, event in enumerate(whole):
        rest = events_of(pages(past, EventReader(past.member, options), event.token, 2, LARGE))
        assert rest == whole[number + 1 :]


def test_images_are_those_of_each_write(past: Client) -> None:
    """The naive model: each version of a document is the one that its event before left."""
    options = EventOptions(ITEMS, full_document="required", before_change="required")
    documents: dict[int, dict[str, Any]] = {}
    for event in events_of(pages(past, EventReader(past.member, options), in_front_of(0), 1_000, LARGE)):
        told = decode(event.raw)
        if "documentKey" not in told:
            continue
        number, kind = told["documentKey"]["_id"], told["operationType"]
        assert told.get("fullDocumentBeforeChange") == (None if kind == "insert" else documents[number])
        if kind == "update":
            documents[number] |= told["updateDescription"]["updatedFields"]
            assert told["fullDocument"] == documents[number]
        elif kind == "insert":
            documents[number] = told["fullDocument"]
        else:
            del documents[number]
            assert "fullDocument" not in told
    assert sorted(documents) == [1, 3]


def test_a_page_that_is_left_is_read_once(past: Client) -> None:
    """The rest of a page stays until the reader goes on elsewhere, or frees it."""
    reader = EventReader(past.member, EventOptions(ITEMS))
    begin = in_front_of(0)
    _, at = past.rig.do(reader.read(begin, limit=1))
    kept = reader.kept_bytes
    assert kept > 0
    _, again = past.rig.do(reader.read(at, limit=1))
    assert 0 < reader.kept_bytes < kept
    assert past.rig.do(reader.read(begin, limit=1))[1] == at, "it goes back"
    reader.drop_page()
    assert reader.kept_bytes == 0
    assert past.rig.do(reader.read(at, limit=1))[1] == again


def test_tokens_of_its_own_events_are_known(past: Client) -> None:
    reader, everything = (EventReader(past.member, EventOptions(scope)) for scope in (ITEMS, DEPLOYMENT))

    def knows(token: Token) -> bool:
        return past.rig.do(reader.knows(token))

    own, every = (events_of(pages(past, one, in_front_of(0), 1_000, LARGE)) for one in (reader, everything))
    tokens = {event.token for event in own}
    assert [knows(event.token) for event in every] == [event.token in tokens for event in every]
    for token in tokens:
        assert not knows(token._replace(term=token.term + 1))
        assert not knows(token._replace(operation=9))
        before = token._replace(ts=token.ts - 1)
        assert knows(before) == (before in tokens)
    newest = past.member.store.last_applied
    ahead = Token(newest.ts + 1, 0, Kind.EVENT, 0, newest.term)
    assert knows(ahead), "it may still come to this member"


@pytest.mark.parametrize("concerns", [True, False])
def test_a_wait_ends_with_what_concerns_it_or_behind_what_does_not(past: Client, rig: Rig, concerns: bool) -> None:
    reader, at = EventReader(past.member, EventOptions(ITEMS)), behind(past.member.store.last_applied)
    for place in (at, at._replace(ts=at.ts + pack_ts(100, 0))):
        waiting = rig.begin(reader.wait(place, 500))
        rig.turn()
        past.ok(inserted(len(past.entries()), coll="items" if concerns else "others"))
        rig.wait(0.6)
        newest = behind(past.member.store.last_applied)
        assert waiting.result() == (at if concerns and place == at else max(newest, place))
        at = newest


def test_a_dropped_collection_ends_all_pieces(past: Client) -> None:
    past.ok({"drop": "items"})
    past.ok(inserted(1))
    whole = EventReader(past.member, EventOptions(ITEMS))
    events, _ = past.rig.do(whole.read(in_front_of(0)))
    assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
    last, dropped = events[-1], events[-2]
    assert (last.token.kind, dropped.token.kind, last.key) == (Kind.INVALIDATE, Kind.EVENT, None)
    for before, after in pairwise(events):
        (told, *_), reached = past.rig.do(EventReader(past.member, EventOptions(ITEMS)).read(before.token, limit=1))
        assert (told, reached >= after.token) == (after, True)
