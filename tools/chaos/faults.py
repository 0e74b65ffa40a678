"""What goes wrong in a chaos run with processes, links, clocks and disks, and the table of all faults.

Members have their own processes, sockets and disks; a fault uses what an administrator or a machine can do to them,
but for cuts, late traffic and clocks, which members do to themselves (`--enable-test-commands`). A fault begins, and
returns what mends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from replset.errors import ReplError
from replset.local_set import LocalMember
from tools.chaos.context import BALLAST, CannotError, Fault, FaultContext, Mend, answers, send_command
from tools.chaos.damage import damaged_entry, lost_wal, wipe
from tools.chaos.disks import DISK_MB, fill
from tools.chaos.greedy import (
    flood,
    half_messages,
    large_array,
    large_batches,
    large_bodies,
    large_statements,
    pipeline,
    slow_expression,
    strings_by_a_collation,
    unread_exports,
)
from tools.chaos.hostile import crowd, forged_positions, hostile_query, strangers, web_page

FLAGS = ("--enable-test-commands", "--min-free-mb", "4", "--oplog-size-mb", "16")
ELECTION_TIMEOUT_S = 1.5
STEPS_S = (-3600, -60, -2, 2, 60, 600)


def kill(context: FaultContext) -> tuple[str, Mend]:
    member = context.a_member()
    absence = context.take_down(member)
    return f"kill -9 {member.name}", lambda: context.bring_up(member, absence)


def terminate(context: FaultContext) -> tuple[str, Mend]:
    member = context.a_member()
    absence = context.take_down(member, signal.SIGTERM)
    return f"SIGTERM {member.name}", lambda: context.bring_up(member, absence)


def pause(context: FaultContext) -> tuple[str, Mend]:
    member = context.a_member()
    absence = context.freeze_process(member)
    return f"SIGSTOP {member.name}", lambda: context.thaw_process(member, absence)


def cut(context: FaultContext) -> tuple[str, Mend]:
    member = context.a_member()
    others = context.others(member)
    if context.rng.random() < 0.4:
        others = [context.rng.choice(others)]
    direction = context.rng.choice(("both", "both", "in", "out"))
    hosts = [other.host for other in others]
    send_command(member, {"replSetTestCut": 1, "hosts": hosts, "direction": direction})
    names = ", ".join(other.name for other in others)
    return f"cut {member.name} from {names} ({direction})", _healed(member)


def late_traffic(context: FaultContext) -> tuple[str, Mend]:
    member, delay_ms = context.a_member(), context.rng.choice((50, 200, 600, 1500))
    hosts = [other.host for other in context.others(member)]
    send_command(member, {"replSetTestCut": 1, "hosts": hosts, "delayMillis": delay_ms})
    return f"calls of {member.name} leave {delay_ms} ms late", _healed(member)


def bridge(context: FaultContext) -> tuple[str, None]:
    """One broken link: the secondary behind it learns of the primary through the others, and may not replace it."""
    primary, secondary = context.the_primary(), context.a_secondary()
    # Under writes a member behind a longer way is behind, and not elected for that reason alone.
    quiet = context.clients.quiet() if context.rng.random() < 0.5 else contextlib.nullcontext()
    with quiet, context.attack(f"one broken link, {primary.name} to {secondary.name}", most_terms=2):
        send_command(primary, {"replSetTestCut": 1, "hosts": [secondary.host]})
        time.sleep(8 * ELECTION_TIMEOUT_S)
        _healed(primary)()
    return f"the link of {primary.name} to {secondary.name} was broken for eight election timeouts", None


def clock_step(context: FaultContext) -> tuple[str, None]:
    # Entries of a primary that was an hour ahead are old enough for a delayed member an hour later, as in MongoDB.
    member, ahead_s = context.a_member(), context.rng.choice((-3600, -60, -2, 2) if context.delayed else STEPS_S)
    send_command(member, {"replSetTestClock": 1, "aheadMillis": ahead_s * 1000})
    return f"the clock of {member.name} steps by {ahead_s} s", None


def step_down(context: FaultContext) -> tuple[str, None]:
    primary = context.the_primary()
    with contextlib.suppress(ReplError):
        primary.command({"replSetStepDown": 5, "force": context.rng.random() < 0.5}, timeout_s=10)
    return f"{primary.name} is asked to step down", None


def reconfig(context: FaultContext) -> tuple[str, None]:
    primary = context.the_primary()
    with contextlib.suppress(ReplError, KeyError):
        config = primary.command({"replSetGetConfig": 1}, timeout_s=5)["config"]
        row = context.rng.choice([row for row in config["members"] if row["priority"] > 0])  # type: ignore[index]
        row["priority"] = context.rng.choice((0.5, 1, 2))
        config["version"] += 1  # type: ignore[index]
        primary.command({"replSetReconfig": config, "maxTimeMS": 5_000}, timeout_s=10)
    return f"reconfig on {primary.name}: another priority", None


def freeze(context: FaultContext) -> tuple[str, None]:
    member, seconds = context.a_secondary(), context.rng.choice((2, 5, 10))
    send_command(member, {"replSetFreeze": seconds})
    return f"{member.name} may not start an election for {seconds} s", None


def resync(context: FaultContext) -> tuple[str, None]:
    member = context.a_secondary()
    send_command(member, {"replSetResync": 1})
    return f"{member.name} is asked to copy everything anew", None


def full_disk(context: FaultContext) -> tuple[str, Mend]:
    if not context.own_disks:
        raise CannotError("no file systems can be mounted here")
    member = context.a_member()
    ballast = member.dbpath / BALLAST
    fill(ballast)

    def make_room() -> None:
        with contextlib.suppress(OSError):  # read-only meanwhile; the start behind that makes room
            ballast.unlink()

    return f"the disk of {member.name} is full", make_room


def read_only(context: FaultContext) -> tuple[str, Mend]:
    """The member is killed, and must report in one line that it cannot start."""
    if not context.own_disks:
        raise CannotError("no file systems can be mounted here")
    member = context.a_member()
    absence = context.take_down(member)
    subprocess.run(["mount", "-o", "remount,ro", str(member.dbpath)], check=True)
    command = [*context.local.program, *context.local.options(member)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    log = done.stderr.strip()
    refusals = [line for line in log.splitlines() if line.startswith("replset start: ")]
    reported = refusals[0] if refusals else log
    if (
        done.returncode != 2
        or "Traceback" in log
        or len(refusals) != 1
        or not reported.endswith("Read-only file system")
    ):
        context.breach(f"started on a read-only dbpath, {member.name} exits with {done.returncode}: {log}")

    def mend() -> None:
        subprocess.run(["mount", "-o", f"remount,rw,size={DISK_MB}m", str(member.dbpath)], check=True)
        context.bring_up(member, absence)

    return f"the dbpath of {member.name} is read-only: {reported}", mend


def unread_log(context: FaultContext) -> tuple[str, None]:
    """Nobody reads what the member prints: it must go on, and end on SIGTERM."""
    member = context.a_member()
    file, flags, pipe = member.log, member.flags, context.local.folder / f"{member.name}.pipe"
    absence = context.take_down(member, signal.SIGTERM)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        member.log, member.flags = pipe, [*flags, "--log-level", "debug"]
        context.bring_up(member, absence)
        member.log, member.flags = file, flags
        _read_until(reader, b"http http://")  # the line that says that it serves; nothing is read any more
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(reader, b".")  # until not one byte more goes in
        with contextlib.suppress(ReplError):  # every member logs an election
            context.the_primary().command({"replSetStepDown": 2, "force": True}, timeout_s=5)
        for _ in range(10):
            time.sleep(0.4)
            if not answers(member):
                context.breach(f"{member.name} does not answer while nobody reads what it prints")
                break
        began = time.monotonic()
        absence = context.take_down(member, signal.SIGTERM)
        if (took := time.monotonic() - began) > 30:
            context.breach(f"{member.name} took {took:.0f} s to end while nobody read what it printed")
    finally:
        os.close(reader)
        pipe.unlink()
    context.bring_up(member, absence)
    return f"nobody read what {member.name} printed", None


def _read_until(pipe: int, words: bytes) -> None:
    found, deadline = b"", time.monotonic() + 20
    while words not in found and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            found = found[-len(words) :] + os.read(pipe, 4096)
        time.sleep(0.02)


GREEDY: tuple[Fault, ...] = (
    *(pipeline, flood, half_messages, unread_exports, large_batches, large_statements, large_bodies),
    *(large_array, slow_expression, strings_by_a_collation),
)
FAULTS: tuple[Fault, ...] = (
    *(kill, kill, terminate, pause, pause, cut, cut, cut, late_traffic),
    *(clock_step, step_down, reconfig, freeze, resync, full_disk, read_only, unread_log),
    *(bridge, damaged_entry, lost_wal, wipe, strangers, forged_positions, web_page, hostile_query, crowd),
    *GREEDY,
)
"""What is there twice is drawn more often."""
NEEDS_DISKS = frozenset({full_disk, read_only})
ALONE = frozenset(
    {bridge, unread_log, damaged_entry, lost_wal, wipe, strangers, forged_positions, hostile_query, web_page, crowd}
    | set(GREEDY)
)
"""They begin when everything else is mended and the set is well, so that what follows is caused by them alone."""
BY_NAME: dict[str, Fault] = {fault.__name__: fault for fault in FAULTS}


def drawn(rng: random.Random, own_disks: bool, names: Sequence[str] = ()) -> Iterator[Fault]:
    """Yield faults without end: each comes once before any comes again. names: only these."""
    kinds = [BY_NAME[name] for name in names] or list(FAULTS)
    deck = [kind for kind in kinds if own_disks or kind not in NEEDS_DISKS]
    while deck:
        rng.shuffle(deck)
        yield from deck


def undo_test_faults(member: LocalMember) -> None:
    """Its clock right, no cut left."""
    commands: tuple[dict[str, object], ...] = ({"replSetTestClock": 1}, {"replSetTestCut": 1, "hosts": []})
    for command in commands:
        with contextlib.suppress(CannotError):
            send_command(member, command)


def _healed(member: LocalMember) -> Mend:
    """A process that was killed meanwhile has forgotten its cuts, one that is paused is healed at the end."""

    def heal() -> None:
        with contextlib.suppress(CannotError):
            send_command(member, {"replSetTestCut": 1, "hosts": []})

    return heal
