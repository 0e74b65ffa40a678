"""Makes a retryable write of a request with the header Idempotency-Key.

The key names a session and the rest of the request its `txnNumber`: the same request finds its own answer, another one
under the same key is refused. A request of several commands has a session for each. A generated `_id` is made of key
and request, so that a retry inserts the same documents.
"""

from __future__ import annotations

import hashlib

from replset.bson import Binary, Int64, ObjectId
from replset.operations.session_request import KEYED


class KeyedWrite:
    """One request under a key."""

    def __init__(self, key: bytes, action: str, data: bytes, user: str = "") -> None:
        """data: the body as it came. user: a key is his own; empty without a login."""
        session = hashlib.sha256(key if not user else b"\0".join((user.encode(), key))).digest()
        request = hashlib.sha256(b"\0".join((action.encode(), data))).digest()
        self._id_begin = hashlib.sha256(session + request).digest()
        self._made = 0
        self._session = session
        self._number = Int64(int.from_bytes(request[:8], "big") >> 1)

    def fields_of(self, part: int) -> dict[str, object]:
        """Return the fields of one command of the request. part: its number; each command has a session of its own."""
        session = hashlib.sha256(self._session + part.to_bytes(4, "big")).digest() if part else self._session
        return {"lsid": {"id": Binary(session[:16], 4), "uid": KEYED}, "txnNumber": self._number}

    def new_id(self) -> ObjectId:
        """Return the next `_id` that the request lacks: the same one at each retry, so its first bytes are no time.

        Those of one request rise.
        """
        self._made += 1
        return ObjectId(self._id_begin[:9] + self._made.to_bytes(3, "big"))
