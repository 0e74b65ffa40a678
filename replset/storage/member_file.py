"""DBPATH/member.db: what belongs to this member alone. No copy replaces it, and no undo changes it.

It holds the last vote, the configuration, the incarnation, the initial-sync marker, the durability mark and the
election journal, on a connection of its own with synchronous=EXTRA: each `save_` is durable when it returns. Calls may
come from any thread, one at a time each.

An incarnation belongs to one place: to the address that is saved with it. A copy of a dbpath has the votes and the
acknowledgements of its source; where it counted as that one too, one disk would count twice for a majority. So a start
at another address draws another incarnation. It is saved once a configuration has this member at that address, so that
one which was started at a wrong address by mistake goes on as before at the right one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from replset.bson import decode, encode
from replset.config import ReplSetConfig
from replset.core.effects import LastVote
from replset.errors import CorruptDataError, ReplError
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.storage.disk import Disk
from replset.storage.schema import MEMBER_SCHEMA, check_schema, ensure_schema
from replset.storage.sqlite import check_sqlite_version, rows_of, storage_error, transaction

MEMBER_FILE = "member.db"
_JOURNAL_ROWS = 1000
Value = int | str | bytes


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line of the election journal. wall_ms: UTC."""

    wall_ms: int
    term: int
    event: str
    detail: str


class OplogLimits(NamedTuple):
    """What replSetResizeOplog set; None: as the member was started."""

    size_mb: float | None = None
    min_retention_hours: float | None = None


class MemberFile:
    """See the module. Read: last_vote, config, incarnation, initial_sync_pending, rollback_id_floor."""

    def __init__(self, disk: Disk, dbpath: str, new_incarnation: Callable[[], str], host: str) -> None:
        """Use `MemberFile.open`."""
        self.host = host
        self.moved_from = ""
        """The address that the saved incarnation belongs to, if that is another one."""
        self.is_other_file = False
        """Whether the file was opened at this address before, and is another one now, or on another machine."""
        self._unsaved_place: dict[str, Value] = {}
        self.path = os.path.join(dbpath, MEMBER_FILE)
        self._disk = disk
        self._new_incarnation = new_incarnation
        self._guard = threading.Lock()
        self.last_vote: LastVote | None = None
        self.config: ReplSetConfig | None = None
        self.incarnation = ""
        self.initial_sync_id = ""
        """The id of the initial sync whose marker is set; empty when none is."""
        self.initial_sync_requested = False
        """Whether somebody asked for it. Then the data that it is to replace is sound, and not replaced yet."""
        self.initial_sync_newest = OPTIME_NULL
        """The newest entry of the data that an initial sync replaces: what this incarnation may have acknowledged."""
        self.initial_sync_committed = OPTIME_NULL
        """The newest entry that this member knew to be committed when its initial sync began."""
        self.durability_mark = OPTIME_NULL
        """The durability mark: everything up to here was on this member's disk, and others may count on it."""
        self.checkpointed_wal = ""
        """Which WAL the last checkpoint copied, and how many of its pages: see `wal.find_cut`."""
        self.oplog_limits = OplogLimits()
        self.rollback_id_floor = 0
        """The rollback id of the data that an initial sync replaces: the copy's must rise above it."""

    @property
    def initial_sync_pending(self) -> bool:
        """Whether the marker is set: then the data must not be trusted."""
        return bool(self.initial_sync_id)

    @classmethod
    def open(
        cls,
        disk: Disk,
        dbpath: str | os.PathLike[str],
        *,
        new_incarnation: Callable[[], str] | None = None,
        host: str = "",
    ) -> MemberFile:
        """Open, or create with a first incarnation and the initial-sync marker set: a new member has to sync first.

        new_incarnation: gives a random id; default 16 random hex digits of the system. host: the address of the member
        that starts; empty: a tool looks at its file. CorruptDataError, StorageError.
        """
        check_sqlite_version()
        file = cls(disk, os.fspath(dbpath), new_incarnation or (lambda: os.urandom(8).hex()), host)
        try:
            file._connect()
        except (apsw.Error, OSError) as error:
            file._abandon()
            raise storage_error(error, file.path) from error
        except ReplError:
            file._abandon()
            raise
        return file

    def _connect(self) -> None:
        self._disk.make_folder(os.path.dirname(self.path))
        self._connection = connection = self._disk.connect(self.path)
        connection.set_busy_timeout(2000)
        check_schema(connection, MEMBER_SCHEMA, self.path)
        connection.pragma("journal_mode", "delete")
        connection.pragma("synchronous", "EXTRA")
        ensure_schema(connection, MEMBER_SCHEMA, self.path)
        self._disk.sync_folder(os.path.dirname(self.path))
        values: dict[str, Value] = dict(rows_of(connection, "SELECT name, value FROM member"))
        if "incarnation" not in values:
            first = self._new_incarnation()
            values = {"incarnation": first, "initial_sync": first, **self._place()}
            self._put(values)
        self._read(values)
        if self.host:
            self._compare_place(values)

    def _place(self) -> dict[str, Value]:
        """The rows that say to which place the incarnation belongs."""
        return {"host": self.host, "identity": self._disk.identity(self.path)} if self.host else {}

    def _compare_place(self, values: Mapping[str, Value]) -> None:
        """Note what differs from the place that is saved, and draw another incarnation at another address."""
        place, saved = self._place(), str(values.get("host") or self._named_host())
        if saved != self.host and (saved or self.config is None):  # without either, files were made ready and copied
            self.moved_from, self.incarnation = saved, self._new_incarnation()
            if self.config is None or self._may_join(self.config):
                self._unsaved_place = {"incarnation": self.incarnation, **place}
        elif any(values.get(name) != value for name, value in place.items()):
            self.is_other_file = "identity" in values
            self._unsaved_place = place

    def save_place(self) -> None:
        """Save what `open` found of the place, once nothing refuses this start any more. Durable on return."""
        self._put(self._unsaved_place)
        self._unsaved_place = {}

    def _named_host(self) -> str:
        """The address for which the configuration names the saved incarnation; "" if there is none."""
        members = () if self.config is None else self.config.members
        return next((member.host for member in members if member.incarnation == self.incarnation), "")

    def _may_join(self, config: ReplSetConfig) -> bool:
        """Whether the configuration has a member at this address, and names no other incarnation for it."""
        own = config.member_at(HostPort(self.host))
        return own is not None and own.incarnation in (None, self.incarnation)

    def _abandon(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close(True)

    def _read(self, values: dict[str, Value]) -> None:
        try:
            self.incarnation = str(values["incarnation"])
            self.initial_sync_id = str(values.get("initial_sync", ""))
            self.initial_sync_requested = "initial_sync_requested" in values
            self.initial_sync_newest = OpTime.parse(str(values.get("initial_sync_held", OPTIME_NULL)))
            self.initial_sync_committed = OpTime.parse(str(values.get("initial_sync_committed", OPTIME_NULL)))
            self.rollback_id_floor = int(values.get("rollback_id_floor", 0))
            self.durability_mark = OpTime.parse(str(values.get("vouched", OPTIME_NULL)))
            self.checkpointed_wal = str(values.get("checkpointed_wal", ""))
            limits = (values.get("oplog_size_mb"), values.get("oplog_min_retention_hours"))
            self.oplog_limits = OplogLimits(*(None if limit is None else float(limit) for limit in limits))
            if "vote_term" in values:
                candidate = values.get("vote_candidate")
                self.last_vote = LastVote(
                    int(values["vote_term"]), None if candidate is None else MemberId(int(candidate))
                )
            config = values.get("config")
            if config is not None:
                self.config = ReplSetConfig.parse(decode(config if isinstance(config, bytes) else b""), keep=True)
        except (ReplError, ValueError) as error:
            raise CorruptDataError(f"{self.path} is damaged: {error}") from error

    def _put(self, values: Mapping[str, Value | None], *, durable: Callable[[], OpTime] | None = None) -> None:
        """Write all of these in one durable transaction; None removes. durable: the mark is raised to what it returns.

        It is called under the guard. Otherwise a rollback could lower the mark between the call and the write, and the
        write would raise the mark again, above entries that are then undone.
        """
        with self._guard:
            mark = self.durability_mark
            if durable is not None and not self.initial_sync_pending:
                mark = max(mark, durable())
            if mark != self.durability_mark:
                values = {**values, "vouched": str(mark)}
            if values:
                self._write(values)
            self.durability_mark = mark

    def _write(self, values: Mapping[str, Value | None]) -> None:
        """Under the guard."""
        try:
            with transaction(self._connection):
                for name, value in values.items():
                    if value is None:
                        self._connection.execute("DELETE FROM member WHERE name = ?", (name,))
                    else:
                        self._connection.execute(
                            "INSERT INTO member (name, value) VALUES (?, ?)"
                            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                            (name, value),
                        )
        except (apsw.Error, OSError) as error:
            raise storage_error(error, self.path) from error

    def save_vote(self, vote: LastVote, durable: Callable[[], OpTime] | None = None) -> None:
        """Save the vote, and raise the mark with it: a vote claims what the voter has on disk. Durable on return.

        durable: returns the newest entry that is on disk; without it the mark stays.
        """
        self._put({"vote_term": vote.term, "vote_candidate": vote.candidate}, durable=durable)
        self.last_vote = vote

    def raise_mark(self, durable: Callable[[], OpTime], checkpointed_wal: str | None = None) -> None:
        """Raise the durability mark to the entry that `durable` returns, but not during an initial sync.

        checkpointed_wal: before a checkpoint, what it is going to copy.
        """
        is_new = checkpointed_wal not in (None, self.checkpointed_wal)
        self._put({"checkpointed_wal": checkpointed_wal} if is_new else {}, durable=durable)
        if checkpointed_wal is not None:
            self.checkpointed_wal = checkpointed_wal

    def lower_mark(self, to: OpTime) -> None:
        """Lower the mark to `to`, before a rollback takes away the entries behind it. It is never raised here.

        A mark above the newest entry would look like a lost WAL to a start after a crash.
        """
        with self._guard:
            if to < self.durability_mark:
                self._write({"vouched": str(to)})
                self.durability_mark = to

    def save_config(self, config: ReplSetConfig) -> None:
        """Save the configuration; durable on return."""
        values: dict[str, Value] = {"config": encode(config.document(internal=True))}
        if self.moved_from and self._may_join(config):
            values |= {"incarnation": self.incarnation, **self._place()}
        self._put(values)
        self.config = config

    def save_oplog_limits(self, limits: OplogLimits) -> None:
        """Save these limits; what they leave open stays. Durable on return."""
        given = {name: value for name, value in limits._asdict().items() if value is not None}
        self._put({f"oplog_{name}": str(value) for name, value in given.items()})
        self.oplog_limits = self.oplog_limits._replace(**given)

    def begin_initial_sync(
        self,
        *,
        newest: OpTime = OPTIME_NULL,
        committed: OpTime = OPTIME_NULL,
        rollback_id: int = 0,
        data_lost: bool = False,
        requested: bool = False,
    ) -> str:
        """Set the marker; return the id of this initial sync. One that was begun before goes on under its id.

        newest: the newest entry of the data that will be replaced. OPTIME_NULL, or data_lost: what this member
        acknowledged is lost, so it is another incarnation. committed: the newest entry known to be committed.
        rollback_id: of that data. The highest of each is kept until the end. requested: see initial_sync_requested.
        """
        floor = max(rollback_id, self.rollback_id_floor)
        sync_id, incarnation = self.initial_sync_id, self.incarnation
        if not sync_id:
            sync_id = self._new_incarnation()
            # The others count this incarnation as a holder of entries that are not on this disk any more. Under another
            # one it counts for nothing until the configuration names it, once it has caught up. (docs/adr/0007.)
            if newest == OPTIME_NULL or data_lost:
                incarnation = sync_id
        newest, committed = max(newest, self.initial_sync_newest), max(committed, self.initial_sync_committed)
        self._put(
            {
                "incarnation": incarnation,
                **self._place(),
                "initial_sync": sync_id,
                "initial_sync_held": str(newest),
                "initial_sync_committed": str(committed),
                "initial_sync_requested": "1" if requested else None,
                "rollback_id_floor": floor,
            }
        )
        self.incarnation, self.initial_sync_id, self.initial_sync_requested = incarnation, sync_id, requested
        self.initial_sync_newest, self.initial_sync_committed, self.rollback_id_floor = newest, committed, floor
        return sync_id

    def claim_copy(self, newest: OpTime) -> str:
        """Return the incarnation from here on. Call it before a copy with this newest entry replaces the data.

        It stays the same if the copy reaches the newest entry of the data: then it holds every committed entry that
        this member acknowledged (its newest entry is of a later term, or of the same one and not before; Raft, 5.4.3).
        Otherwise this member must not count as one that holds them, so it gets another incarnation.
        """
        changes: dict[str, Value | None] = {}
        incarnation, held = self.incarnation, self.initial_sync_newest
        if self.initial_sync_requested:  # after a crash nobody may take the copy, whole or not, for the old data
            changes["initial_sync_requested"] = None
        # This member may have acknowledged an entry that the copy lacks. Under the old incarnation it would go on to
        # count for it, and could elect a candidate without it.
        if newest < held:
            incarnation, held = self._new_incarnation(), OPTIME_NULL
            changes |= {"incarnation": incarnation, **self._place(), "initial_sync_held": None}
        self._put(changes)
        self.incarnation, self.initial_sync_newest, self.initial_sync_requested = incarnation, held, False
        return self.incarnation

    def end_initial_sync(self) -> None:
        """Clear the marker: the data is this member's and whole."""
        held = ("initial_sync_held", "initial_sync_committed", "initial_sync_requested")
        names = ("initial_sync", *held, "rollback_id_floor", "vouched")
        self._put(dict.fromkeys(names))
        self.durability_mark = OPTIME_NULL
        self.initial_sync_id, self.initial_sync_requested, self.rollback_id_floor = "", False, 0
        self.initial_sync_newest = self.initial_sync_committed = OPTIME_NULL

    def append_journal(self, *, wall_ms: int, term: int, event: str, detail: str) -> None:
        """Add a line; see `append_lines`."""
        self.append_lines([JournalLine(wall_ms, term, event, detail)])

    def append_lines(self, lines: Sequence[JournalLine]) -> None:
        """Add lines in one transaction, since a vote may wait behind its sync. The newest thousand lines stay."""
        with self._guard:
            try:
                with transaction(self._connection):
                    self._connection.executemany(
                        "INSERT INTO journal (wall, term, event, detail) VALUES (?, ?, ?, ?)",
                        [(line.wall_ms, line.term, line.event, line.detail) for line in lines],
                    )
                    newest = self._connection.last_insert_rowid()
                    self._connection.execute("DELETE FROM journal WHERE id <= ?", (newest - _JOURNAL_ROWS,))
            except (apsw.Error, OSError) as error:
                raise storage_error(error, self.path) from error

    def journal(self, limit: int) -> list[JournalLine]:
        """The newest `limit` lines, newest first."""
        with self._guard:
            sql = "SELECT wall, term, event, detail FROM journal ORDER BY id DESC LIMIT ?"
            return [JournalLine(*row) for row in rows_of(self._connection, sql, (limit,))]

    def close(self) -> None:
        with self._guard:
            self._connection.close(True)
