"""The states of accumulators: each takes values one by one and gives a result at any time.

They are plain objects that can be pickled, since a group that is too large goes to disk with its half-done states.
`replset/query/expressions/accumulators.py` compiles the specifications that make them.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, Final, Protocol

from replset.bson import Decimal128, Int64
from replset.query.collation import Fold
from replset.query.numbers import DECIMAL128, INT32, to_decimal, to_stored_int
from replset.query.order import MISSING, is_null, is_number
from replset.query.sizes import MAX_BYTES, size_of, sized_key, too_large
from replset.query.time_limit import check_time

_STATE_BYTES: Final = 150
_RUN: Final = 8192
_COMPLEMENT: Final = bytes(range(255, -1, -1))
_bits = Struct(">q")
_double = Struct(">d")
_INFINITY_RANK: Final = 0x7FF0 << 48


class State(Protocol):
    """What an accumulator knows of the values that it has taken. One that compares them has the collation's fold.

    add, remove: take a value, give back the oldest one (only a state made for a window can).
    memory_bytes: about what the state takes.
    """

    def add(self, value: Any) -> None: ...

    def result(self) -> Any: ...

    @property
    def memory_bytes(self) -> int: ...


class _Small:
    """A state that keeps no more than a few numbers."""

    __slots__ = ()

    @property
    def memory_bytes(self) -> int:
        return _STATE_BYTES


class _Keeping:
    """A state that keeps values."""

    __slots__ = ("memory_bytes",)

    def __init__(self) -> None:
        self.memory_bytes = _STATE_BYTES

    def _count(self, value: Any, times: int = 1) -> None:
        self.memory_bytes += times * size_of(value)
        if self.memory_bytes > MAX_BYTES:
            raise too_large("an accumulator", MAX_BYTES)


class Sum(_Small):
    """The sum of the numbers; other values count as nothing. Its type is the widest one among them.

    An int that does not fit 64 bits becomes a double. Doubles are summed as Kahan and Babuska do.
    """

    __slots__ = ("_decimal", "_decimals", "_doubles", "_error", "_int", "_longs", "_not_finite", "_total")

    def __init__(self) -> None:
        self._int = self._longs = self._doubles = self._decimals = 0
        self._total = self._error = 0.0
        self._decimal = to_decimal(0)
        self._not_finite = [0, 0, 0]
        """How many NaN, infinite and negative infinite values there are: they cannot be taken back from a sum."""

    def add(self, value: Any, times: int = 1) -> None:
        """Add the value once, or a whole number so many times (as often as it is negative, take it back)."""
        kind = type(value)
        if kind is float:
            before = self._total
            total = before + value * times
            if math.isfinite(total):  # then all three are
                self._total = total
                self._doubles += times
                larger, smaller = (before, value * times) if abs(before) >= abs(value) else (value * times, before)
                self._error += (larger - total) + smaller
                return
        if kind is int or kind is Int64:
            self._int += value * times
            if kind is Int64 or not -INT32 <= value < INT32:
                self._longs += times
        elif kind is float:
            self._doubles += times
            if math.isfinite(value):
                value *= times
                before = self._total
                total = self._total = before + value
                larger, smaller = (before, value) if abs(before) >= abs(value) else (value, before)
                if math.isfinite(total):
                    self._error += (larger - total) + smaller
            else:
                self._not_finite[0 if value != value else 1 if value > 0 else 2] += times
        elif kind is Decimal128:
            self._decimals += times
            number = value.to_decimal()
            if number.is_finite():
                self._decimal = DECIMAL128.fma(number, times, self._decimal)
            else:
                self._not_finite[0 if number.is_nan() else 1 if number > 0 else 2] += times

    def remove(self, value: Any) -> None:
        self.add(value, -1)

    def result(self) -> Any:
        nan, positive, negative = self._not_finite
        if nan or positive or negative:
            special = math.nan if nan or (positive and negative) else math.inf if positive else -math.inf
            return Decimal128(str(special)) if self._decimals else special
        if self._decimals:
            doubles = DECIMAL128.add(DECIMAL128.create_decimal(self._total), DECIMAL128.create_decimal(self._error))
            rest = DECIMAL128.add(DECIMAL128.create_decimal(self._int), doubles) if self._doubles else self._int
            return Decimal128.from_decimal(DECIMAL128.add(self._decimal, rest))
        if self._doubles:
            return float(self._int) + (self._total + self._error)
        try:
            return to_stored_int(self._int, self._longs > 0)
        except OverflowError:
            return float(self._int)


class Average(_Small):
    """The mean of the numbers, null without one: a double, or a decimal if a number is one."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._count = 0
        self._sum = Sum()

    def add(self, value: Any, times: int = 1) -> None:
        if type(value) is float or is_number(value):
            self._count += times
            self._sum.add(value, times)

    def remove(self, value: Any) -> None:
        self.add(value, -1)

    def result(self) -> Any:
        if not self._count:
            return None
        total = self._sum.result()
        if type(total) is Decimal128:
            return Decimal128.from_decimal(DECIMAL128.divide(total.to_decimal(), to_decimal(self._count)))
        return float(total) / self._count


def as_double(value: Any) -> float:
    """Return a number as a double."""
    return float(value.to_decimal() if type(value) is Decimal128 else value)


class StandardDeviation(_Small):
    """The standard deviation of the numbers, as Welford computes it: of all (`sample` False) or of a sample."""

    __slots__ = ("_count", "_mean", "_not_finite", "_sample", "_squares")

    def __init__(self, sample: bool) -> None:
        self._sample = sample
        self._count = self._not_finite = 0
        self._mean = self._squares = 0.0

    def add(self, value: Any) -> None:
        self._change(value, 1)

    def remove(self, value: Any) -> None:
        self._change(value, -1)

    def _change(self, value: Any, by: int) -> None:
        if not is_number(value):
            return
        number = as_double(value)
        if not math.isfinite(number):
            self._not_finite += by
            return
        self._count += by
        if not self._count:
            self._mean = self._squares = 0.0
            return
        delta = number - self._mean
        self._mean += by * delta / self._count
        self._squares += by * delta * (number - self._mean)

    def result(self) -> Any:
        divisor = self._count + self._not_finite - self._sample
        if divisor <= 0:
            return None
        return math.nan if self._not_finite else math.sqrt(max(0.0, self._squares) / divisor)


class Extreme(_Keeping):
    """The least or the greatest value, null without one. Null and missing values do not count."""

    __slots__ = ("_fold", "_is_max", "_key", "_value")

    def __init__(self, is_max: bool, fold: Fold | None = None) -> None:
        super().__init__()
        self._fold = fold
        self._is_max = is_max
        self._key: bytes | None = None
        self._value: Any = None

    def add(self, value: Any) -> None:
        if is_null(value):
            return
        key = sized_key(value, self._fold)
        if self._key is None or (key > self._key if self._is_max else key < self._key):
            self._key, self._value = key, value
            self.memory_bytes = _STATE_BYTES + 3 * len(key)

    def result(self) -> Any:
        return self._value


class Ends(_Keeping):
    """The first or the last `count` values. A missing one is null. single: the result is the value itself."""

    __slots__ = ("_count_max", "_is_last", "_single", "_values")

    def __init__(self, count: int, is_last: bool, single: bool = False) -> None:
        super().__init__()
        self._count_max = count
        self._is_last = is_last
        self._single = single
        self._values: deque[Any] = deque()

    def add(self, value: Any) -> None:
        if len(self._values) == self._count_max:
            if not self._is_last:
                return
            self._count(self._values.popleft(), -1)
        self._values.append(None if value is MISSING else value)
        self._count(self._values[-1])

    def result(self) -> Any:
        if self._single:
            return self._values[0] if self._values else None
        return list(self._values)


class Ranked(_Keeping):
    """The values of the `count` least keys; of equal ones the first that came. It takes pairs of key and value.

    is_reversed: of the greatest keys. ascending: their order in the result.
    """

    __slots__ = ("_ascending", "_count_max", "_is_reversed", "_pairs", "_single")

    def __init__(self, count: int, is_reversed: bool, ascending: bool, single: bool = False) -> None:
        super().__init__()
        self._count_max = count
        self._is_reversed = is_reversed
        self._ascending = ascending
        self._single = single
        self._pairs: list[tuple[bytes, Any]] = []

    def add(self, pair: tuple[bytes, Any]) -> None:
        key, value = pair
        if self._is_reversed:
            key = key.translate(_COMPLEMENT)
        if len(self._pairs) == self._count_max:
            if key >= self._pairs[-1][0]:
                return
            last, dropped = self._pairs.pop()
            self.memory_bytes -= len(last) + size_of(dropped)
        insort(self._pairs, (key, None if value is MISSING else value), key=itemgetter(0))
        self.memory_bytes += len(key)
        self._count(value)

    def result(self) -> Any:
        backwards = self._is_reversed and self._ascending
        pairs = sorted(self._pairs, key=itemgetter(0), reverse=True) if backwards else self._pairs
        values = [value for _, value in pairs]
        if self._single:
            return values[0] if values else None
        return values


class RankedValues(Ranked):
    """`Ranked` by the values themselves, without null and missing ones."""

    __slots__ = ("_fold",)

    def __init__(self, count: int, is_reversed: bool, ascending: bool, fold: Fold | None = None) -> None:
        super().__init__(count, is_reversed, ascending)
        self._fold = fold

    def add(self, value: Any) -> None:
        if not is_null(value):
            super().add((sized_key(value, self._fold), value))


class Push(_Keeping):
    """All values that are not missing."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        super().__init__()
        self._values: deque[Any] = deque()

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self._count(value)
            self._values.append(value)

    def remove(self, value: Any) -> None:
        if value is not MISSING:
            self._count(self._values.popleft(), -1)

    def result(self) -> Any:
        return list(self._values)


class AddToSet(_Keeping):
    """The values that are not missing, each once."""

    __slots__ = ("_fold", "_values")

    def __init__(self, fold: Fold | None = None) -> None:
        super().__init__()
        self._fold = fold
        self._values: dict[bytes, Any] = {}

    def add(self, value: Any) -> None:
        if value is MISSING:
            return
        key = sized_key(value, self._fold)
        if key not in self._values:
            self.memory_bytes += len(key)
            self._count(value)
            self._values[key] = value

    def result(self) -> Any:
        return list(self._values.values())


class MergeObjects(_Keeping):
    """The fields of all documents, the last of each name."""

    __slots__ = ("_fields", "_merge")

    def __init__(self, merge: Callable[..., dict[str, Any]]) -> None:
        super().__init__()
        self._merge = merge
        self._fields: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        for name, inner in self._merge(value).items():
            if name in self._fields:
                self._count({name: self._fields[name]}, -1)
            self._count({name: inner})
            self._fields[name] = inner

    def result(self) -> Any:
        return dict(self._fields)


class Percentile(_Small):
    """The numbers of which at least a part `p` are not greater, for each p; null without numbers.

    The numbers are kept in sorted runs, since to sort all at once would let no other thread run for too long.
    single: the result is the only percentile.
    """

    __slots__ = ("_new", "_ps", "_runs", "_single")

    def __init__(self, ps: Sequence[float], single: bool = False) -> None:
        self._ps = ps
        self._single = single
        self._runs: list[array[float]] = []
        self._new = array("d")

    @property
    def memory_bytes(self) -> int:
        return _STATE_BYTES + 8 * (len(self._runs) * _RUN + len(self._new))

    def add(self, value: Any) -> None:
        number = as_double(value) if is_number(value) else math.nan
        if number != number:
            return
        self._new.append(number)
        if len(self._new) == _RUN:
            self._runs.append(array("d", sorted(self._new)))
            self._new = array("d")
            if self.memory_bytes > MAX_BYTES:
                raise too_large("$percentile", MAX_BYTES)

    def result(self) -> Any:
        runs = [*self._runs, array("d", sorted(self._new))]
        count = sum(map(len, runs))
        found = [_nth(runs, max(0, math.ceil(p * count) - 1)) if count else None for p in self._ps]
        return found[0] if self._single else found


def _nth(runs: Sequence[array[float]], place: int) -> float:
    """Return the number at a place of the sorted runs taken together, found by halving the range of all doubles."""
    if len(runs) == 1:
        return runs[0][place]
    low, high = -1 - _INFINITY_RANK, _INFINITY_RANK
    while low < high:
        check_time()
        middle = (low + high) // 2
        if sum(bisect_right(run, _of_rank(middle)) for run in runs) > place:
            high = middle
        else:
            low = middle + 1
    return _of_rank(low) + 0.0  # not -0.0, which is as great


def _of_rank(rank: int) -> float:
    """Return the double of a rank: its bits as a whole number, or -1 less the bits of its magnitude."""
    (number,) = _double.unpack(_bits.pack(rank if rank >= 0 else -1 - rank - (1 << 63)))
    return float(number)


class Window(_Keeping):
    """A state from which the oldest value can be taken back: it keeps the values, and computes the result anew."""

    __slots__ = ("_make", "_state", "_values")

    def __init__(self, make: Callable[[], State]) -> None:
        super().__init__()
        self._make = make
        self._values: deque[Any] = deque()
        self._state: State | None = make()

    def add(self, value: Any) -> None:
        self._count(value if type(value) is not tuple else value[1])
        self._values.append(value)
        if self._state is not None:
            self._state.add(value)

    def remove(self, _value: Any) -> None:
        value = self._values.popleft()
        self._count(value if type(value) is not tuple else value[1], -1)
        self._state = None

    def result(self) -> Any:
        if self._state is None:
            self._state = self._make()
            for value in self._values:
                self._state.add(value)
        return self._state.result()
