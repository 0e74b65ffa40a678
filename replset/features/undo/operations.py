"""The operation of this feature, declared once (operations/declared.py). The command line imports this file."""

from __future__ import annotations

from typing import Final

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, Timestamp
from replset.errors import BadValueError
from replset.ids import OpTime, pack_ts
from replset.operations.declared import BOOLEAN, DOCUMENT, TEXT, TEXTS, Kind, one_of, operation, value

Moment = tuple[int, int]
"""The first and the last timestamp of the oplog that a person means: of one entry, or of a second."""


def _moment(body: RawDocument, name: str, _command: str) -> Moment:
    at = body.get(name)
    if isinstance(at, str):
        try:
            return (OpTime.parse(at).ts,) * 2
        except ValueError as error:
            raise BadValueError(f"{name}: {error}") from error
    if isinstance(at, Timestamp):
        return (pack_ts(at.time, at.inc),) * 2
    if isinstance(at, DateTime) and 0 <= at.ms < 1000 << 32:
        return (pack_ts(at.ms // 1000, 0), pack_ts(at.ms // 1000 + 1, 0) - 1)
    raise BadValueError(f"{name} is an optime, a timestamp or a date")


MOMENT: Final = Kind(_moment, {"example": "1:1700000000:5"})
POLICY: Final = one_of(str, "skip", "overwrite", "keep-newer", "merge")


@operation("replSetUndo", needs=Action.RESTORE, on_primary=True, http="POST /v1/replset/undo")
class Undo:
    """Take back what was written from one moment to another, as new writes that a majority has; without `apply` say
    what that would do. With `redo`: take back an undo.
    """

    first: Moment | None = value(MOMENT, default=None, name="from", help="the first entry: an optime, or its second")
    last: Moment | None = value(MOMENT, default=None, name="to", help="the last entry: an optime, or its second")
    ns: list[object] = value(TEXTS, default=(), help="DATABASE.COLLECTION, or DATABASE for all of its collections")
    match: RawDocument | None = value(
        DOCUMENT, default=None, help="only documents that this filter matches before or behind the span"
    )
    session: str = value(TEXT, default="", help="only what the session with this id wrote: 32 hex digits")
    policy: str = value(POLICY, default="skip", help="what to do about a document that was written since")
    redo: str = value(TEXT, default="", help="take back the undo with this id instead")
    apply: bool = value(BOOLEAN, default=False, help="write; without it nothing is written")
