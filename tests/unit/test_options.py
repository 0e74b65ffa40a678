"""Options of one member: where each comes from, what each is called, and what is refused with which words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from replset.cli.start_options import all_options, flag_of, is_unspecified, resolve_options, variable_of
from replset.errors import FailedToParseError, ReplError
from replset.features.all import OPTIONS
from replset.member.options import BadOptionError, MemberOptions, exposure_warnings

Given = dict[str, Any]
BASE = {"repl_set": "rs0", "dbpath": "/data"}
TLS = {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}
OPEN = {**BASE, "advertise": "m1", "bind_ip": "0.0.0.0"}
TESTS = "REPLSET_ENABLE_TEST_COMMANDS"
BEYOND_LOOPBACK = ("0.0.0.0", "::", "192.0.2.1", "10.0.0.1")


def file_of(folder: Path, text: str) -> str:
    path = folder / "replset.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("flags", "environment", "found"),
    [
        (BASE, {}, {"host": "127.0.0.1:27017", "http_listen": "127.0.0.1:28017", "http_address": "127.0.0.1:28017"}),
        ({**BASE, "port": 4000}, {}, {"http_address": "127.0.0.1:5000"}),
        ({**BASE, "port": 4000, "http_port": 81}, {}, {"http_address": "127.0.0.1:81"}),
        (
            {**OPEN, "key_file": "/k", "auth": True},
            {},
            {
                **{"host": "m1:27017", "listen": "0.0.0.0:27017", "auth": True},
                **{"http_address": "m1:28017", "http_listen": "0.0.0.0:28017"},
            },
        ),
        ({**BASE, "port": None}, {"REPLSET_PORT": "11"}, {"port": 11}),
        ({**BASE, "dbpath": "~/data"}, {}, {"dbpath": Path("/home/someone/data")}),
        *((BASE, {TESTS: text}, {"enable_test_commands": True}) for text in ("1", "true", "True", "YES", "on")),
        *((BASE, {TESTS: text}, {"enable_test_commands": False}) for text in ("0", "false", "No", "off", "")),
        *(({**BASE, "bind_ip": ip}, {}, {"key_file": None}) for ip in ("127.0.0.1", "127.5.5.5", "::1", "[::1]")),
        ({**BASE, "bind_ip": "localhost"}, {}, {"key_file": None}),
        *(
            ({**OPEN, "bind_ip": ip, "key_file": "/k", "insecure_clients": True}, {}, {"key_file": Path("/k")})
            for ip in BEYOND_LOOPBACK
        ),
        *(
            ({**OPEN, "bind_ip": ip, "insecure_members": True}, {}, {"insecure_members": True})
            for ip in BEYOND_LOOPBACK
        ),
    ],
)
def test_what_options_mean(
    flags: Given, environment: dict[str, str], found: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    options = resolve_options(flags, environment)
    assert {name: getattr(options, name) for name in found} == found


def test_the_flag_wins_then_the_environment_then_the_file(tmp_path: Path) -> None:
    assert resolve_options(BASE, {}) == MemberOptions("rs0", Path("/data"))
    config = file_of(tmp_path, "port: 1\nhttp-port: 2\nmin-free-mb: 3\n")
    environment = {"REPLSET_PORT": "11", "REPLSET_HTTP_PORT": "12"}
    options = resolve_options({**BASE, "config": config, "port": 21}, environment)
    assert (options.port, options.http_port, options.min_free_mb) == (21, 12, 3)
    assert resolve_options({**BASE, "config": file_of(tmp_path, "")}, {}).port == 27017
    assert (flag_of("repl_set"), variable_of("repl_set")) == ("replSet", "REPLSET_REPL_SET")


def test_every_option_comes_from_the_environment_or_the_file_alone(tmp_path: Path) -> None:
    texts = {"int": "7", "int | None": "9", "float": "1.5", "float | None": "2.5", "bool": "true"}
    texts |= {"Path": "/d", "str": "x", "str | None": "y", "Path | None": "/k", "tuple[str, ...]": "a"}
    values = {field.name: texts[str(field.type)] for field in all_options(OPTIONS)} | {
        "log_level": "debug",
        "log_format": "json",
        "rollback_layout": "mongodb",
        "tls_mode": "prefer",
        "role_hook": "http://x/role",
        "insecure_members": "false",
        "expect_members": "y:7,b",  # the member itself is y, on port 7
    }
    options = resolve_options({}, {variable_of(name): text for name, text in values.items()}, OPTIONS)
    given = {row.name: getattr(one, row.name) for one in (options, *options.of_features) for row in fields(one)}
    found = {name: str(given[name]).lower() for name in values}
    assert found == values | {"allowed_hosts": "('a',)", "expect_members": "('y:7', 'b')"}
    rows = values | {"allowed_hosts": "[a]", "expect_members": "['y:7', b]", "advertise": "'y'"}
    config = file_of(tmp_path, "".join(f"{flag_of(name)}: {text}\n" for name, text in rows.items()))
    assert resolve_options({}, {"REPLSET_CONFIG": config}, OPTIONS) == options


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"dbpath": "/d"}, {}, "--replSet is missing (or REPLSET_REPL_SET, or the file)"),
        ({"repl_set": "rs0"}, {}, "--dbpath is missing (or REPLSET_DBPATH, or the file)"),
        ({**BASE, "role_hook": "/d"}, {}, "--role-hook: /d is neither a program nor an http:// address"),
        ({**BASE, "role_hook_secs": 0.1}, {}, "--role-hook-secs: 0.1 is not from 0.2 to 3600"),
        ({**BASE, "port": 0}, {}, "--port: 0 is not a port (1 to 65535)"),
        (BASE, {"REPLSET_PORT": "70000"}, "--port: 70000 is not a port (1 to 65535)"),
        (BASE, {"REPLSET_PORT": "27o17"}, "REPLSET_PORT: '27o17' is not a whole number"),
        (BASE, {"REPLSET_PORT": ""}, "REPLSET_PORT: '' is not a whole number"),
        ({**BASE, "port": 65000}, {}, "--http-port: 66000 is not a port (1 to 65535)"),
        ({**BASE, "http_port": 0}, {}, "--http-port: 0 is not a port (1 to 65535)"),
        ({**BASE, "http_port": 27017}, {}, "--http-port: 27017 is the wire port already"),
        (BASE, {"REPLSET_ENABLE_TEST_COMMANDS": "maybe"}, "REPLSET_ENABLE_TEST_COMMANDS: 'maybe' is not true or false"),
        ({**BASE, "repl_set": "a/b"}, {}, "--replSet: 'a/b' is not a set name"),
        ({**BASE, "repl_set": ""}, {}, "--replSet: '' is not a set name"),
        ({**BASE, "dbpath": ""}, {}, "--dbpath: '' is not a folder"),
        ({**BASE, "key_file": ""}, {}, "--key-file: '' is not a file"),
        ({**BASE, "allowed_hosts": "a,b c"}, {}, "--allowed-hosts: 'b c' is not a host name (without port)"),
        ({**BASE, "oplog_size_mb": 0}, {}, "--oplog-size-mb: 0 is not above 0"),
        ({**BASE, "oplog_lagging_mb": -1}, {}, "--oplog-lagging-mb: -1 is below 0"),
        ({**BASE, "oplog_size_mb": "nan"}, {}, "--oplog-size-mb: 'nan' is not a number"),
        (BASE, {"REPLSET_OPLOG_SIZE_MB": "inf"}, "REPLSET_OPLOG_SIZE_MB: 'inf' is not a number"),
        (BASE, {"REPLSET_OPLOG_SIZE_MB": "big"}, "REPLSET_OPLOG_SIZE_MB: 'big' is not a number"),
        ({**BASE, "oplog_min_retention_hours": -1}, {}, "--oplog-min-retention-hours: -1 is below 0"),
        ({**BASE, "snapshot_history_secs": -5}, {}, "--snapshot-history-secs: -5 is below 0"),
        ({**BASE, "min_free_mb": -1}, {}, "--min-free-mb: -1 is below 0"),
        ({**BASE, "max_connections": 0}, {}, "--max-connections: 0 is not above 0"),
        ({**BASE, "rollback_layout": "4.4"}, {}, "--rollback-layout: '4.4' is not plain or mongodb"),
        ({**BASE, "log_format": "xml"}, {}, "--log-format: 'xml' is not text or json"),
        ({**BASE, "log_level": "loud"}, {}, "--log-level: 'loud' is not debug, info, warning or error"),
        ({**BASE, "expect_members": "a,a:27017"}, {}, "--expect-members: a host is given twice"),
        (
            {**BASE, "expect_members": ",".join(f"m{n}" for n in range(8))},
            {},
            "--expect-members: 8 hosts, at most 7 members have a vote",
        ),
        ({**BASE, "bind_ip": "a b"}, {}, "--bind-ip: 'a b' is not an address"),
        ({**BASE, "advertise": "m1:27017"}, {}, "--advertise: 'm1:27017' is not a host name (without port)"),
        ({**BASE, "auth": True}, {}, "--auth: it needs --key-file…"),
        ({**BASE, "key_file": "/k", "insecure_members": True}, {}, "--insecure-members…"),
        ({**BASE, **TLS, "insecure_members": True}, {}, "--insecure-members…without --tls-cert"),
        *(({**OPEN, "bind_ip": ip}, {}, "--bind-ip…--key-file") for ip in BEYOND_LOOPBACK),
        *(
            ({**OPEN, "bind_ip": ip, "key_file": "/k"}, {}, "--bind-ip…give all members --auth")
            for ip in BEYOND_LOOPBACK
        ),
        *(
            ({**BASE, "bind_ip": ip}, {}, "--bind-ip: …; give --advertise HOST")
            for ip in ("0.0.0.0", "::", "[::]", "0")
        ),
        ({**BASE, "advertise": "0.0.0.0"}, {}, "--advertise: 0.0.0.0 means every address…"),
        *(
            ({**BASE, **{name: TLS[name] for name in TLS if name != one}}, {}, f"…TLS needs --{one.replace('_', '-')}")
            for one in TLS
        ),
        ({**BASE, "tls_mode": "prefer"}, {}, "--tls-mode: prefer needs --tls-cert, --tls-key and --tls-ca…"),
        ({**BASE, "tls_mode": "require"}, {}, "--tls-mode: require needs --tls-cert, --tls-key and --tls-ca…"),
        ({**BASE, **TLS, "tls_mode": "allow"}, {}, "--tls-mode: 'allow' is not require or prefer…"),
        ({**BASE, **TLS, "key_file_or_certificate": True}, {}, "--key-file-or-certificate: it needs both…"),
        ({**BASE, "key_file": "/k", "key_file_or_certificate": True}, {}, "--key-file-or-certificate: it needs both…"),
    ],
)
def test_refusals_name_the_option_and_where_it_came_from(flags: Given, environment: dict[str, str], words: str) -> None:
    with pytest.raises(BadOptionError) as refused:
        resolve_options(flags, environment, OPTIONS)
    begin, is_part, inside = words.partition("…")
    message = refused.value.message
    assert (message.startswith(begin) and inside in message) if is_part else message == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("portt: 1", "unknown option in FILE: portt"),
        ("port: 1\nconfig: x", "unknown option in FILE: config"),
        ("port: x", "port in FILE: 'x' is not a whole number"),
        ("port:\n", "port in FILE has no value"),
        ("port: [1]", "port in FILE: [1] is not a whole number"),
        ("bind-ip: [a]", "bind-ip in FILE: ['a'] is not text"),
        ("port: 1\nhttp_port: 2\nhttp-port: 3", "http-port is given twice in FILE"),
        ("port: 1\ndbpath: /d\nport: 2", "port is given twice in FILE"),
        ("- a\n- b", "the configuration file FILE must be a mapping of option names to values"),
        ("a: b: c", "the configuration file FILE is not YAML: mapping values are not allowed here"),
        ("\ud800", "the configuration file FILE is not YAML"),
        ("", "cannot read the configuration file FILE: No such file"),
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "replset.yaml"
    if text:
        config.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ReplError) as refused:
        resolve_options({**BASE, "config": str(config)}, {}, OPTIONS)
    assert isinstance(refused.value, BadOptionError | FailedToParseError)
    assert refused.value.message.startswith(words.replace("FILE", str(config)))
    assert "\n" not in refused.value.message


def test_which_addresses_mean_all() -> None:
    assert all(map(is_unspecified, ("0.0.0.0", "::", "[::]", "0")))
    assert not any(map(is_unspecified, ("127.0.0.1", "m1", "::1", "10.0.0.0")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"insecure_members": True}, ["act as a member", "no users", "without --tls-cert"]),
        ({"key_file": "/k", "insecure_clients": True}, ["no users", "without --tls-cert"]),
        ({"key_file": "/k", "auth": True}, ["without --tls-cert"]),
        ({**TLS, "insecure_clients": True}, ["no users"]),
        ({**TLS, "auth": True}, []),
        (
            {**TLS, "bind_ip": "::1", "key_file": "/k", "tls_mode": "prefer", "key_file_or_certificate": True},
            ["--tls-mode prefer", "--key-file-or-certificate"],
        ),
    ],
)
def test_a_member_says_what_is_open(given: Given, said: list[str]) -> None:
    options = resolve_options({**OPEN, **given}, {})
    assert options.http_url.startswith("https://m1:" if "tls_cert" in given else "http://m1:")
    found = exposure_warnings(options)
    assert len(found) == len(said)
    for text, warning in zip(said, found, strict=True):
        assert text in warning
