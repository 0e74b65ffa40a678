"""Documents with repeated field names: decoding keeps them all, and an update changes the first alone."""

from __future__ import annotations

from replset.bson import DateTime, RawDocument, Timestamp, decode, encode
from replset.query.diff import apply_update_bytes, update_entry_object
from replset.query.repeated import RepeatedName, decode_whole
from replset.query.update import compile_update


def doc(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def number(name: str, value: int) -> bytes:
    return b"\x10" + name.encode() + b"\0" + value.to_bytes(4, "little")


TWICE = doc(number("_id", 1), number("a", 1), number("b", 2), number("a", 3), number("a", 4))
NESTED = doc(number("_id", 1), b"\x03d\0" + TWICE, b"\x04l\0" + doc(b"\x030\0" + TWICE), number("b", 2))


def update(before: bytes, change: dict[str, object]) -> bytes:
    """Update as a primary does. A secondary must get the same bytes from the entry."""
    document = decode_whole(before)
    after = compile_update(change).apply(document, now=DateTime(0), timestamp=Timestamp(0, 0))
    result = encode(after)
    o = update_entry_object(document, after, after_size=len(result))
    assert o is not None
    assert apply_update_bytes(before, RawDocument(result if o is after else encode(o))) == result
    assert apply_update_bytes(result, RawDocument(result if o is after else encode(o))) == result
    return result


def test_all_are_decoded_and_encoded() -> None:
    for data in (TWICE, NESTED, encode({"a": 1})):
        assert encode(decode_whole(data)) == data
    assert decode(TWICE) == {"_id": 1, "a": 4, "b": 2}
    assert list(map(str, decode_whole(TWICE))) == ["_id", "a", "b", "a", "a"]


def test_a_repeated_name_is_itself_alone() -> None:
    name = RepeatedName("a")
    assert name == name
    assert name != "a"
    assert name != "a"
    assert name != RepeatedName("a")


def test_an_update_of_another_field_keeps_all() -> None:
    wanted = doc(number("_id", 1), number("a", 1), number("b", 9), number("a", 3), number("a", 4))
    assert update(TWICE, {"$set": {"b": 9}}) == wanted


def test_an_update_changes_the_first() -> None:
    wanted = doc(number("_id", 1), number("a", 9), number("b", 2), number("a", 3), number("a", 4))
    assert update(TWICE, {"$set": {"a": 9}}) == wanted
    assert update(TWICE, {"$unset": {"a": 1}}) == doc(number("_id", 1), number("b", 2), number("a", 3), number("a", 4))


def test_documents_inside_keep_theirs() -> None:
    assert update(NESTED, {"$set": {"b": 9}}).count(number("a", 3)) == 2
    changed = update(NESTED, {"$set": {"d.b": 9}})
    assert changed.count(number("a", 3)) == 2
    assert changed.count(number("b", 9)) == 1
    assert update(NESTED, {"$rename": {"d": "e"}}).count(number("a", 3)) == 2
