"""`python -m tools.chaos.crowd KIND PORT COUNT` opens connections, prints how many, closes them when stdin ends.

idle: nothing is sent. half: the head of an HTTP request that never ends. part: a message of the wire port that never
ends. pipeline, flood: HTTP requests, or pings of the wire port, as many as are taken, and no answer is read.
exports: each asks over HTTP for all documents of the collection GREEDY and reads nothing. finds: each asks on the wire
port for all of them in one batch and for one entry of the oplog, again and again, reads what comes, and leaves the
cursors open. statements, bodies: each sends one command of 5 to 10 MB, with a million values, branches or fields.

`ping PORT PID` pings as any client does. At the end it prints the longest time that an answer took, in seconds of CPU
that the process PID used meanwhile: on a busy machine every answer takes long, and that is not the member's fault.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from replset.bson import encode
from replset.wire.framing import encode_msg
from tools.chaos.clients import DATABASE, GREEDY

PING: Final = encode_msg(1, 0, encode({"ping": 1, "$db": "admin"}))
GET: Final = b"GET / HTTP/1.1\r\nHost:\r\n\r\n"
ALL_OF_IT: Final = json.dumps({"database": DATABASE, "collection": GREEDY}).encode()
EXPORT: Final = (
    b"POST /v1/action/find HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/x-ndjson\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ALL_OF_IT), ALL_OF_IT)
)
FINDS: Final = (
    {"find": GREEDY, "batchSize": 100_000, "$db": DATABASE},
    {"find": "oplog.rs", "batchSize": 1, "$db": "local"},
)
SENT: Final = {
    "idle": b"",
    "half": b"POST /v1/action/insertOne HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le",
    "part": encode_msg(1, 0, bytes(63_000))[:60_000],
    "pipeline": GET * (250_000 // len(GET)),
    "flood": PING * (250_000 // len(PING)),
    "exports": EXPORT,
    "finds": b"".join(encode_msg(1, 0, encode(find)) for find in FINDS),
}
STATEMENTS: Final = ("values", "branches", "fields", "set")
AGAIN: Final = frozenset({"pipeline", "flood", "finds"})
READS: Final = frozenset({"finds"})
READ_BYTES: Final = 4096
PAUSE_S: Final = 0.02


def main() -> None:
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "ping":
        ping(port, pid=count)
        return
    sent = messages(kind)
    held: list[socket.socket] = []
    left: list[bytes] = []
    for number in range(count):
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=2)
        except OSError:
            break
        if kind not in READS:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
        connection.setblocking(False)
        held.append(connection)
        left.append(sent[number % len(sent)])
    print(len(held), flush=True)
    while not is_over():
        for number, connection in enumerate(held):
            if kind in READS:
                drain(connection)
            try:
                while left[number]:
                    left[number] = left[number][connection.send(left[number]) :]
            except OSError:  # its buffers are full, or the member has closed it
                continue
            if kind in AGAIN:
                left[number] = SENT[kind]
        time.sleep(PAUSE_S)
    for connection in held:
        connection.close()


def messages(kind: str) -> list[bytes]:
    """Return what the connections send, in turn."""
    if kind == "statements":
        return list(map(statement, STATEMENTS))
    return [body() if kind == "bodies" else SENT[kind]]


def statement(kind: str) -> bytes:
    """Return a message of the wire port with a large statement."""
    numbers = range(600_000)
    command: dict[str, object] = {"find": GREEDY}
    match kind:
        case "values":
            command["filter"] = {"a": {"$in": list(numbers)}}
        case "branches":
            command["filter"] = {"$or": [{"a": number, "b": 1} for number in numbers[:300_000]]}
        case "fields":
            command |= dict.fromkeys(map(str, numbers))
        case _:
            update = {"q": {}, "u": {"$set": dict.fromkeys(map(str, numbers), 1)}}
            command = {"update": GREEDY, "updates": [update]}
    return encode_msg(1, 0, encode({**command, "$db": DATABASE}))


def body() -> bytes:
    """Return an HTTP request with a large filter."""
    found = json.dumps({"database": DATABASE, "collection": GREEDY, "filter": {"a": {"$in": list(range(1_000_000))}}})
    head = "POST /v1/action/find HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length:"
    return f"{head} {len(found)}\r\n\r\n{found}".encode()


def drain(connection: socket.socket) -> None:
    """Read what has come."""
    with suppress(OSError):
        while len(connection.recv(1 << 20)) >= READ_BYTES:
            pass


def ping(port: int, pid: int) -> None:
    """Connect again where the connection is closed: that of a client which is idle makes room for a new one."""
    longest_s = 0.0
    connection: socket.socket | None = None
    print(1, flush=True)
    while not is_over():
        before_s = cpu_s(pid)
        try:
            connection = connection or socket.create_connection(("127.0.0.1", port), timeout=60)
            connection.sendall(PING)
            head = connection.recv(4, socket.MSG_WAITALL)
            connection.recv(int.from_bytes(head, "little") - 4, socket.MSG_WAITALL)
        except (OSError, ValueError):  # closed
            connection = None
        longest_s = max(longest_s, cpu_s(pid) - before_s)
        time.sleep(PAUSE_S)
    print(f"{longest_s:.3f}", flush=True)


def cpu_s(pid: int) -> float:
    """Return how many seconds of CPU the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_over() -> bool:
    """Whether stdin has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    main()
