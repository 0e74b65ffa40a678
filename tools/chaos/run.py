"""One chaos run: a real set, clients, faults, sometimes two at once, then repair and the checker."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replset.bson import decode
from replset.cli.offline import open_oplog
from replset.errors import ReplError
from replset.local_set import LocalMember, LocalSet, free_ports, running_set
from replset.replication.rollback_manifest import FileKind, RollbackState, list_manifests, rollback_folder
from tools.chaos import disks, faults
from tools.chaos.checker import End, RolledBack, check_history
from tools.chaos.clients import COLLECTION, DATABASE, Clients
from tools.chaos.context import WELL_WITHIN_S, CannotError, Fault, FaultContext, Mend, status_of
from tools.chaos.history import History

SETTINGS: dict[str, object] = {
    "electionTimeoutMillis": 1500,
    "heartbeatIntervalMillis": 250,
    "heartbeatTimeoutSecs": 2,
}
AGAIN_S = 2.0
"""After it a mend that could not be made yet is tried again."""
SHAPES: dict[str, tuple[dict[str, object], ...]] = {
    "three": ({}, {}, {}),
    "hidden": ({}, {}, {"priority": 0, "hidden": True}),
    "non-voting": ({}, {}, {}, {"priority": 0, "votes": 0}),
    "delayed": ({}, {}, {}, {"priority": 0, "votes": 0, "hidden": True, "secondaryDelaySecs": 2}),
    "five": ({}, {}, {}, {}, {}),
}
"""What the members' rows of the configuration have beside their addresses."""
OnLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """wrong: what the checker found. well_after_s: from the repair to a set that is whole and takes majority writes."""

    wrong: list[str]
    writes: int
    acknowledged: int
    reads: int
    rollbacks: int
    faults: int
    terms: int
    well_after_s: float

    def line(self) -> str:
        return (
            f"{self.faults} faults, {self.writes} writes of which {self.acknowledged} acknowledged, {self.reads} "
            f"majority reads, {self.rollbacks} rollbacks, {self.terms} terms, well {self.well_after_s:.1f} s later"
        )


def run(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    own_disks: bool,
    on_line: OnLine,
    base_port: int = 27017,
    shape: str = "three",
    keyed: bool = True,
    names: Sequence[str] = (),
    at_least: int = 0,
) -> Result:
    """Break things for so long. AssertionError or ReplError: the set did not start, or did not become well again.

    shape: of SHAPES. keyed: members prove themselves by a key file. names: draw these faults only. at_least: go on
    until there were so many faults, however long that takes.
    """
    rng = random.Random(seed)
    rows = SHAPES[shape]
    members = [f"m{number + 1}" for number in range(len(rows))]
    history = History(folder / "history.jsonl", members)
    with running_set(folder) as local:
        if own_disks:
            disks.mount_disks([folder / name for name in members])
        for port in free_ports(len(rows), base_port):
            local.plan(port, flags=faults.FLAGS)
        if not keyed:
            local.key_file.unlink()
        for member in local.members:
            local.start(member)
        _initiate(local, rows)
        voters = sum(row.get("votes", 1) == 1 for row in rows)
        clients = Clients(local.members, history, random.Random(rng.getrandbits(64)))
        context = FaultContext(local, rng, history, clients, own_disks, keyed, voters)
        context.delayed = any("secondaryDelaySecs" in row for row in rows)
        context.wait_until_well()
        clients.start()
        count = _break(context, seconds, at_least, on_line, faults.drawn(rng, own_disks, names))
        began = time.monotonic()
        clients.stop()
        context.wait_until_well()
        well_after_s = time.monotonic() - began
        found = [*_bad_exits(local), *check_history(history, _end_of(context))]
        terms = int(status_of(local.members[0])["term"])
        rollbacks = sum(len(list_manifests(place)) for place in _places(context))
    history.close()
    acknowledged = sum(write.outcome == "ok" for write in history.writes)
    reads = sum(read.found is not None for read in history.reads)
    return Result(found, len(history.writes), acknowledged, reads, rollbacks, count, terms, well_after_s)


def _initiate(local: LocalSet, rows: Sequence[dict[str, object]]) -> None:
    members = [
        {"_id": number, "host": member.host, **row}
        for number, (member, row) in enumerate(zip(local.members, rows, strict=True))
    ]
    config = {"_id": local.name, "version": 1, "members": members, "settings": SETTINGS}
    reply = local.members[0].command({"replSetInitiate": config}, timeout_s=60)
    assert reply.get("ok") == 1.0, reply


def _break(context: FaultContext, seconds: float, at_least: int, on_line: OnLine, drawn: Iterator[Fault]) -> int:
    """Faults until the time is up and there were enough, then mend what is broken; how many there were."""
    rng, count = context.rng, 0
    began = time.monotonic()
    waiting: list[tuple[float, str, Mend]] = []  # when to mend, what

    def mend_due(now: float) -> None:
        for row in sorted(waiting, key=lambda row: row[0]):
            if row[0] <= now:
                waiting.remove(row)
                try:
                    row[2]()
                except CannotError as error:  # something else has to be mended first
                    waiting.append((time.monotonic() + AGAIN_S, *row[1:]))
                    on_line(f"{time.monotonic() - began:6.1f} s  not yet mended: {row[1]}: {error}")
                else:
                    on_line(f"{time.monotonic() - began:6.1f} s  mended: {row[1]}")

    def mend_all() -> None:
        """Clocks right too, no cut forgotten."""
        deadline = time.monotonic() + WELL_WITHIN_S
        mend_due(float("inf"))
        for member in context.local.members:
            faults.undo_test_faults(member)
        while waiting:
            time.sleep(AGAIN_S)
            mend_due(float("inf"))
            assert time.monotonic() < deadline, f"{waiting[0][1]} cannot be mended"

    while time.monotonic() < began + seconds or count < at_least:
        if len(waiting) < rng.choice((1, 1, 2)):
            fault = next(drawn)
            if fault in faults.ALONE:
                mend_all()
                context.wait_until_well()
                if not context.settles():
                    continue
            with contextlib.suppress(CannotError, ReplError):
                at = time.monotonic() - began
                what, mend = fault(context)
                count += 1
                if mend is not None:
                    waiting.append((time.monotonic() + rng.uniform(0.5, 6.0), what, mend))
                on_line(f"{at:6.1f} s  {what}")
        time.sleep(rng.uniform(0.1, 1.5))
        mend_due(time.monotonic())
    mend_all()
    on_line(f"{time.monotonic() - began:6.1f} s  all mended")
    return count


def _bad_exits(local: LocalSet) -> Iterator[str]:
    for member in local.members:
        text = member.log.read_text(encoding="utf-8", errors="replace")
        for words in ("Traceback", "replset start: stopped: "):
            if words in text:
                yield f"the log of {member.name} says that it broke: {text[text.index(words) :][:2000]}"


def _end_of(context: FaultContext) -> End:
    members = context.local.members
    documents = {member.name: _documents(member) for member in members}
    entries = [entry for place in _places(context) for entry in _rolled_back(place)]
    oplogs = {}
    for member in members:
        with open_oplog(member.dbpath) as oplog:
            oplogs[member.name] = list(oplog.rows())
    return End(documents, RolledBack.of(entries), oplogs)


def _places(context: FaultContext) -> list[Path]:
    """Where rollback files are."""
    return [*(member.dbpath for member in context.local.members), *context.moved_rollbacks]


def _documents(member: LocalMember) -> list[dict[str, Any]]:
    """All of them by _id, through a cursor as any client would."""
    command: dict[str, object] = {
        "find": COLLECTION,
        "sort": {"_id": 1},
        "batchSize": 10_000_000,
        "$readPreference": {"mode": "secondaryPreferred"},
    }
    cursor = _cursor(member, command)
    found: list[dict[str, Any]] = cursor["firstBatch"]
    while cursor["id"]:
        cursor = _cursor(member, {"getMore": cursor["id"], "collection": COLLECTION})
        found += cursor["nextBatch"]
    return found


def _cursor(member: LocalMember, command: dict[str, object]) -> dict[str, Any]:
    reply: dict[str, Any] = member.command(command, DATABASE, timeout_s=60)
    assert reply["ok"] == 1.0, reply
    cursor: dict[str, Any] = reply["cursor"]
    return cursor


def _rolled_back(dbpath: Path) -> Iterator[dict[str, Any]]:
    """The entries of the collection in finished rollbacks' oplog files."""
    for manifest in list_manifests(dbpath):
        if manifest.state not in (RollbackState.FINISHED, RollbackState.EXPORTED):
            continue
        for file in manifest.files:
            if file.kind is FileKind.OPLOG:
                data = (rollback_folder(dbpath) / file.name).read_bytes()
                while data:
                    size = int.from_bytes(data[:4], "little")
                    entry, data = decode(data[:size]), data[size:]
                    if entry["ns"] == f"{DATABASE}.{COLLECTION}":
                        yield entry
