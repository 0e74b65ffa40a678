"""A running member's oplog over its HTTP API, a page at a time (`/v1/replset/oplog`, docs/http.md).

The pages of one read come from different moments, so each must follow from the one before by the hash chain: a member
that rolls back in between is noticed.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from replset.bson import InvalidBSONError, RawDocument, decode
from replset.client import http_connection, http_headers
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import next_chain
from spark.oplog import (
    ALL,
    Bounds,
    EntryFilter,
    OplogError,
    OplogTrimmedError,
    ReadPosition,
    Span,
    rolled_back_error,
    trimmed_error,
)
from spark.readers.pieces import InPieces, Piece, one_piece
from spark.readers.rows import Row, batch_of, batched, chosen, member_row

_PAGE_ROWS = 10_000
"""What a member gives at most; it gives less when it would be more than 8 MiB."""
_BATCH_ROWS = 2_048
_SAMPLE_ROWS = 100
_TIMEOUT_S = 30.0
_TRIMMED = 136


@dataclass(frozen=True, slots=True)
class LiveOplog(InPieces):
    """`url`: http://HOST:PORT of the member's HTTP API. pinned: the bounds to keep to."""

    name: str
    url: str
    pinned: Bounds | None = None

    def pin(self) -> LiveOplog:
        return self if self.pinned else replace(self, pinned=self.bounds())

    def bounds(self) -> Bounds:
        if self.pinned:
            return self.pinned
        with self._connect() as member:
            return member.bounds()

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        bounds = self.pinned
        if bounds:
            span = bounds.within(span)
        if span.first_ts >= span.end_ts:
            return
        with self._connect() as member:
            for page in member.read(span):
                for rows in batched(chosen(page, only), _BATCH_ROWS):
                    yield batch_of(rows, columns)
            if bounds:
                member.check(ReadPosition(bounds.newest, bounds.chain))

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        with self._connect() as member:
            return member.ahead(after, limit)

    def between(self, after: ReadPosition, end: ReadPosition) -> LiveOplog:
        first = OpTime(after.optime.term, after.optime.ts + 1)
        return replace(self, pinned=Bounds(first, end.optime, chain=end.chain))

    def _pieces(self) -> list[Piece]:
        return one_piece(self.bounds())

    @contextmanager
    def _connect(self) -> Iterator[_Member]:
        parts = urlsplit(self.url)
        connection = http_connection(self.url, _TIMEOUT_S)
        try:
            yield _Member(self.name, connection)
        except TimeoutError as error:
            raise OplogError(self.name, f"the member did not answer within {_TIMEOUT_S:g} s") from error
        except socket.gaierror as error:
            raise OplogError(self.name, f"there is no host {parts.hostname}: {error}") from error
        except ConnectionRefusedError as error:
            raise OplogError(self.name, f"nobody answers at {self.url}") from error
        except http.client.BadStatusLine as error:
            gone = isinstance(error, http.client.RemoteDisconnected)
            reason = "the member went away while it was read" if gone else f"{self.url} does not speak HTTP"
            raise OplogError(self.name, reason) from error
        except ssl.SSLError as error:
            raise OplogError(self.name, f"no TLS connection to {self.url}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise OplogError(self.name, f"the member went away while it was read: {error}") from error
        except (InvalidBSONError, ValueError, LookupError) as error:
            raise OplogError(self.name, f"{self.url} answers what is no oplog: {error}") from error
        finally:
            connection.close()


class _Info(NamedTuple):
    """OPTIME_NULL of an empty oplog. size: of all entries, in bytes."""

    first: OpTime
    last: OpTime
    size: int


class _Page(NamedTuple):
    """documents: rows, not parsed yet. more: there is another page behind them."""

    documents: list[RawDocument]
    more: bool


class _Member:
    """One connection, kept for several questions."""

    def __init__(self, name: str, connection: http.client.HTTPConnection) -> None:
        self._name, self._connection = name, connection

    def bounds(self) -> Bounds:
        try:
            return self._bounds()
        except OplogTrimmedError:  # between two questions
            return self._bounds()

    def _bounds(self) -> Bounds:
        oldest, last, size = self._info()
        if last == OPTIME_NULL:
            return Bounds()
        sample = self._page(OpTime(0, oldest.ts - 1), _SAMPLE_ROWS).documents
        newest = self._page(OpTime(0, last.ts - 1), 1).documents
        if not sample or not newest:
            raise rolled_back_error(self._name, last)
        row = member_row(newest[0])
        mean = sum(len(document.get_raw("entry") or b"") for document in sample) / len(sample)
        whole = len(sample) if len(sample) < _SAMPLE_ROWS else round(size / mean)
        return Bounds(oldest, OpTime(row.term, row.ts), whole, chain=row.chain)

    def read(self, span: Span) -> Iterator[list[Row]]:
        """The rows of the span, page by page."""
        after = OpTime(0, max(0, span.first_ts - 1))
        before: Row | None = None
        while True:
            documents, more = self._page(after, _PAGE_ROWS)
            rows = [member_row(document) for document in documents]
            if rows and before and rows[0].chain != next_chain(before.chain or 0, rows[0].hash):
                raise rolled_back_error(self._name, OpTime(before.term, before.ts))
            yield [row for row in rows if row.ts < span.end_ts]
            if not rows or not more or rows[-1].ts >= span.end_ts:
                return
            before = rows[-1]
            after = OpTime(before.term, before.ts)

    def check(self, mark: ReadPosition) -> None:
        """That this entry is still there, on the same history."""
        if mark.chain is not None:
            found = self._page(OpTime(0, mark.optime.ts - 1), 1).documents
            if not found or _mark(found[0]) != mark:
                raise rolled_back_error(self._name, mark.optime)

    def ahead(self, after: ReadPosition, limit: int) -> ReadPosition:
        """The entry `limit` behind this one, or the newest. Whole pages are asked for: only they show where it is."""
        with suppress(OplogTrimmedError):  # the entry itself may be gone, if nothing behind it is
            self.check(after)
        reached, left = after, limit
        while left > 0:
            documents, more = self._page(reached.optime, min(left, _PAGE_ROWS))
            if documents:
                reached = _mark(documents[-1])
                left -= len(documents)
            if not more:
                break
        return reached

    def _page(self, after: OpTime, limit: int) -> _Page:
        asked = {"limit": str(limit), **({"after": str(after)} if after.ts > 0 else {})}
        data, headers = self._ask("/v1/replset/oplog", asked, "application/bson")
        documents, start = [], 0
        while start < len(data):
            end = start + int.from_bytes(data[start : start + 4], "little")
            documents.append(RawDocument(data[start:end]))
            start = end
        return _Page(documents, headers.get("x-replset-next") is not None)

    def _ask(self, path: str, query: dict[str, str], accept: str) -> tuple[bytes, http.client.HTTPMessage]:
        self._connection.request("GET", f"{path}?{urlencode(query)}", headers=http_headers(accept=accept))
        response = self._connection.getresponse()
        data = response.read()
        if response.status == 200:
            return data, response.headers
        code, reason = _failure(data, response)
        if code == _TRIMMED:
            raise trimmed_error(self._name, self._info().first.ts - 1)
        raise OplogError(self._name, reason)

    def _info(self) -> _Info:
        info = json.loads(self._ask("/v1/replset/oplog/info", {}, "application/json")[0])
        if not isinstance(info, dict) or not isinstance(info["bytes"], int):
            raise ValueError("it does not report how large its oplog is")
        first, last = (OpTime.parse(str(info[end])) if info[end] else OPTIME_NULL for end in ("first", "last"))
        return _Info(first, last, info["bytes"])


def _mark(document: RawDocument) -> ReadPosition:
    row = member_row(document)
    return ReadPosition(OpTime(row.term, row.ts), row.chain)


def _failure(data: bytes, response: http.client.HTTPResponse) -> tuple[int, str]:
    """MongoDB's error code, 0 where there is none, and the member's message."""
    try:
        is_bson = response.headers.get_content_type() == "application/bson"
        body: dict[str, Any] = decode(data) if is_bson else json.loads(data)
        return int(body["code"]), f"the member answers {response.status}: {body['errmsg']}"
    except (InvalidBSONError, ValueError, TypeError, LookupError):
        return 0, f"what answers there ({response.status} {response.reason}) is no member's HTTP API"
