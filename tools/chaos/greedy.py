"""Clients that send, ask for or compute more than one member can take. Each kind once stopped a member for seconds.

While one is at work another client pings, and the memory of the member is measured. The checker knows the limits.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from replset.client import WireClient
from replset.errors import ErrorCode, ReplError
from replset.local_set import HTTP_OFFSET, LocalMember
from tools.chaos.clients import DATABASE, GREEDY
from tools.chaos.context import FaultContext

FOR_S = 5.0
ELEMENTS = 1_350_000
"""Numbers in one array: with their names 16 MB."""
EXPORTED, PAD_BYTES = 40, 100_000
MAX_TIME_MS = 1_000
"""Of an expression that takes far longer."""


def pipeline(context: FaultContext) -> tuple[str, None]:
    """HTTP requests without a login, sent ahead without end; no answer is read."""
    return _crowd(context, "pipeline", HTTP_OFFSET, 60)


def flood(context: FaultContext) -> tuple[str, None]:
    """Small pings on the wire port, sent ahead without end; no answer is read."""
    return _crowd(context, "flood", 0, 200)


def half_messages(context: FaultContext) -> tuple[str, None]:
    """Messages of 60 kB that never end. Sets of these runs have no TLS, whose handshakes could be left half."""
    return _crowd(context, "part", 0, 700)


def unread_exports(context: FaultContext) -> tuple[str, None]:
    """Exports of a collection that nobody reads."""
    with _filled(context):
        return _crowd(context, "exports", HTTP_OFFSET, 200)


def large_batches(context: FaultContext) -> tuple[str, None]:
    """Finds of a collection in one batch each, again and again."""
    with _filled(context):
        return _crowd(context, "finds", 0, 200)


def large_statements(context: FaultContext) -> tuple[str, None]:
    """Filters and updates of hundreds of thousands of parts, several at once."""
    return _crowd(context, "statements", 0, 12)


def large_bodies(context: FaultContext) -> tuple[str, None]:
    """Filters of a million values as JSON, several at once."""
    return _crowd(context, "bodies", HTTP_OFFSET, 8)


def large_array(context: FaultContext) -> tuple[str, None]:
    """A document with an array of more than a million elements, where an index wants a key for each of them."""
    primary = context.the_primary()
    with _collection(primary) as client, _measured(context, primary, f"a large array is indexed by {primary.name}"):
        index = {"key": {"a": 1}, "name": "a"}
        client.command(DATABASE, {"createIndexes": GREEDY, "indexes": [index]})
        document = large_document()
        reply = client.ask(DATABASE, {"insert": GREEDY}, ("documents", [document]))
        client.command(DATABASE, {"dropIndexes": GREEDY, "index": "a"})
        client.ask(DATABASE, {"insert": GREEDY}, ("documents", [document]))
        client.command(DATABASE, {"createIndexes": GREEDY, "indexes": [index]})
    return f"a document of {len(document) >> 20} MiB under an index of {primary.name}: n {reply.get('n')}", None


def large_document() -> bytes:
    """Return BSON with an array `a` of ELEMENTS different numbers."""
    rows = b"".join(b"\x10%d\0%b" % (number, struct.pack("<i", number)) for number in range(ELEMENTS))
    body = b"\x10_id\0" + struct.pack("<i", 1) + b"\x04a\0" + struct.pack("<i", len(rows) + 5) + rows + b"\0"
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def slow_expression(context: FaultContext) -> tuple[str, None]:
    """An expression of nested loops with a time limit, three times at once."""
    primary = context.the_primary()
    loop: object = 1
    for name in ("a", "b", "c"):
        loop = {"$size": {"$map": {"input": {"$range": [0, 2_000]}, "as": name, "in": loop}}}
    command: dict[str, object] = {
        **{"aggregate": 1, "pipeline": [{"$documents": [{}]}, {"$project": {"n": loop}}]},
        **{"cursor": {}, "maxTimeMS": MAX_TIME_MS},
    }
    codes: list[object] = []

    def ask() -> None:
        with contextlib.suppress(ReplError):
            codes.append(primary.command(command, DATABASE, timeout_s=30).get("code"))

    with _measured(context, primary, f"slow expressions at {primary.name}"):
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # A fast machine reaches what one evaluation may allocate before its time is over.
    if set(codes) - {ErrorCode.MAX_TIME_EXPIRED, ErrorCode.EXCEEDED_MEMORY_LIMIT}:
        context.breach(f"{primary.name} answers expressions beyond their maxTimeMS with {codes}")
    return f"slow expressions at {primary.name}, answered with {codes}", None


def strings_by_a_collation(context: FaultContext) -> tuple[str, None]:
    """Runs of 260,000 combining marks, which ICU puts in order in quadratic time, and a string beyond the limit."""
    primary = context.the_primary()
    collation = {"locale": "vi", "normalization": True}
    replies = []
    with _collection(primary) as client, _measured(context, primary, f"strings by a collation at {primary.name}"):
        client.command(DATABASE, {"insert": GREEDY, "documents": [{"_id": 1, "a": "a"}]})
        for text in ("a" + "\u0316\u0301" * 130_000, "a" * 15_000_000):
            command = {"find": GREEDY, "filter": {"a": text}, "collation": collation}
            replies.append(client.command(DATABASE, command).get("code"))
    if replies != [None, ErrorCode.BAD_VALUE]:
        context.breach(f"{primary.name} answers strings by a collation with {replies}")
    return f"strings by a collation at {primary.name}, answered with {replies}", None


# --- how they work, and what is measured --------------------------------------------------------------------------


@contextlib.contextmanager
def _collection(primary: LocalMember) -> Iterator[WireClient]:
    """A client of the primary; at the end the collection is dropped."""
    with WireClient(primary.host, timeout_s=60) as client:
        try:
            yield client
        finally:
            with contextlib.suppress(ReplError):
                client.command(DATABASE, {"drop": GREEDY})


@contextlib.contextmanager
def _filled(context: FaultContext) -> Iterator[None]:
    with _collection(context.the_primary()) as client:
        for number in range(EXPORTED):
            document = {"_id": number, "pad": "x" * PAD_BYTES}
            client.command(DATABASE, {"insert": GREEDY, "documents": [document], "writeConcern": {"w": "majority"}})
        yield


def _crowd(context: FaultContext, kind: str, offset: int, count: int) -> tuple[str, None]:
    member = context.the_primary()
    with _measured(context, member, f"{kind} of {count} connections at {member.name}"):
        process = _start(kind, member.port + offset, count)
        try:
            opened = _line(process)
            time.sleep(FOR_S)
        finally:
            process.communicate(timeout=60)
    return f"{kind} of {opened} connections at {member.name}", None


@contextlib.contextmanager
def _measured(context: FaultContext, member: LocalMember, what: str) -> Iterator[None]:
    with context.attack(what) as row:
        pinging = _start("ping", member.port, member.pid)
        _line(pinging)
        memory, over = [0], threading.Event()
        watching = threading.Thread(target=_watch_memory, args=(member.pid, memory, over), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            found, _ = pinging.communicate(timeout=120)
        row.waited_s, row.memory_mb = float(found or "inf"), memory[0]


def _watch_memory(pid: int, most_mb: list[int], over: threading.Event) -> None:
    while not over.wait(0.05):
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            most_mb[0] = max(most_mb[0], pages * os.sysconf("SC_PAGE_SIZE") >> 20)


def _start(kind: str, port: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.chaos.crowd", kind, str(port), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
