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

    __slots__ = ("_document", "_fields", "_raw")

    def __init__(
        self,
        raw: bytes | None = None,
        document: dict[str, Any] | None = None,
        fields: Mapping[bytes, str] | None = None,
    ) -> None:
        self._raw = raw
        self._document = document
        self._fields = fields

    @property
    def fields(self) -> Mapping[bytes, str] | None:
        return self._fields

    @property
    def document(self) -> dict[str, Any]:
        if self._document is None:
            self._document = decode_fields(self._raw or b"", self._fields)
        return self._document

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode(self._document or {})
        return self._raw
