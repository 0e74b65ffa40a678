"""What makes a set follow another one: its document in `config.follow`, and the entries that came from there.

An entry of the source is appended to this set's oplog under an optime of this set's own, with its effect and the
source's name and optime (`from`) in it. So a member is exactly as far in the source's history as its own oplog says,
whatever dies or is rolled back. The document is a lower bound, for a time without entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import apsw

from replset.bson import RawDocument, decode, encode, encode_key
from replset.errors import IllegalOperationError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import NOOP, OplogEntry
from replset.optime import optime_document, parse_optime
from replset.replication.ports import Clock
from replset.replication.write_ops import ReplicatedDocument, WriteGroup
from replset.storage.sqlite import rows_of
from replset.storage.store import Store
from replset.storage.txn import Txn

FOLLOW_NS = "config.follow"
DOCUMENT_ID = "source"
DOCUMENT = ReplicatedDocument(FOLLOW_NS, encode_key(DOCUMENT_ID))
OWN_DATABASES = frozenset({"admin", "config", "local", ""})
"""What each set has for itself: its users, its consumers, its settings, its sessions' table."""
_FROM = "from"


class FollowMode(Enum):
    """following: entries come from the source, and clients write nothing. closed: clients write nothing, so that the
    other set can take over. stopped: it followed, and takes writes since.
    """

    FOLLOWING = "following"
    CLOSED = "closed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class FollowState:
    """The document. hosts: of the source. set_name: the source's. consumer: the name of this set's consumer there.

    position: the newest entry of the source that is applied here, or a later one without effect; a lower bound while
    entries come. at: this set's own entry with which the mode was set. set_id: of the set that follows, in hex.
    """

    mode: FollowMode
    hosts: tuple[str, ...] = ()
    set_name: str = ""
    consumer: str = ""
    position: OpTime = OPTIME_NULL
    at: OpTime = OPTIME_NULL
    set_id: str = ""

    @property
    def refuses_clients(self) -> bool:
        return self.mode is not FollowMode.STOPPED

    def document(self) -> dict[str, object]:
        return {
            "_id": DOCUMENT_ID,
            "mode": self.mode.value,
            "hosts": list(self.hosts),
            "setName": self.set_name,
            "consumer": self.consumer,
            "position": optime_document(self.position),
            "at": optime_document(self.at),
            "setId": self.set_id,
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> FollowState:
        return cls(
            FollowMode(document["mode"]),
            tuple(map(str, document["hosts"])),
            str(document["setName"]),
            str(document["consumer"]),
            parse_optime(document["position"]),
            parse_optime(document["at"]),
            str(document["setId"]),
        )


@dataclass(slots=True)
class FollowProgress:
    """What the primary knows beside the document. source: the set that it follows now; empty: none.

    position: the source's newest entry that was looked at. newest_wall_ms: when that was written, by the source's
    clock; came_at: when it came, as measured here; 0: nothing came yet.
    error: why nothing comes now.
    """

    source: str = ""
    position: OpTime = OPTIME_NULL
    error: str = ""
    newest_wall_ms: int = 0
    came_at: int = 0
    entries: int = 0

    def lag_s(self, clock: Clock) -> int | None:
        """How old the newest entry is; None: nothing came yet. An idle source writes one every ten seconds.

        Where the source's clock is ahead, it is how long ago that entry came.
        """
        if not self.newest_wall_ms:
            return None
        return max(clock.wall_ms() - self.newest_wall_ms, clock.now() - self.came_at) // 1000

    def document(self, clock: Clock) -> dict[str, object]:
        """Return it for the set's status; empty where this member follows nobody."""
        if not self.source:
            return {}
        return {"setName": self.source, "lagSecs": self.lag_s(clock), "error": self.error}


def read_state(store: Store) -> FollowState | None:
    """Return the state as this member has it; None: this set never followed another one."""
    raw = DOCUMENT.read(store)
    return None if raw is None else _parsed(raw)


def state_in(txn: Txn) -> FollowState | None:
    """Return the state within a group; see `read_state`."""
    raw = DOCUMENT.read_in(txn)
    return None if raw is None else _parsed(raw)


@lru_cache(maxsize=4)
def _parsed(raw: bytes) -> FollowState:
    """Each group of a set that has the document asks for it, and it seldom changes."""
    return FollowState.parse(decode(raw))


def save_state(group: WriteGroup, state: FollowState) -> None:
    """Write the document, even if it is the same: its entry says how far the source's history is applied."""
    DOCUMENT.put(group, encode(state.document()), anew=True)


def stopped(state: FollowState, group: WriteGroup) -> FollowState:
    """The document with which a set that followed takes writes."""
    position = position_in(group.txn.connection, state).position
    return replace(state, mode=FollowMode.STOPPED, at=group.next_optime(), position=position)


class Place(NamedTuple):
    """position: in the source's history. looked_at: entries at the end of the own oplog that were read to find it."""

    position: OpTime
    looked_at: int


def position_in(connection: apsw.Connection, state: FollowState) -> Place:
    """Up to where in the source's history this member's data is: by its newest entry from there, or by the document,
    whichever was written last.

    However many entries of this set's own stand behind that: with a position that is too old, entries would be applied
    again, over what later ones wrote. `SetFollower` writes the document anew before the search becomes long.
    """
    looked_at = 0
    for ns, entry in rows_of(connection, "SELECT ns, entry FROM oplog ORDER BY ts DESC"):
        looked_at += 1
        if ns == FOLLOW_NS:
            break
        source = source_optime(entry)
        if source is not None:
            return Place(max(source, state.position, key=lambda at: at.ts), looked_at)
    return Place(state.position, looked_at)


def source_optime(entry: bytes) -> OpTime | None:
    """The optime that an entry had in the set that it came from; None: it is this set's own."""
    document = RawDocument(entry).get(_FROM)
    return parse_optime(document) if isinstance(document, dict) else None


def came_from(entry: bytes, set_name: str) -> bool:
    """Whether the entry came from the set of this name, so that that one has it."""
    document = RawDocument(entry).get(_FROM)
    return isinstance(document, dict) and document.get("set") == set_name


def own_entry(raw: bytes, optime: OpTime, set_name: str) -> bytes:
    """The entry of the source as this set has it, under its own optime. set_name: the source's."""
    entry, view = OplogEntry(raw), RawDocument(raw)
    fields = {name: value for name, value in view.items() if name not in (_FROM, "ts", "t")}
    # ts, t, v and wall stand together behind these; documents stay the bytes that they are.
    head: dict[str, object] = {name: fields.pop(name) for name in ("op", "ns", "ui", "o", "o2") if name in fields}
    head |= {name: RawDocument(view.get_raw(name) or b"") for name in ("o", "o2") if name in head}
    source = {**optime_document(entry.optime), "set": set_name}
    return encode({**head, **optime_document(optime), **fields, _FROM: source})


def is_followed(entry: OplogEntry) -> bool:
    """Whether the entry is about clients' data, and so comes to a set that follows."""
    if entry.op == NOOP:
        return False
    return any(operation.ns.partition(".")[0] not in OWN_DATABASES for operation in entry.operations)


def refuse_clients(txn: Txn, entries: Sequence[bytes]) -> None:
    """Refuse (20) what a write operation has just written, if this set follows another one or is about to."""
    state = state_in(txn)
    if state is None or not state.refuses_clients:
        return
    for raw in entries:
        entry = OplogEntry(raw)
        if is_followed(entry):
            why = f"this set follows {state.set_name}" if state.hosts else "this set hands over to its follower"
            raise IllegalOperationError(f"{why}: it takes no writes of clients (see `replset follow --status`)")
