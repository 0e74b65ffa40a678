"""Peers of the engine, where they are installed: three members of each on loopback, every write durable on two.

PostgreSQL: synchronous_standby_names ANY 1 of two standbys. etcd: three members, loaded over gRPC and,
for `http`, through the JSON gateway. Redis: two replicas, appendfsync always, WAIT 1 after each write. They live in
temporary folders and end by their pid.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from replset.local_set import free_ports, wait_until
from tools.bench.subjects import answers

ROWS_OF_PEERS = ("majority", "bulk", "find")


@dataclass(eq=False)
class Peer:
    """Has the servers of one peer."""

    name: str
    primary: int
    secondaries: Sequence[int]
    port: int
    rows: Sequence[str] = field(default=ROWS_OF_PEERS)

    def target(self, row: str) -> tuple[str, int] | None:
        return (f"{self.name}-{row}", self.port) if row in self.rows else None

    def member_messages(self) -> None:
        return None

    def settle(self) -> None:
        return None


class Processes:
    """Starts processes and ends them by their pid."""

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self._log = folder / "log"
        self._user = user
        self._started: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []

    def start(self, *command: str | Path, stop: signal.Signals = signal.SIGTERM) -> int:
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self._user)
        self._started.append((process, stop))
        return process.pid

    def run(self, *command: str | Path) -> None:
        done = subprocess.run(command, capture_output=True, text=True, user=self._user)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")

    def end(self) -> None:
        for process, stop in reversed(self._started):
            process.send_signal(stop)
        for process, _ in self._started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _processes(user: str | None = None) -> Iterator[tuple[Path, Processes]]:
    """Yield a folder that belongs to `user`, and processes that run as `user` and end with the block."""
    with tempfile.TemporaryDirectory(prefix="replset-peer-") as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        processes = Processes(folder, user)
        try:
            yield folder, processes
        finally:
            processes.end()


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


def _postgres_folder() -> Path | None:
    """Return where the newest installed PostgreSQL has its programs; Debian keeps them off PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return debian[-1].parent if debian else None


def _postgres_user() -> str | None:
    """Return whom PostgreSQL runs as, since it does not run as root; None: as this process."""
    if os.geteuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def postgres() -> Iterator[Peer]:
    programs = _postgres_folder()
    if programs is None:
        raise RuntimeError("no initdb")
    ports = free_ports(3, 39117)
    with _processes(_postgres_user()) as (folder, processes):
        first = folder / "p1"
        processes.run(programs / "initdb", "-D", first, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-sync")
        common = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 300\n"
        standbys = "synchronous_standby_names = 'ANY 1 (p2, p3)'\n"
        with (first / "postgresql.conf").open("a") as file:
            file.write(f"{common}port = {ports[0]}\n")
        pids = [processes.start(programs / "postgres", "-D", first, stop=signal.SIGINT)]
        ask = (programs / "psql", "-h", "127.0.0.1", "-p", str(ports[0]), "-U", "bench", "-d", "postgres", "-qc")
        wait_until(lambda: _succeeds(processes, *ask, "SELECT 1"), 60, "PostgreSQL")
        processes.run(*ask, "CREATE TABLE bench (id bytea PRIMARY KEY, doc bytea NOT NULL)")
        for name, port in zip(("p2", "p3"), ports[1:], strict=True):
            copy = ("-D", folder / name, "-h", "127.0.0.1", "-p", str(ports[0]), "-U", "bench", "-R", "-c", "fast")
            processes.run(programs / "pg_basebackup", *copy)
            with (folder / name / "postgresql.conf").open("a") as file:
                file.write(f"port = {port}\ncluster_name = '{name}'\n")
            pids.append(processes.start(programs / "postgres", "-D", folder / name, stop=signal.SIGINT))
        with (first / "postgresql.conf").open("a") as file:
            file.write(standbys)
        processes.run(*ask, "SELECT pg_reload_conf()")
        both = "SELECT 1 / (count(*) = 2)::int FROM pg_stat_replication WHERE sync_state = 'quorum'"
        wait_until(lambda: _succeeds(processes, *ask, both), 60, "PostgreSQL's standbys")
        yield Peer("postgres", pids[0], pids[1:], ports[0])


def _succeeds(processes: Processes, *command: str | Path) -> bool:
    try:
        processes.run(*command)
    except RuntimeError:
        return False
    return True


# --- etcd -----------------------------------------------------------------------------------------------------------


@contextmanager
def etcd() -> Iterator[Peer]:
    program = shutil.which("etcd")
    if program is None:
        raise RuntimeError("no etcd")
    ports = free_ports(6, 39217)
    clients, members = ports[:3], ports[3:]
    cluster = ",".join(f"e{number}=http://127.0.0.1:{port}" for number, port in enumerate(members))
    with _processes() as (folder, processes):
        pids = []
        for number, (client, member) in enumerate(zip(clients, members, strict=True)):
            mine, peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{member}"
            names = ("--name", f"e{number}", "--data-dir", folder / f"e{number}", "--initial-cluster", cluster)
            urls = ("--listen-client-urls", mine, "--advertise-client-urls", mine)
            others = ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
            pids.append(processes.start(program, *names, *urls, *others))
        leader = wait_until(lambda: _leader(clients), 60, "etcd's leader")
        at = clients.index(leader)
        yield Peer("etcd", pids[at], [*pids[:at], *pids[at + 1 :]], leader, ("majority", "find", "http"))


def _leader(ports: list[int]) -> int | None:
    """Return the client port of the member that calls itself the leader; None: there is none yet."""
    for port in ports:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("POST", "/v3/maintenance/status", "{}")
            status = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if status.get("leader", "0") == status["header"]["member_id"]:
            return port
    return None


# --- Redis ----------------------------------------------------------------------------------------------------------


@contextmanager
def redis() -> Iterator[Peer]:
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server")
    ports = free_ports(3, 39317)
    durable = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    with _processes() as (folder, processes):
        pids = []
        for number, port in enumerate(ports):
            place = folder / f"r{number}"
            place.mkdir()
            source = ("--replicaof", f"127.0.0.1 {ports[0]}") if number else ()
            pids.append(processes.start(program, "--port", str(port), "--dir", place, *durable, *source))
            wait_until(lambda port=port: answers(port), 30, "Redis")  # type: ignore[misc]
        wait_until(
            lambda: _redis(ports[0], b"INFO replication\r\n").count(b"state=online") == 2, 60, "Redis's replicas"
        )
        yield Peer("redis", pids[0], pids[1:], ports[0])


def _redis(port: int, command: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(command)
        return connection.recv(1 << 16)


PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {"postgres": postgres, "etcd": etcd, "redis": redis}


def installed() -> list[str]:
    """Return the names of the peers whose programs are there."""
    has = {
        "postgres": _postgres_folder() is not None,
        "etcd": shutil.which("etcd") is not None,
        "redis": shutil.which("redis-server") is not None,
    }
    return [name for name, there in has.items() if there]


def start_all(stack: ExitStack) -> tuple[list[Peer], list[str]]:
    """Start the peers that are installed, until the stack ends. Returns them, and the names of the others."""
    there = installed()
    return [stack.enter_context(PEERS[name]()) for name in there], [name for name in PEERS if name not in there]
