"""Documents of named consumers, leases, and which events of a shared one go to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import decode, encode
from replset.errors import BadValueError, ConsumerMovedError, InvariantError
from replset.features.consumers.consumer import MOST_OUTSTANDING, Claim, Consumer, Leases
from replset.features.consumers.operations import Mode
from replset.features.consumers.shared_window import SharedWindow
from replset.ids import Millis, OpTime
from replset.query.change_tokens import Kind, Token
from tests.examples import examples

NOW = Millis(1_000)
TIMEOUT_MS = 500


def token(number: int) -> str:
    return str(Token(number, 0, Kind.EVENT, 0, 1))


CONSUMER = Consumer("c", "shop", "orders", {"operationType": "insert"}, Mode.SHARED, token(5))


def test_a_document_is_read_as_it_was_written() -> None:
    for consumer in (CONSUMER, replace(CONSUMER, collection="", acked=(token(7),), holder="a", generation=9)):
        assert Consumer.parse(decode(encode(consumer.document()))) == consumer
    assert CONSUMER.at == OpTime(1, 5)


def test_a_position_never_goes_back_by_acknowledging() -> None:
    moved = CONSUMER.acknowledged_through(1, token(9))
    assert moved.position == token(9)
    assert moved.acknowledged_through(1, token(6)) == moved
    ahead = CONSUMER.acknowledged(1, [token(7), token(12), token(3)])
    assert ahead.acked == (token(7), token(12))
    assert ahead.acknowledged_through(1, token(7)).acked == (token(12),)


@pytest.mark.parametrize("changed", [CONSUMER.taken_by("b"), CONSUMER.moved_to(token(2))], ids=["taken", "moved"])
def test_what_was_read_before_a_change_is_not_acknowledged(changed: Consumer) -> None:
    for refused in (lambda: changed.acknowledged_through(1, token(9)), lambda: changed.acknowledged(1, [token(9)])):
        with pytest.raises(ConsumerMovedError, match="generation 2"):
            refused()
    assert changed.acknowledged_through(2, token(9)).position == token(9)


def test_acknowledgements_ahead_have_a_limit() -> None:
    with pytest.raises(BadValueError, match="ahead of one"):
        CONSUMER.acknowledged(1, [token(number) for number in range(6, 7 + MOST_OUTSTANDING)])


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_holder_has_its_lease_from_when_a_primary_first_looks() -> None:
    leases = Leases()
    held = replace(CONSUMER, mode=Mode.FAILOVER, holder="a", ack_timeout_ms=TIMEOUT_MS)
    assert leases.claim(held, "b", NOW) is Claim.WAITS
    assert leases.claim(held, "b", Millis(NOW + TIMEOUT_MS - 1)) is Claim.WAITS
    assert leases.claim(held, "a", Millis(NOW + 300)) is Claim.HOLDS
    assert leases.claim(held, "b", Millis(NOW + TIMEOUT_MS)) is Claim.WAITS
    assert leases.claim(held, "b", Millis(NOW + 300 + TIMEOUT_MS)) is Claim.MAY_TAKE
    leases.end(held, NOW)
    assert leases.claim(held, "b", NOW) is Claim.MAY_TAKE
    assert leases.claim(replace(held, holder=""), "b", NOW) is Claim.MAY_TAKE
    assert leases.claim(held.taken_by("b"), "a", NOW) is Claim.WAITS


# --- shared ----------------------------------------------------------------------------------------------------------


def window(*events: tuple[int, str], acked: tuple[int, ...] = (), most: int = 100) -> SharedWindow:
    made = SharedWindow(token(0), [token(number) for number in acked], 1, most)
    made.add([(token(number), key.encode()) for number, key in events], token(50))
    return made


def numbers(made: SharedWindow, reader: str, most: int = 100, now: int = NOW) -> list[int]:
    return [Token.parse(event.token).ts for event in made.take(reader, most, Millis(now), TIMEOUT_MS)]


def test_each_event_goes_to_one_reader_until_it_is_silent() -> None:
    made = window((1, "x"), (2, "y"), (3, "z"), acked=(2,))
    assert numbers(made, "a", 1) == [1]
    assert numbers(made, "b") == [3]
    assert numbers(made, "b") == []
    assert made.next_due(NOW) == NOW + TIMEOUT_MS
    assert numbers(made, "b", now=NOW + TIMEOUT_MS) == [1, 3]
    assert made.outstanding == 2


def test_events_of_one_document_stay_in_order() -> None:
    made = window((1, "x"), (2, "x"), (3, "y"), (4, "x"))
    assert numbers(made, "a", 1) == [1]
    assert numbers(made, "b") == [3]
    assert numbers(made, "a") == [], "the answer with the first may be lost"
    made.acknowledge([token(1)])
    assert numbers(made, "a") == [2, 4]
    made.give_back([token(2)], Millis(NOW + 100))
    assert numbers(made, "b") == []
    assert numbers(made, "b", now=NOW + 100) == [2]


def test_an_event_without_a_document_waits_for_all_and_all_wait_for_it() -> None:
    made = window((1, "x"), (2, ""), (3, "x"), (4, "y"))
    assert numbers(made, "a") == [1]
    assert numbers(made, "a") == numbers(made, "b") == []
    made.acknowledge([token(1)])
    assert numbers(made, "b") == [2]
    assert numbers(made, "b") == []
    made.acknowledge([token(2)])
    assert numbers(made, "b") == [3, 4]


def test_the_position_is_before_the_first_event_that_is_not_acknowledged() -> None:
    made = window((1, "x"), (2, "y"), (3, "z"))
    numbers(made, "a")
    assert made.acknowledge([token(2)]) == token(0)
    assert made.acknowledge([token(1)]) == token(2)
    assert made.acknowledge([token(3)]) == token(50)
    made.add([(token(60), b"x")], token(70))
    assert numbers(made, "a") == [60]
    assert made.room == 99


def test_what_is_acknowledged_before_it_is_looked_at_is_given_to_nobody() -> None:
    """A new primary gets acknowledgements of what the one before gave out."""
    made = window((1, "x"))
    assert made.acknowledge([token(61)]) == token(0)
    made.add([(token(60), b"y"), (token(61), b"z")], token(70))
    assert numbers(made, "a") == [1, 60]


def test_a_position_does_not_pass_an_event_that_is_not_acknowledged() -> None:
    """Nobody would be given it again after a restart."""
    made = window((1, "x"))
    made.add([(token(9), b"y")], token(9))  # a read that went back: it began behind 50
    with pytest.raises(InvariantError, match="not over an event"):
        made.acknowledge([token(1)])


@examples(40)
@given(st.data())
def test_shared_events_are_never_skipped_and_never_overtaken(data: st.DataObject) -> None:
    """Whatever readers do, and however often the primary changes, each event is given out until it is acknowledged, and
    none is given while an earlier one of its document is with another reader or waits.
    """
    keys = data.draw(st.lists(st.sampled_from(["x", "y", "z", ""]), min_size=1, max_size=12))
    consumer = replace(CONSUMER, position=token(0), acked=())
    events = [(token(number), key.encode()) for number, key in enumerate(keys, 1)]
    made, now, done = SharedWindow(token(0), (), 1, 5), NOW, set[str]()
    for _ in range(60):
        fresh = [event for event in events if event[0] > made.through][: max(0, made.room)]
        if fresh:
            made.add(fresh, fresh[-1][0])
        taken = made.take(data.draw(st.sampled_from("ab")), data.draw(st.integers(1, 4)), now, TIMEOUT_MS)
        for event in taken:
            assert event.token not in done
            earlier = [t for t, key in events if t < event.token and t not in done]
            of_key = {t for t, key in events if key in (event.key, b"")}
            overtaken = set(earlier) & of_key - {other.token for other in taken} if event.key else earlier
            assert not overtaken
        acked = [event.token for event in taken if data.draw(st.booleans())]
        consumer = consumer.acknowledged(1, acked).acknowledged_through(1, made.acknowledge(acked))
        done |= set(acked)
        if data.draw(st.integers(0, 5)) == 0:
            made = SharedWindow(consumer.position, consumer.acked, 1, 5)
        now = Millis(now + data.draw(st.sampled_from([10, TIMEOUT_MS])))
        if len(done) == len(events):
            break
        assert all(t in done for t, _ in events if t <= consumer.position or t in consumer.acked)
