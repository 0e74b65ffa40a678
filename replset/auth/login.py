"""A user that has logged in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Login:
    """Who has logged in. proof: of the credentials that it was done with; once they change, the login is over."""

    name: str
    database: str
    proof: bytes

    def __str__(self) -> str:
        return f"{self.name}@{self.database}"
