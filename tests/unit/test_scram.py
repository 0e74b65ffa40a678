"""SCRAM-SHA-256: the RFC's own example, and what a client may not send."""

from __future__ import annotations

import base64

import pytest

from replset.auth.scram import OLD_MECHANISM, ClientExchange, Credentials, ServerExchange, legacy_password, prepared
from replset.errors import AuthenticationFailedError, BadValueError, ReplError

CLIENT, SERVER, SALT = b"c" * 24, b"s" * 24, b"salt" * 7
RIGHT = Credentials.of("pencil", SALT, 4096)
BIWS, NONCE = base64.b64encode(b"n,,").decode(), (base64.b64encode(CLIENT) + base64.b64encode(SERVER)).decode()
FIRSTS = [b"", b"n,,", b"n,,n=ann", b"n,,r=abc", b"n,,n=ann,r=", b"n,,n=,r=x", b"n,,r=x,n=ann", b"\xff", b"\0"]
FIRSTS += [b"p=tls-unique,,n=ann,r=x", b"n,a=bob,n=ann,r=x", b"n,,m=ext,n=ann,r=x", b"n,,n=a=b,r=x"]
FIRSTS += [b"n,,n=" + b"a" * 4000 + b",r=x"]
FINALS = ["", "c={c},r={r}", "r={r},c={c},p=AAAA", "c=AAAA,r={r},p=AAAA", "c={c},r=other,p=AAAA", "c={c},r={r},p="]
FINALS += ["c={c}", "c={c},r={r},p=AAAA", "c={c},r={r},p=%", "c={c},r={r}x,p=AAAA", "v={r}"]
PREPARED = {"pass": "pass", "I\u00adX": "IX", "\u00aa": "a", "\u2168": "IX", "a\u00a0b": "a b"}


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    exchange = ServerExchange(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", b"")
    exchange._nonce += "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = exchange.answer(Credentials.of("pencil", salt, 4096))
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = exchange.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_rfc_5802() -> None:
    client = ClientExchange("user", "pencil", base64.b64decode("fyko+d2lbbFgONRv9qkxdawL"), mechanism=OLD_MECHANISM)
    assert client.first() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    nonce = "fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    final = client.final(f"r={nonce},s=QSXCR+Q6sek8bf92,i=4096".encode())
    assert final == f"c=biws,r={nonce},p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=".encode()
    client.check(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")
    with pytest.raises(AuthenticationFailedError, match="did not prove"):
        client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_new_password_is_hashed_so_often_as_mongodbs() -> None:
    assert Credentials.of("pencil", SALT).iterations == 15_000


def test_what_mongodb_takes_for_the_password_in_scram_sha_1() -> None:
    assert legacy_password("user", "pencil") == "1c33006ec1ffd90f9cadcbcc0e118200"


@pytest.mark.parametrize("user", ["ann", "a,b=c", "ännchen", "a"])
def test_both_ends_agree(user: str) -> None:
    client = ClientExchange(user, "pencil", CLIENT)
    server = ServerExchange(client.first(), SERVER)
    assert server.user == user
    client.check(server.finish(client.final(server.answer(RIGHT))))


def test_a_wrong_password_and_a_wrong_server() -> None:
    client = ClientExchange("ann", "pen", CLIENT)
    server = ServerExchange(client.first(), SERVER)
    with pytest.raises(AuthenticationFailedError, match="password is wrong"):
        server.finish(client.final(server.answer(RIGHT)))
    for forged in (b"", b"v=", b"v=AAAA", b"e=other-error"):
        with pytest.raises(AuthenticationFailedError, match="did not prove"):
            client.check(forged)


@pytest.mark.parametrize("first", FIRSTS)
def test_a_malformed_beginning(first: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        ServerExchange(first, SERVER)


@pytest.mark.parametrize("final", FINALS)
def test_a_malformed_end(final: str) -> None:
    server = ServerExchange(ClientExchange("ann", "pencil", CLIENT).first(), SERVER)
    server.answer(RIGHT)
    with pytest.raises(AuthenticationFailedError):
        server.finish(final.format(c=BIWS, r=NONCE).encode())


def test_every_cut_of_the_end_is_refused() -> None:
    client = ClientExchange("ann", "pencil", CLIENT)
    server = ServerExchange(client.first(), SERVER)
    final = client.final(server.answer(RIGHT))
    for cut in range(len(final)):
        with pytest.raises(AuthenticationFailedError):
            server.finish(final[:cut])


def test_a_recorded_exchange_is_worth_nothing_later() -> None:
    client = ClientExchange("ann", "pencil", CLIENT)
    first = client.first()
    server = ServerExchange(first, SERVER)
    final = client.final(server.answer(RIGHT))
    later = ServerExchange(first, b"t" * 24)
    with pytest.raises(AuthenticationFailedError):
        later.finish(final)  # out of order
    later.answer(RIGHT)
    with pytest.raises(AuthenticationFailedError, match="another exchange"):
        later.finish(final)


@pytest.mark.parametrize("answer", ["r=x,s=AAAA,i=4096", "r={n}x,s=AAAA,i=4095", "r={n}x,s=AAAA,i=99999999", "i=4096"])
def test_a_client_works_for_no_weak_or_foreign_server(answer: str) -> None:
    with pytest.raises(AuthenticationFailedError):
        ClientExchange("ann", "pencil", CLIENT).final(answer.format(n=base64.b64encode(CLIENT).decode()).encode())


def test_ways_to_type_a_password() -> None:
    arabic = "\u0627\u0627"
    assert {password: prepared(password) for password in [*PREPARED, arabic]} == {**PREPARED, arabic: arabic}
    for password in ("\u0007", "\u0627a", "\u0627\u0031", "\U000e0001", "\u0378", "\u00ad"):
        with pytest.raises(BadValueError):
            prepared(password)
        assert not RIGHT.fit(password)


def test_what_is_kept() -> None:
    assert Credentials.parse(RIGHT.document()) == RIGHT
    assert RIGHT.fit("pencil")
    assert not RIGHT.fit("Pencil")
    assert not RIGHT.fit("")
    for broken in ({}, {**RIGHT.document(), "salt": 5}, {**RIGHT.document(), "storedKey": "%"}):
        with pytest.raises(ReplError):
            Credentials.parse(broken)
