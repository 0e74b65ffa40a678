"""Connection strings as drivers take them: what each part means, what has no effect, and what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from replset.connection_string import ConnectionString, TlsOptions, parse_connection_string
from replset.errors import BadValueError

Records = tuple[list[tuple[str, int]], list[str]]
RECORDS: dict[str, Records] = {
    "db.example.com": ([("a.example.com.", 27018), ("B.example.com", 27017)], ["authSource=users&replicaSet=rs0"]),
    "plain.example.com": ([("a.example.com", 27017)], []),
    "example.com": ([("a.example.com", 27017)], []),
    "foreign.example.com": ([("a.example.com", 27017), ("a.evil.com", 27017)], []),
    "sibling.example.com": ([("notexample.com", 27017)], []),
    "empty.example.com": ([], []),
    "two.example.com": ([("a.example.com", 27017)], ["replicaSet=a", "replicaSet=b"]),
    "options.example.com": ([("a.example.com", 27017)], ["tls=false"]),
}


def resolve(name: str, service: str) -> Records:
    assert service in ("mongodb", "custom")
    return RECORDS[name]


def parse(text: str) -> ConnectionString:
    return parse_connection_string(text, resolve)


LAX = TlsOptions(any_certificate=True, any_hostname=True)
FILES = TlsOptions("/ca.pem", "/me.pem", "p w")
RIGHT: dict[str, dict[str, Any]] = {
    "mongodb://a": {"hosts": ("a:27017",), "user": "", "auth_source": "admin", "has_tls": None, "is_direct": False},
    "mongodb://a,B:27018,a": {"hosts": ("a:27017", "b:27018")},
    "mongodb://[::1],[fe80::1%25eth0]:27018/": {"hosts": ("[::1]:27017", "[fe80::1%eth0]:27018")},
    "mongodb://127.0.0.1:27019/?": {"hosts": ("127.0.0.1:27019",)},
    "mongodb://a?replicaSet=rs0": {"set_name": "rs0"},
    "mongodb://u:p%40%3A%2F%25%C3%A9@a/shop": {"user": "u", "password": "p@:/%é", "auth_source": "shop"},
    "mongodb://d%20omain%5Cu:@a/shop?authSource=admin": {"user": "d omain\\u", "password": "", "auth_source": "admin"},
    "mongodb://u@a": {"user": "u", "password": None},
    "mongodb://u:p@a/?authmechanism=SCRAM-SHA-1": {"mechanism": "SCRAM-SHA-1"},
    "mongodb://u:p@a/?authMechanism=SCRAM-SHA-256&appName=my%20app": {
        "mechanism": "SCRAM-SHA-256",
        "app_name": "my app",
    },
    "mongodb://a/?tls=true": {"has_tls": True, "tls": TlsOptions()},
    "mongodb://a/?ssl=false": {"has_tls": False},
    "mongodb://a/?tls=true&ssl=true": {"has_tls": True},
    "mongodb://a/?tlsCAFile=%2Fca.pem&tlsCertificateKeyFile=/me.pem&tlsCertificateKeyFilePassword=p%20w": {
        "has_tls": True,
        "tls": FILES,
    },
    "mongodb://a/?tlsInsecure=true": {"has_tls": True, "tls": LAX},
    "mongodb://a/?tlsAllowInvalidCertificates=true": {"tls": TlsOptions(any_certificate=True)},
    "mongodb://a/?tls=true&tlsAllowInvalidHostnames=true": {"tls": TlsOptions(any_hostname=True)},
    "mongodb://a/?directConnection=true": {"is_direct": True},
    "mongodb://a,b/?directConnection=false": {"is_direct": False},
    "mongodb://a/?connectTimeoutMS=1500&serverSelectionTimeoutMS=250": {
        "connect_timeout_s": 1.5,
        "selection_timeout_s": 0.25,
    },
    "mongodb://a/?connectTimeoutMS=0": {"connect_timeout_s": 3600.0},
    "mongodb://a/?readPreference=secondaryPreferred&readPreferenceTags=dc:ny&readPreferenceTags=": {"warnings": ()},
    "mongodb://a/?retryWrites=true&w=majority;maxPoolSize=5&compressors=zstd": {"warnings": ()},
    "mongodb://a/?loadBalanced=false": {"warnings": ()},
    "mongodb://a/?colour=blue&Shape=x": {"warnings": ("unknown option 'colour'", "unknown option 'shape'")},
    "mongodb://a/?appName=x&appName=y": {
        "app_name": "y",
        "warnings": ("option appName more than once: the last one counts",),
    },
    "mongodb+srv://db.example.com": {
        "hosts": ("a.example.com:27018", "b.example.com:27017"),
        "has_tls": True,
        "auth_source": "users",
        "set_name": "rs0",
    },
    "mongodb+srv://u:p@DB.example.com/x?authSource=me&tls=false": {"auth_source": "me", "has_tls": False, "user": "u"},
    "mongodb+srv://plain.example.com/?srvServiceName=custom": {"set_name": None, "warnings": ()},
    "mongodb+srv://example.com": {"hosts": ("a.example.com:27017",)},
}


@pytest.mark.parametrize("text", RIGHT)
def test_what_it_means(text: str) -> None:
    found = parse(text)
    assert {name: getattr(found, name) for name in RIGHT[text]} == RIGHT[text]


WRONG = {
    "mongo://a": "it begins with neither mongodb:// nor mongodb\\+srv://",
    "mongodb://": "a host is missing",
    "mongodb://a,,b": "a host is missing",
    "mongodb://a:0": "0 is no port",
    "mongodb://a:65536": "65536 is no port",
    "mongodb://a:x": "'a:x' is no HOST:PORT",
    "mongodb://::1": "'::1' is no HOST:PORT",
    "mongodb://[::1": "is no HOST:PORT",
    "mongodb://%2Ftmp%2Fmongodb-27017.sock": "sockets in the file system",
    "mongodb://u:s3cr/et@a": "/ as %2F",
    "mongodb://u:s3cr@et@a": "@ as %40, : as %3A",
    "mongodb://u:s3:cret@a": "@ as %40, : as %3A",
    "mongodb://:s3cret@a": "there is no user before @",
    "mongodb://u:s3cret%@a": "a % without two hex digits",
    "mongodb://u:s3cret%FF@a": "not UTF-8",
    "mongodb://a/?tls": "'tls' is no option with a value",
    "mongodb://a/?=x": "'' is no option with a value",
    "mongodb://a/?tls=yes": "tls is true or false, not 'yes'",
    "mongodb://a/?tls=true&ssl=false": "tls and ssl contradict",
    "mongodb://a/?tls=false&tlsCAFile=/ca.pem": "tls=false goes with no other option",
    "mongodb://a/?tlsInsecure=true&tlsAllowInvalidHostnames=true": "tlsInsecure goes with neither",
    "mongodb://a/?connectTimeoutMS=-1": "connectTimeoutMS is a number|connecttimeoutms is a number",
    "mongodb://a/?readPreference=any": "no read preference 'any'",
    "mongodb://a/?replicaSet=": "replicaset has no value",
    "mongodb://u@a/?authSource=": "authsource has no value",
    "mongodb://a/?authMechanism=SCRAM-SHA-1": "authMechanism needs a user",
    "mongodb://u@a/?authMechanism=MONGODB-X509": "the mechanism MONGODB-X509 is not supported",
    "mongodb://u@a/?authMechanism=GSSAPI": "the mechanism GSSAPI is not supported",
    "mongodb://a,b/?directConnection=true": "directConnection=true goes with one host",
    "mongodb://a/?loadBalanced=true": "the option loadbalanced is not supported",
    "mongodb://a/?proxyHost=p": "the option proxyhost is not supported",
    "mongodb://a/?srvServiceName=x": "srvServiceName is for mongodb\\+srv://",
    f"mongodb://a/?appName={'x' * 129}": "at most 128 bytes",
    "mongodb+srv://a.example.com,b.example.com": "takes one name",
    "mongodb+srv://db.example.com:27017": "takes one name, without a port",
    "mongodb+srv://db.example.com/?directConnection=true": "directConnection=true goes with one host",
    "mongodb+srv://foreign.example.com": "names the host a.evil.com, which is not within example.com",
    "mongodb+srv://sibling.example.com": "names the host notexample.com",
    "mongodb+srv://empty.example.com": "has no SRV records",
    "mongodb+srv://two.example.com": "TXT records with other options",
    "mongodb+srv://options.example.com": "TXT records with other options",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_refused_in_one_line_without_the_password(text: str) -> None:
    with pytest.raises(BadValueError, match=WRONG[text]) as error:
        parse(text)
    assert error.value.message.startswith("connection string: ")
    assert "s3" not in error.value.message


def test_a_password_is_in_no_text_of_it() -> None:
    found = parse("mongodb://u:s3cret@a/?tlsCertificateKeyFilePassword=s3cret")
    assert "s3cret" not in repr(found)
