"""BSON forms of an optime, for every document of the product: {ts: Timestamp, t: term}."""

from __future__ import annotations

from replset.bson import Int64, Timestamp
from replset.bson.layout import INT64, TIMESTAMP
from replset.errors import RemoteProtocolError
from replset.ids import INCREMENT_BITS, OpTime, pack_ts

OPTIME_LAYOUT = {"ts": TIMESTAMP, "t": INT64}
"""An optime in a `Layout`. Its values: `timestamp_bits` of its ts, and the term."""
INCREMENT_MASK = (1 << INCREMENT_BITS) - 1
SECONDS_MASK = ~INCREMENT_MASK
"""`ts + (ts & SECONDS_MASK)` is `timestamp_bits`, without a call."""
BAD_BIT = 1 << INCREMENT_BITS
"""Of a BSON timestamp's 64 bits: no increment has it."""


def timestamp(ts: int) -> Timestamp:
    """Return the BSON timestamp of a packed `ts`; `ids.pack_ts` is the other direction."""
    return Timestamp(ts >> INCREMENT_BITS, ts & INCREMENT_MASK)


def timestamp_bits(ts: int) -> int:
    """Return a packed `ts` as the 64 bits of a BSON timestamp."""
    return ts >> INCREMENT_BITS << 32 | ts & INCREMENT_MASK


def optime_of_bits(bits: int, term: int) -> OpTime:
    """Return the optime of a BSON timestamp's 64 bits. RemoteProtocolError as in `parse_optime`."""
    increment = bits & 0xFFFFFFFF
    if term < 0 or increment > INCREMENT_MASK:
        raise RemoteProtocolError(f"an optime out of range: {bits >> 32}:{increment}, term {term}")
    return tuple.__new__(OpTime, (term, bits >> 32 << INCREMENT_BITS | increment))  # some ten for each write


def optime_document(optime: OpTime) -> dict[str, object]:
    return {"ts": timestamp(optime.ts), "t": Int64(optime.term)}


def parse_optime(value: object) -> OpTime:
    """Read {ts, t}. Raises RemoteProtocolError when the value is no optime, or none that a member can write."""
    if isinstance(value, dict):
        ts, term = value.get("ts"), value.get("t")
        if isinstance(ts, Timestamp) and isinstance(term, int) and not isinstance(term, bool):
            if term < 0 or ts.inc >= 1 << INCREMENT_BITS:
                raise RemoteProtocolError(f"an optime out of range: {value!r:.100}")
            return OpTime(int(term), pack_ts(ts.time, ts.inc))
    raise RemoteProtocolError(f"not an optime: {value!r:.100}")


def optime_or_none(value: object) -> OpTime | None:
    """Read {ts, t} of a reply that is only shown; None if it is no optime."""
    try:
        return parse_optime(value)
    except RemoteProtocolError:
        return None
