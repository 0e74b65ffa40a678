"""Shows the safe steps from one configuration to another, and does them, for `replset reconfig --plan`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replset.cli import calls
from replset.cli.changes import NotAcceptedError
from replset.config import ReplSetConfig, parse_host
from replset.core.quorum import MAJORITY, implicit_default, kept_default
from replset.errors import NodeNotFoundError, ReplError
from replset.features.administration.reconfig_effect import reconfig_warning
from replset.features.administration.reconfig_plan import Step, is_same, plan_reconfig
from replset.terminal import echo

SILENT_FOR_S = 60.0
NEW_PRIMARY_WITHIN_S = 60.0


def run_plan(host: str, target: ReplSetConfig, *, accept: bool, within_ms: int = 60_000) -> None:
    """Print the steps to `target`, then do them one after the other. A plan that broke off continues when run again.

    within_ms: how long a step may wait until the configuration before it, and the writes, are on enough members.
    """
    current = ReplSetConfig.parse(calls.counted_config(host), keep=True)
    steps = plan_reconfig(current, target)
    if not steps:
        echo("the configuration is as wanted already")
        return
    for number, step in enumerate(steps, 1):
        echo(f"{number}. {step.text}{_after(step)}")
    warnings = [warning for step in steps if (warning := reconfig_warning(current, step.config))]
    if warnings and not accept:
        raise NotAcceptedError(f"{warnings[-1]}; with --accept it is done")
    for number, step in enumerate(steps, 1):
        try:
            host = _do_step(host, current, step, within_ms)
        except ReplError as error:
            text = f"step {number}: {error.message}; the same command continues from here"
            raise ReplError(text, code=error.code) from error
        current = step.config
        echo(f"step {number} of {len(steps)} is done")


def _after(step: Step) -> str:
    tolerance = step.config.tolerance
    return f" (then majority writes go on with {tolerance.majority_writes} down, elections with {tolerance.elections})"


def _do_step(host: str, before: ReplSetConfig, step: Step, within_ms: int) -> str:
    """Do one step, wait until its members have their votes, and return the primary."""
    primary = primary_of(host)
    if step.needs_other_primary(parse_host(primary)):
        primary = _hand_over(primary)
    found = ReplSetConfig.parse(calls.ask(primary, {"replSetGetConfig": 1})["config"], keep=True)
    if not is_same(found, before):
        raise ReplError("the configuration was changed meanwhile")
    keep_default(primary, found, step.config)
    document = step.config.document()
    document["version"] = found.version + 1
    calls.ask(primary, {"replSetReconfig": document, "maxTimeMS": within_ms}, timeout_s=within_ms / 1000 + 30)
    _wait_for_votes(primary)
    return primary


def keep_default(host: str, old: ReplSetConfig, new: ReplSetConfig) -> None:
    """Store majority as the set's default write concern where `new` would change the implicit one, and print it."""
    if implicit_default(old).w == implicit_default(new).w:
        return
    if calls.on_primary(host, {"getDefaultRWConcern": 1}).get("defaultWriteConcernSource") == "implicit":
        calls.on_primary(host, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": MAJORITY}})
        echo(kept_default(old, new))


def primary_of(host: str) -> str:
    """Return the primary that `host` knows, once there is one."""
    deadline = time.monotonic() + NEW_PRIMARY_WITHIN_S
    while True:
        primary = calls.ask(host, {"hello": 1}).get("primary")
        if primary is not None:
            return str(primary)
        if time.monotonic() > deadline:
            raise ReplError(f"{host} knows no primary (see `replset status --host {host}`)")
        time.sleep(0.2)


def _hand_over(primary: str) -> str:
    """Let the primary step down, and return the next one once it takes writes."""
    echo(f"{primary} is primary and hands over first")
    calls.ask(primary, {"replSetStepDown": 120, "secondaryCatchUpPeriodSecs": 60}, timeout_s=90)
    deadline = time.monotonic() + NEW_PRIMARY_WITHIN_S
    while (found := primary_of(primary)) == primary or not calls.ask(found, {"hello": 1}).get("isWritablePrimary"):
        if time.monotonic() > deadline:
            raise ReplError(f"{primary} stepped down, and no other member became primary")
        time.sleep(0.2)
    return found


def _wait_for_votes(primary: str) -> None:
    """Return when every new voter has its vote. ReplError: one of them did not answer for a minute."""
    silent_since: dict[str, float] = {}
    while True:
        waiting = [row for row in calls.ask(primary, {"replSetGetStatus": 1})["members"] if row.get("newlyAdded")]
        if not waiting:
            return
        now = time.monotonic()
        for row in waiting:
            if row["health"]:
                silent_since.pop(row["name"], None)
            elif now - silent_since.setdefault(row["name"], now) > SILENT_FOR_S:
                raise ReplError(f"{row['name']} has no vote yet and does not answer: {row['lastHeartbeatMessage']}")
        time.sleep(0.2)


def with_vote(current: Mapping[str, Any], host: str, votes: int, priority: float) -> ReplSetConfig:
    """Return the configuration in which this member has so many votes and this priority. NodeNotFoundError.

    An arbiter or a witness keeps its priority, which is 0.
    """
    config = ReplSetConfig.parse(current, keep=True)
    member = config.member_at(parse_host(host))
    if member is None:
        raise NodeNotFoundError(f"{host} is no member of the set")
    wanted = priority if member.bears_data else member.priority
    return config.with_member(replace(member, votes=votes, priority=wanted, newly_added=False))
