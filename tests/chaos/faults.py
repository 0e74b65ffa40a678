"""What goes wrong in a chaos run: one fault of each kind, begun and mended again.

Members stand on their own processes, sockets and disks; a fault uses what an administrator or a machine can do to them,
but for cuts, late traffic and clocks, which members do to themselves (`--enable-test-commands`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from replset.cli.local_set import LocalMember, LocalSet
from replset.errors import ReplError

DISK_MB = 512
"""An initial sync wants 256 MB free beside what it copies."""
BALLAST = "ballast"
OWN_NAMESPACE = "REPLSET_CHAOS_MOUNTS"
FLAGS = ("--enable-test-commands", "--min-free-mb", "4", "--oplog-size-mb", "16")


class CannotError(Exception):
    """The fault cannot be made now or here; the text says why."""


@dataclass
class World:
    """The set under attack. own_disks: each dbpath is a small file system of its own."""

    local: LocalSet
    rng: random.Random
    own_disks: bool
    down: set[str] = field(default_factory=set)
    """Members that a fault keeps from answering."""

    def up(self) -> list[LocalMember]:
        return [member for member in self.local.members if member.name not in self.down]

    def a_member(self) -> LocalMember:
        """Half of the time the primary."""
        chosen = self.up()
        if not chosen:
            raise CannotError("no member is left")
        primary = self.local.primary(among=chosen) if self.rng.random() < 0.5 else None
        return primary or self.rng.choice(chosen)

    def others(self, member: LocalMember) -> list[LocalMember]:
        return [other for other in self.local.members if other is not member]


Mend = Callable[[], None]
Fault = Callable[[World], tuple[str, Mend | None]]
"""Begins; returns what it did, and what mends it; None where it is over by itself."""


def kill(world: World) -> tuple[str, Mend]:
    member = world.a_member()
    world.local.kill(member)
    return f"kill -9 {member.name}", _started_again(world, member)


def terminate(world: World) -> tuple[str, Mend]:
    member = world.a_member()
    world.local.stop(member)
    return f"SIGTERM {member.name}", _started_again(world, member)


def pause(world: World) -> tuple[str, Mend]:
    member = world.a_member()
    os.kill(member.pid, signal.SIGSTOP)
    world.down.add(member.name)

    def go_on() -> None:
        os.kill(member.pid, signal.SIGCONT)
        world.down.discard(member.name)

    return f"SIGSTOP {member.name}", go_on


def cut(world: World) -> tuple[str, Mend]:
    member = world.a_member()
    others = world.others(member)
    if world.rng.random() < 0.4:
        others = [world.rng.choice(others)]
    direction = world.rng.choice(("both", "both", "in", "out"))
    hosts = [other.host for other in others]
    _told(member, {"replSetTestCut": 1, "hosts": hosts, "direction": direction})
    names = ", ".join(other.name for other in others)
    return f"cut {member.name} from {names} ({direction})", _healed(member)


def late_traffic(world: World) -> tuple[str, Mend]:
    member, delay_ms = world.a_member(), world.rng.choice((50, 200, 600, 1500))
    hosts = [other.host for other in world.others(member)]
    _told(member, {"replSetTestCut": 1, "hosts": hosts, "delayMillis": delay_ms})
    return f"calls of {member.name} leave {delay_ms} ms late", _healed(member)


def clock_step(world: World) -> tuple[str, None]:
    member, ahead_s = world.a_member(), world.rng.choice((-3600, -60, -2, 2, 60, 600))
    _told(member, {"replSetTestClock": 1, "aheadMillis": ahead_s * 1000})
    return f"the clock of {member.name} steps by {ahead_s} s", None


def step_down(world: World) -> tuple[str, None]:
    primary = world.local.primary(among=world.up())
    if primary is None:
        raise CannotError("no primary")
    with contextlib.suppress(ReplError):
        primary.command({"replSetStepDown": 5, "force": world.rng.random() < 0.5}, timeout_s=10)
    return f"{primary.name} is told to step down", None


def reconfig(world: World) -> tuple[str, None]:
    primary = world.local.primary(among=world.up())
    if primary is None:
        raise CannotError("no primary")
    with contextlib.suppress(ReplError, KeyError):
        config = primary.command({"replSetGetConfig": 1}, timeout_s=5)["config"]
        row = world.rng.choice(config["members"])  # type: ignore[index]
        row["priority"] = world.rng.choice((0.5, 1, 2))
        config["version"] += 1  # type: ignore[index]
        primary.command({"replSetReconfig": config, "maxTimeMS": 5_000}, timeout_s=10)
    return f"reconfig on {primary.name}: another priority", None


def full_disk(world: World) -> tuple[str, Mend]:
    if not world.own_disks:
        raise CannotError("no file systems can be mounted here")
    member = world.a_member()
    fill(member.dbpath / BALLAST)
    return f"the disk of {member.name} is full", lambda: make_room(member)


def read_only(world: World) -> tuple[str, Mend]:
    """The member is killed, and must say in one line that it cannot start."""
    if not world.own_disks:
        raise CannotError("no file systems can be mounted here")
    member = world.a_member()
    world.local.kill(member)
    world.down.add(member.name)
    subprocess.run(["mount", "-o", "remount,ro", str(member.dbpath)], check=True)
    options = ["--replSet", world.local.name, "--dbpath", str(member.dbpath), "--port", str(member.port), *member.flags]
    command = [sys.executable, "-m", "replset.cli.main", "start", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stderr.strip()
    if done.returncode != 2 or "Traceback" in said or len(said.splitlines()) != 1:
        raise AssertionError(f"started on a read-only dbpath, {member.name} exits with {done.returncode}: {said}")
    again = _started_again(world, member)

    def mend() -> None:
        subprocess.run(["mount", "-o", f"remount,rw,size={DISK_MB}m", str(member.dbpath)], check=True)
        again()

    return f"the dbpath of {member.name} is read-only: {said}", mend


FAULTS: tuple[Fault, ...] = (
    *(kill, kill, terminate, pause, pause, cut, cut, cut, late_traffic),
    *(clock_step, step_down, reconfig, full_disk, read_only),
)
"""What is there twice is drawn more often."""
NEEDS_DISKS = frozenset({full_disk, read_only})
BY_NAME: dict[str, Fault] = {fault.__name__: fault for fault in FAULTS}


def drawn(rng: random.Random, own_disks: bool, names: Sequence[str] = ()) -> Iterator[Fault]:
    """Faults without end, like cards of a deck: each was there once before any comes again. names: only these."""
    kinds = [BY_NAME[name] for name in names] or list(FAULTS)
    deck = [kind for kind in kinds if own_disks or kind not in NEEDS_DISKS]
    while deck:
        rng.shuffle(deck)
        yield from deck


def make_room(member: LocalMember) -> None:
    """While the disk is read-only nothing can be removed: who mends that starts the member again, and that does."""
    with contextlib.suppress(OSError):
        (member.dbpath / BALLAST).unlink()


def fill(ballast: Path) -> None:
    """Until there is no byte left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def mount_disks(paths: Sequence[Path]) -> None:
    for path in paths:
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)], check=True)


def unmount_disks(folder: Path) -> None:
    """What the disks hold is put where they were."""
    for path in [path for path in folder.iterdir() if path.is_mount()]:
        held = path.with_name(f"{path.name}.held")
        shutil.copytree(path, held)
        subprocess.run(["umount", str(path)], check=True)
        path.rmdir()
        held.rename(path)


def can_mount() -> tuple[str, ...]:
    """The options with which `unshare` lets this user mount a file system of his own; empty where it does not."""
    if shutil.which("unshare") is not None:
        for options in (("--mount",), ("--mount", "--map-root-user")):
            probe = ["unshare", *options, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return options
    return ()


def enter_own_mounts() -> bool:
    """Start this program again where mounts are its own and end with it; False where the machine does not allow it."""
    if os.environ.get(OWN_NAMESPACE):
        return os.environ[OWN_NAMESPACE] == "yes"
    options = can_mount()
    os.environ[OWN_NAMESPACE] = "yes" if options else "no"
    if options:
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", *options, sys.executable, "-m", "tests.chaos", *sys.argv[1:]])
    return False


def make_peace(member: LocalMember) -> None:
    """Its clock right, no cut left."""
    for command in ({"replSetTestClock": 1}, {"replSetTestCut": 1, "hosts": []}):
        with contextlib.suppress(CannotError):
            _told(member, command)


def _told(member: LocalMember, command: dict[str, object]) -> None:
    try:
        reply = member.command(command, timeout_s=2)
    except ReplError as error:
        raise CannotError(str(error)) from error
    if reply.get("ok") != 1.0:
        raise CannotError(str(reply.get("errmsg")))


def _healed(member: LocalMember) -> Mend:
    """A process that was killed meanwhile has forgotten its cuts, one that is paused is healed at the end."""

    def heal() -> None:
        with contextlib.suppress(CannotError):
            _told(member, {"replSetTestCut": 1, "hosts": []})

    return heal


def _started_again(world: World, member: LocalMember) -> Mend:
    world.down.add(member.name)

    def start() -> None:
        make_room(member)  # a start needs some
        world.local.start(member)
        world.down.discard(member.name)

    return start
