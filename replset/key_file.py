"""A set's keys, and how two members prove to each other that both know one (MongoDB's keyFile, map B7).

A proof is an HMAC-SHA-256 over random numbers of both ends, both addresses and the role of who gives it. So an answer
of another connection is not valid on this one, and the proof of one end is not valid as the proof of the other. A
member that was made to connect to a stranger gives a proof for the stranger's address, which is not valid elsewhere.

Members without a key file prove themselves in the same way, with a key that is no secret. That keeps out who cannot
read what a member answers, or does not mean to be a member: a port scan, a web page, a server that is made to send
bytes to this address. It does not keep out who runs this program.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from replset.errors import BadValueError
from replset.ids import HostPort

Role: TypeAlias = Literal["asking", "asked"]

NONCE_BYTES: Final = 32
LEAST, MOST = 6, 1024
MAX_KEYS: Final = 8
MAX_FILE_BYTES: Final = 1 << 16
_PUBLIC = "members without a key file"
_PURPOSE = b"replset member proof 1"
_KEY = re.compile(rf"[A-Za-z0-9+/=]{{{LEAST},{MOST}}}")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What both ends of one new connection know of it. asked: the address that the asking member connected to."""

    asking: HostPort
    asked: HostPort
    asking_nonce: bytes
    asked_nonce: bytes


class Keys:
    """The keys of one member. The first is no better than the others: any one that both ends know will do.

    is_secret: False where the member has no key file. or_certified: who has shown a member's certificate needs none.
    """

    def __init__(self, keys: Sequence[str], *, is_secret: bool = True) -> None:
        self._keys = [key.encode("ascii") for key in keys]
        self.is_secret = is_secret
        self.or_certified = False

    @classmethod
    def public(cls) -> Self:
        """Return the key of members without a key file."""
        return cls([_PUBLIC], is_secret=False)

    def replace(self, others: Keys) -> None:
        """Use these keys from now on, for new connections."""
        self._keys = others._keys

    def on(self, *, certified: bool) -> Keys:
        """Return the keys for one connection. certified: the other end has shown a member's certificate on it."""
        if not (self.or_certified and certified):
            return self
        return Keys([*(key.decode("ascii") for key in self._keys), _PUBLIC])

    def proofs(self, role: Role, handshake: Handshake) -> list[bytes]:
        """Return one proof for each key, since this end does not know which keys the other end has."""
        return [_proof(key, role, handshake) for key in self._keys]

    def derive(self, purpose: bytes) -> list[bytes]:
        """Return for each key another one for this purpose, which says nothing about the key itself."""
        return [hmac.digest(key, purpose, "sha256") for key in self._keys]

    def answer(self, handshake: Handshake, proofs: Sequence[bytes]) -> bytes | None:
        """The asked member's own proof, with the key that one of the asking member's `proofs` shows; None: no key."""
        found: bytes | None = None
        for key in self._keys:
            expected = _proof(key, "asking", handshake)
            for proof in proofs:
                if hmac.compare_digest(expected, proof):
                    found = key
        return None if found is None else _proof(found, "asked", handshake)

    def accept(self, handshake: Handshake, proof: bytes) -> bool:
        """Whether the asked member knows one of these keys."""
        return any([hmac.compare_digest(expected, proof) for expected in self.proofs("asked", handshake)])


def _proof(key: bytes, role: Role, handshake: Handshake) -> bytes:
    texts = (role, handshake.asking, handshake.asked)
    parts = [_PURPOSE, *(text.encode() for text in texts), handshake.asking_nonce, handshake.asked_nonce]
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def read_key_file(path: Path) -> Keys:
    """The keys of a file: one key, or a YAML list of several. BadValueError names the file and what is wrong.

    Whitespace counts for nothing. Others than its owner may not read it, or the key would be no secret.
    A file of root's may be read by its group.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadValueError(f"key file {path}: {error.strerror}") from error
    forbidden = stat.S_IRWXG | stat.S_IRWXO
    if found.st_uid == 0 and os.geteuid() != 0:  # the administrator's, for a service's group; a mounted secret is so
        forbidden &= ~stat.S_IRGRP
    if found.st_mode & forbidden:
        raise BadValueError(f"key file {path}: others than its owner may use it (chmod 600 {path})")
    try:
        return parse_keys(data)
    except BadValueError as error:
        raise BadValueError(f"key file {path}: {error.message}") from error


def parse_keys(data: bytes) -> Keys:
    """The keys in the bytes of a key file; the texts of errors hold nothing of the keys."""
    if len(data) > MAX_FILE_BYTES:
        raise BadValueError(f"it is longer than {MAX_FILE_BYTES} bytes")
    import yaml  # not where a Spark job is: nobody reads a key file there

    try:
        text = data.decode("ascii").strip()
        found = yaml.load(text, Loader=yaml.BaseLoader) if text[:1] in ("-", "[") else text
    except (UnicodeDecodeError, yaml.YAMLError):
        raise BadValueError("it is neither a key in base64 nor a YAML list of such keys") from None
    rows = found if isinstance(found, list) else [found]
    if not 0 < len(rows) <= MAX_KEYS:
        raise BadValueError(f"it holds {len(rows)} keys, not 1 to {MAX_KEYS}")
    keys = ["".join(row.split()) if isinstance(row, str) else "" for row in rows]
    for number, key in enumerate(keys, start=1):
        if not _KEY.fullmatch(key):
            raise BadValueError(f"key {number} is not {LEAST} to {MOST} characters of base64")
    return Keys(keys)
