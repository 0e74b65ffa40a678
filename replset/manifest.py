"""Manifests: JSON documents that describe files, with a format and a checksum of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from replset.errors import BadValueError, CorruptDataError

FORMAT = 1
Described = TypeVar("Described")


def encode_manifest(described: Any) -> bytes:
    """Return the bytes of a dataclass's manifest."""
    written = {"format": FORMAT, **asdict(described)}
    return (json.dumps({**written, "checksum": _checksum(written)}, indent=2) + "\n").encode()


def parse_manifest(kind: Callable[..., Described], data: bytes, where: str, what: str) -> Described:
    """Read one of a dataclass. Fields that a newer release added to this format are passed over.

    where: the file, what: it describes, for messages. CorruptDataError; BadValueError: it has another format.
    """
    try:
        found = json.loads(data)
        checksum, number = found.pop("checksum"), found["format"]
        if checksum != _checksum(found):
            raise CorruptDataError(f"{where} is damaged: its checksum differs")
        if number != FORMAT:
            raise BadValueError(f"{where} has format {number}, and this version of replset reads format {FORMAT}")
        known: Any = kind
        return kind(**{field.name: found[field.name] for field in fields(known) if field.name in found})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{where} describes no {what}: {error}") from error


def _checksum(written: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
