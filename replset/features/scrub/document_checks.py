"""Commands that compare the documents of the members, and put them right.

`replSetDocuments` is what members ask each other. `replSetCheckDocuments` and `replSetRepairDocuments` do a part of the
work each time; the answer says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from replset.auth.roles import Action
from replset.bson import Binary, Int64, RawDocument
from replset.errors import BadValueError, NamespaceNotFoundError, NotPrimaryOrSecondaryError, ReplError
from replset.features.scrub.auto_repair import other_members, reached
from replset.features.scrub.document_check import Difference, DocumentCheck, ScrubStatus
from replset.features.scrub.document_ranges import RangeRequest
from replset.features.scrub.document_repair import DocumentRepair
from replset.ids import HostPort
from replset.member.peers.member_commands import refuse_foreign_member
from replset.operations import fields
from replset.operations.command import Command, CommandContext, declared
from replset.operations.declared import DOCUMENT, TEXT, Kind, operation, own, value
from replset.operations.request import Reply
from replset.replication.rollback_list import RollbackList

WORK_MS = 500
"""How long one command works; it ends with the range in which that is over."""
CATCH_UP_MS = 2_000
"""How long a member that is asked for a range waits until it has the optime."""
DIFFERENCES_MAX = 1_000


async def give_documents(ctx: CommandContext) -> Reply:
    """A range of documents as of an optime: a digest, their hashes, or the documents."""
    refuse_foreign_member(ctx)
    member = ctx.member
    request = RangeRequest.parse(ctx.body)
    _check_readable(ctx)
    deadline = member.clock.now() + CATCH_UP_MS
    while member.store.last_applied < request.at and (left := deadline - member.clock.now()) > 0:
        if not await member.wait_for_change(left):
            break
    return (await member[DocumentCheck].read_own(request)).document()


def _key(body: RawDocument, name: str, command: str) -> bytes:
    value = body.get(name)
    if not isinstance(value, bytes):
        raise fields.wrong_type(command, name, body.type_of(name), "binData")
    return bytes(value)


@operation("replSetCheckDocuments", needs=Action.READ_ROLLBACKS)
class CheckDocuments:
    """Compare documents with all other members, from `after` on; name those that differ."""

    ns: str = value(TEXT, default="")
    after: RawDocument | None = value(DOCUMENT, default=None)


@operation("replSetRepairDocuments", needs=Action.RESYNC)
class RepairDocuments:
    """Give this member's documents that differ the bytes that most data-bearing members have, from `after` on."""

    ns: str = own(TEXT)
    trusted: str = value(TEXT, default="", name="from")
    after: bytes = value(Kind(_key, {"type": "string"}), default=b"")


async def check_documents(ctx: CommandContext, given: CheckDocuments) -> Reply:
    check, others = ctx.member[DocumentCheck], other_members(ctx.member.node, ctx.member.host)
    wanted, after = given.ns, given.after
    ns, low = ("", b"") if after is None else (fields.text(after, "ns", "after"), _key(after, "key", ctx.name))
    names = [name for name in sorted(check.namespaces()) if name >= ns and _is_wanted(name, wanted)]
    found: list[Difference] = []
    failed: dict[HostPort, str] = {}
    if not names and after is None and wanted:
        raise NamespaceNotFoundError(f"{ctx.member.host} has no collection '{wanted:.300}'")
    documents = size = 0
    until = ctx.member.clock.now() + WORK_MS
    for name in names:
        next_key: bytes | None = low if name == ns else b""
        while next_key is not None:
            if ctx.member.clock.now() >= until or len(found) >= DIFFERENCES_MAX:
                return _checked(documents, size, found, failed, {"ns": name, "key": Binary(next_key)})
            ctx.check_deadline()
            _check_readable(ctx)
            one = await check.compare(name, next_key, others, reached(ctx.member.node, others))
            ctx.member[ScrubStatus].on_compared(one)
            documents, size = documents + one.documents, size + one.size
            found += one.differing
            failed |= one.failed
            next_key = one.next
    return _checked(documents, size, found, failed, None)


async def repair_documents(ctx: CommandContext, given: RepairDocuments) -> Reply:
    others, ns, trusted = other_members(ctx.member.node, ctx.member.host), given.ns, given.trusted
    if ns not in ctx.member[DocumentCheck].namespaces():
        raise NamespaceNotFoundError(f"{ctx.member.host} has no collection '{ns:.300}' whose documents are compared")
    if trusted and trusted not in others:
        raise BadValueError(f"'{trusted:.200}' is not another data-bearing member of this set")
    low: bytes | None = given.after
    corrected: list[Difference] = []
    undecided: list[Difference] = []
    skipped: list[Difference] = []
    failed: dict[HostPort, str] = {}
    records: list[str] = []
    until = ctx.member.clock.now() + WORK_MS
    while low is not None and ctx.member.clock.now() < until and len(corrected) + len(undecided) < DIFFERENCES_MAX:
        ctx.check_deadline()
        _check_readable(ctx)
        try:
            done = await ctx.member[DocumentRepair].repair(
                ns, low, others, HostPort(trusted) if trusted else None, reached(ctx.member.node, others)
            )
        except ReplError:
            if not corrected:
                raise
            break  # what was corrected is reported; the next command meets the error, if it is still there
        ctx.member[ScrubStatus].on_compared(replace(done.compared, differing=(*done.undecided, *done.skipped)))
        corrected += done.corrected
        undecided += done.undecided
        skipped += done.skipped
        failed |= done.compared.failed
        records += done.records
        low = done.compared.next
    await ctx.member[RollbackList].refresh()
    reply: dict[str, object] = {
        "corrected": _documents(corrected),
        "undecided": _documents(undecided),
        "skipped": _documents(skipped),
        "notCompared": _reasons(failed),
        "records": records,
    }
    return reply if low is None else {**reply, "next": Binary(low)}


def _check_readable(ctx: CommandContext) -> None:
    state = ctx.member.node.state
    if not state.is_readable:
        raise NotPrimaryOrSecondaryError(f"{ctx.member.host} is {state.name}: its documents cannot be compared now")


def _is_wanted(ns: str, wanted: str) -> bool:
    """wanted: a collection, a database, or empty for all."""
    return not wanted or ns == wanted or ("." not in wanted and ns.startswith(f"{wanted}."))


def _checked(
    documents: int,
    size: int,
    found: list[Difference],
    failed: dict[HostPort, str],
    then: dict[str, object] | None,
) -> Reply:
    reply: dict[str, object] = {
        "documents": Int64(documents),
        "bytes": Int64(size),
        "differing": _documents(found),
        "notCompared": _reasons(failed),
    }
    return reply if then is None else {**reply, "next": then}


def _documents(differences: Iterable[Difference]) -> list[dict[str, object]]:
    return [
        {
            "ns": one.ns,
            "_id": one.id,
            "members": [
                {"member": str(host), "hash": None if row is None else f"{row.hash % (1 << 64):016x}"}
                for host, row in one.rows.items()
            ],
        }
        for one in differences
    ]


def _reasons(failed: dict[HostPort, str]) -> list[dict[str, object]]:
    return [{"member": str(host), "reason": reason} for host, reason in failed.items()]


COMMANDS: tuple[Command, ...] = (
    Command("replSetDocuments", give_documents, None, admin_only=True, private=True, needs=Action.INTERNAL),
    declared(CheckDocuments, check_documents),
    declared(RepairDocuments, repair_documents),
)
