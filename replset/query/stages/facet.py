"""$facet runs several pipelines over the same documents, and makes one document of their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from replset.bson import RawDocument, encode
from replset.query.expressions import fault
from replset.query.order import type_name
from replset.query.paths import field_path
from replset.query.row import Row
from replset.query.sorter import MAX_BYTES
from replset.query.stages.stage import Chain, ChainStage, ReadingStage, Run, Stage, StageScope
from replset.query.time_limit import check_time


class FacetStage(ChainStage):
    """Feeds each document to several chains."""

    def __init__(self, pipelines: Mapping[str, list[Stage]]) -> None:
        self.pipelines: Final = pipelines

    def start(self, run: Run) -> None:
        self._chains = [(Chain(stages, run), Found()) for stages in self.pipelines.values()]

    @property
    def memory_bytes(self) -> int:
        return sum(chain.memory_bytes + found.size for chain, found in self._chains)

    @property
    def is_full(self) -> bool:
        return all(chain.is_full for chain, _ in self._chains)

    def take(self, row: Row) -> Iterable[Row]:
        for chain, found in self._chains:
            if not chain.is_full:
                found.add(chain.take(row))
        return ()

    def end(self) -> Iterable[Row | None]:
        for chain, found in self._chains:
            for row in chain.end_rows():
                found.add((row,))
                yield None
        results = [found.rows for _, found in self._chains]
        yield Row(encode(dict(zip(self.pipelines, results, strict=True))))

    def close(self) -> None:
        for chain, _ in self._chains:
            chain.close()


class Found:
    """The results of one pipeline of a $facet."""

    def __init__(self) -> None:
        self.rows: list[RawDocument] = []
        self.size = 0

    def add(self, rows: Iterable[Row | None]) -> None:
        """Keep results. 4031700 over 100 MiB."""
        for row in rows:
            check_time()  # the rows of one document, of which None stands for turns, come without a pause
            if row is not None:
                self.rows.append(RawDocument(row.raw))
                self.size += len(row.raw)
        if self.size > MAX_BYTES:
            raise fault(4031700, f"document constructed by $facet is over the limit of {MAX_BYTES} bytes")


class ReadingFacetStage(ReadingStage):
    """A $facet with a stage that reads in one of its pipelines."""

    def __init__(self, pipelines: Mapping[str, list[Stage]]) -> None:
        self.pipelines: Final = pipelines


def compile_facet(spec: object, scope: StageScope) -> Stage:
    """Return the stage of `{name: [stages], ...}`."""
    if not isinstance(spec, Mapping) or not spec:
        raise fault(40169, f"the $facet specification must be a non-empty object, but found: {type_name(spec)}")
    pipelines = {}
    for name, elements in spec.items():
        if len(field_path(name)) > 1:
            raise fault(16412, f"FieldPath field names may not contain '.': {name:.80}")
        if type(elements) is not list:
            raise fault(40170, f"arguments to $facet must be arrays, {name:.80} is type {type_name(elements)}")
        for element in elements:
            if not isinstance(element, Mapping):
                raise fault(40171, f"arguments to $facet are arrays of objects, {name:.80} has {type_name(element)}")
        pipelines[name] = scope.pipeline(elements, "$facet")
    reads = any(isinstance(stage, ReadingStage) for stages in pipelines.values() for stage in stages)
    return ReadingFacetStage(pipelines) if reads else FacetStage(pipelines)
