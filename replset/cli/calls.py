"""Sends commands to members for the administrator's subcommands: an error reply becomes an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from replset.cli.changes import NotAcceptedError
from replset.cli.known_hosts import DEFAULT_HOST, hosts_of_folder, known_hosts
from replset.client import WireClient
from replset.errors import AuthenticationFailedError, ErrorCode, HostUnreachableError, ReplError
from replset.terminal import echo

T = TypeVar("T")
ANSWER_WITHIN_S = 3.0


class CommandFailedError(ReplError):
    """A member answered ok: 0; `code` is its code."""


def ask(host: str, command: dict[str, object], timeout_s: float = 30.0, *, database: str = "admin") -> dict[str, Any]:
    """Run `command` on `host`; an error reply becomes a ReplError that names the host."""
    try:
        with WireClient(host, timeout_s=timeout_s) as client:
            reply: dict[str, Any] = client.command(database, command)
    except HostUnreachableError as error:
        if host != DEFAULT_HOST or known_hosts():
            raise
        raise type(error)(f"{error.message}; --host HOST:PORT or REPLSET_HOST names another member") from error
    if reply.get("ok") != 1.0:
        text = f"{host}: {reply.get('errmsg')} ({reply.get('codeName')}, {reply.get('code')})"
        raise CommandFailedError(text, code=int(reply.get("code", 1)))
    return reply


def ask_status(host: str | None) -> tuple[str, dict[str, Any]]:
    """Return the status of `host`, or of the first member of this folder's set that answers, with its address."""
    hosts = [host] if host is not None else known_hosts() or [DEFAULT_HOST]
    silent: list[str] = []
    for each in hosts:
        try:
            return each, ask(each, {"replSetGetStatus": 1}, ANSWER_WITHIN_S)
        except HostUnreachableError as error:
            silent.append(error.message)
        except CommandFailedError as error:
            if error.code != ErrorCode.NOT_YET_INITIALIZED or "--expect-members" in error.message:
                raise
            hint = f"make a set: replset initiate --host {each}; or have it added: replset add {each} --host MEMBER"
            raise CommandFailedError(f"{error.message}; {hint}", code=ErrorCode.NOT_YET_INITIALIZED) from error
    if len(silent) == 1:
        raise HostUnreachableError(silent[0])
    start = " (replset cluster up starts them)" if host is None and hosts_of_folder() else ""
    raise HostUnreachableError(f"no member answers{start}: {'; '.join(silent)}")


def on_primary(
    host: str, command: dict[str, object], timeout_s: float = 60.0, *, database: str = "admin"
) -> dict[str, Any]:
    """Run `command` on the primary that `host` knows of."""
    hello = ask(host, {"hello": 1})
    primary = hello.get("primary")
    if primary is None:
        raise HostUnreachableError(f"{host} knows no primary (see `replset status --host {host}`)")
    return ask(str(primary), command, timeout_s=timeout_s, database=database)


def asks_for_logins(host: str) -> bool:
    """Whether the member was started with --auth."""
    try:
        parsed = ask(host, {"getCmdLineOpts": 1})["parsed"]
    except CommandFailedError as error:
        if error.code == ErrorCode.UNAUTHORIZED:
            return True
        raise
    return bool(parsed.get("security"))


def wait_for_answer(host: str, wait_s: int) -> None:
    """Return when `host` answers. After `wait_s` seconds raise its error.

    One that is in no set yet has no users, so nobody can log in there. It answers all the same.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with suppress(AuthenticationFailedError):
                ask(host, {"ping": 1}, timeout_s=5)
            return
        except HostUnreachableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def until_done(deadline: float, action: Callable[[], T]) -> T:
    """Repeat `action` until it succeeds or the deadline has passed. NotAcceptedError is raised at once."""
    while True:
        try:
            return action()
        except NotAcceptedError:
            raise
        except ReplError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def counted_config(host: str) -> dict[str, Any]:
    """Return the current configuration, with newlyAdded where a member has no vote yet."""
    config: dict[str, Any] = ask(host, {"replSetGetConfig": 1})["config"]
    waiting = {row["_id"] for row in ask(host, {"replSetGetStatus": 1})["members"] if row.get("newlyAdded")}
    for row in config["members"]:
        if row["_id"] in waiting:
            row["newlyAdded"] = True
    return config


def state_of(host: str) -> str:
    """Return the state that a member reports, or its error while its data is being replaced."""
    try:
        members = ask(host, {"replSetGetStatus": 1})["members"]
    except CommandFailedError as error:
        return f"in an unknown state ({error.message})"
    return next((str(row["stateStr"]) for row in members if row.get("self")), "unknown")


def print_result(reply: dict[str, Any], otherwise: str) -> None:
    echo(reply.get("info") or otherwise)
