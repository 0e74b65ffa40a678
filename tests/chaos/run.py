"""One chaos run: a real set, clients, faults, sometimes two at once, then peace and the judge."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replset.bson import decode
from replset.cli.local_set import LocalMember, LocalSet, free_ports, running_set, wait_until
from replset.errors import ReplError
from replset.replication.rollback_files import FileKind, RollbackState, list_manifests, rollback_folder
from tests.chaos import faults
from tests.chaos.clients import COLLECTION, DATABASE, Clients
from tests.chaos.history import History
from tests.chaos.judge import End, RolledBack, judge

SETTINGS: dict[str, object] = {
    "electionTimeoutMillis": 1500,
    "heartbeatIntervalMillis": 250,
    "heartbeatTimeoutSecs": 2,
}
WELL_WITHIN_S = 90.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """wrong: what the judge found. well_after_s: from peace to a set that is whole and takes majority writes."""

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
    say: Say,
    base_port: int = 27017,
    members: int = 3,
    names: Sequence[str] = (),
) -> Result:
    """Break things for so long. AssertionError or ReplError: the set did not start, or did not become well again.

    names: draw these faults only.
    """
    rng = random.Random(seed)
    history = History(folder / "history.jsonl")
    with running_set(folder) as local:
        paths = [folder / f"m{number + 1}" for number in range(members)]
        if own_disks:
            faults.mount_disks(paths)
        for port in free_ports(members, base_port):
            local.add(port, flags=faults.FLAGS)
        local.initiate(SETTINGS)
        _wait_until_well(local)
        clients = Clients(local.members, history, random.Random(rng.getrandbits(64)))
        clients.start()
        world = faults.World(local, rng, own_disks)
        count = _break(world, seconds, say, faults.drawn(rng, own_disks, names))
        began = time.monotonic()
        clients.stop()
        _wait_until_well(local)
        well_after_s = time.monotonic() - began
        found = [*_unclean(local), *judge(history, _end_of(local))]
        terms = int(_status(local.members[0])["term"])
        rollbacks = sum(len(list_manifests(member.dbpath)) for member in local.members)
    history.close()
    acknowledged = sum(write.outcome == "ok" for write in history.writes)
    reads = sum(read.found is not None for read in history.reads)
    return Result(found, len(history.writes), acknowledged, reads, rollbacks, count, terms, well_after_s)


def _break(world: faults.World, seconds: float, say: Say, drawn: Iterator[faults.Fault]) -> int:
    """Faults until the time is up, then mend what is broken; how many there were."""
    rng, count = world.rng, 0
    began = time.monotonic()
    waiting: list[tuple[float, str, faults.Mend]] = []  # when to mend, what

    def mend_due(now: float) -> None:
        for row in sorted(waiting, key=lambda row: row[0]):
            if row[0] <= now:
                waiting.remove(row)
                row[2]()
                say(f"{time.monotonic() - began:6.1f} s  mended: {row[1]}")

    while (now := time.monotonic()) < began + seconds:
        if len(waiting) < rng.choice((1, 1, 2)):
            with contextlib.suppress(faults.CannotError):
                what, mend = next(drawn)(world)
                count += 1
                if mend is not None:
                    waiting.append((now + rng.uniform(0.5, 6.0), what, mend))
                say(f"{now - began:6.1f} s  {what}")
        time.sleep(rng.uniform(0.1, 1.5))
        mend_due(time.monotonic())
    mend_due(float("inf"))
    for member in world.local.members:  # clocks right, no cut forgotten
        faults.make_peace(member)
    say(f"{time.monotonic() - began:6.1f} s  peace")
    return count


def _wait_until_well(local: LocalSet) -> None:
    """Every process runs, a primary takes majority writes, all are counted and have applied the newest entry."""

    def well() -> bool:
        primary = local.primary()
        if primary is None:
            return False
        try:
            reply = primary.command(
                {
                    "appendOplogNote": 1,
                    "data": {"msg": "well?"},
                    "writeConcern": {"w": len(local.members), "wtimeout": 5_000},
                }
            )
            rows = _status(primary)["members"]
        except ReplError:
            return False
        return reply.get("ok") == 1.0 and "writeConcernError" not in reply and all(row["counted"] for row in rows)

    for member in local.members:
        assert member.is_running(), f"{member.name} ended by itself: {member.last_words()}"
    wait_until(well, WELL_WITHIN_S, "the set to be well again")


def _unclean(local: LocalSet) -> Iterator[str]:
    for member in local.members:
        text = member.log.read_text(encoding="utf-8", errors="replace")
        for words in ("Traceback", "replset start: stopped: "):
            if words in text:
                yield f"the log of {member.name} says that it broke: {text[text.index(words) :][:2000]}"


def _end_of(local: LocalSet) -> End:
    documents = {member.name: _documents(member) for member in local.members}
    entries = [entry for member in local.members for entry in _rolled_back(member)]
    return End(documents, RolledBack.of(entries))


def _documents(member: LocalMember) -> list[dict[str, Any]]:
    """All of them by _id, through a cursor as any client would."""
    command: dict[str, object] = {
        "find": COLLECTION,
        "sort": {"_id": 1},
        "batchSize": 10_000_000,
        "$readPreference": {"mode": "secondaryPreferred"},
    }
    reply: dict[str, Any] = member.command(command, DATABASE, timeout_s=60)
    assert reply["ok"] == 1.0, reply
    found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    while reply["cursor"]["id"]:
        more: dict[str, object] = {"getMore": reply["cursor"]["id"], "collection": COLLECTION}
        reply = member.command(more, DATABASE, timeout_s=60)
        found += reply["cursor"]["nextBatch"]
    return found


def _rolled_back(member: LocalMember) -> Iterator[dict[str, Any]]:
    """The entries of the collection in finished rollbacks' oplog files."""
    for manifest in list_manifests(member.dbpath):
        if manifest.state not in (RollbackState.FINISHED, RollbackState.EXPORTED):
            continue
        for file in manifest.files:
            if file.kind is FileKind.OPLOG:
                data = (rollback_folder(member.dbpath) / file.name).read_bytes()
                while data:
                    size = int.from_bytes(data[:4], "little")
                    entry, data = decode(data[:size]), data[size:]
                    if entry["ns"] == f"{DATABASE}.{COLLECTION}":
                        yield entry


def _status(member: LocalMember) -> dict[str, Any]:
    return member.command({"replSetGetStatus": 1}, timeout_s=10)
