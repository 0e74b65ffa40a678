"""The operations on named consumers, each declared once (operations/declared.py).

Each asks for more than a login: a right on what the consumer follows. The command line imports this file, and for it
neither the query language nor the storage.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import BadValueError
from replset.operations.declared import (
    ANY,
    BOOLEAN,
    DOCUMENT,
    TEXT,
    TEXTS,
    WHOLE,
    Kind,
    one_of,
    operation,
    own,
    value,
    whole_between,
)
from replset.operations.fields import text

if TYPE_CHECKING:
    from replset.query.change_tokens import Token

LONGEST_NAME: Final = 128
LONGEST_REASON: Final = 1_024
DAY_MS: Final = 24 * 3_600_000


class Mode(Enum):
    """Who may read at one time."""

    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"


def _name(body: RawDocument, field: str, command: str) -> str:
    name = text(body, field, command)
    if not 0 < len(name) <= LONGEST_NAME or not all(char.isalnum() or char in "-_." for char in name):
        raise BadValueError(f"a consumer's name has 1 to {LONGEST_NAME} letters, digits, and - _ .")
    return name


def _reader(body: RawDocument, field: str, command: str) -> str:
    name = text(body, field, command)
    if not name or len(name) > 128:
        raise BadValueError("a reader's name has 1 to 128 characters")
    return name


def token_of(value: object) -> Token:
    """A token as text, or as events have it in `_id`. 260: it is none."""
    from replset.query.change_tokens import Token

    return Token.parse(value.get("_data") if isinstance(value, dict) else value)


def _path(body: RawDocument, field: str, command: str) -> str:
    path = text(body, field, command)
    if len(path) > 256 or "" in path.split("."):
        raise BadValueError(f"{field} is the name of a field, or a path with dots, of 256 characters at most")
    return path


def _reason(body: RawDocument, field: str, command: str) -> str:
    reason = text(body, field, command)
    if len(reason) > LONGEST_REASON:
        raise BadValueError(f"{field} has at most {LONGEST_REASON} characters, not {len(reason)}")
    return reason


NAMESPACE = Kind(text, {**TEXT.schema, "example": "shop.orders"})
NAME, READER = Kind(_name, TEXT.schema), Kind(_reader, TEXT.schema)
PATH, REASON = Kind(_path, TEXT.schema), Kind(_reason, TEXT.schema)
TOKEN: Final = Kind(lambda body, field, _: token_of(body.get(field)), TEXT.schema)
MODE: Final = one_of(Mode, *(mode.value for mode in Mode))
THE_NAME, OF_EVENTS, WHO = "the consumer's name", "of the answer that had the events", "who reads"
A_PLACE: Final = "now, oldest, a timestamp, a date or a token"


@operation("replSetConsumerCreate", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers")
class Create:
    """Create a named consumer; one that is there with the same options stays as it is."""

    name: str = own(NAME, help=THE_NAME)
    ns: str = value(NAMESPACE, default="", help="DATABASE.COLLECTION, DATABASE, or nothing for all databases")
    filter: RawDocument | None = value(DOCUMENT, default=None, help="which events")
    mode: Mode = value(MODE, default=Mode.EXCLUSIVE, help="exclusive, failover or shared")
    start_at: object = value(ANY, default="now", name="startAt", help=A_PLACE)
    ack_timeout_ms: int = value(
        whole_between(100, DAY_MS), default=30_000, name="ackTimeoutMS", help="then a silent reader counts as gone"
    )
    deliver_after: str = value(
        PATH, default="", name="deliverAfter", help="the field whose date says from when on an event is given"
    )
    max_refusals: int = value(
        whole_between(1, 100), default=0, name="maxRefusals", help="after so many an event is parked"
    )


@operation("replSetConsumerRead", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/read")
class Read:
    """Events behind the position; with `waitMS` it waits for some."""

    name: str = own(NAME, help=THE_NAME)
    reader: str = value(READER, help=WHO)
    after: Token | None = value(TOKEN, default=None, help="go on behind this token, of the same generation")
    generation: int | None = value(WHOLE, default=None, help=OF_EVENTS)
    most: int = value(whole_between(1, 1_000), default=100, name="maxEvents", help="how many it gives")
    wait_ms: int = value(whole_between(0, 30_000), default=0, name="waitMS", help="how long it waits for one")


@operation("replSetConsumerReadHere", needs=Action.LOGIN, http="POST /v1/consumers/{name}/readHere")
class ReadHere:
    """Events that the holder of a consumer reads at any member; it claims and acknowledges at the primary."""

    name: str = own(NAME, help=THE_NAME)
    reader: str = value(READER, help=WHO)
    generation: int = value(WHOLE, help="of the answer of the primary")
    after: Token = value(TOKEN, help="`next` of the answer before")
    most: int = value(whole_between(1, 1_000), default=100, name="maxEvents", help="how many it gives")
    wait_ms: int = value(whole_between(0, 30_000), default=0, name="waitMS", help="how long it waits for one")


@operation("replSetConsumerAck", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/ack")
class Ack:
    """Acknowledge all events up to `token`, of a shared consumer those of `tokens`."""

    name: str = own(NAME, help=THE_NAME)
    generation: int = value(WHOLE, help=OF_EVENTS)
    token: Token | None = value(TOKEN, default=None, help="the last one")
    tokens: list[object] | None = value(TEXTS, default=None, help="of a shared consumer: each one")


@operation("replSetConsumerNack", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/nack")
class Nack:
    """Give events back; they come again after `delayMS`."""

    name: str = own(NAME, help=THE_NAME)
    generation: int = value(WHOLE, help=OF_EVENTS)
    tokens: list[object] | None = value(TEXTS, default=None, help="of a shared consumer: which")
    delay_ms: int = value(whole_between(0, DAY_MS), default=0, name="delayMS", help="when they come again")
    leave: bool = value(BOOLEAN, default=False, help="the reader goes")
    reason: str = value(REASON, default="", help="why; kept with an event that is parked")
    reader: str | None = value(READER, default=None, help=WHO)


@operation("replSetConsumerSeek", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/seek")
class Seek:
    """Set the position: a token, a time, oldest or now."""

    name: str = own(NAME, help=THE_NAME)
    to: object = value(ANY, help=A_PLACE)


@operation("replSetConsumerRemove", needs=Action.LOGIN, on_primary=True, http="DELETE /v1/consumers/{name}")
class Remove:
    """Remove a consumer."""

    name: str = own(NAME, help=THE_NAME)


@operation("replSetConsumerParked", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/parked")
class Parked:
    """The events that were refused too often, with the reasons."""

    name: str = own(NAME, help=THE_NAME)
    after: Token | None = value(TOKEN, default=None, help="those behind this one")


@operation("replSetConsumerUnpark", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/unpark")
class Unpark:
    """Give parked events to the readers again."""

    name: str = own(NAME, help=THE_NAME)
    id: Token | None = value(TOKEN, default=None, help="of one parked event")
    all: bool = value(BOOLEAN, default=False, help="all that are parked")


@operation("replSetConsumerForget", needs=Action.LOGIN, on_primary=True, http="POST /v1/consumers/{name}/forget")
class Forget:
    """Remove parked events."""

    name: str = own(NAME, help=THE_NAME)
    id: Token | None = value(TOKEN, default=None, help="of one parked event")
    all: bool = value(BOOLEAN, default=False, help="all that are parked")
