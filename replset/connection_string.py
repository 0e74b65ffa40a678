"""Reads `mongodb://` and `mongodb+srv://` as drivers do. Pure: who calls it looks names up and opens files.

No message quotes the string itself: it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from replset.errors import BadValueError

PLAIN, SRV = "mongodb://", "mongodb+srv://"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-1")
DEFAULT_PORT: Final = 27017
READ_PREFERENCES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")
_TXT_OPTIONS: Final = frozenset({"authsource", "replicaset"})
_POOLS_AND_RETRIES: Final = """
    authMechanismProperties compressors heartbeatFrequencyMS journal localThresholdMS maxConnecting maxIdleTimeMS
    maxPoolSize maxStalenessSeconds minPoolSize readConcernLevel readPreferenceTags retryReads retryWrites
    serverMonitoringMode serverSelectionTryOnce socketTimeoutMS srvMaxHosts timeoutMS
    tlsDisableCertificateRevocationCheck tlsDisableOCSPEndpointCheck uuidRepresentation w waitQueueMultiple
    waitQueueTimeoutMS wTimeoutMS zlibCompressionLevel
"""
_WITHOUT_EFFECT: Final = frozenset(_POOLS_AND_RETRIES.lower().split())
"""Options of pools, retries, reads and writes, which a tool that reads and writes at its primary has no use for."""
_REFUSED: Final = frozenset({"loadbalanced", "proxyhost", "proxyport", "proxyusername", "proxypassword"})
_TLS_FILES: Final = ("tlscafile", "tlscertificatekeyfile", "tlscertificatekeyfilepassword")
_TLS_LAX: Final = ("tlsallowinvalidcertificates", "tlsallowinvalidhostnames")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})").search

Resolve = Callable[[str, str], tuple[list[tuple[str, int]], list[str]]]
"""(host, service) -> the targets and ports of its SRV records, and its TXT records. BadValueError."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """ca_file: empty for the machine's. certificate_file: with its key, empty for none."""

    ca_file: str = ""
    certificate_file: str = ""
    certificate_password: str | None = field(default=None, repr=False)
    any_certificate: bool = False
    any_hostname: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """user: empty for nobody. password: None where the string has none. mechanism: empty to negotiate. tls: None where
    the string does not say. warnings: a line each.
    """

    hosts: tuple[str, ...]
    user: str = ""
    password: str | None = field(default=None, repr=False)
    auth_source: str = "admin"
    mechanism: str = ""
    set_name: str | None = None
    has_tls: bool | None = None
    tls: TlsOptions = TlsOptions()
    is_direct: bool = False
    connect_timeout_s: float = 10.0
    selection_timeout_s: float = 30.0
    app_name: str = ""
    warnings: tuple[str, ...] = ()


def is_connection_string(text: str) -> bool:
    return text.startswith((PLAIN, SRV))


def parse_connection_string(text: str, resolve: Resolve) -> ConnectionString:
    """Read a connection string. resolve: asked for `mongodb+srv` only. BadValueError says what is wrong."""
    is_srv = text.startswith(SRV)
    if not is_connection_string(text):
        raise _error(f"it begins with neither {PLAIN} nor {SRV}")
    rest = text[len(SRV) if is_srv else len(PLAIN) :]
    rest, _, query = rest.partition("?")
    userinfo, at, rest = rest.rpartition("@")
    if "/" in userinfo:
        raise _error("user and password are percent-encoded: / as %2F")
    host_list, _, database = rest.partition("/")
    user, password = _user_of(userinfo) if at else ("", None)
    warnings: list[str] = []
    options = _options_of(query, warnings)
    if is_srv:
        hosts, more = _srv_hosts(host_list, options.pop("srvservicename", "mongodb"), resolve)
        options = {**more, **options}
        options.setdefault("tls", "true")
    else:
        if options.pop("srvservicename", None) is not None:
            raise _error(f"srvServiceName is for {SRV}")
        hosts = [_host_of(part) for part in host_list.split(",")]
    values = _Options(options)
    has_tls, tls = _tls_of(values)
    mechanism = values.text("authmechanism")
    if mechanism and mechanism not in MECHANISMS:
        raise _error(f"the mechanism {mechanism} is not supported; there are {' and '.join(MECHANISMS)}")
    if mechanism and not user:
        raise _error("authMechanism needs a user")
    preference = values.text("readpreference", "primary")
    if preference not in READ_PREFERENCES:
        raise _error(f"no read preference {preference!r}; there are {', '.join(READ_PREFERENCES)}")
    is_direct = values.boolean("directconnection") or False
    if is_direct and (len(hosts) > 1 or is_srv):
        raise _error("directConnection=true goes with one host")
    found = ConnectionString(
        hosts=tuple(dict.fromkeys(hosts)),
        user=user,
        password=password,
        auth_source=values.text("authsource", _decoded(database) or "admin"),
        mechanism=mechanism,
        set_name=values.text("replicaset") or None,
        has_tls=has_tls,
        tls=tls,
        is_direct=is_direct,
        connect_timeout_s=values.milliseconds("connecttimeoutms", 10_000) / 1000 or 3600.0,  # 0: no limit
        selection_timeout_s=values.milliseconds("serverselectiontimeoutms", 30_000) / 1000,
        app_name=values.text("appname"),
        warnings=tuple(warnings + [f"unknown option {name!r:.60}" for name in values.unknown()]),
    )
    if len(found.app_name.encode()) > 128:
        raise _error("appName has at most 128 bytes")
    return found


def _error(reason: str) -> BadValueError:
    return BadValueError(f"connection string: {reason}")


def _decoded(text: str) -> str:
    if _BAD_ESCAPE(text):
        raise _error("a % without two hex digits behind it; % itself is %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _error("percent-encoded bytes that are not UTF-8") from None


def _user_of(userinfo: str) -> tuple[str, str | None]:
    name, colon, password = userinfo.partition(":")
    if "@" in userinfo or ":" in password:
        raise _error("user and password are percent-encoded: @ as %40, : as %3A")
    if not name:
        raise _error("there is no user before @")
    return _decoded(name), _decoded(password) if colon else None


def _host_of(text: str) -> str:
    """HOST:PORT with IPv6 in brackets, as `WireClient` takes it."""
    if text.endswith(".sock"):
        raise _error("sockets in the file system are not supported")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\[\]:/@]+)(?::(\d{1,5}))?", text)
    if match is None:
        raise _error(f"{text!r:.80} is no HOST:PORT" if text else "a host is missing")
    port = int(match[2] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise _error(f"{port} is no port")
    return f"{_decoded(match[1]).lower()}:{port}"


def _options_of(query: str, warnings: list[str]) -> dict[str, str]:
    """The options by their names in lower case; `ssl` is an older name of `tls`."""
    found: dict[str, str] = {}
    for part in filter(None, re.split("[&;]", query)):
        name, is_there, value = part.partition("=")
        if not name or not is_there:
            raise _error(f"{name!r:.60} is no option with a value")
        key, value = name.lower(), _decoded(value)
        key = "tls" if key == "ssl" else key
        if found.get(key, value) != value and key != "readpreferencetags":
            if key == "tls":
                raise _error("tls and ssl contradict each other")
            warnings.append(f"option {name} more than once: the last one counts")
        found[key] = value
    return found


def _srv_hosts(text: str, service: str, resolve: Resolve) -> tuple[list[str], dict[str, str]]:
    """The hosts, and the options that TXT records give. Foreign hosts are refused: whoever answers DNS names them."""
    name = text.lower()
    if "," in name or ":" in name or not name.strip("."):
        raise _error(f"{SRV} takes one name, without a port")
    targets, texts = resolve(name, service)
    labels = name.split(".")
    parent = "." + ".".join(labels[1:] if len(labels) > 2 else labels)
    hosts = [(host.rstrip(".").lower(), port) for host, port in targets]
    if not hosts:
        raise _error(f"{name} has no SRV records")
    if foreign := [host for host, _ in hosts if not host.endswith(parent)]:
        raise _error(f"{name} names the host {foreign[0]}, which is not within {parent[1:]}")
    options = _options_of("&".join(texts), [])
    if len(texts) > 1 or not options.keys() <= _TXT_OPTIONS:
        raise _error(f"{name} has TXT records with other options than authSource and replicaSet")
    return [f"{host}:{port}" for host, port in hosts], options


class _Options:
    """The options, each taken out as it is read."""

    def __init__(self, options: dict[str, str]) -> None:
        self._left = options
        for name in _REFUSED & options.keys():
            if options[name] != "false":
                raise _error(f"the option {name} is not supported")

    def text(self, name: str, default: str = "") -> str:
        value = self._left.pop(name, None)
        if value == "":
            raise _error(f"{name} has no value")
        return default if value is None else value

    def boolean(self, name: str) -> bool | None:
        value = self._left.pop(name, None)
        if value not in (None, "true", "false"):
            raise _error(f"{name} is true or false, not {value!r:.40}")
        return None if value is None else value == "true"

    def milliseconds(self, name: str, default: int) -> int:
        value = self._left.pop(name, str(default))
        if not (value.isascii() and value.isdigit()) or len(value) > 9:
            raise _error(f"{name} is a number of milliseconds, not {value!r:.40}")
        return int(value)

    def unknown(self) -> Sequence[str]:
        return sorted(self._left.keys() - _WITHOUT_EFFECT - _REFUSED)


def _tls_of(values: _Options) -> tuple[bool | None, TlsOptions]:
    wanted = values.boolean("tls")
    ca_file, certificate_file, password = (values.text(name) for name in _TLS_FILES)
    lax = [values.boolean(name) for name in _TLS_LAX]
    insecure = values.boolean("tlsinsecure")
    if insecure is not None and lax != [None, None]:
        raise _error("tlsInsecure goes with neither tlsAllowInvalidCertificates nor tlsAllowInvalidHostnames")
    is_implied = bool(ca_file or certificate_file or password) or insecure is not None or lax != [None, None]
    if wanted is False and is_implied:
        raise _error("tls=false goes with no other option of TLS")
    any_certificate, any_hostname = (insecure or bool(one) for one in lax)
    options = TlsOptions(ca_file, certificate_file, password or None, any_certificate, any_hostname)
    return (True if is_implied else wanted), options
