"""`./dev demo`: a replica set's whole story on real processes, each step with the evidence that it checked."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from replset.client import HttpClient
from replset.errors import ReplError
from replset.local_set import LocalMember, LocalSet, LocalSetError, free_ports, wait_until
from replset.own_process import command_of
from replset.storage import DATABASE_FILE

FAST: dict[str, object] = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200, "heartbeatTimeoutSecs": 1}
DATABASE, COLLECTION = "shop", "orders"
CUT_OFF = "cut-off"
"""What the comparison calls the copy of the cut-off member's file."""


class StepFailedError(Exception):
    """A step of the story did not hold."""


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    meaning: str
    play: Callable[[], None]


def check(holds: object, otherwise: str) -> None:
    if not holds:
        raise StepFailedError(otherwise)


class Demo:
    """Five members and one story. Each method is one step; it raises when what it promises does not hold."""

    def __init__(self, folder: Path, *, fast: bool, base_port: int, console: Console) -> None:
        self.fast = fast
        self.console = console
        self.set = LocalSet(folder)
        self.ports = free_ports(5, base_port)
        self.patience = 30.0 if fast else 90.0
        self.old_primary: LocalMember | None = None
        self.new_primary: LocalMember | None = None
        self.rest: list[LocalMember] = []
        self.written_while_syncing = 0
        self.manifest: Path | None = None
        self.snapshot: Path | None = None
        self.table: list[tuple[str, float, str]] = []
        self._evidence = ""

    def steps(self) -> list[Step]:
        return [
            Step(
                "Start three members and make them a set",
                "Three processes, each with its own files. One of them gets the configuration; the others learn of "
                "it by heartbeats, copy its data, and vote. The one that wins the election is the primary: it alone "
                "takes writes.",
                self.start_and_initiate,
            ),
            Step(
                'Write and read with w: "majority"',
                "The primary answers only when most members have the write on disk. Such a write survives the loss of "
                "any one machine.",
                self.write_and_read,
            ),
            Step(
                "Add a fourth member while writes go on",
                "It copies a snapshot of the data, then follows the oplog from there. It has no vote until it has "
                "caught up, so a newcomer can never count for a majority that it does not hold.",
                self.add_fourth,
            ),
            Step(
                "Add an arbiter",
                "It votes and holds no data: five votes, four copies. Nobody is cut off before all five are counted.",
                self.add_arbiter,
            ),
            Step(
                "Cut the primary off from the others",
                "Clients still reach it; no other member does. For one election timeout it goes on believing that it "
                "is primary.",
                self.cut,
            ),
            Step(
                "Write with w: 1 on the primary that is cut off",
                "Acknowledged, because w: 1 asks nobody else. It will be rolled back, because no other member has it.",
                self.write_to_roll_back,
            ),
            Step(
                "The others elect a new primary",
                'A higher term begins. Writes with w: "majority" go on there: three copies and the vote of the arbiter '
                "are enough.",
                self.elect,
            ),
            Step(
                "Heal the network: the old primary rolls back",
                "Its history and the set's parted at the cut. It goes back to the last entry they share (the common "
                "point), but before it undoes anything it writes down, and syncs, all that will be gone.",
                self.heal,
            ),
            Step(
                "Read the rollback file",
                "rollback-tools lists what was lost and prints the documents, as bsondump would.",
                self.read_rollback,
            ),
            Step(
                "Compare all copies",
                "Every data-bearing member holds the same documents and the same oplog. Every acknowledged write is in "
                "the set or in the rollback file.",
                self.compare,
            ),
            Step(
                "Put back what was lost",
                "rollback-tools diff shows each lost write beside what the set holds now; restore writes it anew, with "
                'w: "majority", and a second run changes nothing; ack records that an operator has handled it.',
                self.put_back,
            ),
            Step(
                "Spark compares the oplogs",
                "oplog-spark diff reads the oplogs of the four members while they run, and the copy of the cut-off "
                "member from before the heal. It says where that one went its own way and which entries only it had.",
                self.compare_oplogs,
            ),
        ]

    # --- the steps -----------------------------------------------------------------------------------------------

    def start_and_initiate(self) -> None:
        for port in self.ports[:3]:
            member = self.set.add(port, flags=["--enable-test-commands"])
            self.print_line(f"{member.name}: wire {member.host}, {member.http}, process {member.pid}")
        self.set.initiate(FAST if self.fast else None)
        primary = self.set.wait_for_primary(within_s=self.patience)
        status = self.wait_counted(3)
        self.note_evidence(f"{primary.name} is primary in term {status['term']}; 3 of 3 members are counted")

    def write_and_read(self) -> None:
        primary = self.primary()
        reply = self.post(primary, "insertMany", {"documents": [order(n) for n in range(1, 6)]}, w="majority")
        check(len(reply["insertedIds"]) == 5, f"insertMany answered {reply}")
        found = self.post(
            primary, "find", {"filter": {"_id": {"$lte": 5}}, "sort": {"_id": 1}, "readConcern": {"level": "majority"}}
        )["documents"]
        check([document["_id"] for document in found] == [1, 2, 3, 4, 5], f"a majority read found {found}")
        self.print_line(f"curl {primary.http}/v1/action/find …  →  {compact(found[0])} and 4 more")
        self.note_evidence(f"5 orders written and read back with majority; commit point {self.commit_point(primary)}")

    def add_fourth(self) -> None:
        primary = self.primary()
        stop, failures = threading.Event(), list[str]()
        numbers = iter(range(1000, 10**6))

        def keep_writing() -> None:
            while not stop.is_set():
                try:
                    self.post(primary, "insertOne", {"document": order(next(numbers))}, w="majority")
                    self.written_while_syncing += 1
                except (ReplError, StepFailedError) as error:
                    failures.append(str(error))
                    return
                time.sleep(0.005)

        writer = threading.Thread(target=keep_writing, daemon=True)
        writer.start()
        try:
            member = self.set.add(self.ports[3], flags=["--enable-test-commands"])
            self.http(primary).post("/v1/replset/members", {"host": member.host})
            self.print_line(f"{member.name} on {member.host} added; it has no data and, until it has, no vote")
            self.wait_counted(4)
        finally:
            stop.set()
            writer.join(timeout=30)
        check(not failures, f"a write failed while {member.name} copied the data: {failures[:1]}")
        count = self.count(primary)
        check(count == 5 + self.written_while_syncing, f"{count} orders, {5 + self.written_while_syncing} written")
        wait_until(lambda: self.count(member) == count, self.patience, f"{member.name} to hold {count} orders")
        self.note_evidence(
            f"{self.written_while_syncing} writes went on meanwhile, none failed; {member.name} holds {count} orders"
        )

    def add_arbiter(self) -> None:
        member = self.set.add(self.ports[4], flags=["--enable-test-commands"], arbiter=True)
        reply = self.http(self.primary()).post("/v1/replset/members", {"host": member.host, "arbiterOnly": True})
        if reply.get("info"):
            self.print_line(str(reply["info"]))
        status = self.wait_counted(5)
        voters, needed = status["votingMembersCount"], status["writeMajorityCount"]
        check(voters == 5, f"{voters} votes instead of 5")
        self.note_evidence(f"5 members counted, 5 votes; a majority write needs {needed} copies")

    def cut(self) -> None:
        self.old_primary = self.primary()
        self.rest = [member for member in self.set.members if member is not self.old_primary]
        reply = self.old_primary.command(
            {"replSetTestCut": 1, "hosts": [member.host for member in self.rest], "direction": "both"}
        )
        check(reply.get("ok") == 1.0, f"replSetTestCut: {reply.get('errmsg')}")
        self.note_evidence(f"{self.old_primary.name} ({self.old_primary.host}) gets no message of {names(self.rest)}")

    def write_to_roll_back(self) -> None:
        old = self.cut_off()
        self.post(old, "insertOne", {"document": {"_id": 666, "item": "doomed", "qty": 1}}, w=1)
        self.post(old, "updateOne", {"filter": {"_id": 1}, "update": {"$set": {"item": "doomed change"}}}, w=1)
        self.post(old, "deleteOne", {"filter": {"_id": 2}}, w=1)
        check(self.count(old, {"_id": 666}) == 1, "the cut-off primary does not show the write it acknowledged")
        self.snapshot = copy_database(old.dbpath / DATABASE_FILE, self.set.folder / "before-the-heal" / DATABASE_FILE)
        self.print_line(f"a copy of its file, made through SQLite's backup while it runs: {self.snapshot}")
        self.note_evidence(f"{old.name} acknowledged an insert, an update and a delete that no other member has")

    def elect(self) -> None:
        old_term = self.status(self.cut_off())["term"]
        self.new_primary = self.set.wait_for_primary(among=self.rest, within_s=self.patience)
        status = self.status(self.new_primary)
        check(status["term"] > old_term, f"the new primary's term {status['term']} is not above {old_term}")
        self.print_line(f"{self.new_primary.name} is primary in term {status['term']} (before: {old_term})")
        self.post(self.new_primary, "insertOne", {"document": {"_id": 777, "item": "kept", "qty": 1}}, w="majority")
        check(self.count(self.new_primary, {"_id": 666}) == 0, "the new primary has the write to roll back")
        self.note_evidence(
            f"{self.new_primary.name} took over in term {status['term']}; a majority write succeeded, "
            f"commit point {self.commit_point(self.new_primary)}"
        )

    def heal(self) -> None:
        old = self.cut_off()
        reply = old.command({"replSetTestCut": 1, "hosts": []})
        check(reply.get("ok") == 1.0, f"replSetTestCut: {reply.get('errmsg')}")
        folder = old.dbpath / "rollback"

        def finished() -> Path | None:
            for path in sorted(folder.glob("rollback-*.json")):
                if json.loads(path.read_text(encoding="utf-8")).get("state") == "finished":
                    return path
            return None

        self.manifest = wait_until(finished, self.patience, f"{old.name} to roll back")
        wait_until(lambda: self.my_state(old) == "SECONDARY", self.patience, f"{old.name} to be SECONDARY again")
        manifest = self.read_manifest()
        check(self.count(old, {"_id": 666}) == 0, "the insert is still there after the rollback")
        self.print_line(f"common point {manifest['commonPoint']}, written before anything was undone:")
        for row in manifest["files"]:
            self.print_line(f"  {row['name']} ({row['count']} documents)")
        self.note_evidence(
            f"{old.name} rolled back to {manifest['commonPoint']} and is SECONDARY; {self.manifest.name} is finished"
        )

    def read_rollback(self) -> None:
        old = self.cut_off()
        manifest = self.manifest
        if manifest is None:
            raise StepFailedError("nothing was rolled back")
        self.show(self.tool("list", str(old.dbpath)))
        listed = json.loads(self.tool("list", "--json", str(old.dbpath)))["rollbacks"]
        check([row["id"] for row in listed] == [manifest.stem], f"rollback-tools lists {listed}")
        self.show(self.tool("show", str(manifest)))
        prefix = f"{DATABASE}.{COLLECTION}."
        row = next(row for row in self.read_manifest()["files"] if row["name"].startswith(prefix))
        dumped = self.tool("dump", str(manifest.parent / row["name"]))
        self.show(dumped)
        ids = {json.loads(line)["_id"]["$numberInt"] for line in dumped.splitlines() if line.startswith("{")}
        check(ids == {"666", "1"}, f"the rollback file holds the documents {sorted(ids)}, not 1 and 666")
        oplog = next(manifest.parent.glob("local.oplog.rs.*.bson"))
        lost = [json.loads(line)["op"] for line in self.tool("dump", str(oplog)).splitlines() if line.startswith("{")]
        check(sorted(lost)[:1] == ["d"] and {"i", "u", "d"} <= set(lost), f"the oplog file holds {lost}")
        self.note_evidence(f"the lost insert and update are in {row['name']}, all {len(lost)} entries in {oplog.name}")

    def compare(self) -> None:
        holders = [member for member in self.set.members if not member.arbiter]
        expected = 5 + self.written_while_syncing + 1

        def same() -> list[str] | None:
            states = [self.copy_of(member) for member in holders]
            return states if len(set(states)) == 1 else None

        states = wait_until(same, self.patience, "all copies to be the same")
        count = self.count(holders[0])
        check(count == expected, f"{count} orders in the set, {expected} acknowledged there")
        self.note_evidence(
            f"{len(states)} copies with {count} orders each, all the same, newest entry {json.loads(states[0])[0]}"
        )

    def put_back(self) -> None:
        if self.manifest is None or self.new_primary is None:
            raise StepFailedError("nothing was rolled back")
        manifest, host = str(self.manifest), self.new_primary.host
        self.show(self.tool("diff", manifest, "--host", host, status=1))
        restore = ("restore", manifest, "--host", host, "--policy", "overwrite")
        self.print_line("restore --dry-run would do this:")
        self.show(self.tool(*restore, "--dry-run"))
        check(self.count(self.new_primary, {"_id": 666}) == 0, "the dry run wrote something")
        self.show(self.tool(*restore))
        self.tool("diff", manifest, "--host", host)  # exit status 0: the set has all of them
        writes = self.writes_of(self.new_primary)
        self.tool(*restore)
        check(self.writes_of(self.new_primary) == writes, "a second restore wrote something")
        holders = [member for member in self.set.members if not member.arbiter]
        wait_until(lambda: all(map(self.has_it_back, holders)), self.patience, "all copies to have it back")
        self.show(self.tool("ack", manifest, "--by", "demo"))
        wait_until(
            lambda: self.status(self.primary())["unacknowledgedRollbacks"] == 0,
            self.patience,
            "the rollback to be seen",
        )
        self.note_evidence(
            f"{len(holders)} copies have the lost insert, update and delete; no rollback is unacknowledged"
        )

    def writes_of(self, member: LocalMember) -> int:
        """How many entries of its oplog change anything."""
        changes: dict[str, object] = {"find": "oplog.rs", "filter": {"op": {"$ne": "n"}}, "batchSize": 100_000}
        reply: Any = member.command(changes, "local")
        check(reply["ok"] == 1, f"{member.name}: {reply.get('errmsg')}")
        return len(reply["cursor"]["firstBatch"])

    def has_it_back(self, member: LocalMember) -> bool:
        found = self.count(member, {"_id": 666}), self.count(member, {"_id": 1, "item": "doomed change"})
        return (*found, self.count(member, {"_id": 2})) == (1, 1, 0)

    def compare_oplogs(self) -> None:
        if self.snapshot is None:
            raise StepFailedError("there is no copy from before the heal")
        holders = [member for member in self.set.members if not member.arbiter]
        wait_until(lambda: self.are_same(holders), self.patience, "oplog-spark to find the members' oplogs the same")
        live = names(holders)
        self.print_line(f"oplog-spark diff --engine local {live}: the same, exit status 0")
        page = self.set.folder / "oplogs.html"
        options = ["--engine", "spark", "--json", "--samples", "50", "--html", str(page)]
        files = [f"{CUT_OFF}={self.snapshot}", *(str(member.dbpath) for member in holders)]
        found = json.loads(self.oplog_spark(1, "diff", *options, *files))
        lost = [row for row in found["samples"] if row["kind"] == "rolled-back"]
        for row in lost:
            (version,) = row["versions"]
            self.print_line(f"rolled back: {row['optime']} {row['op']} {row['ns']} {compact(version['does'])}")
        rolled_back = {(row["op"], row["_id"]) for row in lost if row["ns"] == f"{DATABASE}.{COLLECTION}"}
        check(
            rolled_back == {("i", 666), ("u", 1), ("d", 2)},
            f"the entries named as rolled back are of {sorted(rolled_back)}",
        )
        check(all(row["present"] == [CUT_OFF] for row in lost), "another member holds an entry that was rolled back")
        check(found["differing"]["rolledBack"] == len(lost), "not all entries that were rolled back are named")
        check(found["differing"]["divergent"] == 0, f"{found['differing']['divergent']} entries of other content")
        forks = {row["common"] for row in found["pairs"] if CUT_OFF in (row["a"], row["b"])}
        common = self.read_manifest()["commonPoint"]
        check(forks == {common}, f"the common points are {sorted(forks)}, in the manifest it is {common}")
        self.print_line(f"a page with charts: {page}")
        self.note_evidence(
            f"{live} hold the same oplog; the copy parted at {common}, and the {len(lost)} entries that only it "
            "has are the writes that were rolled back"
        )

    # --- asking members ------------------------------------------------------------------------------------------

    def http(self, member: LocalMember) -> HttpClient:
        return HttpClient(member.http)

    def post(self, member: LocalMember, action: str, body: dict[str, Any], w: object = None) -> dict[str, Any]:
        whole: dict[str, Any] = {"database": DATABASE, "collection": COLLECTION, **body}
        if w is not None:
            whole["writeConcern"] = {"w": w, "wtimeout": int(self.patience * 1000)}
        suffix = "?forward=false" if w is not None else ""
        return self.http(member).post(f"/v1/action/{action}{suffix}", whole)

    def count(self, member: LocalMember, query: dict[str, Any] | None = None) -> int:
        body = {"filter": query or {}, "readPreference": {"mode": "secondaryPreferred"}}
        reply = self.post(member, "countDocuments", body)
        return int(reply["count"])

    def copy_of(self, member: LocalMember) -> str:
        """The newest optime and all documents of a member, as one text to compare."""
        body = {"filter": {}, "sort": {"_id": 1}, "limit": 100_000, "readPreference": {"mode": "secondaryPreferred"}}
        documents = self.post(member, "find", body)["documents"]
        info = self.http(member).get("/v1/replset/oplog/info")
        return json.dumps([info["last"], documents], sort_keys=True)

    def status(self, member: LocalMember) -> dict[str, Any]:
        return self.http(member).get("/v1/replset/status")

    def my_state(self, member: LocalMember) -> str:
        return next((str(row["stateStr"]) for row in self.status(member)["members"] if row.get("self")), "?")

    def primary(self) -> LocalMember:
        return self.set.wait_for_primary(within_s=self.patience)

    def cut_off(self) -> LocalMember:
        if self.old_primary is None:
            raise StepFailedError("nobody was cut off")
        return self.old_primary

    def wait_counted(self, members: int) -> dict[str, Any]:
        """Wait until the primary counts all `members`: each is in its final state and has its vote."""

        def counted() -> dict[str, Any] | None:
            primary = self.set.primary()
            if primary is None:
                return None
            status = self.status(primary)
            rows = status["members"]
            ready = [
                row for row in rows if row.get("counted") and row["stateStr"] in {"PRIMARY", "SECONDARY", "ARBITER"}
            ]
            return status if len(rows) == len(ready) == members else None

        return wait_until(counted, self.patience, f"{members} members to be counted", every_s=0.2)

    def commit_point(self, member: LocalMember) -> str:
        optime = self.status(member)["optimes"]["lastCommittedOpTime"]
        stamp = optime["ts"]["$timestamp"]
        return f"{optime['t']}:{stamp['t']}:{stamp['i']}"

    def read_manifest(self) -> dict[str, Any]:
        if self.manifest is None:
            raise StepFailedError("nothing was rolled back")
        manifest: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
        return manifest

    def tool(self, *arguments: str, status: int = 0) -> str:
        """What rollback-tools prints; it must exit with `status`."""
        done = run_module("rollback_tools.main", *arguments)
        check(done.returncode == status, reason_of(done, "rollback-tools"))
        return done.stdout

    def are_same(self, members: Sequence[LocalMember]) -> bool:
        """Whether they hold the same oplog now; one may be an entry behind for a moment."""
        done = run_module("spark", "diff", "--engine", "local", *(str(member.dbpath) for member in members))
        check(done.returncode in (0, 1), reason_of(done, "oplog-spark"))
        return done.returncode == 0

    def oplog_spark(self, status: int, *arguments: str) -> str:
        """What it prints; it must exit with `status`."""
        done = run_module("spark", *arguments)
        check(done.returncode == status, reason_of(done, "oplog-spark"))
        for line in done.stderr.splitlines():
            self.print_line(line)
        return done.stdout

    # --- telling -------------------------------------------------------------------------------------------------

    def print_line(self, text: str) -> None:
        self.console.print(f"    {escape(text)}", highlight=False, soft_wrap=True)

    def show(self, output: str) -> None:
        """What a tool printed, as it was."""
        for line in output.rstrip().splitlines():
            self.console.print(f"    │ {escape(line)}", style="dim", highlight=False, soft_wrap=True)

    def note_evidence(self, text: str) -> None:
        self._evidence = text
        self.console.print(f"  [green]✔[/green] {escape(text)}", highlight=False, soft_wrap=True)

    def run(self) -> bool:
        """Play all steps; False as soon as one does not hold."""
        for number, step in enumerate(self.steps(), 1):
            self.console.print(f"\n[bold]{number}. {step.title}[/bold]")
            self.console.print(f"  {step.meaning}", style="italic", highlight=False)
            began = time.monotonic()
            self._evidence = ""
            try:
                step.play()
                check(self._evidence, "the step checked nothing")
            except (StepFailedError, ReplError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
                self.console.print(f"  [red]✘ {escape(f'{type(error).__name__}: {error}')}[/red]", highlight=False)
                self.table.append((step.title, time.monotonic() - began, f"FAILED: {error}"))
                return False
            self.table.append((step.title, time.monotonic() - began, self._evidence))
        return True

    def summary(self) -> Table:
        table = Table(title="What happened", show_lines=False)
        table.add_column("", justify="right")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        table.add_column("evidence", overflow="fold")
        for number, (title, seconds, proof) in enumerate(self.table, 1):
            table.add_row(str(number), escape(title), f"{seconds:.1f}", escape(proof))
        return table


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the project in a process of its own."""
    environment = {**os.environ, "COLUMNS": "112"}
    return subprocess.run(
        command_of(module, *arguments), capture_output=True, text=True, timeout=240, check=False, env=environment
    )


def reason_of(done: subprocess.CompletedProcess[str], program: str) -> str:
    """Why a program ended as it should not have: its last line, which names the program."""
    lines = done.stderr.strip().splitlines() or [f"{program}: nothing was said"]
    return f"{lines[-1]} (exit status {done.returncode})"


def copy_database(source: Path, target: Path) -> Path:
    """A consistent copy of a member's database, in use or not; only ever from another process than the member's."""
    target.parent.mkdir()
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)
    return target


def order(number: int) -> dict[str, Any]:
    return {"_id": number, "item": f"item {number}", "qty": number % 7}


def names(members: Sequence[LocalMember]) -> str:
    return ", ".join(member.name for member in members)


def compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 only when every step held."""
    parser = argparse.ArgumentParser(prog="./dev demo", description="A replica set's story on real processes.")
    parser.add_argument("--fast", action="store_true", help="1 s election timeout and 200 ms heartbeats")
    parser.add_argument("--keep", action="store_true", help="leave the set running at the end")
    parser.add_argument("--base-port", type=int, default=27017, help="first wire port to try (27017)")
    options = parser.parse_args(argv)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="replset-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        demo = Demo(folder, fast=options.fast, base_port=options.base_port, console=console)
    except LocalSetError as error:
        console.print(f"demo: {escape(error.message)}")
        return 2
    timeouts = "fast timeouts (1 s)" if options.fast else "real timeouts: heartbeats every 2 s, elections after 10 s"
    console.print(
        Panel(f"A replica set on this machine, ports {demo.ports[0]} to {demo.ports[-1]}, {timeouts}.\n{folder}")
    )
    held = False
    try:
        held = demo.run()
    except KeyboardInterrupt:
        console.print("\nstopped")
    finally:
        console.print()
        console.print(demo.summary())
        if options.keep and held:
            console.print(
                f"The set goes on; end it with: replset cluster down --dir {folder}", highlight=False, soft_wrap=True
            )
        else:
            for member in demo.set.members:
                demo.set.kill(member)
    total = sum(seconds for _, seconds, _ in demo.table)
    verdict = "[green]Every step held.[/green]" if held else "[red]A step did not hold.[/red]"
    console.print(f"{verdict} {total:.0f} s; files and logs in {folder}", highlight=False, soft_wrap=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
