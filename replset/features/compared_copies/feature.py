"""Comparing instead of copying, as a feature of a member: both ends of it."""

from __future__ import annotations

from replset.bson import RawDocument
from replset.errors import BadValueError
from replset.features.compared_copies.difference_copy import DifferenceCopy
from replset.features.compared_copies.difference_protocol import STEPS, CompareReply, CompareRequest
from replset.features.compared_copies.differences import read_differences, read_spans
from replset.member.feature import Feature
from replset.member.peers.snapshot_server import LONGEST_WAIT_S, SnapshotServer
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext
from replset.replication.initial_sync import InitialSync
from replset.storage.copies import open_copy


class ComparedCopies:
    """Answers about the documents of copies whose frame was sent."""

    def __init__(self, context: MemberContext, server: SnapshotServer) -> None:
        self._context = context
        self._server = server

    async def serve(self, body: RawDocument) -> dict[str, object]:
        return (await self._compare(CompareRequest.parse(body))).document()

    async def _compare(self, request: CompareRequest) -> CompareReply:
        """Answer at the rate of one copy."""
        server = self._server
        copy = server.find(request.snapshot_id)
        server.offer(request.snapshot_id, copy)
        if not copy.ready or not copy.compared:
            raise BadValueError(f"copy {request.snapshot_id} is none to compare with")

        def read() -> CompareReply:
            with open_copy(self._context.disk, copy.compared, read_only=True) as connection:
                if request.step == "spans":
                    spans = read_spans(connection, request.uuid, request.low)
                    return CompareReply(copy.rollback_id, spans=spans)
                found = read_differences(connection, request.uuid, request.spans, request.hashes or {}, request.low)
                return CompareReply(copy.rollback_id, differences=found)

        async with copy.in_use:
            server.find(request.snapshot_id)
            await server.flow_of(copy).wait_for(copy.rate, LONGEST_WAIT_S)
            reply = await self._context.workers.run(read)
        if reply.differences is not None:
            size, bytes_per_s = sum(len(row.doc) for row in reply.differences.rows), server.bytes_per_s()
            copy.rate.spend(size, bytes_per_s)
            server.flow_of(copy).note(size, bytes_per_s)
        server.find(request.snapshot_id)
        return reply


def compare_copies(context: MemberContext, server: SnapshotServer, sync: InitialSync) -> None:
    """Let this member compare with others' copies, and others with its own."""
    sync.frames = DifferenceCopy(context, sync.transfer)
    server.other_steps.update(dict.fromkeys(STEPS, ComparedCopies(context, server).serve))


def _part(member: Kernel) -> None:
    compare_copies(member[MemberContext], member[SnapshotServer], member[InitialSync])


COMPARED_COPIES = Feature("compared_copies", part=_part)
