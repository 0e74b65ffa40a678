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
ACCUMULATORS: Final = _names(
    "accumulator addToSet avg bottom bottomN count first firstN last lastN max maxN median mergeObjects min"
    " minN percentile push stdDevPop stdDevSamp sum top topN"
)
"""Of these only $sum is built."""
EXPRESSIONS: Final = _names(
    "abs accumulator acos acosh add allElementsTrue and anyElementTrue arrayElemAt arrayToObject asin asinh"
    " atan atan2 atanh avg binarySize bitAnd bitNot bitOr bitXor bsonSize ceil cmp concat concatArrays cond"
    " convert cos cosh dateAdd dateDiff dateFromParts dateFromString dateSubtract dateToParts dateToString"
    " dateTrunc dayOfMonth dayOfWeek dayOfYear degreesToRadians divide eq exp filter first firstN floor"
    " function getField gt gte hour ifNull in indexOfArray indexOfBytes indexOfCP isArray isNumber isoDayOfWeek"
    " isoWeek isoWeekYear last lastN let literal ln log log10 lt lte ltrim map max maxN median mergeObjects"
    " meta millisecond min minN minute mod month multiply ne not objectToArray or percentile pow"
    " radiansToDegrees rand range reduce regexFind regexFindAll regexMatch replaceAll replaceOne reverseArray"
    " round rtrim sampleRate second setDifference setEquals setField setIntersection setIsSubset setUnion sin"
    " sinh size slice sortArray split sqrt stdDevPop stdDevSamp strcasecmp strLenBytes strLenCP substr"
    " substrBytes substrCP subtract sum switch tan tanh toBool toDate toDecimal toDouble toInt toLong toLower"
    " toObjectId toString toUpper trim trunc tsIncrement tsSecond type unsetField week year zip"
)
"""None is built."""
