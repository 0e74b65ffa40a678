"""Bearer tokens of the HTTP API: who, until when, and a signature with a key that all members derive from the key file.

A token names the state of its user, so it ends with any change of the user, beside the end that is written in it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from replset.auth.users import User

PURPOSE: Final = b"replset http token 1"
LIFETIME_S: Final = 12 * 3600
LONGEST: Final = 2_048
_STAMP_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """What a token with a right signature says."""

    user: str
    database: str
    stamp: str
    until_s: int

    def fits(self, user: User) -> bool:
        """Whether the user is as he was when he logged in."""
        return self.stamp == _stamp(user)


def make_token(key: bytes, user: User, until_s: int) -> str:
    body = json.dumps([user.name, user.database, _stamp(user), until_s], separators=(",", ":")).encode()
    return f"{_encoded(body)}.{_encoded(_signature(key, body))}"


def read_token(keys: Sequence[bytes], token: str, now_s: float) -> TokenClaim | None:
    """What the token says; None: none of the keys signed it, or it has ended."""
    body_text, _, signature_text = token.partition(".")
    body, given = _decoded(body_text), signature_text.encode()
    signatures = [_encoded(_signature(key, body)).encode() for key in keys]
    if len(token) > LONGEST or not any([hmac.compare_digest(signature, given) for signature in signatures]):
        return None
    claim = TokenClaim(*json.loads(body))
    return claim if now_s < claim.until_s else None


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")


def _stamp(user: User) -> str:
    return user.stamp.hex()[: 2 * _STAMP_BYTES]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        return b""
