"""A compiled filter, and what it tells a plan (plan.py) about the documents that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

from replset.bson import Symbol, encode_key
from replset.bson.decoding import names_by_bytes
from replset.query.alike import FieldsReader, are_whole
from replset.query.bounds import MOST_VALUES, FilterBounds, bounds_of
from replset.query.collation import Fold
from replset.query.match import NO_VARIABLES, Matcher, compile_filter
from replset.query.order import MISSING
from replset.query.sort import sort_by_key


@dataclass(frozen=True)
class Filter:
    """matcher: None for the empty filter, which every document matches undecoded.

    keys: those of the only documents that can match, in order; None when the filter does not name them. fold: of the
    collation by which it compares strings.
    """

    matcher: Matcher | None
    keys: list[bytes] | None
    query: dict[str, object] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    fold: Fold | None = None

    def matches(self, document: dict[str, object]) -> bool:
        return self.matcher is None or self.matcher.matches(document)

    def matches_raw(self, raw: bytes) -> bool:
        return self.matcher is None or self.matcher.matches_raw(raw)

    def reader(self, *more: Iterable[str] | None) -> FieldsReader:
        """Return what decodes the fields that the filter looks at, and more; None for all."""
        return FieldsReader(names_by_bytes(() if self.matcher is None else self.matcher.fields, *more))

    def test(self) -> Callable[[Sequence[bytes]], Iterable[bool | None]]:
        """Return what gives True for each of some documents that matches, and None for the others."""
        if self.matcher is None:
            return lambda raws: repeat(True, len(raws))
        reader = self.reader()
        return lambda raws: (None if document is None else True for document in self.matching(raws, reader))

    def matching(self, raws: Sequence[bytes], reader: FieldsReader) -> Iterator[dict[str, Any] | None]:
        """Give the documents that match, with the fields of the reader, and None for others.

        What is read of those others is only what it takes to know that they do not match.
        """
        return reader.documents(raws) if self.matcher is None else self._found(self.matcher, raws, reader)

    def _found(self, matcher: Matcher, raws: Sequence[bytes], reader: FieldsReader) -> Iterator[dict[str, Any] | None]:
        test, needle = matcher.test, matcher.needle
        if not needle or not are_whole(raws):
            for document in reader.documents(raws):
                yield document if test(document, None) else None
            return
        documents = reader.documents([raw for raw in raws if needle in raw])
        for raw in raws:
            yield found if needle in raw and test(found := next(documents), None) else None

    @cached_property
    def bounds(self) -> FilterBounds:
        """Found when they are first asked for. That takes about as long as to compile the filter."""
        return bounds_of(self.query, self.variables, self.fold)


def filter_of(
    query: dict[str, object], variables: Mapping[str, Any] = NO_VARIABLES, fold: Fold | None = None
) -> Filter:
    """Raises what compile_filter raises. variables: of the command, with their values. fold: of its collation."""
    if not query:
        return Filter(None, None, fold=fold)
    matcher = compile_filter(query, variables, fold=fold)
    if fold is not None:
        value = matcher.id_equality
        is_same = value is not MISSING and type(value) not in (str, Symbol, dict, list)
        return Filter(matcher, [encode_key(value)] if is_same else None, query, variables, fold)
    if matcher.id_equality is not MISSING:
        return Filter(matcher, [encode_key(matcher.id_equality)], query, variables)
    if matcher.id_in is None or len(matcher.id_in) > MOST_VALUES:
        return Filter(matcher, None, query, variables)
    return Filter(
        matcher, sort_by_key([(key, key) for key in {encode_key(value) for value in matcher.id_in}]), query, variables
    )
