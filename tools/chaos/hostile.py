"""What a stranger on the network, a hostile client or a web page in the operator's browser can try.

None of it may change the data, the configuration or the primary. The checker sees the terms before and after, and
documents that no client of the run wrote.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from replset.bson import Binary, DateTime, Int64, Timestamp
from replset.client import WireClient
from replset.core.messages import MAX_TERM_JUMP
from replset.errors import ReplError
from replset.ids import HostPort
from replset.key_file import NONCE_BYTES, Handshake, Keys
from replset.local_set import HTTP_OFFSET, LocalMember
from replset.operations.command import PROVE
from tools.chaos.clients import COLLECTION, DATABASE
from tools.chaos.context import CannotError, FaultContext, answers, status_of

MESSAGES = 60
BRANCHES = 50_000
FORGED_NUMBER = -1
"""The number of a document, and of the write that made it, that only a stranger writes."""
PATIENCE_S = 8.0

# --- messages of members -----------------------------------------------------------------------------------------


def strangers(context: FaultContext) -> tuple[str, None]:
    """A stranger sends messages as a member: impossible terms, foreign sets, votes, positions, configurations."""
    sent, answered = 0, 0
    config = _config(context)
    with context.attack(
        "a stranger sends messages as a member", most_terms=0 if context.keyed else MESSAGES * MAX_TERM_JUMP
    ):
        for _ in range(MESSAGES):
            member = context.rng.choice(context.up())
            message = forged(context.rng, context, config)
            sent += 1
            answered += _answer(member, message).get("ok") == 1.0
    if (after := _config(context))["members"] != config["members"]:
        context.breach(f"a stranger changed the configuration: {after}")
    return f"a stranger sent {sent} messages of members, {answered} were answered", None


def forged(rng: random.Random, context: FaultContext, config: Mapping[str, Any]) -> dict[str, object]:
    """One message as a member would send it, with forged content."""
    term = world_term = int(config["term"])
    term = rng.choice((world_term, world_term + 1, world_term + 2, 1 << 31, (1 << 63) - 2, (1 << 63) - 1))
    sender = rng.randrange(len(context.local.members))
    host = rng.choice((context.local.members[sender].host, "127.0.0.1:9"))
    version = Int64(rng.choice((int(config["version"]), int(config["version"]) + 100)))
    newest = {"ts": Timestamp(rng.choice((1_900_000_000, (1 << 32) - 1)), 1), "t": Int64(term)}
    name = rng.choice((context.local.name, context.local.name, "other"))
    kind = rng.randrange(4)
    if kind == 0:
        return {
            **{"replSetHeartbeat": name, "from": host, "fromId": sender, "term": Int64(term), "primaryId": sender},
            **{"configVersion": version, "configTerm": Int64(term), "incarnation": "0" * 24},
        }
    if kind == 1:
        return {
            **{"replSetRequestVotes": 1, "setName": name, "term": Int64(term), "candidateId": sender},
            **{"candidateIncarnation": "0" * 24, "configVersion": version, "configTerm": Int64(world_term)},
            **{"lastAppliedOpTime": newest, "dryRun": rng.random() < 0.5},
        }
    if kind == 2:
        return forged_position(sender, newest, "0" * 24, config, term)
    return {
        **{"replSetOplogFetch": 1, "after": newest, "maxBytes": 1000, "maxAwaitMS": 5, "term": Int64(term)},
        **{"knownCommitPoint": newest, "knownRollbackId": -1},
    }


def forged_position(
    sender: int, newest: Mapping[str, object], incarnation: str, config: Mapping[str, Any], term: int
) -> dict[str, object]:
    row = {
        **{"memberId": sender, "incarnation": incarnation, "appliedOpTime": newest, "durableOpTime": newest},
        **{"appliedWallTime": DateTime(0), "durableWallTime": DateTime(0)},
    }
    return {
        **{"replSetUpdatePosition": 1, "senderId": sender, "term": Int64(term)},
        **{"configVersion": Int64(config["version"]), "configTerm": Int64(config["configTerm"]), "optimes": [row]},
    }


def forged_positions(context: FaultContext) -> tuple[str, None]:
    """All but the primary are stopped, and a stranger reports for them that they have everything."""
    if not context.keyed:
        raise CannotError("without a key file a stranger's positions are taken")
    primary = context.the_primary()
    config = _config(context)
    incarnations = {other.name: _incarnation(context, other, config) for other in context.others(primary)}
    absences = [(other, context.freeze_process(other)) for other in context.others(primary)]
    sent = 0
    try:
        with contextlib.suppress(ReplError), WireClient(primary.host, timeout_s=1) as client:
            deadline = time.monotonic() + 1.2
            while time.monotonic() < deadline:
                row = next(
                    row for row in client.command("admin", {"replSetGetStatus": 1})["members"] if row.get("self")
                )
                for other in context.others(primary):
                    number = context.local.members.index(other)
                    message = forged_position(
                        number, row["optime"], incarnations[other.name], config, int(row["optime"]["t"])
                    )
                    client.command("admin", message)
                    sent += 1
                time.sleep(0.02)
    finally:
        for other, absence in absences:
            context.thaw_process(other, absence)
    return f"{sent} forged positions were sent to {primary.name}, which ran alone", None


def _config(context: FaultContext) -> dict[str, Any]:
    """The configuration in force; `term` is the set's, `configTerm` its own."""
    for member in context.up():
        with contextlib.suppress(ReplError, KeyError):
            config: dict[str, Any] = member.command({"replSetGetConfig": 1}, timeout_s=3)["config"]  # type: ignore[assignment]
            return {**config, "configTerm": config["term"], "term": context.term()}
    raise CannotError("no member answers with its configuration")


def _incarnation(context: FaultContext, member: LocalMember, config: Mapping[str, Any]) -> str:
    """As a stranger learns it, by a heartbeat; a made-up one where members ask who asks."""
    ask = {
        **{"replSetHeartbeat": context.local.name, "from": member.host, "fromId": 0, "term": Int64(config["term"])},
        **{"configVersion": Int64(config["version"]), "configTerm": Int64(config["configTerm"])},
        **{"primaryId": -1, "incarnation": ""},
    }
    return str(_answer(member, ask).get("incarnation", "0" * 24))


def _answer(member: LocalMember, message: dict[str, object]) -> dict[str, object]:
    """Send it as one who knows this program, but no key file: he can prove himself where members have none."""
    try:
        with WireClient(member.host, timeout_s=2) as client:
            prove_without_key_file(client, str(message.get("from", "127.0.0.1:9")))
            return client.command("admin", message)
    except ReplError:
        return {}


def prove_without_key_file(client: WireClient, sender: str) -> bool:
    """Prove to a member without a key file that this connection is one of the member `sender`."""
    nonce = bytes(NONCE_BYTES)
    begin = {PROVE: 1, "member": sender, "address": client.host, "nonce": Binary(nonce)}
    theirs = client.command("admin", begin).get("nonce", b"")
    proofs = Keys.public().proofs("asking", Handshake(HostPort(sender), HostPort(client.host), nonce, bytes(theirs)))
    return client.command("admin", {PROVE: 2, "proofs": [Binary(proof) for proof in proofs]}).get("ok") == 1.0


# --- clients -----------------------------------------------------------------------------------------------------


def hostile_query(context: FaultContext) -> tuple[str, None]:
    """A filter of fifty thousand branches over everything, twice at once, while the others go on."""
    primary = context.the_primary()
    branches = [{"numbers": -number} for number in range(2, BRANCHES + 2)]
    query: dict[str, object] = {"find": COLLECTION, "filter": {"$or": branches}, "maxTimeMS": int(PATIENCE_S * 1000)}
    done: list[str] = []

    def ask() -> None:
        try:
            reply = primary.command(query, DATABASE, timeout_s=PATIENCE_S + 5)
            done.append("ok" if reply.get("ok") == 1.0 else f"code {reply.get('code')}")
        except ReplError as error:
            done.append(error.message)

    with context.attack(f"a filter of {BRANCHES} branches to {primary.name}"):
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return f"{primary.name} was asked with {BRANCHES} branches, twice: {', '.join(done)}", None


# --- HTTP --------------------------------------------------------------------------------------------------------

Request = tuple[str, str, dict[str, str], str]


def web_requests(member: LocalMember) -> list[Request]:
    """What a page of another site can make a browser send to the member: method, path, headers, body."""
    document = {
        "database": DATABASE,
        "collection": COLLECTION,
        "document": {"_id": FORGED_NUMBER, "numbers": [FORGED_NUMBER]},
    }
    drop = {"dropDatabase": 1}
    here = f"127.0.0.1:{member.port + HTTP_OFFSET}"
    evil = {"Host": here, "Origin": "http://evil.example"}
    as_json = {"Content-Type": "application/json"}
    rows: list[Request] = []
    for headers in (
        {"Host": here, **evil},
        {"Host": here, "Content-Type": "text/plain"},
        {"Host": here, "Content-Type": "application/x-www-form-urlencoded"},
        {**evil, **as_json},
        {"Host": "rebound.example", **as_json},
        {"Host": here, "Origin": "null", **as_json},
    ):
        rows.append(("POST", "/v1/action/insertOne", headers, json.dumps(document)))
        rows.append(("POST", f"/v1/command/{DATABASE}", headers, json.dumps(drop)))
        rows.append(("POST", "/v1/replset/stepDown", headers, ""))
        rows.append(("POST", "/v1/replset/resync", headers, ""))
        rows.append(("POST", "/v1/replset/freeze", headers, '{"seconds": 60}'))
    vote = {"replSetHeartbeat": "rs0", "from": "127.0.0.1:9", "fromId": 0, "term": 1 << 40}
    rows.append(("POST", "/v1/command/admin", {"Host": here, **as_json}, json.dumps(vote)))
    return rows


def web_page(context: FaultContext) -> tuple[str, None]:
    """A page of another site writes, drops, steps down and resyncs: all of it is refused."""
    member = context.a_member()
    refused = 0
    with context.attack(f"a web page of another site talks to {member.name}"):
        for method, path, headers, body in web_requests(member):
            status = http_status(member, method, path, headers, body)
            refused += status >= 400
            if status < 400:
                context.breach(f"{member.name} answers a page of another site with {status}: {method} {path} {headers}")
    return f"a web page of another site asked {member.name}, and was refused {refused} times", None


def http_status(member: LocalMember, method: str, path: str, headers: Mapping[str, str], body: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", member.port + HTTP_OFFSET, timeout=5)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode())
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 599
    finally:
        connection.close()


# --- connections -------------------------------------------------------------------------------------------------


def crowd(context: FaultContext) -> tuple[str, None]:
    """More idle connections and half-sent requests than the member has descriptors, and an election meanwhile."""
    member = context.a_member()
    kind, port = context.rng.choice((("idle", member.port), ("idle", member.port), ("half", member.port + HTTP_OFFSET)))
    command = [sys.executable, "-m", "tools.chaos.crowd", kind, str(port), "700"]
    with context.attack(f"a crowd of {kind} connections to {member.name}", most_terms=3):
        crowds = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
        try:
            opened = sum(int(process.stdout.readline() or 0) for process in crowds if process.stdout)
            with contextlib.suppress(ReplError):
                context.the_primary().command({"replSetStepDown": 3, "force": True}, timeout_s=5)
            _wait_for(lambda: context.local.primary() is not None, 6 * 1.5, "a new primary", context, member)
            if not _answers_status(member):
                context.breach(f"{member.name} answers no status while {opened} idle connections are open")
        finally:
            for process in crowds:
                process.communicate(timeout=30)
    return f"{opened} {kind} connections to {member.name}", None


def _wait_for(
    condition: Callable[[], bool], within_s: float, what: str, context: FaultContext, member: LocalMember
) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            context.breach(f"waited {within_s:g} s for {what} while a crowd was at {member.name}")
            return
        time.sleep(0.2)


def _answers_status(member: LocalMember) -> bool:
    """By a new connection, as `replset status` does."""
    for _ in range(10):
        with contextlib.suppress(ReplError):
            status_of(member)
            return answers(member)
        time.sleep(0.3)
    return False
