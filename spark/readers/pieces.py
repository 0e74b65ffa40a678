"""Spans of equal work, cut from small pieces of known size; the same for every kind of oplog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from replset.ids import OPTIME_NULL
from spark.oplog import Bounds, Span


class Piece(NamedTuple):
    """About `rows` entries with first_ts <= ts < end_ts, spread evenly."""

    first_ts: int
    end_ts: int
    rows: float


class InPieces(ABC):
    """Counts and cuts an oplog by pieces of it that are known to be of some size."""

    __slots__ = ()

    @abstractmethod
    def _pieces(self) -> Sequence[Piece]:
        """Rising, side by side; they may leave gaps."""

    def count(self, span: Span) -> int:
        return round(rows_within(self._pieces(), span))

    def split(self, span: Span, parts: int) -> list[Span]:
        return cut(span, within(self._pieces(), span), parts)


def one_piece(bounds: Bounds) -> list[Piece]:
    """All of a running member's oplog: how its entries are spread is known only by reading them."""
    return [] if bounds.newest == OPTIME_NULL else [Piece(bounds.oldest.ts, bounds.newest.ts + 1, bounds.rows)]


def cut(span: Span, pieces: Sequence[Piece], parts: int) -> list[Span]:
    """`span` in at most `parts` spans of about equally many rows. pieces: rising, they may leave gaps."""
    cuts = sorted({at for at in _cuts(pieces, parts) if span.first_ts < at < span.end_ts})
    return [Span(*pair) for pair in zip([span.first_ts, *cuts], [*cuts, span.end_ts], strict=True)]


def within(pieces: Iterable[Piece], span: Span) -> list[Piece]:
    """The parts of the pieces that are in the span."""
    found = []
    for first, end, rows in pieces:
        begin, stop = max(first, span.first_ts), min(end, span.end_ts)
        if begin < stop:
            found.append(Piece(begin, stop, rows * (stop - begin) / (end - first)))
    return found


def rows_within(pieces: Iterable[Piece], span: Span) -> float:
    """About how many of the pieces' rows are in the span."""
    return sum(piece.rows for piece in within(pieces, span))


def side_by_side(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces that overlap in any way as rising ones that do not, of the same rows at every point."""
    steps: dict[int, float] = {}
    for first, end, rows in pieces:
        steps[first] = steps.get(first, 0.0) + rows / (end - first)
        steps[end] = steps.get(end, 0.0) - rows / (end - first)
    flat, density = [], 0.0
    for at, following in pairwise(sorted(steps)):
        density += steps[at]
        flat.append(Piece(at, following, max(0.0, density * (following - at))))
    return flat


def _cuts(pieces: Sequence[Piece], parts: int) -> Iterable[int]:
    total, passed, number = sum(piece.rows for piece in pieces), 0.0, 1
    for first, end, rows in pieces:
        while number < parts and (wanted := total * number / parts) <= passed + rows and rows:
            yield first + int((end - first) * (wanted - passed) / rows)
            number += 1
        passed += rows
