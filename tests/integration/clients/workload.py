"""What each real client does while members come and go, and what must be true of the data afterwards."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo
from pymongo.client_session import ClientSession

from tests.integration.clients.install import installed, node

HERE = Path(__file__).parent
DATABASE = "clients"


@dataclass(slots=True)
class Tally:
    """What a client was told. counts: successes by step; inserted: ids that a majority acknowledged.

    is_cut: the client was killed in the round after these, of which nobody knows how far it came.
    """

    name: str
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    inserted: list[str] = field(default_factory=list)
    moved: int = 0
    errors: list[str] = field(default_factory=list)
    is_cut: bool = False

    @classmethod
    def from_json(cls, text: str) -> Tally:
        fields = json.loads(text.strip().splitlines()[-1])
        return cls(**{**fields, "counts": Counter(fields["counts"])})

    def note(self, what: str, error: Exception) -> None:
        self.errors.append(f"{time.monotonic():.1f} round {self.rounds}, {what}: {error!r}")


class SyncClient(threading.Thread):
    """PyMongo in a thread."""

    def __init__(self, uri: str, name: str, stop_file: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.tally = Tally(name)
        self._uri, self._stop_file = uri, stop_file

    def run(self) -> None:
        with pymongo.MongoClient[dict[str, Any]](self._uri, w="majority") as client:
            while not self._stop_file.exists():
                self._round(client)
                self.tally.rounds += 1

    def finish(self, within_s: float) -> Tally:
        self.join(within_s)
        assert not self.is_alive(), f"{self.name} hangs in round {self.tally.rounds}"
        return self.tally

    def _round(self, client: pymongo.MongoClient[dict[str, Any]]) -> None:
        data, name, id = client[DATABASE], self.name, f"{self.name}-{self.tally.rounds}"
        if self._step("insert", lambda: data.documents.insert_one({"_id": id})):
            self.tally.inserted.append(id)
        self._step("update", lambda: data.counters.update_one({"_id": name}, _add("update"), upsert=True))
        self._step("find", lambda: data.counters.find_one_and_update({"_id": name}, _add("find")))
        self._step("bulk", lambda: data.counters.bulk_write([pymongo.UpdateOne({"_id": name}, _add("bulk"))]))
        if self._step("bulkInsert", lambda: data.documents.bulk_write([pymongo.InsertOne({"_id": f"{id}-bulk"})])):
            self.tally.inserted.append(f"{id}-bulk")

        def move(session: ClientSession) -> None:
            data.accounts.update_one({"_id": f"{name}-from"}, _sum(-1), upsert=True, session=session)
            data.accounts.update_one({"_id": f"{name}-to"}, _sum(1), upsert=True, session=session)
            data.moves.insert_one({"_id": id}, session=session)

        with client.start_session() as session:
            self.tally.moved += self._step("transaction", lambda: session.with_transaction(move))

    def _step(self, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception as error:
            self.tally.note(what, error)
            return False
        self.tally.counts[what] += 1
        return True


class ClientHangsError(AssertionError):
    """A client did not end. tally: of its last whole round."""

    def __init__(self, text: str, tally: Tally) -> None:
        super().__init__(text)
        self.tally = tally


class NodeClient:
    """A program of node's: the driver's workload, or mongosh with one."""

    def __init__(self, command: list[object], name: str, output: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._output = output
        with output.open("w") as out, output.with_suffix(".err").open("w") as err:
            arguments = [str(word) for word in command]
            self._process = subprocess.Popen(arguments, stdout=out, stderr=err, cwd=installed(), env=environment)

    def finish(self, within_s: float) -> Tally:
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            logs = [file.read_text()[-4000:] for file in self._output.parent.glob(".mongodb/mongosh/*_log")]
            said = self._output.read_text()
            tally = Tally.from_json(said) if "}" in said else Tally(self.name)
            tally.is_cut = True
            raise ClientHangsError("\n".join((f"{self.name} hangs", said[-4000:], *logs)), tally) from None
        assert status == 0, self._output.with_suffix(".err").read_text()
        return Tally.from_json(self._output.read_text())


def start_driver(uri: str, name: str, stop_file: Path, folder: Path) -> NodeClient:
    return NodeClient([*_driver("workload.mjs"), uri, name, stop_file], name, folder / f"{name}.json", {})


def start_mongosh(uri: str, name: str, stop_file: Path, folder: Path) -> NodeClient:
    environment = {"HOME": str(folder), "CLIENT_NAME": name, "CLIENT_STOP": str(stop_file)}
    return NodeClient([*_mongosh(uri), HERE / "workload.js"], name, folder / f"{name}.json", environment)


def failures_of_driver(uri: str) -> list[list[str]]:
    """Do one by one what users of the Node driver do; return (thing, why) of what fails."""
    return _failures([*_driver("things.mjs"), uri], {})


def failures_of_mongosh(uri: str, home: Path) -> list[list[str]]:
    """Call the usual helpers of mongosh one by one; return (helper, why) of those that fail."""
    return _failures([*_mongosh(uri), HERE / "helpers.js"], {"HOME": str(home)})


def _failures(command: list[object], environment: dict[str, str]) -> list[list[str]]:
    arguments = [str(word) for word in command]
    ended = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.strip().splitlines()[-1])
    assert result["ok"] > 0
    failed: list[list[str]] = result["failed"]
    return failed


def _driver(program: str) -> list[object]:
    """Copy a program beside the packages, where node looks for the driver."""
    copy = installed() / program
    copy.write_bytes((HERE / program).read_bytes())
    return [node(), copy]


def _mongosh(uri: str) -> list[object]:
    return [node(), installed() / "node_modules" / "mongosh" / "bin" / "mongosh.js", "--quiet", "--norc", uri]


SECOND_TRY = "connect ECONNREFUSED"


def check(tallies: list[Tally], database: Any) -> None:
    """No error reached a client, no acknowledged write is lost, and each was applied once.

    A driver tries a write again once. Node's may choose the member that was just killed for it, if an answer of its
    monitor was still on the way; then the application learns of it, and knows nothing of that write. Once is enough.
    """
    twice = {tally.name: [error for error in tally.errors if SECOND_TRY in error] for tally in tallies}
    errors = [f"{tally.name}: {error}" for tally in tallies for error in tally.errors]
    assert len(errors) == sum(map(len, twice.values())) <= 1, "\n".join(errors)
    for tally in tallies:
        own = {"_id": {"$gte": f"{tally.name}-", "$lt": f"{tally.name}."}}
        rounds = [int(error.partition("round ")[2].partition(",")[0]) for error in twice[tally.name]]
        unknown = [f"{tally.name}-{at}" for at in (*rounds, *([tally.rounds] if tally.is_cut else []))]
        uncertain = {*unknown, *(f"{name}-bulk" for name in unknown)} - set(tally.inserted)
        there = {one["_id"] for one in database.documents.find(own)}
        assert there - uncertain == set(tally.inserted), (tally.name, there ^ set(tally.inserted))
        counter = database.counters.find_one({"_id": tally.name}, {"_id": 0})
        more = {step: counter[step] - tally.counts[step] for step in ("update", "find", "bulk")}
        assert all(0 <= value <= len(unknown) for value in more.values()), (tally.name, counter, tally.counts)
        sums = [database.accounts.find_one({"_id": f"{tally.name}-{side}"})["sum"] for side in ("from", "to")]
        moves = len(list(database.moves.find(own)))
        assert sums == [-moves, moves], (tally.name, sums, moves)
        assert 0 <= moves - tally.moved <= len(unknown), (tally.name, moves, tally.moved)


def _add(what: str) -> dict[str, Any]:
    return {"$inc": {what: 1}}


def _sum(change: int) -> dict[str, Any]:
    return {"$inc": {"sum": change}}
