"""TLS of a member: its certificate, the CAs that it believes, and which certificates are members' (map B7).

Clients of the wire port may show a certificate. Members show theirs to each other, on both ends of a connection.
"""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from replset.errors import BadValueError

MEMBER_ATTRIBUTES: Final = frozenset({"organizationName", "organizationalUnitName", "domainComponent"})
"""Parts of a subject that all members of a set have in common, and other holders of the CA's certificates have not."""
SOON_S: Final = 30 * 24 * 3600
_FLIGHTS: Final = 10


Certifies: TypeAlias = Callable[[ssl.SSLObject | None], bool]


def needs_no_certificate(_: ssl.SSLObject | None) -> bool:
    """Accept every connection: members prove themselves in another way."""
    return True


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM: a member's certificate with those between it and the CA, its key, and the CAs that it believes."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class _Contexts:
    wire: ssl.SSLContext
    http: ssl.SSLContext
    client: ssl.SSLContext
    own: Mapping[str, Any]  # the certificate, as `SSLObject.getpeercert` returns it


class MemberTls:
    """Holds the TLS contexts of one member. `reload` replaces them; connections that are open keep theirs."""

    def __init__(
        self, files: TlsFiles, host: str, *, needs_attributes: bool = False, is_optional: bool = False
    ) -> None:
        """host: the name under which the others reach this member. BadValueError: the files cannot serve a member.

        needs_attributes: members prove themselves by their certificates. is_optional: both ports serve connections
        without TLS too, and a member that has none yet is reached without it.
        """
        self._needs_attributes = needs_attributes
        self.is_optional = is_optional
        self._files = files
        self._host = host.strip("[]")
        self._now = self._read()

    @property
    def wire(self) -> ssl.SSLContext:
        """The context of the wire port's connections."""
        return self._now.wire

    @property
    def http(self) -> ssl.SSLContext:
        """The context of the HTTP port. It asks for no certificate, or browsers would ask their users for one."""
        return self._now.http

    @property
    def client(self) -> ssl.SSLContext:
        """The context of connections to other members."""
        return self._now.client

    @property
    def expires_at(self) -> float:
        """Return the second at which the member's certificate ends."""
        return ssl.cert_time_to_seconds(self._now.own["notAfter"])

    def warning(self) -> str | None:
        """Return a text if the certificate ends soon."""
        if self.expires_at - time.time() > SOON_S:
            return None
        return f"the certificate {self._files.cert} ends at {self._now.own['notAfter']}"

    def is_members(self, end: ssl.SSLObject | None) -> bool:
        """Whether the other end of a connection has shown a certificate of a member of this set.

        As in MongoDB: O, OU and DC of its subject are those of this member's own certificate, and there is one at
        least. TLS has checked before that one of the CAs has signed it.
        """
        own = _attributes(self._now.own)
        return bool(own) and end is not None and _attributes(end.getpeercert() or {}) == own

    def reload(self) -> None:
        """Read the files again. BadValueError: they are wrong, and what was read before stays in force."""
        self._now = self._read()

    def _read(self) -> _Contexts:
        files = self._files
        for path in (files.cert, files.key, files.ca):
            _check_readable(path, is_secret=path == files.key)
        wire, http, client = (self._context(role) for role in ("wire", "http", "client"))
        try:
            own = _connect_to_self(wire, client, self._host)
            _connect_to_self(http, client, self._host)
        except ssl.SSLCertVerificationError as error:
            raise BadValueError(
                f"TLS certificate {files.cert}: other members would refuse it, reached as {self._host}:"
                f" {error.verify_message} (checked with {files.ca})"
            ) from error
        except ssl.SSLError as error:
            raise BadValueError(f"TLS certificate {files.cert}: {_reason(error)}") from error
        if self._needs_attributes and not _attributes(own):
            raise BadValueError(
                f"TLS certificate {files.cert}: without O, OU or DC in its subject a member's certificate is like any"
                " other's; add one, or give all members the same --key-file"
            )
        return _Contexts(wire, http, client, own)

    def _context(self, role: str) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if role == "client" else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # it costs a member more than who asks for it
        try:
            context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
        except ssl.SSLError as error:
            raise BadValueError(
                f"TLS certificate {files.cert} and key {files.key} cannot be used: {_reason(error)}"
            ) from error
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError as error:
            raise BadValueError(f"TLS CA file {files.ca} cannot be used: {_reason(error)}") from error
        if role == "wire":
            context.verify_mode = ssl.CERT_OPTIONAL
        if role == "http":
            context.set_alpn_protocols(["http/1.1"])
        return context


def _connect_to_self(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Mapping[str, Any]:
    """Let both contexts greet each other in memory, and return the client's certificate. ssl.SSLError: they cannot.

    This finds what the first connection of another member would find: a certificate that has ended, is for other names,
    may not be used by both ends, or is of another CA.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    asked = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [asking, asked]
    for _ in range(_FLIGHTS):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    if waiting:
        raise ssl.SSLError("the handshake does not end")
    return asking.getpeercert() or {}


def _attributes(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: Iterable[tuple[tuple[str, str], ...]] = certificate.get("subject", ())
    return sorted(pair for row in rows for pair in row if pair[0] in MEMBER_ATTRIBUTES)


def _check_readable(path: Path, *, is_secret: bool) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
            mode = path.stat().st_mode
    except OSError as error:
        raise BadValueError(f"TLS file {path}: {error.strerror}") from error
    if is_secret and stat.S_IMODE(mode) & stat.S_IRWXO:
        raise BadValueError(f"TLS key {path}: everybody may use it (chmod 600 {path})")


def _no_passphrase() -> str:
    """Answer OpenSSL, which would ask for a passphrase on the terminal, with one that is wrong."""
    return ""


def _reason(error: ssl.SSLError) -> str:
    if error.reason is None:
        return "one of them is not PEM, or the key has a passphrase"
    return error.reason.replace("_", " ").lower()
