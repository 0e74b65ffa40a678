"""`--host` of the administrator's commands, and its default."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from replset.cli.calls import ANSWER_WITHIN_S, ask
from replset.cli.known_hosts import default_host, hosts_of_folder, remember_hosts, remembered_hosts
from replset.errors import ReplError
from replset.terminal import echo

_given: list[str] = []
"""The `--host` of the command that runs, if it has one."""


def remember_given(status: int) -> None:
    """After a command that went well, note the set of its `--host` for this folder."""
    host = _given.pop() if _given else None
    if status or host is None or host in remembered_hosts()[:1]:
        return
    with contextlib.suppress(ReplError, KeyboardInterrupt):
        if hosts_of_folder():
            return
        found = ask(host, {"hello": 1}, ANSWER_WITHIN_S).get("hosts", [])
        remember_hosts([host, *(str(each) for each in found if each != host)])


def _note_given(context: typer.Context, host: str | None) -> str | None:
    source = context.get_parameter_source("host")
    _given[:] = [host] if host is not None and source is not None and source.name == "COMMANDLINE" else []
    return host


def _default() -> str:
    host = default_host()
    say_if_remembered(host)
    return host


def say_if_remembered(host: str) -> None:
    """Say who is asked without --host, if only an earlier --host led to it."""
    if host in remembered_hosts() and not hosts_of_folder():
        echo(f"replset: asks {host}, of the last --host in this folder", err=True)


Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST:PORT",
        envvar="REPLSET_HOST",
        show_envvar=False,
        help="a member of the set, its wire port (REPLSET_HOST, the set in this folder, the last --host here, else"
        " 127.0.0.1:27017)",
        default_factory=_default,
        show_default=False,
        callback=_note_given,
    ),
]

AnyHost = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST:PORT",
        envvar="REPLSET_HOST",
        show_envvar=False,
        help="a member of the set (REPLSET_HOST, the first that answers of the set in this folder or of the last"
        " --host here, else 127.0.0.1:27017)",
        callback=_note_given,
    ),
]
"""`--host` of commands that work while one member answers."""
