"""Reads the fetch that a member sends again and again: the same bytes, but for numbers at places that are known.

A member that keeps up sends one for each group of writes, with its position. The first goes the whole way with all
its checks. One like it is read by one comparison and one unpacking, and carried out as ever.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import Final

from replset.bson import RawDocument
from replset.core.messages import MemberProgress, Position, ProgressRequest
from replset.member.peers.message_documents import parse_progress, progress_document
from replset.member.peers.oplog_fetch import OplogFetches
from replset.operations.kernel import Kernel
from replset.operations.waiters import Completion
from replset.optime import optime_of_bits
from replset.replication.protocol import FetchRequest
from replset.wire.framing import encode_request

_KINDS: Final = "iQqqQqQqqQqq"
"""The numbers in their order: the message's id; what it asks for, an optime with its chain; the known commit point;
what is durable, an optime and its wall time; what is applied.
"""
_MARKS: Final = tuple(range(0x1234_5601, 0x1234_5601 + len(_KINDS)))


class RepeatedFetch:
    """Is the form of a fetch with the sender's position."""

    __slots__ = ("_constant", "_fetches", "_mask", "_numbers", "_progress", "_request", "_row")

    def __init__(self, fetches: OplogFetches, request: FetchRequest, progress: ProgressRequest) -> None:
        """progress: it has one row."""
        self._fetches, self._request, self._progress, self._row = fetches, request, progress, progress.progress[0]
        asked, positions = self._requests(_MARKS)
        frame = encode_request(_MARKS[0], replace(asked, progress=progress_document(positions)).document(), "admin")
        mask, form, at = bytearray(b"\xff" * len(frame)), "<", 0
        for mark, kind in zip(_MARKS, _KINDS, strict=True):
            size = Struct(kind).size
            start = frame.index(mark.to_bytes(size, "little"), at)
            mask[start : start + size] = bytes(size)
            form += f"{start - at}x{kind}"
            at = start + size
        self._numbers = Struct(form + f"{len(frame) - at}x")
        self._mask = int.from_bytes(mask, "little")
        self._constant = int.from_bytes(frame, "little") & self._mask

    def fits(self, message: bytes) -> bool:
        """Whether a message is a fetch of this form."""
        is_as_long = len(message) == self._numbers.size
        return is_as_long and int.from_bytes(message, "little") & self._mask == self._constant

    def begin(self, message: bytes, waiter: Completion) -> None:
        """Carry out a fetch of this form. ReplError."""
        self._fetches.serve(*self._requests(self._numbers.unpack(message)), waiter)

    def _requests(self, numbers: tuple[int, ...]) -> tuple[FetchRequest, ProgressRequest]:
        """The fetch without the bytes of its position, and that position. RemoteProtocolError: a number cannot be."""
        _, after, after_term, chain, known, known_term, durable, durable_term, durable_ms, *last = numbers
        applied, applied_term, applied_ms = last
        position = Position(
            optime_of_bits(applied, applied_term), optime_of_bits(durable, durable_term), applied_ms, durable_ms
        )
        request, progress = self._request, self._progress
        return (
            FetchRequest(
                optime_of_bits(after, after_term),
                chain,
                request.max_bytes,
                request.max_await_ms,
                request.term,
                optime_of_bits(known, known_term),
                request.known_rollback_id,
                request.awaits_commit_point,
                None,
                request.set_id,
            ),
            ProgressRequest(
                progress.sender_id,
                progress.term,
                progress.config_version,
                progress.config_term,
                (MemberProgress(self._row.member_id, self._row.incarnation, position),),
                progress.set_id,
            ),
        )


def repeated_fetch(member: Kernel, body: RawDocument, message: bytes) -> RepeatedFetch | None:
    """The form of a fetch that was carried out; None: it has none, since it has not one position, or other fields."""
    request = FetchRequest.parse(body)
    progress = None if request.progress is None else parse_progress(request.progress)
    if progress is None or len(progress.progress) != 1:
        return None
    form = RepeatedFetch(member[OplogFetches], request, progress)
    return form if form.fits(message) else None
