"""Two small blocking clients for the command line and the tools: of the wire port, and of the HTTP API."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import urlsplit

from replset.auth.scram import MECHANISM, NONCE_BYTES, ClientExchange, legacy_password
from replset.bson import Binary, RawDocument, decode
from replset.errors import (
    AuthenticationFailedError,
    BadValueError,
    HostUnreachableError,
    RemoteProtocolError,
    ReplError,
)
from replset.ids import HostPort
from replset.key_file import NONCE_BYTES as PROOF_NONCE_BYTES
from replset.key_file import Handshake, Keys
from replset.wire.framing import FrameReader, encode_request, message_ids
from replset.wire.message_version import FIELDS

_CHUNK = 1 << 16
_DOWNLOAD_CHUNK = 1 << 20
TLS_VARIABLE, TLS_CA_VARIABLE = "REPLSET_TLS", "REPLSET_TLS_CA"
"""TLS is used if the second names the CAs or the first is 1. They count for processes that this one starts too."""

USER_VARIABLE, PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE = "REPLSET_USER", "REPLSET_PASSWORD", "REPLSET_PASSWORD_FILE"
"""Whom clients log in as; the password itself, or a file with it in its first line."""


@functools.cache
def _context(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # ssl.SSLError too
        raise BadValueError(f"TLS CA file {ca}: {error.strerror or error}") from error


def _tls_of_environment() -> ssl.SSLContext | None:
    ca = os.environ.get(TLS_CA_VARIABLE, "")
    return _context(ca) if ca or os.environ.get(TLS_VARIABLE, "") in ("1", "true") else None


@dataclass(frozen=True, slots=True)
class ClientUser:
    """Whom a client logs in as."""

    name: str
    database: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of HTTP's Basic for this login."""
        return "Basic " + base64.b64encode(f"{self.database}/{self.name}:{self.password}".encode()).decode("ascii")


def _user_of_environment() -> ClientUser | None:
    """The user that REPLSET_USER names, NAME of the database admin or DATABASE/NAME. BadValueError: no password."""
    database, slash, name = os.environ.get(USER_VARIABLE, "").rpartition("/")
    if not name:
        return None
    return ClientUser(name, database if slash else "admin", password_of_environment(name))


def password_of_environment(name: str) -> str:
    """The password of the user `name`. BadValueError: no variable has it."""
    password, path = os.environ.get(PASSWORD_VARIABLE), os.environ.get(PASSWORD_FILE_VARIABLE)
    if password is None and path:
        password = read_password(path)
    if password is None:
        raise BadValueError(f"user {name}: neither {PASSWORD_VARIABLE} nor {PASSWORD_FILE_VARIABLE} is set")
    return password


def read_password(path: str) -> str:
    """The first line of a file."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValueError(f"password file {path}: {getattr(error, 'strerror', None) or error}") from error


def log_in_as_environment_says(client: WireClient) -> None:
    """Log in as the user of REPLSET_USER, if there is one."""
    user = _user_of_environment()
    if user is not None:
        client.log_in(user)


@dataclass(slots=True)
class ClientSettings:
    """How the clients of this process connect.

    tls: asked for each connection; None: without TLS. login: shows a new connection of the wire port who this is.
    user: asked for each request over HTTP; None: nobody.
    """

    tls: Callable[[], ssl.SSLContext | None] = _tls_of_environment
    login: Callable[[WireClient], None] = log_in_as_environment_says
    user: Callable[[], ClientUser | None] = _user_of_environment


SETTINGS = ClientSettings()


def http_url(address: str) -> str:
    """Return the URL of a member's HTTP API, of `HOST:PORT`."""
    return f"{'http' if SETTINGS.tls() is None else 'https'}://{address}"


def http_headers(**more: str) -> dict[str, str]:
    """Return the headers of a request: who sends it, and `more`."""
    user = SETTINGS.user()
    return more if user is None else {**more, "authorization": user.basic}


def http_connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to the HTTP API at an `http://` or `https://` URL; it is not opened yet."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = SETTINGS.tls() or _context("")
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


class WireClient:
    """Is one connection to a member's wire port; use it in `with`. HostUnreachableError names host and reason."""

    def __init__(
        self,
        host: str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float | None = None,
        login: Callable[[WireClient], None] | None = None,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        """host: HOST:PORT (the port may be left out: 27017). timeout_s: for connecting, unless connect_timeout_s is
        given, and for each answer. login, tls: in place of those of all clients here.
        """
        name, _, port = host.rpartition(":") if ":" in host.rpartition("]")[2] else (host, "", "27017")
        if not name or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:  # a resolver would wrap it
            raise BadValueError(f"{host!r} is not HOST:PORT")
        self.host = host
        self._ids = message_ids()
        self._reader = FrameReader()
        try:
            self._socket = socket.create_connection((name.strip("[]"), int(port)), connect_timeout_s or timeout_s)
            self._begin_tls(name.strip("[]"), (tls or SETTINGS.tls)())
            self._socket.settimeout(timeout_s)
        except ssl.SSLError as error:
            reason = f"{error.verify_message} (--tls-ca)" if isinstance(error, ssl.SSLCertVerificationError) else error
            raise HostUnreachableError(f"{host}: no TLS connection: {reason}") from error
        except OSError as error:
            raise HostUnreachableError(f"{host} cannot be reached: {error.strerror or error}") from error
        except ValueError as error:  # a name that no machine can have
            raise BadValueError(f"{host!r:.100} is not HOST:PORT: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            (login or SETTINGS.login)(self)
        except BaseException:
            self.close()
            raise

    def _begin_tls(self, name: str, context: ssl.SSLContext | None) -> None:
        if context is not None:
            try:
                self._socket = context.wrap_socket(self._socket, server_hostname=name)
            except BaseException:
                self._socket.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def command(self, database: str, document: Mapping[str, object]) -> dict[str, Any]:
        """Run one command and return the decoded reply, also one with ok: 0."""
        return decode(self.ask(database, document).raw)

    def ask(
        self, database: str, document: Mapping[str, object], sequence: tuple[str, Sequence[bytes]] | None = None
    ) -> RawDocument:
        """Run one command and return the reply as its bytes, also one with ok: 0.

        sequence: a field that holds a list of documents, and their bytes; they count for the size of the message only,
        not for that of the command.
        """
        request_id = next(self._ids)
        try:
            self._socket.sendall(encode_request(request_id, document, database, sequence))
            while True:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise HostUnreachableError(f"{self.host} closed the connection{self._hint()}")
                for message in self._reader.feed(data):
                    if message.response_to == request_id:
                        return message.body
        except TimeoutError:
            raise HostUnreachableError(f"{self.host} did not answer in time") from None
        except OSError as error:
            raise HostUnreachableError(f"{self.host}: {error.strerror or error}{self._hint()}") from error
        except RemoteProtocolError as error:
            raise HostUnreachableError(f"{self.host} uses another protocol: {error.message}") from error

    def log_in(self, user: ClientUser, mechanism: str = MECHANISM) -> None:
        """Log in by SCRAM. AuthenticationFailedError: a wrong password, or a server that does not know it."""
        password = user.password if mechanism == MECHANISM else legacy_password(user.name, user.password)
        exchange = ClientExchange(user.name, password, os.urandom(NONCE_BYTES), mechanism=mechanism)
        start: dict[str, object] = {"saslStart": 1, "mechanism": mechanism, "options": {"skipEmptyExchange": True}}
        first = self._login_step(user, {**start, "payload": Binary(exchange.first())})
        proof = Binary(exchange.final(_payload(first)))
        step: dict[str, object] = {"saslContinue": 1, "conversationId": first.get("conversationId")}
        last = self._login_step(user, {**step, "payload": proof})
        exchange.check(_payload(last))
        if last.get("done") is False:  # a server before 4.4 asks for an empty message more
            self._login_step(user, {**step, "payload": Binary(b"")})

    def _login_step(self, user: ClientUser, command: Mapping[str, object]) -> RawDocument:
        reply = self.ask(user.database, command)
        if reply.get("ok") != 1:
            text = f"{self.host}: {user.name} of {user.database} cannot log in: {reply.get('errmsg')}"
            raise AuthenticationFailedError(text)
        return reply

    def prove(self, keys: Keys, me: HostPort) -> None:
        """Prove that this is the member `me` of the set, as a member does on its connections (transport.py)."""
        nonce = os.urandom(PROOF_NONCE_BYTES)
        begin = {"replSetProve": 1, "member": me, "address": self.host, "nonce": Binary(nonce), **FIELDS}
        their_nonce = self.ask("admin", begin).get("nonce")
        handshake = Handshake(
            me, HostPort(self.host), nonce, bytes(their_nonce) if isinstance(their_nonce, Binary) else b""
        )
        proofs = [Binary(proof) for proof in keys.proofs("asking", handshake)]
        proof = self.ask("admin", {"replSetProve": 2, "proofs": proofs}).get("proof")
        if not isinstance(proof, Binary) or not keys.accept(handshake, bytes(proof)):
            raise AuthenticationFailedError(f"{self.host} and this member do not know each other's key")

    def _hint(self) -> str:
        """Say what a connection without TLS lacks if the member asks for TLS: it only closes it."""
        return "" if isinstance(self._socket, ssl.SSLSocket) else " (does it need --tls?)"


def _payload(reply: RawDocument) -> bytes:
    found = reply.get("payload")
    return bytes(found) if isinstance(found, Binary) else b""


class HttpAnswerError(ReplError):
    """The API answered with an error. `status` is the HTTP status."""

    def __init__(self, text: str, *, code: int, status: int) -> None:
        super().__init__(text, code=code)
        self.status = status


class HttpClient:
    """Calls the HTTP API of one member, in plain JSON. Each request makes a new connection."""

    def __init__(self, base_url: str, *, timeout_s: float = 60.0) -> None:
        try:
            parts = urlsplit(base_url if "//" in base_url else http_url(base_url))
            host, _ = parts.hostname, parts.port  # a port that is none is refused here
        except ValueError as error:
            raise BadValueError(f"{base_url!r:.100} is not http://HOST:PORT: {error}") from error
        if parts.scheme not in ("http", "https") or host is None:
            raise BadValueError(f"{base_url!r} is not http://HOST:PORT")
        self.base_url = f"{parts.scheme}://{parts.netloc}"
        self._timeout_s = timeout_s

    def get(self, path: str) -> dict[str, Any]:
        return self._request("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._request("POST", path, body)

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[http.client.HTTPResponse]:
        """POST, and give the answer to read from; a read that breaks raises OSError or HTTPException."""
        connection = http_connection(self.base_url, self._timeout_s)
        try:
            try:
                headers = http_headers(**{"content-type": "application/json"})
                connection.request("POST", path, json.dumps(body).encode(), headers)
                response = connection.getresponse()
                if response.status != 200:
                    self._read_answer("POST", path, response, response.read())
            except (OSError, http.client.HTTPException) as error:
                raise HostUnreachableError(f"{self.base_url} cannot be reached: {error}") from error
            yield response
        finally:
            connection.close()

    def download(self, path: str, out: BinaryIO) -> None:
        """Write the answer's bytes to `out`, one part after the other. The errors are those of `get`."""
        connection = http_connection(self.base_url, self._timeout_s)
        try:
            connection.request("GET", path, headers=http_headers())
            response = connection.getresponse()
            if response.status != 200:
                self._read_answer("GET", path, response, response.read())
            expected = response.length
            size = 0
            while chunk := response.read(_DOWNLOAD_CHUNK):
                size += len(chunk)
                out.write(chunk)
            if expected is not None and size != expected:  # a read with a size does not notice
                raise HostUnreachableError(f"{self.base_url}{path} ended after {size} of {expected} bytes")
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise HostUnreachableError(f"{self.base_url} cannot be reached: {error}") from error
        finally:
            connection.close()

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the answer's JSON. HttpAnswerError: the status is 300 or above. HostUnreachableError: no answer."""
        connection = http_connection(self.base_url, self._timeout_s)
        headers = http_headers(accept="application/json")
        data = None
        if body is not None:
            headers["content-type"] = "application/json"
            data = json.dumps(body).encode()
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise HostUnreachableError(f"{self.base_url} cannot be reached: {error}") from error
        finally:
            connection.close()
        return self._read_answer(method, path, response, text)

    def _read_answer(self, method: str, path: str, response: http.client.HTTPResponse, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"errmsg": text[:200].decode("utf-8", "replace")}
        if not isinstance(answer, dict):
            answer = {"errmsg": f"not a document: {answer!r:.100}"}
        if response.status < 300:
            return answer
        where = response.getheader("location")
        reason = answer.get("errmsg") or (f"moved to {where}" if where else response.reason)
        raise HttpAnswerError(
            f"{method} {self.base_url}{path}: {response.status}: {reason}",
            code=int(answer.get("code", 1)),
            status=response.status,
        )
