"""Projections of find and findAndModify: those of pipelines, and the positional `$`, which needs the filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.query.expressions import fault
from replset.query.match import NO_VARIABLES, Matcher
from replset.query.order import is_true
from replset.query.projection import Document, Projection, compile_projection


def compile_find_projection(
    spec: Mapping[str, object], variables: Mapping[str, Any] = NO_VARIABLES, matcher: Matcher | None = None
) -> Projection | None:
    """Return a function that makes the projected document, None when the projection shows everything.

    variables: of its expressions. matcher: of the filter, by which the item for the positional `$` is found.
    Raises what compile_projection raises, 31276, 31394 and 31395 for the positional `$`.
    """
    path = _positional_path(spec)
    if path is not None:
        spec = {name.removesuffix(".$"): value for name, value in spec.items()}
    projection = compile_projection(spec, variables)
    if projection is None:
        return None
    project = projection.make
    if path is None:
        return Projection(lambda doc, _: project(doc, variables), projection.fields)
    parts = path.split(".")

    def shown(doc: Document, _variables: Mapping[str, Any]) -> Document:
        position = None if matcher is None else matcher.position(doc)
        if position is None:
            raise fault(51246, "Executor error: positional operator '.$' couldn't find a matching element in the array")
        return project(_with_item(doc, parts, position), variables)

    return Projection(shown)


def _positional_path(spec: Mapping[str, object]) -> str | None:
    """Return the path in front of `.$`, None if there is no such path."""
    found: str | None = None
    for name, value in spec.items():
        if ".$." in name or name.startswith("$."):
            raise fault(31394, f"the positional operator may only be at the end of a path, not as in '{name:.80}'")
        if not name.endswith(".$"):
            continue
        if found is not None:
            raise fault(31276, "Cannot specify more than one positional projection per query.")
        if isinstance(value, Mapping | str | list):
            raise fault(31271, f"the positional projection '{name:.80}' cannot have an expression or literal")
        if not is_true(value):
            raise fault(31395, f"the positional projection '{name:.80}' cannot exclude")
        found = name[:-2]
    if found is not None and any(
        isinstance(value, Mapping) and next(iter(value), "") == "$elemMatch" for value in spec.values()
    ):
        raise fault(31255, "Cannot specify positional operator and $elemMatch.")
    return found


def _with_item(doc: Document, parts: list[str], position: int) -> Document:
    """Return the document with one item alone in the first array on the path."""
    name, *rest = parts
    value: Any = doc.get(name)
    if type(value) is list:
        if position >= len(value):
            raise fault(51247, "Executor error: the positional operator '.$' element mismatch")
        return {**doc, name: [value[position]]}
    if isinstance(value, dict) and rest:
        return {**doc, name: _with_item(value, rest, position)}
    return doc
