"""Role hooks on real processes: step-down, a hanging primary and a killed one, each with one holder of the role at a
time; and a floating address in network namespaces, where the machine allows them.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from replset.cli.local_set import LocalMember, wait_until
from replset.client import WireClient
from replset.errors import ReplError
from replset.runtime.options import MemberOptions
from tests.integration.conftest import FAST, next_ports
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import all_counted, insert, run

HOOK_SECS = 1
HOOK = """#!/bin/sh
cd "$(dirname "$0")"
if [ "$1" = release ]; then
    [ "$(cat holder 2>/dev/null)" != "$ROLE_MEMBER" ] || { sleep 0.2; rm holder; }
else
    [ ! -e holder ] || [ "$(cat holder)" = "$ROLE_MEMBER" ] || echo "$ROLE_MEMBER beside $(cat holder)" >> twice
    echo "$ROLE_MEMBER" > holder
fi
echo "$(date +%s%3N) $1 $ROLE_MEMBER" >> events
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[ForkedSet]:
    hook = tmp_path / "hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    with running_set(tmp_path / "set") as made:
        for port in next_ports(3):
            made.add(port, flags=["--role-hook", str(hook), "--role-hook-secs", str(HOOK_SECS)])
        made.initiate(FAST)
        all_counted(made)
        yield made


def holder(local: ForkedSet) -> str:
    path = local.folder.parent / "holder"
    with suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""


def times_of(local: ForkedSet, event: str, member: LocalMember) -> list[int]:
    """When the member's hook ended these calls, in milliseconds."""
    rows = (line.split() for line in (local.folder.parent / "events").read_text().splitlines())
    return [int(when) for when, *what in rows if what == [event, member.host]]


def first_write_ms(member: LocalMember) -> int:
    """When this primary wrote the first entry of its term."""
    term = run(member, {"replSetGetStatus": 1}, "admin")["term"]
    wanted = {"o.msg": "new primary", "t": term}
    reply = run(member, {"find": "oplog.rs", "filter": wanted, "$readPreference": {"mode": "nearest"}}, "local")
    (entry,) = reply["cursor"]["firstBatch"]
    return int(entry["wall"].ms)


def test_one_member_holds_the_role_at_a_time(local: ForkedSet) -> None:
    first = local.wait_for_primary()
    wait_until(lambda: holder(local) == first.host, 10, "the first gain")

    run(first, {"replSetStepDown": 20, "secondaryCatchUpPeriodSecs": 10}, "admin")
    second = taken_over(local, first)
    os.kill(second.pid, signal.SIGSTOP)  # it hangs: its guard releases in its place
    try:
        third = taken_over(local, second)
    finally:
        os.kill(second.pid, signal.SIGCONT)
    wait_until(lambda: run(second, {"hello": 1}, "admin")["secondary"], 30, "the one that hung to follow")
    local.kill(third)
    taken_over(local, third)
    assert not (local.folder.parent / "twice").exists()


def taken_over(local: ForkedSet, before: LocalMember) -> LocalMember:
    """Wait for another primary that holds the role; its first write came after the release of the one before."""
    others = [member for member in local.members if member is not before and member.is_running()]
    primary = local.wait_for_primary(among=others)
    insert(primary, f"after {before.name}", w=1)
    wrote_ms = first_write_ms(primary)
    wait_until(lambda: wrote_ms <= max(times_of(local, "gain", primary), default=0), 10, "the role to be gained")
    assert holder(local) == primary.host
    assert times_of(local, "release", before)[-1] <= wrote_ms
    return primary


# --- network namespaces -------------------------------------------------------------------------------------------

FLOATING = "10.77.0.100"
ADDRESS_HOOK = f"""#!/bin/sh
case $1 in
    gain) ip addr show dev eth0 | grep -q {FLOATING}/ || ip addr add {FLOATING}/24 dev eth0 ;;
    release) ! ip addr show dev eth0 | grep -q {FLOATING}/ || ip addr del {FLOATING}/24 dev eth0 ;;
esac
"""
CLONE_NEWNET = 0x40000000


def ip(*arguments: str, program: str = "ip") -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


class Network:
    """A hub, which is a bridge, and three namespaces, each with one link to it. This process speaks from the hub."""

    def __init__(self, stack: ExitStack) -> None:
        name = f"rs{os.getpid()}"
        self.hub, self.spaces = f"{name}h", [f"{name}n{number}" for number in (1, 2, 3)]
        for space in (self.hub, *self.spaces):
            ip("netns", "add", space)
            stack.callback(ip, "netns", "del", space)
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "addr", "add", "10.77.0.254/24", "dev", "br0")
        ip("-n", self.hub, "link", "set", "br0", "up")
        for number, space in enumerate(self.spaces, 1):
            link = ("-n", self.hub, "link")
            ip(*link, "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip(*link, "set", f"v{number}", "master", "br0", "up")
            ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")
            with suppress(subprocess.CalledProcessError):  # a kernel without netem: then the links are perfect
                ip("-n", self.hub, "qdisc", "add", "dev", f"v{number}", "root", "netem", "delay", "5ms", program="tc")

    def set_link(self, number: int, state: str) -> None:
        ip("-n", self.hub, "link", "set", f"v{number}", state)

    def holders(self) -> list[int]:
        """The members that have the floating address."""
        found = (number for number, space in enumerate(self.spaces, 1) if f"{FLOATING}/" in ip("-n", space, "addr"))
        return list(found)

    def ask(self, address: str, command: dict[str, object], database: str = "admin") -> dict[str, Any]:
        """Run a command from the hub; {} when nobody answers."""
        with self._in_hub():
            try:
                client = WireClient(f"{address}:27017", timeout_s=3)
            except ReplError:
                return {}
        with client, suppress(ReplError):
            return client.command(database, command)
        return {}

    @contextmanager
    def _in_hub(self) -> Iterator[None]:
        """A socket belongs to the namespace in which its thread is when it is made."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/var/run/netns/{self.hub}") as there:
            assert libc.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(here.fileno(), CLONE_NEWNET) == 0


@pytest.fixture
def network() -> Iterator[Network]:
    if not shutil.which("ip") or os.geteuid():
        pytest.skip("network namespaces need root and iproute2")
    with ExitStack() as stack:
        try:
            made = Network(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
        yield made


def test_a_floating_address_never_exists_twice(network: Network, tmp_path: Path) -> None:
    """The primary's cable is pulled: it loses the address by itself before the next primary has it, and writes."""
    with ExitStack() as stack:
        start_members(network, tmp_path, stack)
        members = [{"_id": number, "host": f"10.77.0.{number}:27017"} for number in (1, 2, 3)]
        config = {"_id": "rs0", "members": members, "settings": FAST}
        wait_until(lambda: network.ask("10.77.0.1", {"replSetInitiate": config}).get("ok"), 30, "the set")
        wait_until(lambda: in_service(network), 60, "all members to have data and vote")
        (first,) = wait_until(network.holders, 30, "an address")
        assert write(network, 1)
        network.set_link(first, "down")
        seen: list[list[int]] = []

        def moved() -> bool:
            seen.append(network.holders())
            return seen[-1] not in ([], [first])

        wait_until(moved, 40, "another holder", every_s=0.01)
        (second,) = seen[-1]
        assert all(len(found) <= 1 for found in seen), seen
        assert [] in seen
        wait_until(lambda: write(network, 2), 20, "a write through the address")
        network.set_link(first, "up")
        back = f"10.77.0.{first}"
        wait_until(lambda: network.ask(back, {"hello": 1}).get("secondary"), 40, "the old primary to follow")
        assert network.holders() == [second]


def in_service(network: Network) -> bool:
    rows = network.ask("10.77.0.1", {"replSetGetStatus": 1}).get("members", [])
    return {row["stateStr"] for row in rows} == {"PRIMARY", "SECONDARY"} and all(row["counted"] for row in rows)


def write(network: Network, number: int) -> bool:
    """Insert through the floating address. Who had it before is forgotten, as a gratuitous ARP would have it."""
    with suppress(subprocess.CalledProcessError):
        ip("-n", network.hub, "neigh", "flush", "dev", "br0")
    command = {"insert": "c", "documents": [{"_id": number}], "writeConcern": {"w": "majority", "wtimeout": 10_000}}
    reply = network.ask(FLOATING, command, "shop")
    return reply.get("n") == 1 or 11000 in [row["code"] for row in reply.get("writeErrors", [])]


def start_members(network: Network, folder: Path, stack: ExitStack) -> None:
    hook, key = folder / "hook", folder / "key"
    hook.write_text(ADDRESS_HOOK)
    hook.chmod(0o755)
    key.write_text("c2VjcmV0" * 8)
    key.chmod(0o600)
    known = {field.name for field in fields(MemberOptions)}
    flags = ["--insecure-clients"] if "insecure_clients" in known else []
    environment = {name: value for name, value in os.environ.items() if not re.match("REPLSET_", name)}
    for number, space in enumerate(network.spaces, 1):
        start = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", "rs0", "--bind-ip", "0.0.0.0"]
        start += ["--dbpath", str(folder / space), "--advertise", f"10.77.0.{number}", "--key-file", str(key), *flags]
        log = stack.enter_context((folder / f"{space}.log").open("w"))
        process = subprocess.Popen(
            ["ip", "netns", "exec", space, *start, "--role-hook", str(hook), "--role-hook-secs", str(HOOK_SECS)],
            stdout=log,
            stderr=log,
            env=environment,
        )
        stack.callback(process.wait, 20)
        stack.callback(process.kill)
