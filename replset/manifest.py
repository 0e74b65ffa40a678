"""Manifests: JSON documents that describe files, with a format and a checksum of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from replset.errors import BadValueError, CorruptDataError

FORMAT = 1
Described = TypeVar("Described")


def encode_manifest(described: Any) -> bytes:
    """Return the bytes of a dataclass's manifest."""
    fields = {"format": FORMAT, **asdict(described)}
    return (json.dumps({**fields, "checksum": _checksum(fields)}, indent=2) + "\n").encode()


def parse_manifest(kind: Callable[..., Described], data: bytes, where: str, what: str) -> Described:
    """Read one. where: the file, what: it describes, for messages. CorruptDataError; BadValueError: it is newer."""
    try:
        fields = json.loads(data)
        checksum, number = fields.pop("checksum"), fields["format"]
        if checksum != _checksum(fields):
            raise CorruptDataError(f"{where} is damaged: its checksum differs")
        if fields.pop("format") != FORMAT:
            raise BadValueError(f"{where} is of a newer version: format {number}, known {FORMAT}")
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{where} describes no {what}: {error}") from error


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
