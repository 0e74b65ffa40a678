"""The operation of this feature, declared once (operations/declared.py). The command line imports this file."""

from __future__ import annotations

from typing import Any

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import BadValueError
from replset.ids import OpTime
from replset.operations.declared import ANY, BOOLEAN, TEXT, Kind, operation, own, value, whole_between
from replset.operations.fields import text


def _optime(body: RawDocument, name: str, command: str) -> OpTime:
    try:
        return OpTime.parse(text(body, name, command))
    except ValueError as error:
        raise BadValueError(f"{name}: {error}") from error


NAMESPACE: Kind[str] = Kind(text, {**TEXT.schema, "example": "shop.orders"})
OPTIME: Kind[Any] = Kind(_optime, {**TEXT.schema, "example": "1:1700000000:5"})


@operation("replSetDocumentHistory", needs=Action.LOGIN, http="POST /v1/replset/history")
class DocumentHistory:
    """Every version of one document that this member's oplog, undo, rollback files and archive know, oldest first."""

    ns: str = own(NAMESPACE, help="DATABASE.COLLECTION")
    id: object = value(ANY, help="the document's _id")
    at: object = value(ANY, default=None, help="only the version of this moment: a timestamp or a date")
    field: str = value(TEXT, default="", help="only versions in which this field changed, as a path with dots")
    archive: bool = value(BOOLEAN, default=False, help="begin in the archive, before the live oplog")
    after: OpTime | None = value(OPTIME, default=None, help="go on behind this optime: `next` of the answer before")
    limit: int = value(whole_between(1, 1_000), default=100, help="how many versions one answer has")
