"""The subcommands that make one member do something: step-down, step-up, freeze, sync-from, resync, and others."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from replset.cli import calls
from replset.cli.check import is_namespace, repair_documents
from replset.cli.host_option import AnyHost, Host
from replset.config.feature_version import FIELD as FEATURE_VERSION
from replset.errors import BadValueError, ReplError
from replset.features.administration.operations import (
    CATCH_UP_S,
    Freeze,
    Maintenance,
    ResizeOplog,
    Resync,
    SetFeatureVersion,
    StepDown,
)
from replset.operations.declared import document_of, help_of
from replset.terminal import echo

STEP_UP_FREEZE_S, STEP_UP_WITHIN_S = 10, 30


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


def step_down(
    host: Host,
    seconds: Annotated[int, typer.Option(min=1, help=help_of(StepDown, "seconds"))] = StepDown().seconds,
    catch_up: Annotated[int | None, typer.Option(min=0, help=help_of(StepDown, "catch_up"))] = None,
    force: Annotated[bool, typer.Option("--force", help=help_of(StepDown, "force"))] = False,
) -> None:
    """Let the primary hand over to a secondary that has everything."""
    given = StepDown(seconds, 0 if force else catch_up, force)
    waits = given.catch_up_s()
    if waits > seconds:
        raise BadValueError(f"--catch-up {waits} is longer than --seconds {seconds}: it would wait beyond its end")
    command = document_of(replace(given, catch_up=waits))
    calls.print_result(calls.on_primary(host, command, timeout_s=waits + 30), "the primary stepped down")


def step_up(
    member: Annotated[str, typer.Argument(metavar="HOST:PORT", help="the member that is to lead")],
    catch_up: Annotated[int, typer.Option(min=0, help="seconds to wait until it has everything")] = CATCH_UP_S,
) -> None:
    """Let the primary hand over to this member, once it has everything; without a primary, let it stand now."""
    hello = calls.ask(member, {"hello": 1})
    primary, me = hello.get("primary"), hello.get("me", member)
    if primary == me:
        echo(f"{me} is primary already")
        return
    if primary is None:
        calls.ask(member, {"replSetStepUp": 1})
    else:
        command = {"replSetStepDown": max(catch_up, STEP_UP_FREEZE_S), "secondaryCatchUpPeriodSecs": catch_up}
        calls.ask(str(primary), {**command, "handOverTo": me}, timeout_s=catch_up + 30)
    deadline = time.monotonic() + STEP_UP_WITHIN_S
    while not calls.ask(member, {"hello": 1}).get("isWritablePrimary"):
        if time.monotonic() > deadline:
            raise ReplError(f"{me} does not lead {STEP_UP_WITHIN_S} s later (see `replset status --host {member}`)")
        time.sleep(0.05)
    echo(f"{me} is primary")


def freeze(
    seconds: Annotated[int, typer.Argument(help=help_of(Freeze, "seconds"))],
    host: Host,
) -> None:
    """Keep this member from becoming a candidate for a while."""
    calls.print_result(
        calls.ask(host, document_of(Freeze(seconds))),
        f"{host} does not become a candidate for {seconds} s" if seconds else "unfrozen",
    )


def sync_from(
    source: Annotated[str, typer.Argument(metavar="HOST:PORT", help="the member to fetch from")],
    host: Host,
) -> None:
    """Let a secondary fetch from another member, until that is no good source any more."""
    reply = calls.ask(host, {"replSetSyncFrom": source})
    if reply.get("warning"):
        echo(f"warning: {reply['warning']}")
    echo(f"{host} syncs from {source} (before: {reply.get('prevSyncTarget', 'from nobody')})")


def resize_oplog(
    host: Host,
    size_mb: Annotated[float | None, typer.Argument(metavar="MB", help=help_of(ResizeOplog, "size"))] = None,
    min_retention_hours: Annotated[
        float | None, typer.Option("--min-retention-hours", help=help_of(ResizeOplog, "min_retention_hours"))
    ] = None,
) -> None:
    """Change the size of one member's oplog while it runs; a restart keeps it."""
    calls.ask(host, document_of(ResizeOplog(size_mb, min_retention_hours)))
    size = "" if size_mb is None else f" up to {size_mb:g} MB"
    least = "" if min_retention_hours is None else f" for at least {min_retention_hours:g} hours"
    echo(f"{host} keeps its oplog{size}{' and' if size and least else ''}{least} from now on, also after a restart")


def feature_version(
    host: Host,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help=help_of(SetFeatureVersion, "version"))] = "",
    confirm: Annotated[bool, typer.Option("--confirm", help=help_of(SetFeatureVersion, "confirm"))] = False,
) -> None:
    """Show which release's features the set may use, or change it once all members run a newer release."""
    if version:
        calls.on_primary(host, document_of(SetFeatureVersion(version, confirm)))
    echo(str(calls.ask(host, {"getParameter": 1, FEATURE_VERSION: 1})[FEATURE_VERSION]["version"]))


def maintenance(
    switch: Annotated[Switch, typer.Argument(metavar="on|off", help="off ends it once for each on")],
    host: Host,
) -> None:
    """Keep a secondary from serving reads; it goes on to replicate and to vote."""
    is_on = switch is Switch.ON
    calls.ask(host, document_of(Maintenance(is_on)))
    echo(f"{host} is {calls.state_of(host)}")


def resync(
    host: Host,
    wait: Annotated[int, typer.Option("--wait", metavar="SECONDS", help="return once it has its data again")] = 0,
    force: Annotated[bool, typer.Option("--force", help=help_of(Resync, "force"))] = False,
) -> None:
    """Export what only this member has, then replace its data by another member's. This ends a quarantine."""
    calls.print_result(
        calls.ask(host, document_of(Resync(force))),
        f"{host} copies another member's data",
    )
    deadline = time.monotonic() + wait
    while wait:
        state = calls.state_of(host)
        if state in ("SECONDARY", "ARBITER"):  # a witness
            echo(f"{host} is {state} again")
            return
        if time.monotonic() > deadline:
            raise ReplError(f"{host} is {state} after {wait} s (see `replset status --host {host}`)")
        time.sleep(0.2)


def repair(
    what: Annotated[
        str, typer.Argument(metavar="DBPATH|DB.COLLECTION", help="the folder of a stopped member, or a collection")
    ],
    term: Annotated[
        int | None, typer.Option(help="DBPATH: put it into this term; nothing: only show what it holds")
    ] = None,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="DBPATH: go on without the entries that its disk lost")
    ] = False,
    host: AnyHost = None,
    trusted: Annotated[
        str | None,
        typer.Option("--from", metavar="HOST:PORT", help="DB.COLLECTION: whose version to take without a majority"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="DB.COLLECTION: JSON for scripts")] = False,
) -> int:
    """Put right a stopped member's files (term, lost entries), or documents that differ between running members.

    DBPATH: show what its files hold; correct a term, accept a loss (docs/core.md, docs/storage.md). DB.COLLECTION: each
    member takes over the documents that most members have otherwise, and keeps what it had (docs/scrub.md).
    """
    if not Path(what).is_dir() and is_namespace(what):
        if term is not None or accept_data_loss:
            raise BadValueError("--term and --accept-data-loss go with `replset repair DBPATH`, of a stopped member")
        return repair_documents(what, host, trusted, as_json=json)
    if trusted is not None or json:
        raise BadValueError(f"--from and --json go with `replset repair DB.COLLECTION`; {what!r} is no collection")
    from replset.cli.repair import repair as repair_dbpath  # with the storage, which no other command here needs

    for line in repair_dbpath(Path(what), term, accept_data_loss):
        echo(line)
    return 0
