"""Tells what the columns of the oplog's table answer of a filter, so that most entries need not be read and decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from replset.bson import DateTime, Int64, Timestamp
from replset.ids import pack_ts
from replset.optime import timestamp
from replset.query.collation import Fold
from replset.query.conditions import is_operators
from replset.query.match import Matcher, compile_filter
from replset.storage.oplog import OplogHead

LAST_TS: Final = (1 << 63) - 1
_LARGEST_INCREMENT: Final = (1 << 31) - 1
_COLUMNS: Final = frozenset({"ts", "t", "op", "ns", "wall"})
_LOGICAL: Final = frozenset({"$and", "$or", "$nor"})


@dataclass(frozen=True, slots=True)
class OplogFilter:
    """What a filter says of the columns.

    after, until: only entries with after < ts <= until can match. heads: the conditions on columns, None if there are
    none. is_whole: they are the whole filter.
    """

    after: int = 0
    until: int = LAST_TS
    heads: Matcher | None = None
    is_whole: bool = False


def oplog_filter(query: dict[str, Any], *, compiles: bool = True, fold: Fold | None = None) -> OplogFilter:
    """Return what a filter says of the columns. query: a valid one. compiles: it is small enough to be compiled.

    fold: of the collation.
    """
    conditions = list(_conditions(query))
    on_columns = [condition for condition in conditions if _is_on_columns(condition)]
    after, until = 0, LAST_TS
    for condition in on_columns:
        low, high = _ts_range(condition["ts"]) if "ts" in condition else (after, until)
        after, until = max(after, low), min(until, high)
    heads = compile_filter({"$and": on_columns}, fold=fold) if on_columns and compiles else None
    return OplogFilter(after, until, heads, heads is not None and len(on_columns) == len(conditions))


def head_document(head: OplogHead) -> dict[str, object]:
    """Return the fields of an entry that are columns."""
    return {
        "ts": timestamp(head.optime.ts),
        "t": Int64(head.optime.term),
        "op": head.op,
        "ns": head.ns,
        "wall": DateTime(head.wall_ms),
    }


def _conditions(query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions of which all hold, each as a filter."""
    for name, value in query.items():
        if name == "$and":
            for part in value:
                yield from _conditions(part)
        elif name != "$comment":
            yield {name: value}


def _is_on_columns(query: dict[str, Any]) -> bool:
    return all(
        name in _COLUMNS or (name in _LOGICAL and all(map(_is_on_columns, value))) for name, value in query.items()
    )


def _ts_range(value: object) -> tuple[int, int]:
    """Return (after, until) of a condition on `ts`."""
    after, until = 0, LAST_TS
    for operator, operand in value.items() if isinstance(value, dict) and is_operators(value) else [("$eq", value)]:
        edges: list[Any] = operand if operator == "$in" and isinstance(operand, list) else [operand]
        if not edges or not all(isinstance(edge, Timestamp) for edge in edges):
            continue
        places = [pack_ts(edge.time, min(edge.inc, _LARGEST_INCREMENT)) for edge in edges]
        if operator in ("$gt", "$gte", "$eq", "$in"):
            after = max(after, min(places) - (operator != "$gt"))
        if operator in ("$lt", "$lte", "$eq", "$in"):
            until = min(until, max(places) - (operator == "$lt"))
    return max(after, 0), until
