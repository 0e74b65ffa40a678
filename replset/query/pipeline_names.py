"""The names of MongoDB 7.0's stages, accumulators and operators, to tell what is not built from a typo."""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(f"${name}" for name in text.split())


NOT_BUILT_STAGES: Final = _names(
    "geoNear listSampledQueries listSearchIndexes operationMetrics planCacheStats queryStats search"
    " searchMeta shardedDataDistribution vectorSearch"
)
"""Stages that are not built; the others are in pipeline.py."""
COLLECTIONLESS_STAGES: Final = _names(
    "changeStream currentOp documents listLocalSessions listSampledQueries queryStats shardedDataDistribution"
)
"""Stages that can begin a pipeline over no collection."""
NOT_BUILT_EXPRESSIONS: Final = _names("accumulator function meta sampleRate toHashedIndexKey")
"""Operators and accumulators that are not built."""
