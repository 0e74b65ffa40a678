"""How long BSON work takes on one document of eight mixed fields; prints microseconds per call."""

from __future__ import annotations

from collections.abc import Callable
from timeit import repeat

from replset.bson import DateTime, Int64, ObjectId, RawDocument, decode, encode, encode_key, validate, walk

DOCUMENT: dict[str, object] = {
    "_id": ObjectId("65f1a2b3c4d5e6f708192a3b"),
    "name": "a string of some length",
    "city": "Ljubljana",
    "count": 42,
    "total": Int64(1 << 40),
    "ratio": 0.75,
    "active": True,
    "at": DateTime(1_700_000_000_000),
    "sub": {"x": 1, "y": "two"},
}


def microseconds(call: Callable[[], object], number: int = 5000) -> float:
    """The best of five rounds of `number` calls."""
    return min(repeat(call, number=number, repeat=5)) / number * 1e6


def run() -> None:
    data = encode(DOCUMENT)
    raw = RawDocument(data)
    rows: dict[str, Callable[[], object]] = {
        f"decode {len(data)} bytes": lambda: decode(data),
        "encode": lambda: encode(DOCUMENT),
        "walk": lambda: walk(data),
        "validate": lambda: validate(data),
        "RawDocument(...)": lambda: RawDocument(data),
        "RawDocument(...).get('_id')": lambda: RawDocument(data).get("_id"),
        "get('_id') again": lambda: raw.get("_id"),
        "key of an ObjectId": lambda: encode_key(DOCUMENT["_id"]),
        "key of a string": lambda: encode_key("a string of some length"),
        "key of a small int": lambda: encode_key(42),
        "key of a double": lambda: encode_key(0.75),
    }
    for name, call in rows.items():
        print(f"{name:30} {microseconds(call):8.2f} us")


if __name__ == "__main__":
    run()
