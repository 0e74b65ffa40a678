"""How an update stands in the oplog: the difference between two documents, and the document a difference gives.

`{d: {name: false}, u: {name: value}, i: {name: value}, s<name>: difference}`, for arrays `{a: true, l: length,
u<index>: value, s<index>: difference}`. Applying one changes to resulting values only, so that entries can be applied
again: twice, or from any earlier one on in order (docs/query.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from replset.bson import InvalidBSONError, RawDocument, decode, encode
from replset.errors import ErrorCode, FailedToParseError, ReplError
from replset.query.order import identical
from replset.query.paths import array_index

DIFF_VERSION = 2


def compute_diff(before: dict[str, object], after: dict[str, object]) -> dict[str, object] | None:
    """The difference that turns `before` into exactly `after`, order of fields included; None when they are equal.

    A changed number type is a change. A field that moved is inserted anew, which puts it at the end.
    """
    return _Comparison().of_documents(before, after) or None


def update_entry_object(
    before: dict[str, object], after: dict[str, object], *, after_size: int | None = None
) -> dict[str, object] | None:
    """The `o` of an update entry: `{$v: 2, diff: ...}` where that is smaller, else `after`; None when nothing changed.

    after_size: bytes of encode(after), where the caller has them already.
    """
    diff = compute_diff(before, after)
    if diff is None:
        return None
    entry: dict[str, object] = {"$v": DIFF_VERSION, "diff": diff}
    if is_diff(after):
        return entry  # a document that reads like a difference can only be told as one
    if _size(entry) < (_size(after) if after_size is None else after_size) and identical(
        apply_diff(before, diff), after
    ):
        return entry
    return after


def is_diff(o: Mapping[str, object]) -> bool:
    """Whether the `o` of an update entry is a difference: told by the value of `$v`, not by field names."""
    version = o.get("$v")
    return type(version) is not bool and version == DIFF_VERSION and isinstance(o.get("diff"), Mapping)


def apply_update_object(doc: dict[str, object], o: Mapping[str, object]) -> dict[str, object]:
    """The document after an update entry with this `o`: a difference, else the document that replaces it."""
    if is_diff(o):
        return apply_diff(doc, o["diff"])  # type: ignore[arg-type]
    return dict(o)


def updated(before: bytes, o: RawDocument) -> bytes:
    """The document after an update entry with this `o`: a diff, told by the value of `$v`, else the replacement."""
    if o.type_of("$v") is None:
        return o.raw
    change = o.decode()
    return encode(apply_update_object(decode(before), change)) if is_diff(change) else o.raw


def apply_diff(doc: dict[str, object], diff: Mapping[str, object]) -> dict[str, object]:
    """The document that `diff` makes of `doc`; `doc` stays as it is.

    u replaces in place and appends what is absent; i always moves to the end; a sub-difference on a value of another
    type gives null (a later entry overwrites it), on nothing it is passed over. Raises 4728000 when a field is named
    twice, FailedToParseError for anything that is no difference.
    """
    if "a" in diff:
        raise FailedToParseError("an array difference applied to a document")
    result = dict(doc)
    seen: set[str] = set()
    inserted: dict[str, object] = {}
    for section, body in diff.items():
        if section.startswith("s"):
            name = _once(section[1:], seen)
            if name in result:
                result[name] = _apply_nested(result[name], _mapping(section, body))
            continue
        fields = _mapping(section, body)
        for name in fields:
            _once(name, seen)
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


class _Unlike(Enum):
    """How a value stands to the one before it, where no difference of the two is told."""

    SAME = "same"
    WHOLE = "the new value itself is as short"


class _Comparison:
    """The differences of two documents, level by level. Each value is compared and measured once, however deep."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[object, int]] = {}

    def of_documents(self, before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
        """Goes along both documents at once: what stays in its order is kept, all behind it is inserted anew.

        Empty when both are the same.
        """
        deleted: dict[str, object] = {}
        updated: dict[str, object] = {}
        nested: dict[str, object] = {}
        rest = iter(after.items())
        target = next(rest, None)
        for name, old in before.items():
            if target is not None and name == target[0]:
                change = self._change(old, target[1])
                if change is _Unlike.WHOLE:
                    updated[name] = target[1]
                elif change is not _Unlike.SAME:
                    nested[f"s{name}"] = change
                target = next(rest, None)
            elif name not in after:
                deleted[name] = False
        inserted = {} if target is None else {target[0]: target[1], **dict(rest)}
        sections = {"d": deleted, "u": updated, "i": inserted}
        return {**{section: fields for section, fields in sections.items() if fields}, **nested}

    def _of_arrays(self, before: list[object], after: list[object]) -> dict[str, object]:
        diff: dict[str, object] = {"a": True}
        if len(after) < len(before):
            diff["l"] = len(after)
        for index, new in enumerate(after):
            if index < len(before) and before[index] is new:
                continue
            change = self._change(before[index], new) if index < len(before) else _Unlike.WHOLE
            if change is _Unlike.WHOLE:
                diff[f"u{index}"] = new
            elif change is not _Unlike.SAME:
                diff[f"s{index}"] = change
        return diff

    def _change(self, old: object, new: object) -> dict[str, object] | _Unlike:
        """The difference of two documents or two arrays, where it is shorter than the new value."""
        if old is new:
            return _Unlike.SAME
        if type(old) is dict and type(new) is dict:
            diff = self.of_documents(old, new)
            is_same = not diff
        elif type(old) is list and type(new) is list:
            diff = self._of_arrays(old, new)
            is_same = len(diff) == 1
        else:
            return _Unlike.SAME if identical(old, new) else _Unlike.WHOLE
        if is_same:
            return _Unlike.SAME
        return diff if self._size(diff) < self._size(new) else _Unlike.WHOLE

    def _size(self, value: object) -> int:
        """The bytes of a value, without its type and name."""
        if type(value) is not dict and type(value) is not list:
            return _size({"": value}) - 7
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        values = list(value.values() if type(value) is dict else value)
        below = [inner for inner in values if type(inner) is dict or type(inner) is list]
        if below:  # null has no bytes: it keeps their places
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
        return 1 << 62  # nested too deeply with the levels of the difference: the whole value goes instead


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
        _once(section[1:], seen)
        result += [None] * (index + 1 - len(result))
        result[index] = body if section[0] == "u" else _apply_nested(result[index], _mapping(section, body))
    if length is not None:
        result += [None] * (length - len(result))
    return result


def _once(name: str, seen: set[str]) -> str:
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
