"""Members prove themselves to each other on real sockets: who may ask what, and what an impostor gets."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from replset.bson import Binary, RawDocument, encode
from replset.core.messages import Done
from replset.errors import NothingSentError, UnprovenMemberError
from replset.ids import HostPort, Millis
from replset.key_file import Keys
from replset.member.net.network import RealNetwork
from replset.member.net.transport import Transport
from replset.member.process.machine import RealClock
from replset.operations.request import CommandRequest, Reply
from tests.rig import Rig, a_set
from tests.unit.member.served import HELLO, OTHER, Client, Served

ON_SOCKETS = True

KEY, WRONG = "a2V5LWtleQ==", "d3Jvbmc9"
RBID = {"replSetGetRBID": 1, "$db": "admin"}
FORGED = {"replSetUpdatePosition": 1, "senderId": 1, "term": 1, "optimes": [], "$db": "admin"}
LONG = Millis(10_000)
UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18


@pytest.fixture
def rig() -> Iterator[Rig]:
    with a_set() as made:
        yield made


class Member(Served):
    """A wire server on a real socket with the dispatcher of a whole member that has these keys."""

    def __init__(self, rig: Rig, keys: Keys) -> None:
        super().__init__()
        self.whole = rig.member()
        self.whole.keys = keys
        self.heard_by_core = rig.answer_core(Done())
        self.server.dispatcher = self
        self.asked: list[CommandRequest] = []

    def at_once(self, body: RawDocument) -> None:
        """None of its commands runs without a task."""

    async def run(self, request: CommandRequest) -> Reply:
        self.asked.append(request)
        return await self.whole.dispatcher.run(request)

    async def start(self) -> None:
        await self.server.start(self.address)
        self.whole.host = self.address

    def proofs(self) -> int:
        return sum(request.body.first_key == "replSetProve" for request in self.asked)


@asynccontextmanager
async def member(rig: Rig, *keys: str) -> AsyncIterator[Member]:
    made = Member(rig, Keys(keys) if keys else Keys.public())
    await made.start()
    try:
        yield made
    finally:
        await made.server.close()
        for client in made.clients:
            client.writer.close()


@asynccontextmanager
async def asking(*keys: str) -> AsyncIterator[Transport]:
    known = Keys(keys) if keys else Keys.public()
    transport = Transport(RealNetwork(), RealClock(), HostPort(OTHER), known, random.Random(1))
    try:
        yield transport
    finally:
        await transport.close()
        await asyncio.sleep(0)


async def rbid(transport: Transport, host: HostPort) -> dict[str, Any]:
    return (await transport.call(host, {"replSetGetRBID": 1}, timeout_ms=LONG)).decode()


async def test_members_with_one_key_prove_themselves_once_per_connection(rig: Rig) -> None:
    async with member(rig, KEY) as m, asking(WRONG, KEY) as transport:
        for _ in range(3):
            assert (await rbid(transport, m.address))["ok"] == 1.0
        assert m.proofs() == 2
        assert m.asked[-1].connection.member == OTHER
        for connection in list(m.server.connections):
            connection.end()
        while (await answered(transport, m.address)).get("ok") != 1.0:
            pass
        assert m.proofs() == 4, "a new connection proves itself anew"


async def answered(transport: Transport, host: HostPort) -> dict[str, Any]:
    try:
        return await rbid(transport, host)
    except Exception:
        return {}


async def test_without_a_key_file_members_prove_that_they_are_members_too(rig: Rig) -> None:
    async with member(rig) as m, asking() as transport:
        assert (await rbid(transport, m.address))["ok"] == 1.0
        assert m.proofs() == 2
        assert m.asked[-1].connection.is_member
        client = await m.client()
        assert (await client.ask(RBID))["code"] == UNAUTHORIZED


@pytest.mark.parametrize(("own", "theirs"), [((KEY,), (WRONG,)), ((KEY,), ())])
async def test_another_key_or_none_is_explained(rig: Rig, own: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    async with member(rig, *theirs) as m, asking(*own) as transport:
        with pytest.raises(UnprovenMemberError, match="key file"):
            await rbid(transport, m.address)
        assert m.asked[-1].body.first_key == "replSetProve", "it is asked nothing more"
        assert not (theirs and m.asked[-1].connection.is_member)


async def test_a_member_without_a_key_is_refused(rig: Rig) -> None:
    async with member(rig, KEY) as m, asking() as transport:
        with pytest.raises(NothingSentError, match="no key of this member's key file"):
            await rbid(transport, m.address)


def keys_of(kind: str) -> Keys:
    """Of a member with a key file, with certificates alone, or with both and --key-file-or-certificate."""
    keys = Keys.public() if kind == "certificate" else Keys([KEY])
    keys.or_certified = kind == "either"
    return keys


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.parametrize("other", ["key", "either", "certificate"])
async def test_with_both_a_key_or_a_members_certificate_will_do(rig: Rig, other: str, certified: bool) -> None:
    """A member that changes from one to the other, on either end. certified: what the other end has shown."""

    def certifies(_: object) -> bool:
        return certified

    async with member(rig) as m:
        for kinds in (("either", other), (other, "either")):
            m.whole.keys, own_keys = map(keys_of, kinds)
            m.server.certifies = certifies
            network, clock, rng = RealNetwork(), RealClock(), random.Random(1)
            own = Transport(network, clock, HostPort(OTHER), own_keys, rng, certifies=certifies)
            reply = await answered(own, m.address)
            await own.close()
            assert (reply.get("ok") == 1.0) is (certified or other != "certificate"), kinds


async def test_a_stranger_may_ask_what_clients_ask_and_nothing_else(rig: Rig) -> None:
    async with member(rig, KEY) as m:
        client = await m.client()
        assert (await client.ask({**HELLO, "replsetMember": OTHER}))["ok"] == 1.0, "its word makes it no member"
        assert (await client.ask({"ping": 1, "$db": "admin"}))["ok"] == 1.0
        for command in (RBID, FORGED):
            assert (await client.ask(command))["code"] == UNAUTHORIZED
        assert m.heard_by_core == [], "the core never heard of it"
        assert not any(request.connection.is_member for request in m.asked)
        m.dropped_in.add(OTHER)
        assert (await client.ask({"ping": 1, "$db": "admin"}))["ok"] == 1.0, "a cut is not for clients"


async def begin(client: Client, m: Member, nonce: bytes = bytes(32)) -> dict[str, Any]:
    step = {"replSetProve": 1, "member": OTHER, "address": m.address, "nonce": Binary(nonce), "$db": "admin"}
    return await client.ask(step)


def end(*proofs: bytes) -> dict[str, Any]:
    return {"replSetProve": 2, "proofs": [Binary(proof) for proof in proofs], "$db": "admin"}


async def test_a_proof_is_taken_once(rig: Rig) -> None:
    """Nonces of this connection alone count, and a wrong proof has no second chance."""
    async with member(rig, KEY) as m:
        client, other = await m.client(), await m.client()
        first, second = (await begin(client, m))["nonce"], (await begin(other, m))["nonce"]
        assert first != second
        assert (await client.ask(end(bytes(32))))["code"] == AUTHENTICATION_FAILED
        assert (await client.ask(end(bytes(32))))["code"] == AUTHENTICATION_FAILED
        assert (await client.ask(RBID))["code"] == UNAUTHORIZED


@pytest.mark.parametrize(
    "step",
    [
        {"replSetProve": 1},
        {"replSetProve": 3},
        {"replSetProve": 1, "member": OTHER, "address": "x:1", "nonce": Binary(bytes(32))},
        {"replSetProve": 1, "member": OTHER, "address": "HERE", "nonce": Binary(bytes(31))},
        {"replSetProve": 1, "member": OTHER, "address": "HERE", "nonce": "x"},
        {"replSetProve": 2, "proofs": []},
        {"replSetProve": 2, "proofs": [Binary(bytes(32))] * 9},
        {"replSetProve": 2, "proofs": [Binary(bytes(32))]},
    ],
)
async def test_malformed_steps_are_refused(rig: Rig, step: dict[str, object]) -> None:
    async with member(rig, KEY) as m:
        client = await m.client()
        command = {name: m.address if value == "HERE" else value for name, value in step.items()}
        assert (await client.ask({**command, "$db": "admin"}))["ok"] == 0.0
        assert (await client.ask(RBID))["code"] == UNAUTHORIZED


@pytest.mark.parametrize(("versions", "is_taken"), [([1, 3], True), ([2, 3], False), ([0, 0], False), ("x", True)])
async def test_members_without_a_common_version_of_their_messages_say_which_they_have(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, versions: object, is_taken: bool
) -> None:
    """At both ends: the asked one refuses, and the asking one where the asked one does not look at it."""
    theirs = {"messageVersions": versions, "release": "9.0"}
    says = "runs release 9.0 with versions"
    async with member(rig, KEY) as m, asking(KEY) as transport:
        client = await m.client()
        step = {"replSetProve": 1, "member": OTHER, "address": m.address, "nonce": Binary(bytes(32)), **theirs}
        reply = await client.ask({**step, "$db": "admin"})
        assert (reply["ok"] == 1.0) is is_taken
        assert is_taken or (reply["code"], says in reply["errmsg"]) == (188, True)

        newer = Served()

        async def answer(request: CommandRequest) -> Reply:
            return {"ok": 1.0, "nonce": Binary(bytes(32)), "proof": Binary(bytes(32)), **theirs}

        newer.dispatcher.answers["replSetProve"] = answer
        await newer.server.start(newer.address)
        try:
            with pytest.raises(UnprovenMemberError, match="did not prove" if is_taken else f"{newer.address} {says}"):
                await rbid(transport, newer.address)
        finally:
            await newer.server.close()


async def test_a_proof_cannot_be_passed_on(rig: Rig) -> None:
    """A member that is made to connect to a stranger must not open another member's door for it."""
    async with member(rig, KEY) as m, asking(KEY) as victim:
        relay = Served()
        client = await m.client()

        async def pass_on(request: CommandRequest) -> Reply:
            body = {**request.body.decode(), "$db": "admin"}
            if "address" in body:
                body["address"] = m.address  # or it is refused at once
            return encode(await client.ask(body))

        relay.dispatcher.answers["replSetProve"] = pass_on
        await relay.server.start(relay.address)
        try:
            with pytest.raises(NothingSentError):
                await rbid(victim, relay.address)
        finally:
            await relay.server.close()
        assert m.proofs() == 2, "it got as far as the proof"
        assert (await client.ask(RBID))["code"] == UNAUTHORIZED


async def test_an_impostor_at_a_members_address_is_not_asked_anything(rig: Rig) -> None:
    async with asking(KEY) as transport:
        impostor = Served()

        async def answer(request: CommandRequest) -> Reply:
            return {"ok": 1.0, "nonce": Binary(bytes(32)), "proof": Binary(bytes(32))}

        impostor.dispatcher.answers["replSetProve"] = answer
        await impostor.server.start(impostor.address)
        try:
            with pytest.raises(NothingSentError, match="did not prove"):
                await rbid(transport, impostor.address)
        finally:
            await impostor.server.close()
        assert "replSetGetRBID" not in impostor.dispatcher.names


async def test_a_member_that_never_proves_itself_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """It tries on each connection, several times a second."""
    caplog.set_level(logging.INFO, "replset")
    async with member(rig, KEY) as served, asking(WRONG) as transport:
        for _ in range(30):
            with pytest.raises(NothingSentError):
                await transport.call(served.address, RBID, timeout_ms=LONG)
        assert served.proofs() >= 30
    assert len([record for record in caplog.records if "did not prove that it is a member" in record.message]) == 1
