"""Makes a retryable write of a request with the header Idempotency-Key.

The key names a session and the rest of the request its one `txnNumber`: the same request finds its own answer, another
one under the same key is refused. A generated `_id` is made of both, so that a retry inserts the same documents.
"""

from __future__ import annotations

import hashlib

from replset.bson import Binary, Int64, ObjectId
from replset.commands.sessions import KEYED


class KeyedWrite:
    """One request under a key."""

    def __init__(self, key: bytes, action: str, data: bytes, user: str = "") -> None:
        """data: the body as it came. user: a key is his own; empty without a login."""
        session = hashlib.sha256(key if not user else b"\0".join((user.encode(), key))).digest()
        request = hashlib.sha256(b"\0".join((action.encode(), data))).digest()
        self._seed = session + request
        self._made = 0
        self.fields: dict[str, object] = {
            "lsid": {"id": Binary(session[:16], 4), "uid": KEYED},
            "txnNumber": Int64(int.from_bytes(request[:8], "big") >> 1),
        }

    def new_id(self) -> ObjectId:
        """Return the next `_id` that the request lacks: the same one at each retry."""
        self._made += 1
        return ObjectId(hashlib.sha256(self._seed + self._made.to_bytes(4, "big")).digest()[:12])
