"""Reads the options of `replset start` from flags, environment and a YAML file."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from replset.config import MAX_VOTERS, parse_host
from replset.errors import ErrorCode, FailedToParseError, ReplError
from replset.ids import HostPort, Millis
from replset.text import is_url

PLAIN_LAYOUT, MONGODB_LAYOUT = "plain", "mongodb"
TEXT_LOG, JSON_LOG = "text", "json"
REQUIRE_TLS, PREFER_TLS = "require", "prefer"


class BadOptionError(ReplError):
    """An option of `replset start` is invalid (2). The message names it and where it came from."""

    code = ErrorCode.BAD_VALUE


@dataclass(frozen=True, slots=True)
class About:
    """What the command line says of an option, and which numbers it takes. A text ends with the default, if any."""

    metavar: str
    help: str
    above_0: bool = False
    least_0: bool = False


def _about(metavar: str, text: str, *, above_0: bool = False, least_0: bool = False) -> dict[str, About]:
    return {"about": About(metavar, text, above_0, least_0)}


def about(option: Field[Any]) -> About:
    """What is said of a field of MemberOptions."""
    found: About = option.metadata["about"]
    return found


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Holds the options of one member; `flag_of` returns the name of each on the command line.

    A default that hangs on another option is None here: `advertise` is the bind address, `http_port` 1000 above `port`,
    `oplog_lagging_mb` twice the size.
    """

    repl_set: str = field(metadata=_about("NAME", "name of the replica set (required)"))
    dbpath: Path = field(metadata=_about("DIR", "folder of this member's files; made when missing (required)"))
    port: int = field(default=27017, metadata=_about("PORT", "wire port: drivers, mongosh, the other members (27017)"))
    http_port: int | None = field(default=None, metadata=_about("PORT", "HTTP port (the wire port + 1000)"))
    bind_ip: str = field(default="127.0.0.1", metadata=_about("ADDRESS", "address to listen on (127.0.0.1)"))
    advertise: str | None = field(
        default=None,
        metadata=_about("HOST", "host name under which the other members reach this one (the bind address)"),
    )
    key_file: Path | None = field(
        default=None,
        metadata=_about(
            "FILE", "file with the key by which the members prove to each other who they are (none: loopback only)"
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_about(
            "FILE", "this member's certificate, PEM: both ports speak TLS; without --key-file it proves the member"
        ),
    )
    tls_key: Path | None = field(default=None, metadata=_about("FILE", "the certificate's key, PEM"))
    tls_ca: Path | None = field(
        default=None, metadata=_about("FILE", "the CAs that sign the members' certificates, PEM")
    )
    tls_mode: str | None = field(
        default=None,
        metadata=_about("MODE", "prefer: while a set introduces TLS, serve connections without it too (require)"),
    )
    key_file_or_certificate: bool = field(
        default=False,
        metadata=_about("", "while a set changes from one to the other, members prove themselves by either"),
    )
    insecure_members: bool = field(
        default=False,
        metadata=_about(
            "", "listen beyond loopback without --key-file or --tls-cert: anybody there can act as a member"
        ),
    )
    insecure_clients: bool = field(
        default=False, metadata=_about("", "listen beyond loopback without --auth: anybody there can do everything")
    )
    auth: bool = field(
        default=False, metadata=_about("", "clients must log in as a user of the set; needs --key-file or --tls-cert")
    )
    audit_log: Path | None = field(
        default=None,
        metadata=_about(
            "FILE", "file to which administrative commands and failed logins are appended, one JSON line each"
        ),
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "HOSTS", "names, with commas, by which HTTP requests may call this member beside its own and loopback's"
        ),
    )
    expect_members: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "HOSTS", "all members, HOST:PORT with commas: when all of them answer, they make the set by themselves"
        ),
    )
    oplog_size_mb: float = field(
        default=990.0, metadata=_about("MB", "size at which the oplog's head is trimmed (990)", above_0=True)
    )
    oplog_min_retention_hours: float = field(
        default=0.0, metadata=_about("HOURS", "keep at least so much of it (0: by size alone)", least_0=True)
    )
    oplog_lagging_mb: float | None = field(
        default=None,
        metadata=_about(
            "MB", "size up to which it keeps what another member still needs (twice its size)", least_0=True
        ),
    )
    archive: str | None = field(
        default=None,
        metadata=_about(
            "URL",
            "folder or address (s3://...), the same on all members, to which the oplog is archived before trimming",
        ),
    )
    archive_secs: float = field(
        default=300.0,
        metadata=_about(
            "SECONDS", "how old an entry becomes before it is archived, where few are written (300)", above_0=True
        ),
    )
    snapshot_history_secs: int = field(
        default=300, metadata=_about("SECONDS", "how long reads at an old point stay possible (300)", least_0=True)
    )
    min_free_mb: int = field(
        default=500, metadata=_about("MB", "refuse writes while the disk has less than this free (500)", least_0=True)
    )
    scrub_mb_per_sec: float = field(
        default=1.0,
        metadata=_about(
            "MB", "how fast a secondary compares its documents with the primary's; 0: not at all (1)", least_0=True
        ),
    )
    max_connections: int = field(
        default=4096, metadata=_about("N", "connections on the wire port (4096)", above_0=True)
    )
    rollback_layout: str = field(
        default=PLAIN_LAYOUT,
        metadata=_about(
            "LAYOUT", "mongodb: write a rollback's documents in MongoDB's folders too, for its tools (plain)"
        ),
    )
    role_hook: str | None = field(
        default=None,
        metadata=_about(
            "PROGRAM", "program or http:// address that is called when this member gains or loses the primary's role"
        ),
    )
    role_hook_secs: float = field(
        default=5.0,
        metadata=_about("SECONDS", "limit of one call; also how long a primary without a majority keeps the role (5)"),
    )
    allow_multiple_arbiters: bool = field(default=False, metadata=_about("", "let a set have more than one arbiter"))
    enable_test_commands: bool = field(
        default=False, metadata=_about("", "open replSetTestCut and fail points; for tests and demos only")
    )
    log_level: str = field(default="info", metadata=_about("LEVEL", "debug, info, warning or error (info)"))
    log_format: str = field(
        default=TEXT_LOG, metadata=_about("FORMAT", "text, or json: one JSON document for each line of the log (text)")
    )
    log_file: Path | None = field(
        default=None,
        metadata=_about(
            "FILE", "write the log there instead of to standard error; SIGUSR1 opens it again, after a rename"
        ),
    )

    @property
    def host(self) -> HostPort:
        """Return the address of this member in the configuration."""
        return HostPort(f"{self.advertise or self.bind_ip}:{self.port}")

    @property
    def expected(self) -> tuple[HostPort, ...]:
        """Return the hosts of --expect-members, sorted, so that their order does not matter."""
        return tuple(sorted(parse_host(host, "--expect-members") for host in self.expect_members))

    @property
    def role_hook_ms(self) -> Millis:
        """The limit of a call of the role hook; 0: there is none."""
        return Millis(0 if self.role_hook is None else int(self.role_hook_secs * 1000))

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


FLAGS = {"repl_set": "replSet", "dbpath": "dbpath"}
"""Options whose flag is not the dashed field name (`--http-port`)."""


def flag_of(field: str) -> str:
    """Return the option's name on the command line and in the file, without the leading dashes."""
    return FLAGS.get(field, field.replace("_", "-"))


def variable_of(field: str) -> str:
    """Return the option's environment variable: `replSet` is REPLSET_REPL_SET, `http-port` is REPLSET_HTTP_PORT."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", flag_of(field)).replace("-", "_")
    return f"REPLSET_{words.upper()}"


def resolve_options(flags: Mapping[str, object], environment: Mapping[str, str]) -> MemberOptions:
    """Combine the options: the flag wins, then the environment, then the file named by `config`.

    flags: field name -> value, None where the flag was not given. Raises BadOptionError naming option and source.
    """
    config_path = flags.get("config") or environment.get("REPLSET_CONFIG")
    known = {field.name: field for field in fields(MemberOptions)}
    from_file = _read_file(str(config_path), list(known)) if config_path else {}
    values: dict[str, object] = {}
    for name in known:
        if flags.get(name) is not None:
            raw, source = flags[name], f"--{flag_of(name)}"
        elif variable_of(name) in environment:
            raw, source = environment[variable_of(name)], variable_of(name)
        elif name in from_file:
            raw, source = from_file[name], f"{flag_of(name)} in {config_path}"
        else:
            continue
        values[name] = _convert(name, str(known[name].type), raw, source)
    for required in ("repl_set", "dbpath"):
        if required not in values:
            raise BadOptionError(f"--{flag_of(required)} is missing (or {variable_of(required)}, or the file)")
    options = MemberOptions(**values)  # type: ignore[arg-type]
    _check(options)
    return options


def _read_file(path: str, known: list[str]) -> dict[str, object]:
    """Return field name -> value. The file names an option by its flag or by its field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        document, tree = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise BadOptionError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FailedToParseError(
            f"the configuration file {path} is not YAML: {' '.join(str(error).split())}"
        ) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise FailedToParseError(f"the configuration file {path} must be a mapping of option names to values")
    keys = [str(key.value) for key, _ in tree.value] if isinstance(tree, yaml.MappingNode) else []
    for key in keys:
        if keys.count(key) > 1:  # YAML's own loader silently takes the last
            raise BadOptionError(f"{key} is given twice in {path}")
    names = {flag_of(name): name for name in known} | {name: name for name in known}
    found: dict[str, object] = {}
    for key, value in document.items():
        name = names.get(str(key))
        if name is None:
            raise BadOptionError(f"unknown option in {path}: {key}")
        if name in found:
            raise BadOptionError(f"{flag_of(name)} is given twice in {path}")
        if value is None:
            raise BadOptionError(f"{flag_of(name)} in {path} has no value")
        found[name] = value
    return found


def _convert(name: str, kind: str, raw: object, source: str) -> object:
    try:
        if kind == "bool":
            return _boolean(raw)
        if kind.startswith("int"):
            return int(str(raw))
        if kind.startswith("float"):
            return _number(str(raw))
    except ValueError:
        wanted = {"bool": "true or false", "float": "a number"}.get(kind.split()[0], "a whole number")
        raise BadOptionError(f"{source}: {raw!r} is not {wanted}") from None
    if kind.startswith("tuple"):
        rows = raw if isinstance(raw, list) else str(raw).split(",")
        return tuple(name for row in rows if (name := str(row).strip()))
    if isinstance(raw, bool) or not isinstance(raw, str | int | float | Path):
        raise BadOptionError(f"{source}: {raw!r} is not text")
    if kind.startswith("Path"):
        if not str(raw):
            raise BadOptionError(f"{source}: '' is not a {'folder' if name == 'dbpath' else 'file'}")
        return Path(os.path.expanduser(str(raw)))
    return str(raw)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(text)


def is_unspecified(host: str) -> bool:
    """Whether it is 0.0.0.0 or ::, in any form. A socket can listen there, but nobody can connect to it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        pass
    try:
        return socket.inet_aton(host) == bytes(4)
    except OSError:
        return False


def _check(options: MemberOptions) -> None:
    http_port = options.port + 1000 if options.http_port is None else options.http_port
    for flag, port in (("port", options.port), ("http-port", http_port)):
        if not 0 < port < 65536:
            raise BadOptionError(f"--{flag}: {port} is not a port (1 to 65535)")
    if http_port == options.port:
        raise BadOptionError(f"--http-port: {http_port} is the wire port already")
    if not re.fullmatch(r"[^\s/,]{1,255}", options.bind_ip):
        raise BadOptionError(f"--bind-ip: {options.bind_ip!r} is not an address")
    if options.advertise is not None and not re.fullmatch(r"[\w.-]{1,255}", options.advertise):
        raise BadOptionError(f"--advertise: {options.advertise!r} is not a host name (without port)")
    if options.advertise is not None and is_unspecified(options.advertise):
        raise BadOptionError(
            f"--advertise: {options.advertise} means every address of a machine, and no other member can connect to it"
        )
    if options.advertise is None and is_unspecified(options.bind_ip):
        raise BadOptionError(
            f"--bind-ip: {options.bind_ip} means every address of this machine, and no other member can connect to it;"
            " give --advertise HOST"
        )
    _check_expected(options)
    _check_exposure(options)
    for host in options.allowed_hosts:
        if not re.fullmatch(r"[\w.-]{1,255}|\[?[0-9A-Fa-f:.]{2,45}\]?", host):
            raise BadOptionError(f"--allowed-hosts: {host!r} is not a host name (without port)")
    if not re.fullmatch(r"[^\s/,\x00]{1,128}", options.repl_set):
        raise BadOptionError(f"--replSet: {options.repl_set!r} is not a set name")
    for option in fields(MemberOptions):
        number, said = getattr(options, option.name), about(option)
        if said.above_0 and number <= 0:
            raise BadOptionError(f"--{flag_of(option.name)}: {number:g} is not above 0")
        if said.least_0 and number is not None and number < 0:
            raise BadOptionError(f"--{flag_of(option.name)}: {number:g} is below 0")
    if options.archive is not None and not options.archive.strip():
        raise BadOptionError("--archive: '' is neither a folder nor an address")
    _check_role_hook(options)
    if options.rollback_layout not in {PLAIN_LAYOUT, MONGODB_LAYOUT}:
        raise BadOptionError(
            f"--rollback-layout: {options.rollback_layout!r} is not {PLAIN_LAYOUT} or {MONGODB_LAYOUT}"
        )
    if options.log_level not in {"debug", "info", "warning", "error"}:
        raise BadOptionError(f"--log-level: {options.log_level!r} is not debug, info, warning or error")
    if options.log_format not in {TEXT_LOG, JSON_LOG}:
        raise BadOptionError(f"--log-format: {options.log_format!r} is not {TEXT_LOG} or {JSON_LOG}")


def _check_expected(options: MemberOptions) -> None:
    """Refuse a list that cannot be a set's. A member that is not in it waits until it is added."""
    hosts = options.expected
    if len(set(hosts)) != len(hosts):
        raise BadOptionError("--expect-members: a host is given twice")
    if len(hosts) > MAX_VOTERS:
        raise BadOptionError(f"--expect-members: {len(hosts)} hosts, at most {MAX_VOTERS} members have a vote")


def _check_role_hook(options: MemberOptions) -> None:
    hook = options.role_hook
    if not 0.2 <= options.role_hook_secs <= 3600:
        raise BadOptionError(f"--role-hook-secs: {options.role_hook_secs:g} is not from 0.2 to 3600")
    if hook is not None and not is_url(hook) and not (os.path.isfile(hook) and os.access(hook, os.X_OK)):
        raise BadOptionError(f"--role-hook: {hook} is neither a program nor an http:// address")


def _check_exposure(options: MemberOptions) -> None:
    """Refuse to listen beyond loopback where members prove nothing or clients do not log in, unless that is asked for.

    Anybody who reaches the wire port could then act as a member: acknowledge writes that it does not have,
    make the primary step down, or send a configuration. Without users he is an administrator.
    """
    _check_tls(options)
    proves = options.key_file is not None or options.tls_cert is not None
    if options.auth and not proves:
        raise BadOptionError(
            "--auth: it needs --key-file, the same on all members, or --tls-cert; by it members prove themselves"
        )
    if proves and options.insecure_members:
        way = "--tls-cert" if options.key_file is None else "--key-file"
        raise BadOptionError(f"--insecure-members: it is for members without {way}, and one is given")
    if not proves and not options.insecure_members and not is_loopback(options.bind_ip):
        raise BadOptionError(
            f"--bind-ip: {options.bind_ip} can be reached from other machines; give all members the same --key-file,"
            " or certificates by --tls-cert (or --insecure-members, and anybody there can act as a member)"
        )
    may_be_reached = options.auth or options.insecure_clients or options.insecure_members
    if not may_be_reached and not is_loopback(options.bind_ip):
        raise BadOptionError(
            f"--bind-ip: {options.bind_ip} can be reached from other machines; give all members --auth, so that clients"
            " log in (or --insecure-clients, and anybody there can do everything)"
        )


def _check_tls(options: MemberOptions) -> None:
    """Refuse TLS that is configured by half."""
    files = {"tls-cert": options.tls_cert, "tls-key": options.tls_key, "tls-ca": options.tls_ca}
    given = [flag for flag, path in files.items() if path is not None]
    missing = [flag for flag, path in files.items() if path is None]
    if given and missing:
        raise BadOptionError(f"--{given[0]}: TLS needs --{' and --'.join(missing)} too")
    if options.tls_mode is not None and missing:  # who asks for `require` must not get none
        raise BadOptionError(f"--tls-mode: {options.tls_mode} needs --tls-cert, --tls-key and --tls-ca")
    if options.tls_mode not in {None, REQUIRE_TLS, PREFER_TLS}:
        raise BadOptionError(f"--tls-mode: {options.tls_mode!r} is not {REQUIRE_TLS} or {PREFER_TLS}")
    if options.key_file_or_certificate and (missing or options.key_file is None):
        raise BadOptionError("--key-file-or-certificate: it needs both, --key-file and --tls-cert")


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


def command_line(options: MemberOptions) -> tuple[Sequence[str], dict[str, object]]:
    """Return argv and the parsed options in the form of getCmdLineOpts."""
    parsed: dict[str, object] = {
        "net": {"bindIp": options.bind_ip, "port": options.port},
        "replication": {"replSet": options.repl_set},
        "storage": {"dbPath": str(options.dbpath)},
    }
    if options.auth:
        parsed["security"] = {"authorization": "enabled"}
    if options.enable_test_commands:
        parsed["setParameter"] = {"enableTestCommands": "1"}
    argv = ["replset", "start", "--replSet", options.repl_set, "--dbpath", str(options.dbpath)]
    return [*argv, "--port", str(options.port)], parsed
