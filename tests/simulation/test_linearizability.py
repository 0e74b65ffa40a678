"""The checker of linearizability accepts what is, and rejects what is not: by hand, and against every order."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.simulation.kit.linearizability import ABSENT, NEVER, Kind, Operation, TooHardError, violation


def put(value: str | None, invoked: float, returned: float = NEVER, key: str = "r") -> Operation:
    return Operation(key, Kind.PUT, value, invoked, returned)


def cas(expected: str | None, value: str, invoked: float, returned: float = NEVER) -> Operation:
    return Operation("r", Kind.CAS, value, invoked, returned, expected)


def read(value: str | None, invoked: float, returned: float, key: str = "r") -> Operation:
    return Operation(key, Kind.READ, value, invoked, returned)


GOOD = {
    "nothing": [],
    "one after the other": [put("a", 1, 2), read("a", 3, 4), cas("a", "b", 5, 6), read("b", 7, 8)],
    "a read during a write sees either": [put("a", 1, 2), put("b", 3, 9), read("a", 4, 5), read("b", 6, 7)],
    "writes at once in the order that a read tells": [put("a", 1, 5), put("b", 1, 5), read("a", 6, 7)],
    "an unknown write that took effect late": [put("a", 1, 2), put("b", 3), read("a", 4, 5), read("b", 90, 91)],
    "an unknown write that never did": [put("a", 1, 2), put("b", 3), read("a", 4, 5), read("a", 90, 91)],
    "a delete": [put("a", 1, 2), put(ABSENT, 3, 4), read(ABSENT, 5, 6), cas(ABSENT, "b", 7, 8)],
    "two documents": [put("a", 1, 2, "x"), put("b", 1, 2, "y"), read("a", 3, 4, "x"), read("b", 3, 4, "y")],
}
BAD = {
    "a read of what nobody wrote": [read("a", 1, 2)],
    "a stale read": [put("a", 1, 2), put("b", 3, 4), read("a", 5, 6)],
    "a lost write": [put("a", 1, 2), read(ABSENT, 3, 4)],
    "two swaps from one value": [put("a", 1, 2), cas("a", "b", 3, 6), cas("a", "c", 4, 7)],
    "a swap from a value that was gone": [put("a", 1, 2), put("b", 3, 4), cas("a", "c", 5, 6)],
    "back to the old value": [put("a", 1, 2), put("b", 3, 20), read("b", 4, 5), read("a", 6, 7)],
    "an unknown write that comes and goes": [put("a", 1, 2), put("b", 3), read("b", 4, 5), read("a", 6, 7)],
    "a read from the future": [read("a", 1, 2), put("a", 3, 4)],
    "an unknown write read before it was asked for": [read("b", 1, 2), put("b", 3)],
    "a delete that did not stay": [put("a", 1, 2), put(ABSENT, 3, 4), read("a", 5, 6)],
    "the second of two documents": [put("a", 1, 2, "x"), put("b", 1, 2, "y"), read("a", 3, 4, "y")],
}


@pytest.mark.parametrize("history", [pytest.param(history, id=name) for name, history in GOOD.items()])
def test_a_good_history_is_accepted(history: list[Operation]) -> None:
    assert violation(history) is None


@pytest.mark.parametrize("history", [pytest.param(history, id=name) for name, history in BAD.items()])
def test_a_bad_history_is_rejected(history: list[Operation]) -> None:
    found = violation(history)
    assert found is not None
    assert found.stuck
    assert "is not linearizable" in str(found)


def has_an_order(history: list[Operation]) -> bool:
    """By trying every order of every choice of the uncertain operations."""
    uncertain = [n for n, op in enumerate(history) if op.returned == NEVER]
    for choice in range(1 << len(uncertain)):
        left_out = {n for bit, n in enumerate(uncertain) if choice >> bit & 1}
        chosen = [op for n, op in enumerate(history) if n not in left_out]
        if any(is_an_order(order) for order in permutations(chosen)):
            return True
    return False


def is_an_order(order: tuple[Operation, ...]) -> bool:
    value = ABSENT
    for n, operation in enumerate(order):
        if any(later.returned < operation.invoked for later in order[n + 1 :]):
            return False
        if operation.kind is not Kind.PUT:
            needed = operation.value if operation.kind is Kind.READ else operation.expected
            if value != needed:
                return False
        value = operation.value
    return True


values = st.sampled_from(["a", "b", ABSENT])


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    operations = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(list(Kind)))
        invoked = draw(st.integers(0, 8))
        returned = float(invoked + draw(st.integers(1, 6)))
        if kind is not Kind.READ and draw(st.booleans()):
            returned = NEVER
        operations.append(Operation("r", kind, draw(values), invoked, returned, draw(values)))
    return operations


@given(histories())
@examples(400)
def test_it_agrees_with_every_order_tried(history: list[Operation]) -> None:
    assert (violation(history) is None) == has_an_order(history)


def test_a_long_history_takes_a_moment() -> None:
    """A thousand operations of eight clients at once, a tenth of them without an answer."""
    history = []
    for n in range(1_000):
        returned = NEVER if n % 10 == 3 else n * 10 + 75
        history.append(put(f"v{n}", n * 10, returned))
        history.append(read(f"v{n}", n * 10 + 1, n * 10 + 9))
    assert violation(history) is None
    spoilt = [*history, read("v10", 20_000, 20_001)]
    found = violation(spoilt)
    assert found is not None
    assert found.stuck == (spoilt[-1],)


def test_a_history_that_is_too_hard_raises_an_error() -> None:
    history = [put(f"v{n}", 0, 100) for n in range(12)] + [read("w", 101, 102)]
    with pytest.raises(TooHardError):
        violation(history, states_max=1_000)
