"""`python -m tools.chaos.crowd idle|half PORT COUNT` opens connections, prints how many, closes them when stdin ends.

idle: nothing is sent. half: the head of an HTTP request that never ends.
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    held: list[socket.socket] = []
    for _ in range(count):
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=2)
            if kind == "half":
                connection.sendall(b"POST /v1/action/insertOne HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
        except OSError:
            break
        held.append(connection)
    print(len(held), flush=True)
    sys.stdin.read()
    for connection in held:
        connection.close()


if __name__ == "__main__":
    main()
