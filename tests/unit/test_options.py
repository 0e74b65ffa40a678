"""Options of one member: where each comes from, what each is called, and what is refused with which words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from replset.errors import FailedToParseError, ReplError
from replset.runtime.options import (
    BadOptionError,
    MemberOptions,
    exposure_warnings,
    flag_of,
    is_unspecified,
    resolve_options,
    variable_of,
)

BASE = {"repl_set": "rs0", "dbpath": "/data"}


def file_of(folder: Path, text: str) -> str:
    path = folder / "replset.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults() -> None:
    options = resolve_options(BASE, {})
    assert options == MemberOptions("rs0", Path("/data"))
    assert options.host == "127.0.0.1:27017"
    assert options.http_listen == "127.0.0.1:28017"
    assert options.http_address == "127.0.0.1:28017"


def test_the_http_port_is_the_wire_port_and_a_thousand_unless_it_is_given() -> None:
    assert resolve_options({**BASE, "port": 4000}, {}).http_address == "127.0.0.1:5000"
    assert resolve_options({**BASE, "port": 4000, "http_port": 81}, {}).http_address == "127.0.0.1:81"


def test_others_are_told_the_advertised_name_while_the_socket_binds_elsewhere() -> None:
    options = resolve_options({**BASE, "bind_ip": "0.0.0.0", "advertise": "m1", "key_file": "/k", "auth": True}, {})
    assert (options.host, options.listen) == ("m1:27017", "0.0.0.0:27017")
    assert (options.http_address, options.http_listen) == ("m1:28017", "0.0.0.0:28017")


def test_the_flag_wins_then_the_environment_then_the_file(tmp_path: Path) -> None:
    config = file_of(tmp_path, "port: 1\nhttp-port: 2\nmin-free-mb: 3\n")
    environment = {"REPLSET_PORT": "11", "REPLSET_HTTP_PORT": "12"}
    options = resolve_options({**BASE, "config": config, "port": 21}, environment)
    assert (options.port, options.http_port, options.min_free_mb) == (21, 12, 3)


def test_logins_need_members_that_prove_themselves() -> None:
    with pytest.raises(BadOptionError, match="--auth: it needs --key-file"):
        resolve_options({**BASE, "auth": True}, {})
    assert resolve_options({**BASE, "auth": True, "key_file": "/k"}, {}).auth


def test_a_flag_that_was_not_given_is_none_and_hides_nothing() -> None:
    assert resolve_options({**BASE, "port": None}, {"REPLSET_PORT": "11"}).port == 11


@pytest.mark.parametrize(
    ("field", "flag", "variable"),
    [
        ("repl_set", "replSet", "REPLSET_REPL_SET"),
        ("dbpath", "dbpath", "REPLSET_DBPATH"),
        ("http_port", "http-port", "REPLSET_HTTP_PORT"),
        ("bind_ip", "bind-ip", "REPLSET_BIND_IP"),
        ("enable_test_commands", "enable-test-commands", "REPLSET_ENABLE_TEST_COMMANDS"),
        ("oplog_min_retention_hours", "oplog-min-retention-hours", "REPLSET_OPLOG_MIN_RETENTION_HOURS"),
    ],
)
def test_names(field: str, flag: str, variable: str) -> None:
    assert flag_of(field) == flag
    assert variable_of(field) == variable


def test_every_option_comes_from_the_environment_alone() -> None:
    texts = {
        "int": "7",
        "int | None": "9",
        "float": "1.5",
        "float | None": "2.5",
        "bool": "true",
        "Path": "/d",
        "str": "x",
        "str | None": "y",
    }
    texts |= {"Path | None": "/k", "tuple[str, ...]": "a"}
    values = {field.name: texts[str(field.type)] for field in fields(MemberOptions)} | {
        "log_level": "debug",
        "log_format": "json",
        "rollback_layout": "mongodb",
        "tls_mode": "prefer",
        "role_hook": "http://x/role",
        "insecure_members": "false",
        "expect_members": "y:7,b",  # the member itself is y, on port 7
    }
    options = resolve_options({}, {variable_of(name): text for name, text in values.items()})
    found = {name: str(getattr(options, name)).lower() for name in values}
    assert found == values | {"allowed_hosts": "('a',)", "expect_members": "('y:7', 'b')"}
    assert resolve_options(BASE, {"REPLSET_INSECURE_MEMBERS": "1"}).insecure_members


def test_every_option_comes_from_the_file_alone(tmp_path: Path) -> None:
    config = file_of(
        tmp_path,
        "replSet: rs7\ndbpath: /d\nport: 1\nhttp-port: 2\nbind-ip: ::1\nadvertise: m\n"
        "oplog-size-mb: 0.5\noplog-lagging-mb: 7\n"
        "oplog-min-retention-hours: 1.5\nsnapshot-history-secs: 0\nmin-free-mb: 0\nmax-connections: 5\n"
        "scrub-mb-per-sec: 0.5\n"
        "rollback-layout: mongodb\nallow-multiple-arbiters: yes\nenable-test-commands: true\nlog-level: error\n"
        "log-format: json\nlog-file: /l\n"
        "key-file: /k\ninsecure-members: false\nallowed-hosts: [a, b.c]\n"
        "expect-members: [n, 'm:1']\n",
    )
    options = resolve_options({}, {"REPLSET_CONFIG": config})
    assert options == MemberOptions(
        "rs7",
        Path("/d"),
        1,
        2,
        "::1",
        "m",
        Path("/k"),
        insecure_members=False,
        allowed_hosts=("a", "b.c"),
        expect_members=("n", "m:1"),
        oplog_size_mb=0.5,
        oplog_min_retention_hours=1.5,
        oplog_lagging_mb=7.0,
        snapshot_history_secs=0,
        min_free_mb=0,
        scrub_mb_per_sec=0.5,
        max_connections=5,
        rollback_layout="mongodb",
        allow_multiple_arbiters=True,
        enable_test_commands=True,
        log_level="error",
        log_format="json",
        log_file=Path("/l"),
    )


@pytest.mark.parametrize("bind_ip", ["127.0.0.1", "127.5.5.5", "::1", "[::1]", "localhost"])
def test_without_a_key_file_a_member_may_listen_on_loopback(bind_ip: str) -> None:
    assert resolve_options({**BASE, "bind_ip": bind_ip}, {}).key_file is None


@pytest.mark.parametrize("bind_ip", ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1"])
def test_beyond_loopback_a_member_needs_a_key_file_or_says_that_it_is_insecure(bind_ip: str) -> None:
    with pytest.raises(BadOptionError, match="--key-file"):
        resolve_options({**BASE, "advertise": "m1", "bind_ip": bind_ip}, {})
    keyed = {**BASE, "advertise": "m1", "bind_ip": bind_ip, "key_file": "/k"}
    with pytest.raises(BadOptionError, match="give all members --auth"):
        resolve_options(keyed, {})
    assert resolve_options({**keyed, "insecure_clients": True}, {}).key_file == Path("/k")
    assert resolve_options(
        {**BASE, "advertise": "m1", "bind_ip": bind_ip, "insecure_members": True}, {}
    ).insecure_members


def test_both_at_once_contradict_each_other() -> None:
    with pytest.raises(BadOptionError, match="--insecure-members"):
        resolve_options({**BASE, "key_file": "/k", "insecure_members": True}, {})


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert resolve_options({**BASE, "config": file_of(tmp_path, "")}, {}).port == 27017


@pytest.mark.parametrize("text", ["1", "true", "True", "YES", "on"])
def test_true_in_the_environment(text: str) -> None:
    assert resolve_options(BASE, {"REPLSET_ENABLE_TEST_COMMANDS": text}).enable_test_commands is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off", ""])
def test_false_in_the_environment(text: str) -> None:
    assert resolve_options(BASE, {"REPLSET_ENABLE_TEST_COMMANDS": text}).enable_test_commands is False


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve_options({**BASE, "dbpath": "~/data"}, {}).dbpath == Path("/home/someone/data")


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
    ],
)
def test_refusals_name_the_option_and_where_it_came_from(
    flags: dict[str, object], environment: dict[str, str], words: str
) -> None:
    with pytest.raises(BadOptionError) as refused:
        resolve_options(flags, environment)
    assert refused.value.message == words


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "[::]", "0"])
def test_an_address_that_nobody_can_reach_is_not_advertised(address: str) -> None:
    with pytest.raises(BadOptionError, match=r"--bind-ip: .* no other member can connect to it; give --advertise HOST"):
        resolve_options({**BASE, "bind_ip": address}, {})
    assert is_unspecified(address)


def test_nor_is_it_as_the_name_that_was_given() -> None:
    with pytest.raises(BadOptionError, match=r"--advertise: 0.0.0.0 means every address"):
        resolve_options({**BASE, "advertise": "0.0.0.0"}, {})
    assert not any(map(is_unspecified, ("127.0.0.1", "m1", "::1", "10.0.0.0")))


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
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    config = file_of(tmp_path, text)
    with pytest.raises(ReplError) as refused:
        resolve_options({**BASE, "config": config}, {})
    assert isinstance(refused.value, BadOptionError | FailedToParseError)
    assert refused.value.message.startswith(words.replace("FILE", config))
    assert "\n" not in refused.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(BadOptionError, match=f"cannot read the configuration file {missing}: No such file"):
        resolve_options({**BASE, "config": str(missing)}, {})


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FailedToParseError, match="is not YAML"):
        resolve_options({**BASE, "config": str(binary)}, {})


TLS = {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}


@pytest.mark.parametrize("missing", sorted(TLS))
def test_half_of_tls_is_refused(missing: str) -> None:
    with pytest.raises(BadOptionError, match=f"TLS needs .*--{missing.replace('_', '-')}"):
        resolve_options({**BASE, **{name: path for name, path in TLS.items() if name != missing}}, {})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tls_mode": "prefer"}, "--tls-mode: prefer needs --tls-cert, --tls-key and --tls-ca"),
        ({"tls_mode": "require"}, "--tls-mode: require needs --tls-cert, --tls-key and --tls-ca"),
        ({**TLS, "tls_mode": "allow"}, "--tls-mode: 'allow' is not require or prefer"),
        ({**TLS, "key_file_or_certificate": True}, "--key-file-or-certificate: it needs both"),
        ({"key_file": "/k", "key_file_or_certificate": True}, "--key-file-or-certificate: it needs both"),
    ],
)
def test_a_change_to_tls_or_certificates_needs_both_ends_of_it(given: dict[str, object], reason: str) -> None:
    with pytest.raises(BadOptionError, match=reason):
        resolve_options({**BASE, **given}, {})


def test_a_change_that_is_not_finished_is_said() -> None:
    given = {**TLS, "key_file": "/k", "tls_mode": "prefer", "key_file_or_certificate": True}
    first, second = exposure_warnings(resolve_options({**BASE, **given}, {}))
    assert "--tls-mode prefer" in first
    assert "--key-file-or-certificate" in second


def test_certificates_are_enough_beyond_loopback_and_for_users() -> None:
    options = resolve_options({**BASE, **TLS, "advertise": "m1", "bind_ip": "0.0.0.0", "auth": True}, {})
    assert exposure_warnings(options) == []
    assert options.http_url.startswith("https://m1:")
    with pytest.raises(BadOptionError, match="without --tls-cert"):
        resolve_options({**BASE, **TLS, "insecure_members": True}, {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"insecure_members": True}, ["act as a member", "no users", "without --tls-cert"]),
        ({"key_file": "/k", "insecure_clients": True}, ["no users", "without --tls-cert"]),
        ({"key_file": "/k", "auth": True}, ["without --tls-cert"]),
        ({**TLS, "insecure_clients": True}, ["no users"]),
    ],
)
def test_a_member_beyond_loopback_says_what_is_open(given: dict[str, object], said: list[str]) -> None:
    options = resolve_options({**BASE, **given, "advertise": "m1", "bind_ip": "0.0.0.0"}, {})
    found = exposure_warnings(options)
    assert len(found) == len(said)
    for text, warning in zip(said, found, strict=True):
        assert text in warning
