"""A document on its way through a pipeline: as bytes, or decoded once a stage looks into it."""

from __future__ import annotations

from typing import Any

from replset.bson import decode, encode


class Row:
    """One document. Give its bytes, its content, or both."""

    __slots__ = ("_document", "_raw")

    def __init__(self, raw: bytes | None = None, document: dict[str, Any] | None = None) -> None:
        self._raw = raw
        self._document = document

    @property
    def document(self) -> dict[str, Any]:
        if self._document is None:
            self._document = decode(self._raw or b"")
        return self._document

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode(self._document or {})
        return self._raw
