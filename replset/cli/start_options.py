"""Reads the options of `replset start` from flags, environment and a YAML file, and refuses those that cannot be."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import yaml

from replset.config import MAX_VOTERS
from replset.errors import FailedToParseError
from replset.member.options import (
    JSON_LOG,
    MONGODB_LAYOUT,
    PLAIN_LAYOUT,
    PREFER_TLS,
    REQUIRE_TLS,
    TEXT_LOG,
    About,
    BadOptionError,
    FeatureOptions,
    MemberOptions,
    is_loopback,
)

FLAGS = {"repl_set": "replSet", "dbpath": "dbpath"}
"""Options whose flag is not the dashed field name (`--http-port`)."""


def flag_of(field: str) -> str:
    """Return the option's name on the command line and in the file, without the leading dashes."""
    return FLAGS.get(field, field.replace("_", "-"))


def variable_of(field: str) -> str:
    """Return the option's environment variable: `replSet` is REPLSET_REPL_SET, `http-port` is REPLSET_HTTP_PORT."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", flag_of(field)).replace("-", "_")
    return f"REPLSET_{words.upper()}"


def all_options(of_features: Iterable[type[FeatureOptions]]) -> list[Field[Any]]:
    """The options of `replset start`: the member's own, then those of these features."""
    kinds: tuple[type[Any], ...] = (MemberOptions, *of_features)
    return [row for kind in kinds for row in fields(kind) if "about" in row.metadata]


def resolve_options(
    flags: Mapping[str, object], environment: Mapping[str, str], of_features: Sequence[type[FeatureOptions]] = ()
) -> MemberOptions:
    """Combine the options: the flag wins, then the environment, then the file named by `config`.

    flags: field name -> value, None where the flag was not given. Raises BadOptionError naming option and source.
    """
    config_path = flags.get("config") or environment.get("REPLSET_CONFIG")
    known = {row.name: row for row in all_options(of_features)}
    from_file = _read_file(str(config_path), list(known)) if config_path else {}
    values: dict[str, Any] = {}
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
    for name, number in values.items():
        if about(known[name]).above_0 and number <= 0:
            raise BadOptionError(f"--{flag_of(name)}: {number:g} is not above 0")
        if about(known[name]).least_0 and number < 0:
            raise BadOptionError(f"--{flag_of(name)}: {number:g} is below 0")

    def given(kind: type) -> dict[str, Any]:
        return {row.name: values[row.name] for row in fields(kind) if row.name in values}

    options = MemberOptions(**given(MemberOptions), of_features=tuple(kind(**given(kind)) for kind in of_features))
    _check(options)
    for one in options.of_features:
        one.check()
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


def about(option: Field[Any]) -> About:
    """What is said of an option."""
    found: About = option.metadata["about"]
    return found
