"""A set of real processes that speaks TLS alone, its members known by their certificates, and its clients."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pymongo
import pytest

from replset.bson import encode
from replset.client import SETTINGS, TLS_CA_VARIABLE, WireClient
from replset.errors import HostUnreachableError
from replset.local_set import HTTP_OFFSET, LocalMember, wait_until
from replset.member.net.tls import TlsFiles
from replset.wire.framing import MORE_TO_COME, encode_msg
from tests.certificates import MEMBERS, Authority, flags_of
from tests.integration.conftest import FAST, next_ports
from tests.integration.forked import ForkedSet, run_program, running_set
from tests.integration.talk import a_secondary, all_counted, insert, others_of, row_of, run, state, status
from tools.chaos.hostile import prove_without_key_file


class TlsSet(NamedTuple):
    """A set, the CA of its certificates, and the files of each member."""

    local: ForkedSet
    ca: Authority
    files: TlsFiles


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsSet]:
    folder = tmp_path_factory.mktemp("tls")
    ca = Authority(folder)
    files = ca.issue()
    with pytest.MonkeyPatch.context() as patch, running_set(folder / "set") as local:
        for port in next_ports(3):
            local.add(port)
        local.initiate(FAST)
        all_counted(local)
        restart_in_turn(local, [*flags_of(files), "--tls-mode", "prefer"])
        patch.setenv(TLS_CA_VARIABLE, str(ca.ca))
        restart_in_turn(local, [*flags_of(files), "--key-file-or-certificate"])
        local.key_file.unlink()
        restart_in_turn(local, flags_of(files))
        yield TlsSet(local, ca, files)


def restart_in_turn(local: ForkedSet, flags: list[str]) -> None:
    """Give the members other options, as an operator does: the primary is the last, and majority writes go on."""
    primary = local.wait_for_primary()
    for member in sorted(local.members, key=lambda member: member is primary):
        member.flags = flags
        local.stop(member)
        insert(local.wait_for_primary(among=others_of(local, member)), f"{member.name} {flags[-1]}")
        local.start(member)
        all_counted(local)
    assert all(state(member) in ("PRIMARY", "SECONDARY") for member in local.members)


def serial_of(member: LocalMember) -> str:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=os.environ[TLS_CA_VARIABLE])
    with (
        socket.create_connection(("127.0.0.1", member.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return str((secured.getpeercert() or {})["serialNumber"])


def test_drivers_tools_and_http_reach_a_set_that_speaks_tls_alone(tls: TlsSet) -> None:
    primary = tls.local.wait_for_primary()
    insert(primary, 1, w=3)
    uri = f"mongodb://{primary.host}/?replicaSet=rs0&serverSelectionTimeoutMS=20000&tls=true&tlsCAFile={tls.ca.ca}"
    with pymongo.MongoClient(uri) as client:
        client.shop.orders.insert_one({"_id": 2})
        assert client.shop.orders.count_documents({"_id": {"$in": [1, 2]}}) == 2
    url = f"https://127.0.0.1:{primary.port + HTTP_OFFSET}"
    assert httpx.get(f"{url}/primary", verify=ssl.create_default_context(cafile=str(tls.ca.ca))).status_code == 200
    environment = {TLS_CA_VARIABLE: str(tls.ca.ca)}
    for command, printed in (
        (("replset.cli.main", "status", "--host", primary.host, "--tls-ca", tls.ca.ca), primary.host),
        (("replset.cli.main", "oplog", "tail", "--host", primary.host), "shop.orders"),
        (("rollback_tools.main", "list", url), "no rollbacks"),
        (("spark.cli", "summary", url, "--engine", "local"), "shop.orders"),
    ):
        done = run_program(*command, environment=environment)
        assert printed in done.stdout, done.stderr


def test_without_tls_a_client_is_told_what_it_lacks(tls: TlsSet) -> None:
    member = tls.local.members[0]
    asked = run_program("replset.cli.main", "status", "--host", member.host)
    assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
    assert "does it need --tls?" in asked.stderr
    other = Authority(tls.ca.ca.parent, "strangers")
    asked = run_program("replset.cli.main", "status", "--host", member.host, "--tls-ca", other.ca)
    assert "self-signed certificate in certificate chain (--tls-ca)" in asked.stderr
    assert asked.returncode == 2


@pytest.mark.parametrize(
    ("unit", "is_member"), [("clients", False), (None, False), (MEMBERS, True)], ids=["another-ou", "no-ou", "a-member"]
)
def test_only_a_members_certificate_makes_a_member(tls: TlsSet, unit: str | None, is_member: bool) -> None:
    """All are signed by the set's CA; O and OU tell who is a member."""
    files = tls.ca.issue(unit=unit, name="shown")
    context = ssl.create_default_context(cafile=str(tls.ca.ca))
    context.load_cert_chain(files.cert, files.key)
    member, other = tls.local.members[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SETTINGS, "tls", lambda: context)
        with WireClient(member.host) as client:
            assert client.command("admin", {"ping": 1})["ok"] == 1.0, "a client may have any certificate of the CA"
            assert client.command("admin", {"replSetGetRBID": 1})["code"] == 13
            assert prove_without_key_file(client, other.host) is is_member
            assert client.command("admin", {"replSetGetRBID": 1})["ok"] == float(is_member)


def test_writes_without_an_answer_arrive_though_the_client_leaves_at_once(tls: TlsSet) -> None:
    primary = tls.local.wait_for_primary()
    for number in range(20):
        with WireClient(primary.host) as client:
            document = {"_id": f"w0-{number}"}
            command = {"insert": "orders", "documents": [document], "writeConcern": {"w": 0}, "$db": "shop"}
            client._socket.sendall(encode_msg(1, 0, encode(command), flags=MORE_TO_COME))
    query: dict[str, object] = {"count": "orders", "query": {"_id": {"$gte": "w0-", "$lt": "w1"}}}
    wait_until(lambda: run(primary, query)["n"] == 20, 10, "all writes")


def test_certificates_are_changed_without_a_connection_lost(tls: TlsSet) -> None:
    """A connection that is open goes on, new ones are shown the new certificate, and wrong files change nothing."""
    local = tls.local
    primary = local.wait_for_primary()
    term = status(primary)["term"]
    with WireClient(primary.host) as before:
        assert before.command("admin", {"ping": 1})["ok"] == 1.0
        old = serial_of(primary)
        right = tls.files.cert.read_bytes()
        tls.files.cert.write_text("this is no certificate")
        for member in local.members:
            os.kill(member.pid, signal.SIGHUP)
            wait_until(lambda member=member: "nothing is changed" in member.log.read_text(), 10, "the refusal")
            reply = member.command({"rotateCertificates": 1})
            assert (reply["code"], serial_of(member)) == (2, old), reply
        tls.files.cert.write_bytes(right)
        tls.ca.issue()
        for member in local.members:
            run(member, {"rotateCertificates": 1, "message": "a new year"}, "admin")
            assert serial_of(member) != old
        assert before.command("admin", {"ping": 1})["ok"] == 1.0
        insert(primary, 10, w=3)
    assert status(primary)["term"] == term


@pytest.mark.in_turns
def test_a_member_whose_ca_is_not_the_sets_stays_out(tls: TlsSet) -> None:
    """Neither end believes the other, and the set goes on without it."""
    local = tls.local
    primary = local.wait_for_primary()
    secondary = a_secondary(local)
    folder = tls.ca.ca.parent / "elsewhere"
    folder.mkdir()
    other = Authority(folder)
    flags = secondary.flags
    local.stop(secondary)
    secondary.flags = flags_of(other.issue())
    local.begin(secondary)

    def is_explained() -> bool:
        return "certificate verify failed" in str(row_of(secondary, by=primary).get("lastHeartbeatMessage"))

    wait_until(is_explained, 30, "the primary to say why it does not hear the member")
    with pytest.raises(HostUnreachableError):
        WireClient(secondary.host).close()
    local.kill(secondary)
    secondary.flags = flags
    local.start(secondary)
    insert(primary, 20, w=3)
