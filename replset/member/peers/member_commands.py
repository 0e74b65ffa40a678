"""The commands between members. The core answers heartbeats, votes, positions and replSetStepUp."""

from __future__ import annotations

import asyncio

from replset.auth.roles import Action
from replset.bson import Binary, ObjectId, RawDocument
from replset.core.messages import Refused
from replset.errors import AuthenticationFailedError, ErrorCode, FailedToParseError, RemoteProtocolError, ReplError
from replset.ids import HostPort
from replset.key_file import MAX_KEYS, NONCE_BYTES, Handshake
from replset.member.peers.message_documents import parse_progress, parse_request, reply_document
from replset.member.peers.oplog_fetch import OplogFetches, oplog_probe, refuse_other_set
from replset.member.peers.repeated_fetch import RepeatedFetch
from replset.member.peers.snapshot_server import SnapshotServer
from replset.operations import fields
from replset.operations.audit_trail import AuditTrail
from replset.operations.command import PROVE, AtOnce, Command, CommandContext
from replset.operations.kernel import Kernel
from replset.operations.replies import whole
from replset.operations.request import Reply
from replset.operations.waiters import Completion
from replset.replication.protocol import FetchRequest
from replset.wire.message_version import FIELDS, other_messages


async def ask_core(ctx: CommandContext) -> Reply:
    """Put the request to the core; its refusal is an error reply."""
    answer = await ctx.member.ask_core(parse_request(ctx.body))
    if isinstance(answer, Refused):
        raise ReplError(answer.reason, code=answer.code)
    return _whole(ctx, reply_document(answer))


def _whole(ctx: CommandContext, reply: RawDocument | dict[str, object]) -> Reply:
    return whole(reply, ctx.member) if isinstance(reply, RawDocument) else reply


def refuse_foreign_member(ctx: CommandContext) -> None:
    """Do as `refuse_other_set` for a command with the field `setId`."""
    theirs = ctx.body.get("setId")
    if theirs is not None and not isinstance(theirs, ObjectId):
        raise RemoteProtocolError("field 'setId' is not an ObjectId")
    refuse_other_set(ctx.member, theirs)


async def fetch_oplog(ctx: CommandContext) -> Reply:
    """Entries of the oplog behind a given one, as soon as there are some."""
    waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    ctx.member[OplogFetches].begin(ctx.body, waiter)
    return await waiter


def begin_fetch(ctx: CommandContext, waiter: Completion) -> bool:
    ctx.member[OplogFetches].begin(ctx.body, waiter)
    return True


def repeated_fetch(member: Kernel, body: RawDocument, message: bytes) -> RepeatedFetch | None:
    """The form of a fetch that was carried out; None: it has none, since it has not one position, or other fields."""
    request = FetchRequest.parse(body)
    progress = None if request.progress is None else parse_progress(request.progress)
    if progress is None or len(progress.progress) != 1:
        return None
    form = RepeatedFetch(member[OplogFetches].serve, request, progress)
    return form if form.fits(message) else None


async def probe_oplog(ctx: CommandContext) -> Reply:
    """Which of the given entries are here, and the hash chain at each."""
    refuse_foreign_member(ctx)
    return whole(await oplog_probe(ctx.member, ctx.body), ctx.member)


async def snapshot(ctx: CommandContext) -> Reply:
    """One step of copying the database: begin, chunk, end."""
    refuse_foreign_member(ctx)
    return _whole(ctx, await ctx.member[SnapshotServer].serve(ctx.body, ctx.connection.member))


async def get_rbid(ctx: CommandContext) -> Reply:
    """The rollback id: it grows with every rollback of this member."""
    return {"rbid": ctx.member.store.rollback_id}


async def prove_membership(ctx: CommandContext) -> Reply:
    """Check that the other end knows a key of this set, and prove the same to it; once per connection.

    Step 1 takes the sender's address, the address that it connected to, and its nonce. Step 2 takes its proofs. Where
    members have certificates and no key file, the connection must have shown one of a member too. Raises
    AuthenticationFailedError.
    """
    member, connection = ctx.member, ctx.connection
    keys = member.keys.on(certified=connection.is_certified)
    if not connection.is_certified and not keys.is_secret:
        member[AuditTrail].failed_proof(connection.peer, "it showed no certificate of a member")
        raise AuthenticationFailedError("this connection shows no certificate of a member (same O, OU and DC)")
    step = fields.whole(ctx.body, ctx.name, ctx.name, least=1, most=2)
    handshake, connection.handshake = connection.handshake, None
    if step == 1:
        asking, asked = (fields.text(ctx.body, name, ctx.name) for name in ("member", "address"))
        if asked != member.host:
            raise AuthenticationFailedError(f"this member is {member.host}, not {asked:.200}")
        if refusal := other_messages(ctx.body, asking[:200]):
            raise ReplError(refusal, code=ErrorCode.INCOMPATIBLE_SERVER_VERSION)
        (nonce,) = _binaries(ctx, "nonce", 1)
        connection.handshake = Handshake(HostPort(asking), member.host, nonce, member.rng.randbytes(NONCE_BYTES))
        return {"nonce": Binary(connection.handshake.asked_nonce), **FIELDS}
    proof = None if handshake is None else keys.answer(handshake, _binaries(ctx, "proofs", MAX_KEYS + 1))
    if handshake is None or proof is None:
        member[AuditTrail].failed_proof(connection.peer, "it knows no key of this member")
        reason = "no key of this member's key file was proved"
        raise AuthenticationFailedError(reason if keys.is_secret else "this member was started without a key file")
    connection.member = handshake.asking
    return {"proof": Binary(proof)}


def _binaries(ctx: CommandContext, name: str, most: int) -> list[bytes]:
    """One or several nonces or proofs."""
    value = ctx.body.get(name)
    rows = value if isinstance(value, list) else [value]
    found = [bytes(row) for row in rows if isinstance(row, Binary) and len(row) == NONCE_BYTES]
    if not 0 < len(found) == len(rows) <= most:
        raise FailedToParseError(f"{ctx.name}.{name} must be {NONCE_BYTES} bytes of binary data")
    return found


COMMANDS: tuple[Command, ...] = (
    Command("replSetHeartbeat", ask_core, None, admin_only=True, private=True, needs=Action.INTERNAL),
    Command("replSetRequestVotes", ask_core, None, admin_only=True, private=True, needs=Action.INTERNAL),
    Command("replSetUpdatePosition", ask_core, None, admin_only=True, private=True, needs=Action.INTERNAL),
    Command("replSetStepUp", ask_core, frozenset({"skipDryRun"}), admin_only=True, needs=Action.CHANGE_STATE),
    Command(
        "replSetOplogFetch",
        fetch_oplog,
        None,
        admin_only=True,
        private=True,
        at_once=AtOnce(begin_fetch, repeat=repeated_fetch),
        needs=Action.INTERNAL,
    ),
    Command("replSetOplogProbe", probe_oplog, None, admin_only=True, private=True, needs=Action.INTERNAL),
    Command("replSetSnapshot", snapshot, None, admin_only=True, private=True, needs=Action.INTERNAL),
    Command(
        PROVE,
        prove_membership,
        None,
        admin_only=True,
        private=True,
        needs=Action.OPEN,
    ),
    Command("replSetGetRBID", get_rbid, None, admin_only=True, private=True, needs=Action.INTERNAL),
)
