"""Small questions to a server on loopback."""

from __future__ import annotations

import socket


def answers(port: int) -> bool:
    """Whether something takes connections on `port` of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
