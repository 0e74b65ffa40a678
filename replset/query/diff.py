"""Computes and applies the difference between two documents, the form in which the oplog holds an update.

A difference is `{d: {name: false}, u: {name: value}, i: {name: value}, s<name>: difference}`, and for an array
`{a: true, l: length, u<index>: value, s<index>: difference}`. It names resulting values only. So entries can be applied
again, twice or in order from any earlier one on, with the same result (docs/query.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from replset.bson import MAX_BSON_SIZE, InvalidBSONError, RawDocument, encode
from replset.errors import ErrorCode, FailedToParseError, ReplError
from replset.query.order import identical
from replset.query.paths import array_index
from replset.query.repeated import decode_whole

DIFF_VERSION = 2
LARGEST_DIFF: Final = MAX_BSON_SIZE + 1024
"""Bytes of a difference that an oplog entry surely has room for: those of the largest document, and its sections."""

Targets = dict[str, "Targets"]
"""The paths that an update changes, as a tree of names. All positions in arrays are one, POSITION."""
POSITION = "$"


def targets_of(paths: Iterable[Sequence[str]]) -> Targets:
    """Return the tree of these paths."""
    tree: Targets = {}
    for path in paths:
        node = tree
        for part in path:
            node = node.setdefault(_part(part), {})
    return tree


def _part(name: str) -> str:
    return POSITION if name.isdecimal() or "$" in name else name


def compute_diff(
    before: dict[str, object], after: dict[str, object], targets: Targets | None = None
) -> dict[str, object] | None:
    """Return the difference that turns `before` into exactly `after`, None when they are equal.

    The order of fields and the types of numbers count. A field that moved is inserted again, which puts it at the end.
    targets: the paths that an update changes; a value above them is not written whole, however short it is.
    """
    return _DiffBuilder().of_documents(before, after, targets or {}) or None


def update_entry_object(
    before: dict[str, object],
    after: dict[str, object],
    *,
    after_size: int | None = None,
    is_replacement: bool | None = None,
    targets: Targets | None = None,
) -> dict[str, object] | None:
    """Return the `o` of an update entry: `{$v: 2, diff: ...}`, or `after`. None when nothing changed.

    The form tells a change stream what happened: a replacement is logged as a whole, what update operators did as a
    difference, as MongoDB does; only one that an entry may have no room for, or that is too deep, gives way to the
    document. is_replacement: None if nobody said; then the smaller one is taken. after_size: bytes of encode(after), if
    the caller knows them. targets: see compute_diff.
    """
    diff = compute_diff(before, after, targets)
    if diff is None:
        return None
    entry: dict[str, object] = {"$v": DIFF_VERSION, "diff": diff}
    if is_diff(after):
        return entry  # a document that looks like a difference can only be written as one
    if is_replacement:
        return after
    most = _size(after) if after_size is None else after_size
    if is_replacement is False:
        most = max(most, LARGEST_DIFF)
    if _size(entry) < most and identical(apply_diff(before, diff), after):
        return entry
    return after


def is_diff(o: Mapping[str, object]) -> bool:
    """Return True if the `o` of an update entry is a difference. The value of `$v` decides, not the field names."""
    version = o.get("$v")
    return type(version) is not bool and version == DIFF_VERSION and isinstance(o.get("diff"), Mapping)


def apply_update_object(doc: dict[str, object], o: Mapping[str, object]) -> dict[str, object]:
    """Return the document after an update entry with this `o`: a difference, or the document that replaces it."""
    if is_diff(o):
        return apply_diff(doc, o["diff"])  # type: ignore[arg-type]
    return dict(o)


def apply_update_bytes(before: bytes, o: RawDocument) -> bytes:
    """Return the bytes of the document after an update entry with this `o`; see apply_update_object."""
    if o.type_of("$v") is None:
        return o.raw
    change = decode_whole(o.raw)
    return encode(apply_update_object(decode_whole(before), change)) if is_diff(change) else o.raw


def apply_diff(doc: dict[str, object], diff: Mapping[str, object]) -> dict[str, object]:
    """Return the document that `diff` makes of `doc`, which is not changed.

    u replaces a value in its place, or appends the field. i always puts the field at the end. A sub-difference of a
    missing field is skipped. A sub-difference of a value of another type gives null, which a later entry overwrites.
    Raises 4728000 when a field is named twice, FailedToParseError for anything that is not a difference.
    """
    if "a" in diff:
        raise FailedToParseError("an array difference applied to a document")
    result = dict(doc)
    seen: set[str] = set()
    inserted: dict[str, object] = {}
    for section, body in diff.items():
        if section.startswith("s"):
            name = _check_unique(section[1:], seen)
            if name in result:
                result[name] = _apply_nested(result[name], _mapping(section, body))
            continue
        fields = _mapping(section, body)
        for name in fields:
            _check_unique(name, seen)
        match section:
            case "d":
                for name in fields:
                    result.pop(name, None)
            case "u":
                result.update(fields)
            case "i":
                inserted.update(fields)
            case _:
                raise FailedToParseError(f"an unknown section '{section[:40]}' in a difference")
    for name, value in inserted.items():
        result.pop(name, None)
        result[name] = value
    return result


_NONE: Targets = {}


class _NoDiff(Enum):
    """Why there is no difference of two values: they are the same, or the new value is as short itself."""

    SAME = "same"
    WHOLE = "whole"


class _DiffBuilder:
    """Computes the differences of two documents level by level. Each value is compared and measured only once."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[object, int]] = {}

    def of_documents(self, before: dict[str, object], after: dict[str, object], targets: Targets) -> dict[str, object]:
        """Return the difference of two documents, {} when they are the same.

        Fields are compared in order. From the first field that moved on, all fields are inserted again.
        """
        deleted: dict[str, object] = {}
        updated: dict[str, object] = {}
        nested: dict[str, object] = {}
        rest = iter(after.items())
        target = next(rest, None)
        for name, old in before.items():
            if target is not None and name == target[0]:
                change = self._change(old, target[1], targets.get(_part(name), _NONE) if targets else _NONE)
                if change is _NoDiff.WHOLE:
                    updated[name] = target[1]
                elif change is not _NoDiff.SAME:
                    nested[f"s{name}"] = change
                target = next(rest, None)
            elif name not in after:
                deleted[name] = False
        inserted = {} if target is None else {target[0]: target[1], **dict(rest)}
        sections = {"d": deleted, "u": updated, "i": inserted}
        return {**{section: fields for section, fields in sections.items() if fields}, **nested}

    def _of_arrays(self, before: list[object], after: list[object], targets: Targets) -> dict[str, object]:
        below = targets.get(POSITION, _NONE)
        diff: dict[str, object] = {"a": True}
        if len(after) < len(before):
            diff["l"] = len(after)
        for index, new in enumerate(after):
            if index < len(before) and before[index] is new:
                continue
            change = self._change(before[index], new, below) if index < len(before) else _NoDiff.WHOLE
            if change is _NoDiff.WHOLE:
                diff[f"u{index}"] = new
            elif change is not _NoDiff.SAME:
                diff[f"s{index}"] = change
        return diff

    def _change(self, old: object, new: object, targets: Targets) -> dict[str, object] | _NoDiff:
        """Return the difference of two documents or two arrays if it is shorter than the new value, or the update
        changed something in it.
        """
        if old is new:
            return _NoDiff.SAME
        if type(old) is dict and type(new) is dict:
            diff = self.of_documents(old, new, targets)
            is_same = not diff
        elif type(old) is list and type(new) is list:
            diff = self._of_arrays(old, new, targets)
            is_same = len(diff) == 1
        else:
            return _NoDiff.SAME if identical(old, new) else _NoDiff.WHOLE
        if is_same:
            return _NoDiff.SAME
        return diff if targets or self._size(diff) < self._size(new) else _NoDiff.WHOLE

    def _size(self, value: object) -> int:
        """Return the bytes of a value, without its type and name."""
        if type(value) is not dict and type(value) is not list:
            return _size({"": value}) - 7
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        values = list(value.values() if type(value) is dict else value)
        below = [inner for inner in values if type(inner) is dict or type(inner) is list]
        if below:  # each nested value is replaced by a null, which has no bytes
            flat = [None if type(inner) is dict or type(inner) is list else inner for inner in values]
            level: object = dict(zip(value, flat, strict=True)) if type(value) is dict else flat
            size = _size({"": level}) - 7 + sum(map(self._size, below))
        else:
            size = _size({"": value}) - 7
        self._sizes[id(value)] = value, size  # the value stays alive, so that no other one gets its id
        return size


def _size(document: Mapping[str, object]) -> int:
    try:
        return len(encode(document))
    except InvalidBSONError:
        return 1 << 62  # too deep with the levels of the difference, so the whole value is written instead


def _apply_nested(value: object, diff: Mapping[str, object]) -> object:
    is_array = diff.get("a") is True
    if is_array and type(value) is list:
        return _apply_array(value, diff)
    if not is_array and type(value) is dict:
        return apply_diff(value, diff)
    return None


def _apply_array(items: list[object], diff: Mapping[str, object]) -> list[object]:
    result = list(items)
    seen: set[str] = set()
    length: int | None = None
    for section, body in diff.items():
        if section == "a":
            continue
        if section == "l":
            if not isinstance(body, int) or body < 0:
                raise FailedToParseError("the length in an array difference is no length")
            length = int(body)
            del result[length:]
            continue
        index = array_index(section[1:]) if section[:1] in ("u", "s") else None
        if index is None:
            raise FailedToParseError(f"an unknown section '{section[:40]}' in an array difference")
        _check_unique(section[1:], seen)
        result += [None] * (index + 1 - len(result))
        result[index] = body if section[0] == "u" else _apply_nested(result[index], _mapping(section, body))
    if length is not None:
        result += [None] * (length - len(result))
    return result


def _check_unique(name: str, seen: set[str]) -> str:
    if name in seen:
        raise ReplError(
            f"duplicate field name in an oplog difference: '{name[:100]}'", code=ErrorCode.DUPLICATE_FIELD_IN_DIFF
        )
    seen.add(name)
    return name


def _mapping(section: str, body: object) -> Mapping[str, object]:
    if not isinstance(body, Mapping):
        raise FailedToParseError(f"the section '{section[:40]}' of a difference is no document")
    return body
