"""A document on its way through a pipeline: as bytes, or decoded once a stage looks into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.bson import encode
from replset.bson.decoding import decode_fields


class Row:
    """One document. Give its bytes or its content.

    fields: the top-level fields that stages look at, by their bytes; `document` has no others. None: all.
    """

    __slots__ = ("document", "fields", "raw")
    document: dict[str, Any]
    fields: Mapping[bytes, str] | None
    raw: bytes

    def __init__(
        self,
        raw: bytes | None = None,
        document: dict[str, Any] | None = None,
        fields: Mapping[bytes, str] | None = None,
    ) -> None:
        self.fields = fields
        if raw is not None:
            self.raw = raw
        if document is not None:
            self.document = document

    def __getattr__(self, name: str) -> Any:
        """Make what the row was not given, when it is first asked for."""
        if name == "document":
            self.document = decode_fields(self.raw, self.fields)
            return self.document
        if name == "raw":
            self.raw = encode(self.document)
            return self.raw
        raise AttributeError(name)
