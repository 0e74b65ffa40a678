"""A user that has logged in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from replset.bson import Binary


@dataclass(frozen=True, slots=True)
class Login:
    """Who has logged in. proof: the stored key of his password then; once that changes, the login is over. Empty: a
    member vouches for him. uid: tells his sessions from those of others.
    """

    name: str
    database: str
    proof: bytes = b""
    uid: Binary = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uid", Binary(hashlib.sha256(str(self).encode()).digest()))

    def __str__(self) -> str:
        return f"{self.name}@{self.database}"
