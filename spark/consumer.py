"""The place of a stream in a named consumer of the set (docs/consumers.md): it begins there, and moves it on.

The checkpoint decides what a stream reads. The consumer has the set keep its oplog for the stream, shows how far it is,
and is where a stream without a checkpoint begins.
"""

from __future__ import annotations

import sys
from urllib.parse import quote

from replset.bson import from_ejson_value
from replset.client import HttpAnswerError, HttpClient
from replset.errors import BadValueError, ErrorCode, HostUnreachableError
from replset.ids import OpTime
from replset.optime import parse_optime
from replset.query.change_tokens import Token, behind
from replset.text import printable

TEMPORARY = 500
"""From this HTTP status on an acknowledgement may be tried again; the one of the next batch does."""


class ConsumerPlace:
    """Talks to one member, which forwards what only the primary answers. reader: a stream of the same name goes on."""

    def __init__(self, url: str, name: str, reader: str) -> None:
        self._client = HttpClient(url)
        self._name, self._reader = name, reader
        self._path = f"/v1/consumers/{quote(name, safe='')}"
        self._generation = 0

    def begin(self) -> OpTime:
        """Become the consumer's reader; the entry behind which the stream begins."""
        found = self._client.post(f"{self._path}/read", {"reader": self._reader, "maxEvents": 1})
        if "deliveries" in found:
            raise BadValueError(f"consumer {self._name} is shared: a stream needs an exclusive or a failover one")
        if not found["active"]:
            raise BadValueError(f"{found['holder']!r} reads consumer {self._name}")
        self._generation = int(found["generation"])
        return Token.parse(found["position"]).read_after

    def committed(self) -> OpTime:
        """The newest entry that no rollback takes back."""
        status = self._client.get("/v1/replset/status")
        return parse_optime(from_ejson_value(status["optimes"]["lastCommittedOpTime"]))

    def acknowledge(self, through: OpTime) -> None:
        """Move the consumer on. A member that cannot now is no error: the next batch's acknowledgement covers it."""
        try:
            self._acknowledge(through)
        except (HttpAnswerError, HostUnreachableError) as error:
            if isinstance(error, HttpAnswerError) and error.status < TEMPORARY:
                raise
            print(printable(f"oplog-spark: consumer {self._name} is moved on later: {error.message}"), file=sys.stderr)

    def _acknowledge(self, through: OpTime) -> None:
        token = str(behind(through))
        for attempt in range(2):
            if not self._generation:
                self.begin()
            try:
                self._client.post(f"{self._path}/ack", {"generation": self._generation, "token": token})
                return
            except HttpAnswerError as error:
                if error.code != ErrorCode.CONSUMER_MOVED or attempt:
                    raise
                self._generation = 0  # its position was set, or its reader had changed: the checkpoint goes on
