"""Role hooks on real processes: a step-down, a primary that hangs, one that is cut off and one that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from replset.local_set import LocalMember, wait_until
from tests.integration.conftest import start_set
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import all_counted, cut, heal, insert, others_of, run, status

HOOK_SECS = 1
HOOK = """#!/bin/sh
cd "$(dirname "$0")" || exit  # a guard may release behind the test, when the folder is gone
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
        start_set(made, flags=["--role-hook", str(hook), "--role-hook-secs", str(HOOK_SECS)])
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
    wanted = {"o.msg": "new primary", "t": status(member)["term"]}
    reply = run(member, {"find": "oplog.rs", "filter": wanted, "$readPreference": {"mode": "nearest"}}, "local")
    (entry,) = reply["cursor"]["firstBatch"]
    return int(entry["wall"].ms)


@pytest.mark.in_turns
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
    cut(third, others_of(local, third))
    last = taken_over(local, third)
    heal(third)
    all_counted(local)
    local.kill(last)
    taken_over(local, last)
    assert not (local.folder.parent / "twice").exists()


def taken_over(local: ForkedSet, before: LocalMember) -> LocalMember:
    """Wait for another primary that holds the role; its first write came after the release of the one before."""
    primary = local.wait_for_primary(among=others_of(local, before))
    insert(primary, status(primary)["term"], w=1)
    wrote_ms = first_write_ms(primary)
    wait_until(lambda: wrote_ms <= max(times_of(local, "gain", primary), default=0), 10, "the role to be gained")
    assert holder(local) == primary.host
    assert times_of(local, "release", before)[-1] <= wrote_ms
    return primary
