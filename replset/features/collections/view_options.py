"""The options of a view, which define it, as `create` and `collMod` take them.

A view is a row of the catalog without documents. Its definition is its options, so it is replicated, rolled back,
copied and dumped as the options of a collection are. aggregation/view_reads.py answers reads of views.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from replset.bson import RawDocument
from replset.errors import BadValueError, ErrorCode, InvalidOptionsError, ReplError
from replset.operations import fields
from replset.operations.namespaces import namespace
from replset.query.pipeline import compile_pipeline
from replset.query.views import check_dependencies, collections_named, refuse_stages
from replset.storage.catalog import Collection
from replset.storage.indexes import fold_in

MAX_DEFINITION: Final = 256 << 10
"""Bytes of a view's definition: it is read whenever somebody reads the view."""
MOST_VIEWS, MOST_BYTES = 1000, 4 << 20
"""Views of one database, and the bytes of their definitions: all of them are read when one is made."""


def definition_of(body: RawDocument, place: str) -> dict[str, object]:
    """Return `viewOn` and `pipeline`, as far as they are given. Raises what the pipeline's stages raise, 167 for one
    that no view has, and 195 for more than 256 KiB.
    """
    definition: dict[str, object] = {}
    if not fields.is_absent(body, "viewOn"):
        definition["viewOn"] = source = fields.text(body, "viewOn", place)
        if not source:
            raise BadValueError("'viewOn' cannot be empty")
        namespace("db", source)
    if not fields.is_absent(body, "pipeline"):
        if len(body.get_raw("pipeline") or b"") > MAX_DEFINITION:
            raise ReplError(
                f"the pipeline of a view takes at most {MAX_DEFINITION} bytes", code=ErrorCode.VIEW_PIPELINE_TOO_LARGE
            )
        definition["pipeline"] = pipeline = fields.values(body, "pipeline", place)
        compile_pipeline(pipeline)
        refuse_stages(pipeline)
    return definition


def view_options(body: RawDocument, place: str) -> dict[str, object] | None:
    """Return the options of the view that a `create` asks for; None: it asks for a collection."""
    definition = definition_of(body, place)
    if "viewOn" not in definition:
        if definition:
            raise InvalidOptionsError("'pipeline' requires 'viewOn' to also be specified")
        return None
    for name in ("capped", "size", "max", "validator", "validationLevel", "validationAction", "idIndex"):
        if fields.given(body, name):
            raise InvalidOptionsError(f"option not supported on a view: {name}")
    return {"pipeline": [], **definition}


def check_definition(by_ns: Mapping[str, Collection], ns: str, options: RawDocument) -> None:
    """Raise 5 or 165 if the view `ns`, with these options, would read itself or lie on too many others, 167 if it reads
    a view with another collation, or is read by one, and 195 if the database has too many views.
    """
    database, _, name = ns.partition(".")
    views = [coll for coll in by_ns.values() if coll.view_on is not None and coll.database == database]
    if len(views) > MOST_VIEWS or sum(len(coll.options.raw) for coll in views) > MOST_BYTES:
        raise ReplError(
            f"the views of a database are at most {MOST_VIEWS}, and take at most {MOST_BYTES} bytes",
            code=ErrorCode.VIEW_PIPELINE_TOO_LARGE,
        )
    sources = {coll.name: _sources(coll.options.raw) for coll in views}
    sources[name] = _sources(options.raw)
    check_dependencies(sources, name)
    folds = {coll.name: coll.fold for coll in views} | {name: fold_in(options)}
    for one in sources:
        for other in sources[one] & folds.keys() if one == name else {name} & sources[one]:
            if folds[one] != folds[other]:
                raise ReplError(
                    f"View {database}.{one} has conflicting collation with view {database}.{other}",
                    code=ErrorCode.OPTION_NOT_SUPPORTED_ON_VIEW,
                )


@lru_cache(maxsize=4096)
def _sources(options: bytes) -> frozenset[str]:
    """What a view reads."""
    document = RawDocument(options)
    return frozenset({str(document.get("viewOn")), *collections_named(document.get("pipeline"))})
