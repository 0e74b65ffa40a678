"""Writes and reads the fetch that a member sends again and again: the same bytes, but for numbers at known places.

A member that keeps up sends one for each group of writes, with its position. The first goes the whole way, with all the
checks of who reads it. One like it is written by one packing, and read by one comparison and one unpacking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from replset.bson import Form, RawDocument
from replset.core.messages import MemberProgress, Position, ProgressRequest
from replset.errors import RemoteProtocolError
from replset.ids import INCREMENT_BITS, OpTime
from replset.member.peers.message_documents import progress_document
from replset.operations.waiters import Completion
from replset.optime import BAD_BIT, INCREMENT_MASK, SECONDS_MASK
from replset.replication.protocol import FetchRequest
from replset.wire.framing import encode_request

_CODES: Final = "QqqQqQqqQqq"
"""The numbers in their order: what the fetch asks for, an optime with its chain; the known commit point; what is
durable, an optime and its wall time; what is applied. Before them the message has its id.
"""
_MARKS: Final = tuple(range(0x1234_5601, 0x1234_5601 + len(_CODES)))
_ID_MARK: Final = 0x1234_5600


class FetchDocuments:
    """Writes the fetches of one member."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bool, tuple[tuple[object, ...], Form]] = {}
        """What is the same in the last fetches, and their form, by whether a reader waits for the commit point."""

    def __call__(self, request: FetchRequest, progress: ProgressRequest | None) -> RawDocument:
        """Return the document of `request` with this position; None: it has none."""
        if progress is None:
            return request.document()
        if len(progress.progress) != 1:
            return replace(request, progress=progress_document(progress)).document()
        row, after, known = progress.progress[0], request.after, request.known_commit_point
        same = (
            request.max_bytes,
            request.max_await_ms,
            request.term,
            request.known_rollback_id,
            request.set_id,
            row.member_id,
            row.incarnation,
            progress[:4],
            progress.set_id,
        )
        is_awaited = request.awaits_commit_point
        before = self._known.get(is_awaited)
        if before is None or before[0] != same:
            marked, positions = _with_numbers(request, progress, _MARKS)
            example = replace(marked, progress=progress_document(positions)).document()
            before = self._known[is_awaited] = same, Form(example.raw, _MARKS, _CODES)
        applied, durable, applied_ms, durable_ms = row.position
        return RawDocument.of_own(
            before[1].pack(
                after.ts + (after.ts & SECONDS_MASK),
                after.term,
                request.chain,
                known.ts + (known.ts & SECONDS_MASK),
                known.term,
                durable.ts + (durable.ts & SECONDS_MASK),
                durable.term,
                durable_ms,
                applied.ts + (applied.ts & SECONDS_MASK),
                applied.term,
                applied_ms,
            )
        )


class RepeatedFetch:
    """Is the form of a fetch with the sender's position, for who answers it."""

    __slots__ = ("_form", "_progress", "_request", "_serve")

    def __init__(
        self,
        serve: Callable[[FetchRequest, ProgressRequest, Completion], None],
        request: FetchRequest,
        progress: ProgressRequest,
    ) -> None:
        """serve: carries out a fetch. progress: it has one row."""
        self._serve, self._request, self._progress = serve, request, progress
        marked, positions = _with_numbers(request, progress, _MARKS)
        example = encode_request(_ID_MARK, replace(marked, progress=progress_document(positions)).document(), "admin")
        self._form = Form(example, (_ID_MARK, *_MARKS), "i" + _CODES)

    def fits(self, message: bytes) -> bool:
        """Whether a message is a fetch of this form."""
        return self._form.fits(message)

    def begin(self, message: bytes, waiter: Completion) -> None:
        """Carry out a fetch of this form. ReplError."""
        numbers = self._form.unpack(message)
        self._serve(*_with_numbers(self._request, self._progress, numbers[1:]), waiter)


def _with_numbers(
    request: FetchRequest, progress: ProgressRequest, numbers: tuple[int, ...]
) -> tuple[FetchRequest, ProgressRequest]:
    """The fetch with these numbers, without the bytes of its position, and that position. RemoteProtocolError: a number
    cannot be.
    """
    after, after_term, chain, known, known_term, durable, durable_term, durable_ms, *last = numbers
    applied, applied_term, applied_ms = last
    if (after | known | durable | applied) & BAD_BIT or (after_term | known_term | durable_term | applied_term) < 0:
        raise RemoteProtocolError("a fetch with an optime out of range")
    new, row = tuple.__new__, progress.progress[0]  # as the classes do, in half as many calls
    newest = new(OpTime, (applied_term, applied >> 32 << INCREMENT_BITS | applied & INCREMENT_MASK))
    on_disk = new(OpTime, (durable_term, durable >> 32 << INCREMENT_BITS | durable & INCREMENT_MASK))
    position = new(Position, (newest, on_disk, applied_ms, durable_ms))
    return (
        FetchRequest(
            new(OpTime, (after_term, after >> 32 << INCREMENT_BITS | after & INCREMENT_MASK)),
            chain,
            request.max_bytes,
            request.max_await_ms,
            request.term,
            new(OpTime, (known_term, known >> 32 << INCREMENT_BITS | known & INCREMENT_MASK)),
            request.known_rollback_id,
            request.awaits_commit_point,
            None,
            request.set_id,
        ),
        new(
            ProgressRequest,
            (*progress[:4], (new(MemberProgress, (row.member_id, row.incarnation, position)),), progress.set_id),
        ),
    )
