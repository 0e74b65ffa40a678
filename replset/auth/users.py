"""One user, as a document of admin.system.users, and a user that has logged in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replset.auth.roles import Grants, Role, grants_of
from replset.auth.scram import MECHANISM, Credentials, ServerExchange
from replset.bson import Binary, RawDocument
from replset.errors import BadValueError


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


USERS_NS: Final = "admin.system.users"
AUTH_SCHEMA: Final = 5
"""The form of users' documents, as MongoDB counts its own."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. stamp: changes with each change of the user."""

    name: str
    database: str
    credentials: Credentials
    roles: frozenset[Role]
    stamp: bytes
    document: Mapping[str, object]

    @classmethod
    def parse(cls, raw: bytes) -> User:
        """BadValueError: it is no such document."""
        document = RawDocument(raw).decode()
        name, database, roles, kept = (document.get(field) for field in ("user", "db", "roles", "credentials"))
        scram = kept.get(MECHANISM) if isinstance(kept, dict) else None
        if not isinstance(name, str) or not isinstance(database, str) or not isinstance(scram, dict):
            raise BadValueError("a user's document is damaged")
        rows = roles if isinstance(roles, list) else []
        found = frozenset(Role(str(row.get("role")), str(row.get("db"))) for row in rows if isinstance(row, dict))
        return cls(name, database, Credentials.parse(scram), found, hashlib.sha256(raw).digest(), document)

    @property
    def grants(self) -> Grants:
        return grants_of(self.roles)

    @property
    def login(self) -> Login:
        return Login(self.name, self.database, self.credentials.stored_key)

    def shown(self) -> dict[str, object]:
        """The document without the keys, as usersInfo shows it."""
        rest = {name: value for name, value in self.document.items() if name != "credentials"}
        return {**rest, "mechanisms": [MECHANISM]}


@dataclass(slots=True)
class SaslConversation:
    """A login that has begun on a connection. user: None where no user has the name. is_proved: the password was right,
    and only the empty exchange is left."""

    exchange: ServerExchange
    database: str
    user: User | None
    skips_empty_exchange: bool
    is_proved: bool = False

    @property
    def login(self) -> Login | None:
        return None if self.user is None else self.user.login


def user_id(name: str, database: str) -> str:
    """The `_id` of a user."""
    return f"{database}.{name}"
