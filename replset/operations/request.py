"""What a command is given: who sends it, and its documents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from replset.auth.users import Login, SaslConversation
from replset.bson import MAX_BSON_SIZE, RawDocument
from replset.ids import HostPort
from replset.key_file import Handshake

Reply: TypeAlias = dict[str, object] | bytes
"""What a command answers: a document, or for the hot commands its bytes."""

Source: TypeAlias = Literal["wire", "http", "internal"]

Owner: TypeAlias = tuple[str, bytes]
"""A client: its machine and the metadata of its first hello."""


@dataclass(slots=True)
class ConnectionContext:
    """The sender of commands. There is one per connection; the HTTP API makes one per request.

    id: shown as connectionId. peer: `host:port` of the client. member: the member that sends, once it
    has proved itself (`replSetProve`). is_certified: whether it has shown a member's certificate, or needs none.
    handshake: of a proof that has begun. metadata: `client` of the first hello. app_name: the application's name in it.
    login: the user that has logged in on it; None: nobody (and nobody has to without --auth). sasl: a login that has
    begun.
    is_to_close: a fail point closes the connection instead of the reply. task: that runs the commands of a connection.
    """

    id: int = 0
    peer: str = ""
    member: HostPort | None = None
    is_certified: bool = True
    handshake: Handshake | None = None
    metadata: RawDocument | None = None
    app_name: str = ""
    login: Login | None = None
    sasl: SaslConversation | None = None
    is_to_close: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def is_member(self) -> bool:
        return self.member is not None

    @property
    def owner(self) -> Owner | None:
        """Return the client of this connection: a driver may use any of its connections for a getMore.

        A client without metadata is known by this connection alone. None: HTTP, where no connection stays.
        """
        if not self.id:
            return None
        return (self.peer, b"") if self.metadata is None else (self.peer.rpartition(":")[0], self.metadata.raw)


@dataclass(slots=True)
class CommandRequest:
    """One command. `sequences` are the OP_MSG document sequences by their name (documents, updates, deletes).

    legacy: it came as OP_QUERY, where only hello and its aliases are answered. exhaust: its client takes a stream of
    replies. error_labels: of a fail point; they replace all others in the reply. acting: the client of another member
    that forwards its write. batch_bytes: what its sender takes of a cursor at once.
    """

    database: str
    body: RawDocument
    sequences: dict[str, list[RawDocument]] = field(default_factory=dict)
    connection: ConnectionContext = field(default_factory=ConnectionContext)
    source: Source = "wire"
    legacy: bool = False
    exhaust: bool = False
    error_labels: list[str] | None = None
    acting: ConnectionContext | None = None
    batch_bytes: int = MAX_BSON_SIZE

    @property
    def statement_bytes(self) -> int:
        """Bytes of what is decoded of the command: all but the documents of an insert."""
        size = len(self.body.raw)
        if self.body.first_key == "insert":
            return size - self.body.size_of("documents")
        for documents in self.sequences.values():
            size += sum(len(document.raw) for document in documents)
        return size

    @property
    def sender(self) -> ConnectionContext:
        """Whose rights count: with a write that another member forwards, those of its client."""
        return self.connection if self.acting is None else self.acting
