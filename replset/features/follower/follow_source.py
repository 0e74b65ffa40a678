"""The set that this one follows, seen from here: a client of its wire port that reads committed entries and looks after
this set's consumer there. It blocks, so it runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from replset.bson import RawDocument, decode, walk
from replset.client import WireClient, log_in_as_environment_says
from replset.errors import BadValueError, ErrorCode, HostUnreachableError, ReplError
from replset.features.follower.followed import DOCUMENT_ID, FOLLOW_NS, FollowMode, FollowState, is_followed
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import NOOP, OplogEntry
from replset.optime import optime_document, timestamp
from replset.query.change_tokens import behind

log = logging.getLogger("replset.follow")

T = TypeVar("T")
TIMEOUT_S = 10.0
_MAJORITY = {"level": "majority"}
_OWN_ROWS = 100


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """What this set holds: its name, its newest entries, oldest first, and whether there are collections of clients."""

    set_name: str
    newest: Sequence[bytes]
    has_data: bool


class SourceSet:
    """A connection to the source's primary, found anew when it is gone."""

    def __init__(self, hosts: Sequence[str], set_name: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        """set_name: refuse another set; empty: take it from the first that answers. timeout_s: see WireClient."""
        self.hosts = list(hosts)
        self.set_name = set_name
        self._timeout_s = timeout_s
        self._client: WireClient | None = None

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run what blocks in a thread that the end of this process does not wait for: the source may not answer."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(set_it: Callable[..., None], value: object) -> None:
            if not done.done():
                set_it(value)

        def body() -> None:
            try:
                ended: tuple[Callable[..., None], object] = done.set_result, work(*args)
            except BaseException as error:
                ended = done.set_exception, error
            with suppress(RuntimeError):  # the loop is closed, nobody waits any more
                loop.call_soon_threadsafe(settle, *ended)

        threading.Thread(target=body, name="replset-follow", daemon=True).start()
        return await done

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def command(self, document: dict[str, object], database: str = "admin") -> RawDocument:
        """Ask the primary. ReplError: its refusal, or that there is none."""
        try:
            reply = self._connected().ask(database, document)
        except BaseException:
            self.close()
            raise
        if reply.get("ok") != 1:
            self.close()
            code = reply.get("code")
            raise ReplError(f"{self.set_name}: {reply.get('errmsg')}", code=code if isinstance(code, int) else 1)
        return reply

    def _connected(self) -> WireClient:
        if self._client is not None:
            return self._client
        reason, tried = "", list[str]()
        left = list(self.hosts)
        while left:
            host = left.pop(0)
            tried.append(host)
            try:
                client = WireClient(host, timeout_s=self._timeout_s, login=log_in_as_environment_says)
                hello = client.command("admin", {"hello": 1})
            except HostUnreachableError as error:
                reason = reason or error.message
                continue
            name = str(hello.get("setName", ""))
            if self.set_name and name != self.set_name:
                client.close()
                raise BadValueError(f"{host} is a member of {name or 'no set'}, not of {self.set_name}")
            self.set_name = name
            self.hosts = list(dict.fromkeys([*self.hosts, *map(str, hello.get("hosts", ()))]))
            if hello.get("isWritablePrimary"):
                self._client = client
                return client
            client.close()
            left += [one for one in self.hosts if one not in tried and one not in left]
        raise HostUnreachableError(reason or f"no member of {self.set_name} is primary")

    def find(self, ns: str, query: dict[str, object], limit: int, *, newest_first: bool = False) -> list[bytes]:
        """The first documents that match and are committed, as many as one answer holds."""
        database, _, name = ns.partition(".")
        command: dict[str, object] = {"find": name, "filter": query, "limit": limit, "readConcern": _MAJORITY}
        if newest_first:
            command["sort"] = {"$natural": -1}
        reply = self.command({**command, "singleBatch": True, "batchSize": limit}, database)
        cursor = RawDocument(reply.get_raw("cursor") or b"")
        raw = cursor.get_raw("firstBatch") or b""
        return [raw[start:end] for _, _, start, end in walk(raw)]

    # --- entries

    def entries_after(self, position: OpTime) -> list[bytes]:
        """Committed entries behind `position`. CappedPositionLostError: the source has no such entry any more."""
        raw = self.command({"replSetFollowEntries": optime_document(position)}).get_raw("entries") or b""
        return [raw[start:end] for _, _, start, end in walk(raw)]

    def has(self, entry: bytes) -> bool:
        """Whether the source has this very entry."""
        at = OplogEntry(entry).optime
        return self.find("local.oplog.rs", {"ts": timestamp(at.ts)}, 1) == [entry]

    def find_start(self, own: OwnHistory) -> OpTime:
        """Where in the source's history the data of this set is. BadValueError: nowhere, and why."""
        documents = self.find(FOLLOW_NS, {"_id": DOCUMENT_ID}, 1)
        theirs = FollowState.parse(decode(documents[0])) if documents else None
        entries = [OplogEntry(raw) for raw in own.newest]
        if theirs is not None and theirs.set_name == own.set_name and theirs.mode is FollowMode.STOPPED:
            beyond = [entry.optime for entry in entries if entry.optime > theirs.position and is_followed(entry)]
            if not beyond and any(entry.optime == theirs.position for entry in entries):
                return theirs.at
            what = f"{len(beyond)} entries or more are beyond that here, the first at {beyond[0]}" if beyond else ""
            raise BadValueError(
                f"{self.set_name} followed this set up to {theirs.position}; {what or 'that is not its newest entry'}:"
                " `replset follow --missing` lists what is, and then this set needs a new copy of the data"
            )
        for entry in reversed(entries[-_OWN_ROWS:]):
            if self.has(entry.raw):
                return entry.optime
            if is_followed(entry):
                raise BadValueError(
                    f"this set has an entry of its own at {entry.optime}, which {self.set_name} has not"
                )
        first = self.find("local.oplog.rs", {}, 1)
        begins = OplogEntry(first[0]) if first else None
        if not own.has_data and begins is not None and _is_beginning(begins):
            return begins.optime
        raise BadValueError(
            f"the data here is no copy of {self.set_name}'s: begin with a backup of it (`replset restore`), or with an"
            " empty set while the source's oplog reaches back to its beginning"
        )

    # --- the consumer, which keeps entries there until this set has them

    def keep_from(self, consumer: str, position: OpTime) -> None:
        """Let the source keep what is behind `position`, also if the consumer has been there, or was removed."""
        known = self._consumer(consumer)
        if known is None:
            self._create(consumer, position)
        elif str(known["position"]) > str(behind(position)):
            self.command({"replSetConsumerSeek": consumer, "to": {"_data": str(behind(position))}})

    def acknowledge(self, consumer: str, position: OpTime) -> None:
        """Let the source forget what is applied here for good. A consumer that somebody removed is made again."""
        known = self._consumer(consumer)
        if known is None:
            self._create(consumer, position)
            return
        token = {"_data": str(behind(position))}
        self.command({"replSetConsumerAck": consumer, "generation": known["generation"], "token": token})

    def _create(self, consumer: str, position: OpTime) -> None:
        log.info("%s makes consumer %s at %s", self.set_name, consumer, position)
        place = {"_data": str(behind(position))}
        self.command({"replSetConsumerCreate": consumer, "ns": "", "startAt": place})

    def _consumer(self, name: str) -> dict[str, Any] | None:
        """What the source knows of the consumer; None: there is none."""
        try:
            found: Any = self.command({"replSetConsumers": name}).get("consumers")
        except ReplError as error:
            if error.code != ErrorCode.CONSUMER_NOT_FOUND:
                raise
            return None
        consumer: dict[str, Any] = found[0]
        return consumer


def _is_beginning(entry: OplogEntry) -> bool:
    return entry.op == NOOP and entry.o.get("msg") == "initiating set" and entry.optime != OPTIME_NULL
