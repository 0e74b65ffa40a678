"""SCRAM-SHA-256 (RFC 5802, 7677): what is kept of a password, and both ends of the exchange that proves it.

The client's end knows SCRAM-SHA-1 too, for servers of others. The password itself is never kept or sent. Neither end
has I/O or randomness of its own: nonces and salts are handed in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from replset.errors import AuthenticationFailedError, BadValueError

MECHANISM: Final = "SCRAM-SHA-256"
OLD_MECHANISM: Final = "SCRAM-SHA-1"
ITERATIONS: Final = 15_000
FEWEST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 1_000_000
SALT_BYTES: Final = 28
NONCE_BYTES: Final = 24
LONGEST_MESSAGE: Final = 2_048
LONGEST_PASSWORD: Final = 1_024
_NO_CHANNEL_BINDING: Final = ("n", "y")
_TABLES = "c12 c21_c22 c3 c4 c5 c6 c7 c8 c9 a1"
_REFUSED: Final = tuple(getattr(stringprep, f"in_table_{name}") for name in _TABLES.split())


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is kept of a password. Who has it can guess passwords by trying them, but not log in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> Credentials:
        """Make those of a password; it takes milliseconds on purpose. BadValueError: a character that none may have."""
        client_key, server_key = _keys(prepared(password), salt, iterations)
        return cls(iterations, salt, _hash(client_key), server_key)

    @classmethod
    def parse(cls, document: Mapping[str, object]) -> Credentials:
        """Read what `document` returned; BadValueError."""
        count = document.get("iterationCount")
        texts = [document.get(name) for name in ("salt", "storedKey", "serverKey")]
        if not isinstance(count, int) or not all(isinstance(text, str) for text in texts):
            raise BadValueError("credentials of another form")
        return cls(count, *(_decoded(str(text)) for text in texts))

    def document(self) -> dict[str, object]:
        """The document that MongoDB keeps in a user's `credentials`."""
        keys = {"salt": self.salt, "storedKey": self.stored_key, "serverKey": self.server_key}
        return {"iterationCount": self.iterations, **{name: _encoded(value) for name, value in keys.items()}}

    def fit(self, password: str) -> bool:
        """Whether they are of this password; takes milliseconds on purpose."""
        try:
            return hmac.compare_digest(Credentials.of(password, self.salt, self.iterations).stored_key, self.stored_key)
        except BadValueError:
            return False


class ServerExchange:
    """The server's end. `begin` reads the client's first message; `answer` gives credentials, `finish` checks them."""

    def __init__(self, client_first: bytes, nonce: bytes) -> None:
        """nonce: random. AuthenticationFailedError for a malformed message, or one that asks for channel binding."""
        text = _text(client_first)
        flag, _, rest = text.partition(",")
        as_other, _, self._bare = rest.partition(",")
        fields = _fields(self._bare, ("n", "r"))
        if flag not in _NO_CHANNEL_BINDING or as_other not in ("", f"a={fields['n']}"):
            raise AuthenticationFailedError("channel binding, or another identity, is not offered")
        self._header = f"{flag},{as_other},"
        self.user = _unescaped(fields["n"])
        self._nonce = fields["r"] + _encoded(nonce)
        self._first = ""
        self._credentials: Credentials | None = None

    def answer(self, credentials: Credentials) -> bytes:
        """The server's first message."""
        self._credentials = credentials
        self._first = f"r={self._nonce},s={_encoded(credentials.salt)},i={credentials.iterations}"
        return self._first.encode()

    def finish(self, client_final: bytes) -> bytes:
        """The server's final message, which proves that it knew the user. AuthenticationFailedError: wrong password."""
        text = _text(client_final)
        without_proof, _, _ = text.rpartition(",p=")
        fields = _fields(text, ("c", "r", "p"))
        credentials = self._credentials
        if credentials is None or fields["c"] != _encoded(self._header.encode()) or fields["r"] != self._nonce:
            raise AuthenticationFailedError("the message is of another exchange")
        said = ",".join((self._bare, self._first, without_proof)).encode()
        client_key = _xor(_decoded(fields["p"]), _hmac(credentials.stored_key, said))
        if not hmac.compare_digest(_hash(client_key), credentials.stored_key):
            raise AuthenticationFailedError("the password is wrong")
        return f"v={_encoded(_hmac(credentials.server_key, said))}".encode()


class ClientExchange:
    """The client's end: `first`, then `final` of the server's first message, then `check` of its final one."""

    def __init__(self, user: str, password: str, nonce: bytes, *, mechanism: str = MECHANISM) -> None:
        """password: for SCRAM-SHA-1 what the server takes as such, `legacy_password` say."""
        self._digest = "sha256" if mechanism == MECHANISM else "sha1"
        self._password = prepared(password) if mechanism == MECHANISM else password
        self._nonce = _encoded(nonce)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """AuthenticationFailedError: the server's message is malformed, or asks for too little or too much work."""
        text = _text(server_first)
        fields = _fields(text, ("r", "s", "i"))
        count = int(fields["i"]) if fields["i"].isdecimal() and len(fields["i"]) < 8 else 0
        if not fields["r"].startswith(self._nonce) or not FEWEST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise AuthenticationFailedError("the server's answer is of another exchange, or too weak")
        digest = self._digest
        client_key, server_key = _keys(self._password, _decoded(fields["s"]), count, digest)
        without_proof = f"c={_encoded(b'n,,')},r={fields['r']}"
        said = ",".join((self._bare, text, without_proof)).encode()
        proof = _xor(client_key, _hmac(_hash(client_key, digest), said, digest))
        self._expected = f"v={_encoded(_hmac(server_key, said, digest))}".encode()
        return f"{without_proof},p={_encoded(proof)}".encode()

    def check(self, server_final: bytes) -> None:
        """AuthenticationFailedError: who answered does not know the user."""
        if not self._expected or not hmac.compare_digest(server_final, self._expected):
            raise AuthenticationFailedError("the server did not prove that it knows the user")


def legacy_password(user: str, password: str) -> str:
    """What MongoDB takes for the password in SCRAM-SHA-1."""
    return hashlib.md5(f"{user}:mongo:{password}".encode(), usedforsecurity=False).hexdigest()


def prepared(password: str) -> str:
    """The password as SASLprep (RFC 4013) writes it, so that two ways to type it are the same. BadValueError."""
    if not 0 < len(password) <= LONGEST_PASSWORD:
        raise BadValueError(f"a password has 1 to {LONGEST_PASSWORD} characters")
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    text = unicodedata.normalize("NFKC", mapped)
    if not text:
        raise BadValueError("nothing of the password is left without characters that count for nothing")
    if any(refused(c) for c in text for refused in _REFUSED):
        raise BadValueError("the password has characters that a password cannot have")
    if any(stringprep.in_table_d1(c) for c in text):
        mixed = any(stringprep.in_table_d2(c) for c in text)
        if mixed or not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
            raise BadValueError("the password mixes directions of writing")
    return text


def _keys(password: str, salt: bytes, iterations: int, digest: str = "sha256") -> tuple[bytes, bytes]:
    """password: prepared."""
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    return _hmac(salted, b"Client Key", digest), _hmac(salted, b"Server Key", digest)


def _hash(data: bytes, digest: str = "sha256") -> bytes:
    return hashlib.new(digest, data).digest()


def _hmac(key: bytes, data: bytes, digest: str = "sha256") -> bytes:
    return hmac.digest(key, data, digest)


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise AuthenticationFailedError("a proof has 32 bytes")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise AuthenticationFailedError("a value is not base64") from None


def _text(message: bytes) -> str:
    if len(message) > LONGEST_MESSAGE:
        raise AuthenticationFailedError("a message of the exchange is too long")
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailedError("a message of the exchange is not UTF-8") from None


def _fields(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """The values of `a=1,b=2`. All names must be there, in this order; what follows them is an extension."""
    found: dict[str, str] = {}
    for name, part in zip(names, text.split(","), strict=False):
        if not part.startswith(f"{name}=") or len(part) < 3:
            break
        found[name] = part[2:]
    if len(found) != len(names):
        raise AuthenticationFailedError("a message of the exchange is malformed")
    return found


def _unescaped(name: str) -> str:
    rest = name.replace("=2C", "").replace("=3D", "")
    if "=" in rest:
        raise AuthenticationFailedError("the user's name is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")
