"""applyOps: carries out operations as they stand in an oplog, each as a normal write with an entry of its own.

`mongorestore --oplogReplay` sends what happened while the dump was made, once more. So an operation that is done
already is no error: an insert replaces, a delete or a change by difference passes over a document that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from replset.auth.roles import Action
from replset.auth.users import USERS_NS
from replset.bson import Binary, DateTime, RawDocument, decode, encode, encode_key, walk
from replset.errors import (
    BadValueError,
    DocumentHeldError,
    ErrorCode,
    FailedToParseError,
    InvalidOptionsError,
    NamespaceNotFoundError,
    NotBuiltError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    ReplError,
    StorageError,
)
from replset.features.collections.collection_changes import coll_mod_of, rename, whole_namespace
from replset.features.collections.collection_options import CREATE_FIELDS, options_of
from replset.features.collections.collections import create_in
from replset.features.crud.insert import duplicate_key, prepare
from replset.features.crud.validators import validator_of
from replset.features.crud.write_batch import GROUP_MS, GROUP_STATEMENTS
from replset.ids import OPTIME_NULL
from replset.operations import fields
from replset.operations.collations import refuse_newer
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import SMALL_STATEMENT, TimeSlice, read_statement, run_in_thread
from replset.operations.known_fields import KNOWN
from replset.operations.namespaces import check_database, droppable_database, refuse_view, writable_namespace
from replset.operations.replies import LargeReply
from replset.operations.request import Reply
from replset.operations.transactions import TransactionTable
from replset.operations.write_concern import SETTINGS_NS, wait_for_write_concern, write_concern_of
from replset.optime import timestamp
from replset.query.diff import apply_update_bytes
from replset.query.update import compile_update
from replset.replication.held_keys import Place
from replset.replication.write_ops import (
    WriteGroup,
    do_delete,
    do_drop,
    do_drop_database,
    do_insert,
    do_update,
    update_object,
)
from replset.storage.catalog import Collection

T = TypeVar("T")
MOST_NESTED = 10
MOST_OPERATIONS = 100_000
"""How many operations there may be: as many as a write has statements."""
OF_EACH_SET = frozenset({SETTINGS_NS, USERS_NS})
"""What is in the oplog of a dump, and each set has for itself: it is passed over. Else a restore would end there."""
_DONE_ALREADY = {
    "create": (ErrorCode.NAMESPACE_EXISTS,),
    "collMod": (ErrorCode.NAMESPACE_NOT_FOUND, ErrorCode.INDEX_NOT_FOUND),
    "renameCollection": (ErrorCode.NAMESPACE_NOT_FOUND, ErrorCode.NAMESPACE_EXISTS),
}
"""Errors that mean that a command was carried out before, as in MongoDB."""


class Made(NamedTuple):
    """The document that an operation leaves, and the `o` of an update's entry: None for one that changes nothing."""

    key: bytes
    after: bytes
    o: bytes | None


@dataclass(slots=True)
class Operation:
    """One operation of the list. ui: the UUID of its collection, if it is given.

    evaluated: what the thread made of it, and of which document. parsed: what was made of a command.
    """

    op: str
    ns: str
    o: RawDocument
    o2: RawDocument | None
    ui: bytes | None
    upsert: bool
    evaluated: tuple[bytes | None, Made | ReplError] | None = None
    parsed: object = None

    @property
    def target(self) -> str:
        """The namespace that it names: of its document, or of the collection of its command."""
        name = self.o.get(self.o.first_key or "") if self.op == "c" else None
        return f"{self.ns.partition('.')[0]}.{name}" if isinstance(name, str) else self.ns

    @property
    def is_replacement(self) -> bool:
        return not (self.o.first_key or "").startswith("$")


def operations_of(raw: bytes, upsert: bool, depth: int = 0) -> Iterator[Operation]:
    """The operations of an array, those of applyOps commands within it included. FailedToParseError."""
    if depth > MOST_NESTED:
        raise FailedToParseError("Too many nested applyOps")
    for name, kind, start, end in walk(raw):
        if kind != 3:
            raise fields.wrong_type("applyOps", name, kind, "object")
        body = RawDocument(raw[start:end])
        op, ns = fields.text(body, "op", "applyOps.op"), fields.text(body, "ns", "applyOps.ns", "")
        o = fields.document(body, "o", "applyOps")
        if o is None:
            raise fields.missing("applyOps", "o")
        if op == "c" and o.first_key == "applyOps":
            yield from operations_of(o.get_raw("applyOps") or b"", upsert, depth + 1)
            continue
        yield Operation(
            op,
            ns,
            o,
            fields.document(body, "o2", "applyOps"),
            _uuid(body),
            upsert or fields.boolean(body, "b", "applyOps"),
        )


class ApplyOps:
    """The operations of one command and how far they are; called in one group after the other."""

    def __init__(self, ctx: CommandContext, operations: Sequence[Operation], validates: bool) -> None:
        self.ctx = ctx
        self.operations = operations
        self.validates = validates
        self.index = 0
        self.optime = OPTIME_NULL
        self.term = 0
        self.failure: ReplError | None = None
        self.thread_work: Callable[[], None] | None = None
        self.blocked_by: Place | None = None
        """The document of a transaction at which the last group had to stop."""

    def __call__(self, group: WriteGroup) -> bool:
        """Go on in this group; True once all is done or one failed. Raises 10107 in a later term than before."""
        if self.term not in (0, group.term):
            raise NotWritablePrimaryError()
        self.term, self.thread_work, self.blocked_by = group.term, None, None
        time_slice = TimeSlice(self.ctx.member.clock, GROUP_MS)
        last = min(len(self.operations), self.index + GROUP_STATEMENTS)
        while self.index < last and not time_slice.is_over():
            mark = group.txn.mark()
            try:
                self._apply(group, self.operations[self.index])
            except (StorageError, OutOfDiskSpaceError):
                raise
            except DocumentHeldError as held:
                group.txn.revert_to(mark)
                self.blocked_by = held.place
                break
            except ReplError as error:
                group.txn.revert_to(mark)
                self.failure = error
                break
            if self.thread_work is not None:
                break
            self.index += 1
        self.optime = group.txn.last
        return self.failure is not None or self.index == len(self.operations)

    def _apply(self, group: WriteGroup, one: Operation) -> None:
        """Carry one operation out, or set `thread_work` when the thread has to evaluate it first."""
        if one.target in OF_EACH_SET:
            return
        match one.op:
            case "i" | "u":
                self._write(group, one)
            case "d":
                coll, key = self._collection(group, one), _key(one.o)
                before = None if coll is None else group.txn.get(coll, key)
                if coll is not None and before is not None:
                    do_delete(group, coll, key, before)
            case "c":
                self._command(group, one)
            case "n":
                pass
            case _:
                raise FailedToParseError(f"applyOps: invalid op type {one.op!r:.20}")

    def _collection(self, group: WriteGroup, one: Operation) -> Collection | None:
        """By UUID, else by name: a collection may have another UUID here (see `_on_collection`).

        The namespace of what is found is checked too (73, 13). The member's own collections have UUIDs, which
        listCollections shows; beside one of them, the name of any other collection may stand.
        """
        ns = writable_namespace(*_split(one.ns))
        coll = None if one.ui is None else group.txn.catalog.by_uuid.get(one.ui)
        if coll is None or coll.dropped_ts is not None:
            return group.txn.catalog.by_ns.get(ns)
        writable_namespace(*_split(coll.ns))
        return coll

    def _write(self, group: WriteGroup, one: Operation) -> None:
        """An insert or an update."""
        coll = self._collection(group, one)
        if coll is None:
            raise NamespaceNotFoundError(f"applyOps: no collection {one.ns} for an insert or update")
        refuse_view(coll)
        about = one.o if one.op == "i" else one.o2
        if about is None:
            raise fields.missing("applyOps", "o2")
        key = _key(about)
        before = group.txn.get(coll, key)
        if before is None and one.op == "u" and not (one.upsert and one.is_replacement):
            return
        made = self._made(coll, one, before)
        if made is None:
            return
        if made.key != key:
            raise ReplError("applyOps: an update must not change the _id", code=ErrorCode.IMMUTABLE_FIELD)
        if before is None:
            if do_insert(group, coll, key, made.after) is None:
                raise duplicate_key(coll, about.get("_id"))
        elif made.o is not None:
            do_update(group, coll, key, before, made.after, made.o)

    def _made(self, coll: Collection, one: Operation, before: bytes | None) -> Made | None:
        """What the operation makes of the document; None: the thread has to evaluate it."""
        if one.evaluated is not None and one.evaluated[0] == before:
            made = one.evaluated[1]
            if isinstance(made, ReplError):
                raise made
            return made
        if max(len(one.o.raw), len(before or b"")) <= SMALL_STATEMENT and not coll.has_validator:
            return self._evaluate(coll, one, before)

        def work() -> None:
            try:
                one.evaluated = before, self._evaluate(coll, one, before)
            except ReplError as error:
                one.evaluated = before, error

        self.thread_work = work
        return None

    def _evaluate(self, coll: Collection, one: Operation, before: bytes | None) -> Made:
        key, after = prepare(changed(before, one), self.ctx.member, keep_timestamps=True)
        was = None if before is None else decode(before)
        o = None if was is None else update_object(was, decode(after), after)
        validator = validator_of(coll, self.ctx.member) if self.validates else None
        if validator is not None and after != before:
            validator.check(decode(after), was)
        return Made(key, after, o)

    def _command(self, group: WriteGroup, one: Operation) -> None:
        name = one.o.first_key or ""
        database = check_database(one.ns.partition(".")[0])
        try:
            match name:
                case "create" | "drop" | "collMod":
                    self._on_collection(group, name, one, writable_namespace(database, fields.text(one.o, name, name)))
                case "dropDatabase":
                    droppable_database(database)
                    do_drop_database(group, database)
                case "renameCollection":
                    self._rename(group, one)
                case _:
                    raise NotBuiltError(f"applyOps with the command {name:.80} is not built yet")
        except ReplError as error:
            if error.code not in _DONE_ALREADY.get(name, ()):
                raise

    def _on_collection(self, group: WriteGroup, name: str, one: Operation, ns: str) -> None:
        by_ns = group.txn.catalog.by_ns
        if name == "create":
            fields.check_fields(one.o, CREATE_FIELDS | {name}, name)
            if ns not in by_ns:
                # A dropped collection keeps its UUID until its documents are removed.
                known = one.ui is not None and one.ui in group.txn.catalog.by_uuid
                options = self._parsed(one, partial(options_of, one.o, name))
                if options is not None:
                    refuse_newer(self.ctx.member, options, InvalidOptionsError)
                    create_in(group, ns, options, None if known else one.ui)
        elif name == "collMod":
            fields.check_fields(one.o, KNOWN[name] | {name}, name)
            change = self._parsed(one, partial(coll_mod_of, one.o, name))
            if change is not None:
                change(group, ns)
        elif ns in by_ns:
            do_drop(group, by_ns[ns])

    def _parsed(self, one: Operation, parse: Callable[[], T]) -> T | None:
        """What is made of a command; None: the thread has to do it."""
        if isinstance(one.parsed, ReplError):
            raise one.parsed
        if one.parsed is None and len(one.o.raw) <= SMALL_STATEMENT:
            one.parsed = parse()
        if one.parsed is not None:
            return cast("T", one.parsed)

        def work() -> None:
            try:
                one.parsed = parse()
            except ReplError as error:
                one.parsed = error

        self.thread_work = work
        return None

    def _rename(self, group: WriteGroup, one: Operation) -> None:
        source, to = (
            whole_namespace(fields.text(one.o, name, "renameCollection")) for name in ("renameCollection", "to")
        )
        dropped = one.o.get("dropTarget")
        rename(group, source, to, dropped is True or isinstance(dropped, Binary))


def changed(before: bytes | None, one: Operation) -> bytes:
    """The document that an insert or an update leaves: a replacement, a difference ($v: 2) or operators ($v: 1)."""
    o = one.o
    if one.op == "i" or one.is_replacement:
        raw = o.raw
        if "_id" not in o and one.o2 is not None:
            raw = encode({"_id": one.o2.get("_id"), **o.decode()})
        return raw
    if o.get("$v") == 2:
        return apply_update_bytes(before or b"", o)
    operators = {name: value for name, value in o.decode().items() if name != "$v"}
    document: dict[str, Any] = decode(before or b"")
    return encode(compile_update(operators).apply(document, now=DateTime(0), timestamp=timestamp(0)))


def _uuid(body: RawDocument) -> bytes | None:
    """The operation's `ui`; None: it has none. InvalidUUID (207) for anything but a UUID."""
    ui = body.get("ui")
    if ui is None:
        return None
    if not isinstance(ui, Binary) or ui.subtype != 4 or len(ui) != 16:
        raise ReplError(
            "applyOps.ui: uuid must be a 16-byte binary field with UUID (4) subtype", code=ErrorCode.INVALID_UUID
        )
    return bytes(ui)


def _split(ns: str) -> tuple[str, str]:
    database, _, collection = ns.partition(".")
    return database, collection


def _key(document: RawDocument) -> bytes:
    if "_id" not in document:
        raise BadValueError("applyOps: an operation on a document needs its _id")
    return encode_key(document.get("_id"))


async def apply_ops(ctx: CommandContext) -> Reply:
    """Apply operations of an oplog, in order, up to the first that fails."""
    kind = ctx.body.type_of(ctx.name)
    if kind != 4:
        raise fields.wrong_type(ctx.name, ctx.name, kind, "array")
    upsert = fields.boolean(ctx.body, "alwaysUpsert", ctx.name, True)
    validates = not fields.boolean(ctx.body, "bypassDocumentValidation", ctx.name)
    raw = ctx.body.get_raw(ctx.name) or b""

    def read() -> list[Operation]:
        return list(islice(operations_of(raw, upsert), MOST_OPERATIONS + 1))

    operations = await read_statement(ctx.member, ctx.body, read)
    if len(operations) > MOST_OPERATIONS:
        raise ReplError(f"applyOps with over {MOST_OPERATIONS} operations", code=ErrorCode.INVALID_LENGTH)
    concern = write_concern_of(ctx)
    work = ApplyOps(ctx, operations, validates)
    while not await ctx.member.write(work):
        ctx.check_deadline()
        if work.blocked_by is not None:
            await ctx.member[TransactionTable].wait_until_free(work.blocked_by, ctx.deadline)
        if work.thread_work is not None:
            await run_in_thread(ctx.member, work.thread_work)
    return await _reply(ctx, work, concern)


async def _reply(ctx: CommandContext, work: ApplyOps, concern: Any) -> Reply:
    failure = await wait_for_write_concern(ctx, work.optime, concern)
    reply: dict[str, object] = {"applied": work.index, "results": [True] * work.index}
    if work.failure is not None:
        error = work.failure
        raise ReplError(
            error.message,
            code=error.code,
            details={**error.details, "applied": work.index + 1, "results": [True] * work.index + [False]},
        )
    reply |= {} if failure is None else {"writeConcernError": failure}
    return reply if work.index <= GROUP_STATEMENTS else LargeReply(reply)


COMMANDS: tuple[Command, ...] = (
    Command(
        "applyOps",
        apply_ops,
        frozenset({"alwaysUpsert", "bypassDocumentValidation"}),
        where=Where.PRIMARY,
        write_concern=True,
        needs=Action.APPLY_OPS,
    ),
)
