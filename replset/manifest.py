"""Manifests: JSON documents that describe files, with a format and a checksum of their own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any, ClassVar, Self

from replset.errors import BadValueError, CorruptDataError

FORMAT = 1


class Manifest:
    """A dataclass with the bytes of its manifest."""

    what: ClassVar[str]
    """What it describes, for messages."""

    def encode(self: Any) -> bytes:
        """Return the bytes of the manifest, with a checksum of their own."""
        written = {"format": FORMAT, **asdict(self)}
        return (json.dumps({**written, "checksum": _checksum(written)}, indent=2) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Read one. Fields that a newer release added to this format are passed over.

        where: the file, for messages. CorruptDataError; BadValueError: it has another format.
        """
        try:
            found = json.loads(data)
            checksum, number = found.pop("checksum"), found["format"]
            if checksum != _checksum(found):
                raise CorruptDataError(f"{where} is damaged: its checksum differs")
            if number != FORMAT:
                raise BadValueError(f"{where} has format {number}, and this version of replset reads format {FORMAT}")
            known: Any = cls
            made: Self = known(**{field.name: found[field.name] for field in fields(known) if field.name in found})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{where} describes no {cls.what}: {error}") from error
        return made


def _checksum(written: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
