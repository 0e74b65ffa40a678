"""insert: documents are checked and get an `_id` before the group commit opens; inside it they are only written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct

from replset.auth.roles import Action
from replset.bson import MAX_BSON_SIZE, InvalidBSONError, RawDocument, decode, encode_key, validate, walk
from replset.bson.decoding import read_value
from replset.bson.keystring import encode_key_of
from replset.errors import (
    BadValueError,
    DocumentHeldError,
    DuplicateKeyError,
    ErrorCode,
    ReplError,
)
from replset.features.crud.retryable import Executed
from replset.features.crud.scan import pause
from replset.features.crud.validators import Validator
from replset.features.crud.write_batch import (
    GROUP_BYTES,
    GROUP_MS,
    GROUP_STATEMENTS,
    LEAST_BYTES,
    TURN_BYTES,
    Batch,
    read_statements,
    run_batch,
)
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext, PreparedInsert, Where
from replset.operations.evaluation import SMALL_STATEMENT, TimeSlice, is_small, run_in_thread
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.query.regex import begin_time_slice
from replset.replication.write_ops import WriteGroup, do_insert, do_inserts
from replset.storage import indexes
from replset.storage.catalog import Collection

KEEP_TIMESTAMPS = "bypassEmptyTsReplacement"
_ID_FIRST = b"_id\0"
_OBJECT_ID = 0x07
_NO_ID = frozenset({0x04, 0x06, 0x0B})  # array, undefined, regular expression
_ID_NAMES = {0x04: "an array", 0x06: "undefined", 0x0B: "a regular expression"}
_ZERO_TIMESTAMP = bytes(8)
_TIMESTAMP = b"\x11"  # its type: text does not have this byte, and numbers that end in zeros rarely
_int32 = Struct("<i").pack


def prepare(doc: bytes, member: Kernel, keep_timestamps: bool = False) -> tuple[bytes, bytes]:
    """(key, document) ready to be stored: validated, `_id` first and of a type that can be one.

    keep_timestamps: an empty one in the top level stays empty (bypassEmptyTsReplacement).
    Raises 10334 (over 16 MiB), 22 (malformed or too deep), 53 and 52 (an `_id` that cannot be).
    """
    if len(doc) > MAX_BSON_SIZE:
        raise BadValueError(
            f"object to insert too large. size in bytes: {len(doc)}, max size: {MAX_BSON_SIZE}",
            code=ErrorCode.DOCUMENT_TOO_LARGE,
        )
    validate(doc)
    if _ZERO_TIMESTAMP in doc and _TIMESTAMP in doc and not keep_timestamps:
        doc = _with_timestamps(doc, member)
    if doc[5:9] != _ID_FIRST:
        doc = _with_id_first(doc, member)
    kind = doc[4]
    if kind == _OBJECT_ID:
        return encode_key_of(doc, kind, 9, len(doc) - 1), doc
    value = read_value(doc, kind, 9, len(doc) - 1)
    if kind in _NO_ID:
        raise ReplError(f"The '_id' value cannot be of type {_ID_NAMES[kind]}", code=ErrorCode.INVALID_ID_FIELD)
    if kind == 0x03:
        check_id_document(value)
    return encode_key(value), doc


def check_id_document(value: object) -> None:
    """An `_id` that is a document has no names that begin with $ (52)."""
    for name in value if isinstance(value, dict) else ():
        if name.startswith("$"):
            raise ReplError(
                f"_id fields may not contain '$'-prefixed fields: {name:.80} is not valid for storage.",
                code=ErrorCode.DOLLAR_PREFIXED_FIELD_NAME,
            )


def _with_id_first(doc: bytes, member: Kernel) -> bytes:
    """Return the document with its `_id` first; it gets a new `_id` if it has none."""
    front = b""
    rest: list[bytes] = []
    start = 4
    for name, _, _, end in walk(doc):
        if name == "_id" and not front:
            front = doc[start:end]
        else:
            rest.append(doc[start:end])
        start = end
    if not front:
        front = b"\x07_id\0" + member.new_id().binary
    body = b"".join((front, *rest))
    if len(body) + 5 > MAX_BSON_SIZE:
        raise BadValueError(
            f"object to insert too large with its _id: {len(body) + 5} bytes", code=ErrorCode.DOCUMENT_TOO_LARGE
        )
    return b"".join((_int32(len(body) + 5), body, b"\0"))


def _with_timestamps(doc: bytes, member: Kernel) -> bytes:
    """Replace Timestamp(0, 0) in the top level, except in `_id`, by the present time, as in MongoDB."""
    changed = bytearray(doc)
    seconds = (member.clock.wall_ms() // 1000).to_bytes(4, "little")
    increment = 0
    for name, kind, start, end in walk(doc):
        if kind == 0x11 and name != "_id" and doc[start:end] == _ZERO_TIMESTAMP:
            increment += 1
            changed[start:end] = increment.to_bytes(4, "little") + seconds
    return bytes(changed)


def duplicate_key(coll: Collection, value: object) -> DuplicateKeyError:
    """MongoDB's 11000 for the index on `_id`."""
    return indexes.duplicate_key(coll.ns, indexes.ID_INDEX, {"_id": 1}, {"_id": value}, coll.fold)


Ready = tuple[bytes, bytes] | ReplError
"""A document's key and bytes, or why it cannot be stored."""


async def prepare_all(ctx: CommandContext, documents: Sequence[RawDocument], ordered: bool) -> list[Ready]:
    """Prepare the documents in order, up to the first that cannot be where the order counts. Gives others a turn."""
    ready: list[Ready] = []
    member = ctx.member
    keep_timestamps = fields.boolean(ctx.body, KEEP_TIMESTAMPS, ctx.name)
    size = 0  # since the last turn
    for document in documents:
        raw = document.raw
        if size > TURN_BYTES:
            await pause(ctx)
            size = 0
        size += len(raw) + LEAST_BYTES
        try:
            if len(raw) <= SMALL_STATEMENT:
                ready.append(prepare(raw, member, keep_timestamps))
            else:
                ready.append(await run_in_thread(member, partial(prepare, raw, member, keep_timestamps)))
        except InvalidBSONError:
            raise
        except ReplError as error:
            ready.append(error)
            if ordered:
                break
    return ready


class InsertBatch(Batch):
    """The documents of one insert command."""

    def __init__(self, ctx: CommandContext, size: int, ns: str | None = None) -> None:
        super().__init__(ctx, size, ns)
        self.ready: list[Ready] = []
        self.validator: Validator | None = None
        self.verdicts: dict[int, ReplError | None] = {}
        """What the validator said of documents, by index."""

    def run(self, group: WriteGroup) -> None:
        coll = None
        time_slice = None if self.size == 1 else TimeSlice(self.ctx.member.clock, GROUP_MS)
        last = min(self.size, self.index + GROUP_STATEMENTS)
        size = self._insert_at_once(group, last)
        while self.index < last and size < GROUP_BYTES and not self.stopped:
            if time_slice is not None and time_slice.is_over():
                return
            if self.retry is not None and self.was_executed():
                continue
            ready = self.ready[self.index]
            if isinstance(ready, ReplError):
                self.failed(ready)
                continue
            key, doc = ready
            try:
                if coll is None:
                    coll = self.collection(group)
                    self._use(self.validator_of(coll))
                refusal: ReplError | None = None
                if self.validator is not None:
                    refusal = self._refusal_of(self.validator, doc)
                    if self.thread_work is not None:
                        return
                written: OpTime | None = None if refusal else do_insert(group, coll, key, doc)
            except DocumentHeldError as held:
                self.blocked_by = held.place
                return
            except indexes.REFUSALS as error:
                refusal = error
            if refusal is not None:
                self.failed(refusal)
                continue
            if written is None and coll is not None:
                self.failed(duplicate_key(coll, read_value(doc, doc[4], 9, len(doc) - 1)))
                continue
            size += len(doc)
            self.n += 1
            self.index += 1

    def _insert_at_once(self, group: WriteGroup, last: int) -> int:
        """Insert the documents from `index` to before `last` in one piece, if none of them needs a look.

        It stops before one that is there already, or that cannot be stored. Returns the bytes of those inserted.
        """
        coll = group.txn.catalog.by_ns.get(self.ns)
        if coll is None or last - self.index < 2 or self.ctx.transaction is not None or self.validator_of(coll):
            return 0
        statements: Sequence[int] = () if self.retry is None else self.retry.untried(self.index, last)
        if self.retry is not None and not statements:
            return 0
        size = 0
        documents: list[tuple[bytes, bytes]] = []
        for ready in self.ready[self.index : last]:
            if isinstance(ready, ReplError) or size >= GROUP_BYTES:
                break
            documents.append(ready)
            size += len(ready[1])
        done = do_inserts(group, coll, documents, statements[: len(documents)])
        self.n += done
        self.index += done
        return sum([len(doc) for _, doc in documents[:done]])

    def _use(self, validator: Validator | None) -> None:
        if validator is not None:
            begin_time_slice()
        if validator != self.validator:
            self.validator, self.verdicts = validator, {}

    def _refusal_of(self, validator: Validator, doc: bytes) -> ReplError | None:
        """What the validator says of the document at `index`; None also when the thread must look first."""
        if self.index not in self.verdicts:
            if not is_small(validator.weight, len(doc)):
                self.thread_work = partial(self._validate_some, validator)
                return None
            self.verdicts[self.index] = _verdict(validator, doc)
        return self.verdicts[self.index]

    def _validate_some(self, validator: Validator) -> None:
        """Validate the next documents, in the thread."""
        time_slice = TimeSlice(self.ctx.member.clock)
        for index in range(self.index, len(self.ready)):
            ready = self.ready[index]
            if not isinstance(ready, ReplError):
                self.verdicts[index] = _verdict(validator, ready[1])
            if time_slice.is_over():
                return

    def answer(self, executed: Executed) -> None:
        self.n += 1

    def counters(self) -> tuple[tuple[str, int], ...]:
        return (("n", self.n),)


def _verdict(validator: Validator, doc: bytes) -> ReplError | None:
    """Why the document is not valid, None when it is."""
    try:
        validator.check(decode(doc))
    except ReplError as error:
        return error
    return None


async def insert(ctx: CommandContext) -> Reply:
    """Insert documents; the collection is created when it is not there."""
    documents = await read_statements(ctx, "documents")
    batch = InsertBatch(ctx, len(documents))
    batch.ready = await prepare_all(ctx, documents, batch.ordered)
    return await run_batch(batch)


def insert_work(document: bytes, member: Kernel) -> PreparedInsert:
    """Return the insert of a document. ReplError: it cannot be stored."""
    return PreparedInsert(*prepare(document, member))


COMMANDS: tuple[Command, ...] = (
    Command(
        "insert",
        insert,
        frozenset({"documents", "ordered", "bypassDocumentValidation", KEEP_TIMESTAMPS}),
        where=Where.PRIMARY,
        write_concern=True,
        retryable=True,
        prepared=insert_work,
        needs=Action.INSERT,
    ),
)
