"""The options of a member, and how a feature adds its own. cli/start_options.py reads them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from replset.config import parse_host
from replset.errors import ErrorCode, ReplError
from replset.ids import HostPort

T = TypeVar("T")
PLAIN_LAYOUT, MONGODB_LAYOUT = "plain", "mongodb"
TEXT_LOG, JSON_LOG = "text", "json"
REQUIRE_TLS, PREFER_TLS = "require", "prefer"


class BadOptionError(ReplError, code=ErrorCode.BAD_VALUE):
    """An option of `replset start` is invalid (2). The message names it and where it came from."""


@dataclass(frozen=True, slots=True)
class About:
    """What the command line says of an option, and which numbers it takes. A text ends with the default, if any."""

    metavar: str
    help: str
    above_0: bool = False
    least_0: bool = False


def option(metavar: str, text: str, default: Any = MISSING, *, above_0: bool = False, least_0: bool = False) -> Any:
    """A field that is an option of `replset start`: see About. Without a default it must be given."""
    return field(default=default, metadata={"about": About(metavar, text, above_0, least_0)})


def switch(text: str) -> Any:
    """An option that is off unless it is given."""
    return option("", text, False)


@dataclass_transform(frozen_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a class of `option`s a frozen dataclass."""
    return dataclass(frozen=True, slots=True)(cls)


class FeatureOptions:
    """The options of a feature: `option`s in a class with @options, each a flag as the member's own are."""

    def check(self) -> None:
        """Raise BadOptionError for a value that cannot be."""


@options
class MemberOptions:
    """Holds the options of one member; `flag_of` returns the name of each on the command line.

    A default that hangs on another option is None here: `advertise` is the bind address, `http_port` 1000 above `port`,
    `oplog_lagging_mb` twice the size. of_features: the options that features have declared.
    """

    repl_set: str = option("NAME", "name of the replica set (required)")
    dbpath: Path = option("DIR", "folder of this member's files; made when missing (required)")
    port: int = option("PORT", "wire port: drivers, mongosh, the other members (27017)", 27017)
    http_port: int | None = option("PORT", "HTTP port (the wire port + 1000)", None)
    bind_ip: str = option("ADDRESS", "address to listen on (127.0.0.1)", "127.0.0.1")
    advertise: str | None = option(
        "HOST", "host name under which the other members reach this one (the bind address)", None
    )
    key_file: Path | None = option(
        "FILE", "file with the key by which the members prove to each other who they are (none: loopback only)", None
    )
    tls_cert: Path | None = option(
        "FILE", "this member's certificate, PEM: both ports speak TLS; without --key-file it proves the member", None
    )
    tls_key: Path | None = option("FILE", "the certificate's key, PEM", None)
    tls_ca: Path | None = option("FILE", "the CAs that sign the members' certificates, PEM", None)
    tls_mode: str | None = option(
        "MODE", "prefer: while a set introduces TLS, serve connections without it too (require)", None
    )
    key_file_or_certificate: bool = switch(
        "while a set changes from one to the other, members prove themselves by either"
    )
    insecure_members: bool = switch(
        "listen beyond loopback without --key-file or --tls-cert: anybody there can act as a member"
    )
    insecure_clients: bool = switch("listen beyond loopback without --auth: anybody there can do everything")
    auth: bool = switch("clients must log in as a user of the set; needs --key-file or --tls-cert")
    audit_log: Path | None = option(
        "FILE", "file to which administrative commands and failed logins are appended, one JSON line each", None
    )
    allowed_hosts: tuple[str, ...] = option(
        "HOSTS", "names, with commas, by which HTTP requests may call this member beside its own and loopback's", ()
    )
    expect_members: tuple[str, ...] = option(
        "HOSTS", "all members, HOST:PORT with commas: when all of them answer, they make the set by themselves", ()
    )
    oplog_size_mb: float = option("MB", "size at which the oplog's head is trimmed (990)", 990.0, above_0=True)
    oplog_min_retention_hours: float = option(
        "HOURS", "keep at least so much of it (0: by size alone)", 0.0, least_0=True
    )
    oplog_lagging_mb: float | None = option(
        "MB", "size up to which it keeps what another member still needs (twice its size)", None, least_0=True
    )
    snapshot_history_secs: int = option(
        "SECONDS", "how long reads at an old point stay possible (300)", 300, least_0=True
    )
    min_free_mb: int = option("MB", "refuse writes while the disk has less than this free (500)", 500, least_0=True)
    max_connections: int = option("N", "connections on the wire port (4096)", 4096, above_0=True)
    rollback_layout: str = option(
        "LAYOUT", "mongodb: write a rollback's documents in MongoDB's folders too, for its tools (plain)", PLAIN_LAYOUT
    )
    allow_multiple_arbiters: bool = switch("let a set have more than one arbiter")
    enable_test_commands: bool = switch("open replSetTestCut and fail points; for tests and demos only")
    log_level: str = option("LEVEL", "debug, info, warning or error (info)", "info")
    log_format: str = option("FORMAT", "text, or json: one JSON document for each line of the log (text)", TEXT_LOG)
    log_file: Path | None = option(
        "FILE", "write the log there instead of to standard error; SIGUSR1 opens it again, after a rename", None
    )
    of_features: tuple[FeatureOptions, ...] = ()

    @property
    def host(self) -> HostPort:
        """Return the address of this member in the configuration."""
        return HostPort(f"{self.advertise or self.bind_ip}:{self.port}")

    @property
    def expected(self) -> tuple[HostPort, ...]:
        """Return the hosts of --expect-members, sorted, so that their order does not matter."""
        return tuple(sorted(parse_host(host, "--expect-members") for host in self.expect_members))

    @property
    def listen(self) -> HostPort:
        return HostPort(f"{self.bind_ip}:{self.port}")

    @property
    def http_listen(self) -> HostPort:
        return HostPort(f"{self.bind_ip}:{self._http_port}")

    @property
    def http_address(self) -> str:
        return f"{self.advertise or self.bind_ip}:{self._http_port}"

    @property
    def http_url(self) -> str:
        return f"{'http' if self.tls_cert is None else 'https'}://{self.http_address}"

    @property
    def _http_port(self) -> int:
        return self.port + 1000 if self.http_port is None else self.http_port


def exposure_warnings(options: MemberOptions) -> list[str]:
    """Return what this member leaves open to everybody who reaches its ports, for its log and its status."""
    found = []
    if options.insecure_members:
        found.append(
            "started with --insecure-members: anybody who reaches the wire port can act as a member of the set, have"
            f" writes acknowledged that no member has, and change the primary ({options.listen})"
        )
    if options.tls_mode == PREFER_TLS:
        found.append("--tls-mode prefer serves connections without TLS too, until a restart with --tls-mode require")
    if options.key_file_or_certificate:
        found.append(
            "--key-file-or-certificate: members prove themselves by either, until a restart without one of them"
        )
    if is_loopback(options.bind_ip):
        return found
    ports = f"{options.listen} and {options.http_listen}"
    if not options.auth:
        found.append(f"there are no users (--auth): anybody who reaches {ports} can do everything")
    if options.tls_cert is None:
        found.append(f"without --tls-cert all that passes {ports} can be read and changed on its way")
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an address or a name. An unknown name cannot be listened on."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    return all(ipaddress.ip_address(str(row[4][0]).partition("%")[0]).is_loopback for row in found)
