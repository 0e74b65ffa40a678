"""The set that a person named, by HOST:PORT or by a connection string, and connections to its members."""

from __future__ import annotations

import functools
import ssl
import sys
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from replset.auth.scram import MECHANISM, OLD_MECHANISM
from replset.client import SETTINGS, ClientUser, WireClient, password_of_environment
from replset.connection_string import ConnectionString, TlsOptions, is_connection_string, parse_connection_string
from replset.errors import BadValueError, ErrorCode


class Target:
    """warnings: of the connection string, a line each."""

    def __init__(self, text: str) -> None:
        """BadValueError: a malformed connection string."""
        is_uri = is_connection_string(text)
        self._uri = parse_connection_string(text, resolve) if is_uri else ConnectionString((text,))
        self.hosts = self._uri.hosts
        self.set_name = self._uri.set_name
        self.is_direct = self._uri.is_direct
        self.selection_timeout_s = self._uri.selection_timeout_s
        self.warnings = self._uri.warnings
        self._user = _user_of(self._uri)
        self._login = self._log_in if is_uri else None
        self._tls = SETTINGS.tls
        if self._uri.has_tls is not None:
            context = _tls_context(self._uri.tls) if self._uri.has_tls else None
            self._tls = lambda: context

    def connect(self, host: str, timeout_s: float = 10.0) -> WireClient:
        """A connection to a member, logged in. The errors are those of `WireClient`."""
        within = min(timeout_s, self._uri.connect_timeout_s)
        return WireClient(host, timeout_s=timeout_s, connect_timeout_s=within, login=self._login, tls=self._tls)

    def _log_in(self, client: WireClient) -> None:
        """Say who this is, and log in by the best mechanism that the server has for the user."""
        user, mechanism = self._user, self._uri.mechanism
        fields: dict[str, object] = {"client": _metadata(self._uri.app_name)}
        if user is not None and not mechanism:
            fields["saslSupportedMechs"] = f"{user.database}.{user.name}"
        offered = hello(client, fields).get("saslSupportedMechs", ())
        if user is not None:
            client.log_in(user, mechanism or (MECHANISM if MECHANISM in offered else OLD_MECHANISM))
        else:
            SETTINGS.login(client)


def hello(client: WireClient, fields: Mapping[str, object] = MappingProxyType({})) -> dict[str, Any]:
    """The member's hello; of a server before 4.4.2 its isMaster, with hello's names."""
    found = client.command("admin", {"hello": 1, **fields})
    if found.get("code") != ErrorCode.COMMAND_NOT_FOUND:
        return found
    found = client.command("admin", {"isMaster": 1, **fields})
    return {"isWritablePrimary": found.get("ismaster"), **found}


def _user_of(uri: ConnectionString) -> ClientUser | None:
    if not uri.user:
        return None
    password = password_of_environment(uri.user) if uri.password is None else uri.password
    return ClientUser(uri.user, uri.auth_source, password)


def _metadata(app_name: str) -> dict[str, object]:
    driver = {"name": "replset", "version": metadata.version("replset")}
    return {**({"application": {"name": app_name}} if app_name else {}), "driver": driver, "os": {"type": sys.platform}}


def _tls_context(options: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.certificate_file:
            context.load_cert_chain(options.certificate_file, password=options.certificate_password or "")
    except OSError as error:  # ssl.SSLError too
        files = " or ".join(filter(None, (options.ca_file, options.certificate_file)))
        raise BadValueError(f"connection string: {files} cannot be read: {error.strerror or error}") from error
    if options.any_certificate or options.any_hostname:
        context.check_hostname = False
    if options.any_certificate:
        context.verify_mode = ssl.CERT_NONE
    return context


def resolve(name: str, service: str) -> tuple[list[tuple[str, int]], list[str]]:
    """The SRV and TXT records of a name. BadValueError: there are none, or nobody answers."""
    try:
        from dns import exception, resolver
    except ImportError:
        raise BadValueError("mongodb+srv:// needs dnspython: pip install '.[srv]' in the clone") from None
    ask = functools.partial(resolver.resolve, lifetime=10)
    try:
        targets = [(row.target.to_text(omit_final_dot=True), row.port) for row in ask(f"_{service}._tcp.{name}", "SRV")]
        try:
            texts = [b"".join(row.strings).decode("utf-8", "replace") for row in ask(name, "TXT")]
        except (resolver.NoAnswer, resolver.NXDOMAIN):
            texts = []
    except exception.DNSException as error:
        raise BadValueError(f"connection string: {name} cannot be looked up: {error}") from error
    return targets, texts
