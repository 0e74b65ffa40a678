"""What a stage of a pipeline is, and the chain of stages that documents pass through.

A stage of a chain gives the documents that come of one that it takes (`take`), and at the end those that it kept until
then (`end`). The caller feeds the chain, so it decides what runs on the event loop and what in the thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Final

from replset.bson.decoding import names_by_bytes
from replset.errors import ErrorCode, ReplError
from replset.ids import invariant
from replset.query.alike import FieldsReader
from replset.query.collation import Fold
from replset.query.expressions import Accumulator, Expression, compile_accumulator, compile_expression
from replset.query.regex import is_time_slice_over
from replset.query.row import Row
from replset.query.sorter import Spill
from replset.query.time_limit import check_time

MAX_DEPTH: Final = 20
"""How deep pipelines may be within pipelines."""
TURN: Final = 4
"""Documents of which nothing comes before others may have a turn, if regular expressions took no time."""


@dataclass(slots=True)
class Run:
    """What one run of a pipeline has, and all its stages share.

    variables: by name without the dollars: the caller's, NOW and CLUSTER_TIME. spill: opens a temporary file, None
    without allowDiskUse.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    spill: Spill | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass(frozen=True, slots=True)
class StageScope:
    """What surrounds a stage when it is compiled.

    names: the user's variables. compile: of pipeline.py, for a pipeline within the stage's argument. inside: the stage
    whose pipeline this is, empty at the top. depth: how many there are around it. fold: of the pipeline's collation.
    """

    compile: Callable[[object, StageScope], list[Stage]]
    names: frozenset[str] = frozenset()
    inside: str = ""
    depth: int = 0
    fold: Fold | None = None

    def expression(self, value: Any) -> Expression:
        return compile_expression(value, self.names, self.fold)

    def accumulator(self, spec: Any, field: str) -> Accumulator:
        """Return the accumulator of the field with this name."""
        return compile_accumulator(spec, self.names, field, self.fold)

    def pipeline(self, elements: object, inside: str, names: Iterable[str] = ()) -> list[Stage]:
        """Compile the pipeline in the argument of the stage `inside`, which adds variables."""
        if self.depth >= MAX_DEPTH:
            raise ReplError(
                f"Maximum number of nested sub-pipelines exceeded. Limit is {MAX_DEPTH}",
                code=ErrorCode.MAX_SUB_PIPELINE_DEPTH_EXCEEDED,
            )
        inner = replace(self, names=self.names.union(names), inside=inside, depth=self.depth + 1)
        return self.compile(elements, inner)


class Stage:
    """One stage, compiled. Each `start` begins anew, so a stage serves one run after the other.

    shown: what explain shows of it.
    """

    shown: Mapping[str, Any] = MappingProxyType({})
    run: Run

    def start(self, run: Run) -> None:
        """Forget what was taken."""
        self.run = run

    @property
    def used_disk(self) -> bool:
        """Whether the last run wrote to a temporary file, for explain."""
        return False

    def keeps(self, names: frozenset[str]) -> bool:
        """Whether a filter on these top-level fields gives the same in front of the stage as behind it."""
        return False


class ReadingStage(Stage):
    """A stage that must read or write collections: its argument alone. features/aggregation/pipeline_run.py runs it.

    A pipeline is cut at such stages.
    """


class SourceStage(ReadingStage):
    """A stage that begins a pipeline with documents of its own."""


class ChainStage(Stage):
    """A stage that needs nothing but the documents that it takes."""

    is_simple: bool = False
    """The cost of one document is at most the bytes of the stage times those of the document."""
    is_growing: bool = False
    """What it gives can be larger than what it takes: it can name a field many times."""
    reads: frozenset[str] | None = None
    """The top-level fields of what it takes that it looks at; None for all."""
    makes_anew: bool = False
    """What it gives has nothing but what it reads, or was made of that."""
    keeps_all: bool = False
    """`take` gives nothing, whatever it takes; all comes at the end."""

    @property
    def memory_bytes(self) -> int:
        """What the stage keeps until the end."""
        return 0

    @property
    def only_counts(self) -> bool:
        """Whether the documents do not matter, only how many there are. Then `take_count` takes them all at once."""
        return False

    def take_count(self, count: int) -> None:
        """Take so many documents."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no more documents. A `take` that makes it so returns anything but a tuple of one."""
        return False

    def take(self, row: Row) -> Iterable[Row]:
        """Return the documents that come of this one at once."""
        return (row,)

    def end(self) -> Iterable[Row | None]:
        """Return the documents that were kept until now. There are no more to take.

        None among them: there was much work and nothing came of it yet.
        """
        return ()

    def close(self) -> None:
        """Free what the run has kept, temporary files too. Nothing happens the second time."""


class Chain:
    """Stages one behind the other, in one run. Its results come lazily: a small document can make many large ones.

    is_full: no more document changes the result.
    """

    def __init__(self, stages: Sequence[Stage], run: Run | None = None) -> None:
        self.stages = [stage for stage in stages if isinstance(stage, ChainStage)]
        invariant(len(self.stages) == len(stages), "a chain has no stage that reads collections")
        self.is_full = False
        self._may_fill = {
            number for number, stage in enumerate(self.stages, 1) if type(stage).is_full is not ChainStage.is_full
        }
        """The numbers, from 1 on, of the stages that may be full."""
        self._fields = fields_read(self.stages)
        self._reader = FieldsReader(self._fields)
        run = run or Run()
        for stage in stages:
            stage.start(run)

    @property
    def memory_bytes(self) -> int:
        return sum(stage.memory_bytes for stage in self.stages)

    @property
    def is_simple(self) -> bool:
        """Whether the cost is bounded as a stage's is. Forty stages that double a field make a trillion of it."""
        growing = sum(stage.is_growing for stage in self.stages)
        return growing <= 1 and all(stage.is_simple for stage in self.stages)

    def feed(self, documents: Iterable[bytes]) -> Iterator[bytes | None]:
        """Feed documents. Yield what comes out at the other end, None now and then: others may have a turn."""
        if not self.is_full:
            for row in self._passed(self._rows(list(documents)), 0):
                yield None if row is None else row.raw

    def _rows(self, raws: Sequence[bytes]) -> Iterator[Row]:
        if self.stages and self.stages[0].reads == frozenset():
            return (Row(raw, fields=self._fields) for raw in raws)
        return map(Row, raws, self._reader.documents(raws), repeat(self._fields))

    def end(self) -> Iterator[bytes | None]:
        """Yield what the stages kept until now, as `feed` does."""
        for row in self.end_rows():
            yield None if row is None else row.raw

    def end_rows(self) -> Iterator[Row | None]:
        for number, stage in enumerate(self.stages, 1):
            if not any(one.is_full for one in self.stages[number:]):
                yield from self._passed(iter(stage.end()), number)
            stage.close()

    def take(self, row: Row) -> Iterator[Row | None]:
        """Feed a document. Yield what comes of it, and None among that."""
        return self._passed(iter((row,)), 0)

    def _passed(self, rows: Iterator[Row | None], first: int) -> Iterator[Row | None]:
        """Feed documents, and None, to the stages from `first` on. Yield what comes of them, and None among that.

        A stack instead of nested generators: there may be a thousand stages.
        """
        stages, last = self.stages, len(self.stages)
        takes = [stage.take for stage in stages]
        keep_all = [*(stage.keeps_all for stage in stages), False]
        waiting = [(rows, first)]
        """What came out of stages, and the number of the stage that takes it."""
        turn = TURN
        while waiting:
            rows, number = waiting[-1]
            if keep_all[number]:
                take = takes[number]
                for row in rows:
                    if row is not None:
                        take(row)
                    turn -= 1
                    if turn <= 0 or is_time_slice_over():
                        turn = TURN
                        check_time()
                        yield None
                waiting.pop()
                continue
            for row in rows:
                while row is not None and number < last:
                    found: Iterable[Row | None] = takes[number](row)
                    number += 1
                    if type(found) is tuple and len(found) == 1:
                        row = found[0]
                        continue
                    row = None
                    if keep_all[number] and type(found) is list and len(found) <= TURN:
                        rest, found = iter(found), ()
                        for one in rest:
                            takes[number](one)
                            turn -= 1
                            if is_time_slice_over():
                                found = chain([None], rest)
                                break
                    if number in self._may_fill and stages[number - 1].is_full:
                        self.is_full = True  # what would come in front of it is not even made
                        waiting.clear()
                    if found or self.is_full:
                        waiting.append((iter(found), number))
                        break
                else:
                    turn -= 1
                    if row is not None or turn <= 0 or is_time_slice_over():
                        turn = TURN
                        check_time()
                        yield row
                    number = waiting[-1][1]
                    continue
                break
            else:
                waiting.pop()
                turn -= 1
                if turn <= 0 or is_time_slice_over():
                    turn = TURN
                    check_time()
                    yield None

    def close(self) -> None:
        for stage in self.stages:
            stage.close()


def fields_read(stages: Sequence[ChainStage]) -> Mapping[bytes, str] | None:
    """Return the top-level fields that matter for the result, by their bytes; None for all."""
    last = next((number for number, stage in enumerate(stages, 1) if stage.makes_anew), None)
    return None if last is None else names_by_bytes(*[stage.reads for stage in stages[:last]])
