"""How MongoDB orders two values."""

from __future__ import annotations

from replset.bson import encode_key


def compare(a: object, b: object) -> int:
    """Return -1, 0 or 1 by MongoDB's order of `a` and `b`, of any types."""
    key_a, key_b = encode_key(a), encode_key(b)
    return (key_a > key_b) - (key_a < key_b)
