"""Is a history of operations on single documents linearizable? A search after Wing and Gong, with Lowe's memory.

A document is a register that holds a value or nothing. Each operation takes effect at one moment between its call and
its answer. One without an answer may take effect at any later moment, or never. Documents are independent of each
other (linearizability is local), so each is searched alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

NEVER = float("inf")
ABSENT: str | None = None
"""The value of a document that is not there."""


class Kind(Enum):
    """put: whatever was there, the value is. cas: the value was `expected` and is `value`. read: it was `value`."""

    PUT = "put"
    CAS = "cas"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that took effect, or may have. returned: NEVER when nobody knows whether it did.

    Times are of one clock that all clients share. A put of ABSENT is a delete; a cas from ABSENT is an insert.
    """

    key: str
    kind: Kind
    value: str | None
    invoked: float
    returned: float = NEVER
    expected: str | None = ABSENT
    who: str = ""

    @property
    def is_certain(self) -> bool:
        return self.returned != NEVER

    def __str__(self) -> str:
        what = f"cas {self.expected} -> {self.value}" if self.kind is Kind.CAS else f"{self.kind.value} {self.value}"
        until = f"{self.returned:g}" if self.is_certain else "?"
        return f"{self.key}: {what} [{self.invoked:g}, {until}] {self.who}".rstrip()


@dataclass(frozen=True, slots=True)
class Violation:
    """key: the document. done: a longest order that was found. stuck: what fits at no place behind it."""

    key: str
    done: tuple[Operation, ...]
    stuck: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"{self.key} is not linearizable; the longest order that was found ends with"]
        lines += [f"  {operation}" for operation in self.done[-6:]]
        lines += ["and then none of these can follow"]
        lines += [f"  {operation}" for operation in self.stuck]
        return "\n".join(lines)


class TooHardError(Exception):
    """The search went through more states than it may: the history says nothing either way."""


def violation(history: Iterable[Operation], *, states_max: int = 2_000_000) -> Violation | None:
    """The first document's history that has no linear order, None when all have one. TooHardError after so many states
    of one document.
    """
    by_key: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key, operations in sorted(by_key.items()):
        found = _search(key, _needed(operations), states_max)
        if found is not None:
            return found
    return None


def _needed(operations: list[Operation]) -> list[Operation]:
    """Without what says nothing: a read without an answer, and a write without one whose value nobody ever saw. Such a
    write can be left out of every order that it is in: only those who see its value depend on it.
    """
    seen = {op.value for op in operations if op.kind is Kind.READ}
    seen |= {op.expected for op in operations if op.kind is Kind.CAS}
    kept = [op for op in operations if op.is_certain or (op.kind is not Kind.READ and op.value in seen)]
    return sorted(kept, key=lambda op: (op.invoked, op.returned))


def _search(key: str, operations: list[Operation], states_max: int) -> Violation | None:
    """Depth first over (what has taken effect, the value), each pair once."""
    certain = 0
    for n, operation in enumerate(operations):
        certain |= operation.is_certain << n
    order: list[int] = []
    longest: list[int] = []
    seen: set[tuple[int, str | None]] = set()
    stack = [(0, ABSENT, iter(_candidates(operations, 0)))]
    while stack:
        done, value, candidates = stack[-1]
        if not certain & ~done:
            return None
        for n in candidates:
            after = _effect(operations[n], value)
            state = (done | 1 << n, value if after is None else after[0])
            if after is None or state in seen:
                continue
            seen.add(state)
            if len(seen) > states_max:
                raise TooHardError(f"{key}: {len(operations)} operations, more than {states_max} states")
            order.append(n)
            if len(order) > len(longest):
                longest = list(order)
            stack.append((*state, iter(_candidates(operations, state[0]))))
            break
        else:
            stack.pop()
            if order:
                order.pop()
    done = sum(1 << n for n in longest)
    stuck = [operations[n] for n in _candidates(operations, done)]
    return Violation(key, tuple(operations[n] for n in longest), tuple(stuck))


def _effect(operation: Operation, value: str | None) -> tuple[str | None] | None:
    """The value behind the operation, None when it cannot have happened at this value."""
    match operation.kind:
        case Kind.PUT:
            return (operation.value,)
        case Kind.CAS:
            return (operation.value,) if value == operation.expected else None
        case Kind.READ:
            return (value,) if value == operation.value else None


def _candidates(operations: list[Operation], done: int) -> list[int]:
    """Who may take effect next: everybody that was called before the first answer among those who have not.

    operations are in the order of their calls.
    """
    found = []
    first_answer = NEVER
    first = (~done & (done + 1)).bit_length() - 1  # all before it have
    for n in range(first, len(operations)):
        operation = operations[n]
        if done >> n & 1:
            continue
        if operation.invoked > first_answer:
            break
        found.append(n)
        first_answer = min(first_answer, operation.returned)
    return [n for n in found if operations[n].invoked <= first_answer]
