"""`--host` of the administrator's commands, and its default."""

from __future__ import annotations

from typing import Annotated

import typer

from replset.cli.local_set import default_host

Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST:PORT",
        envvar="REPLSET_HOST",
        show_envvar=False,
        help="a member of the set, its wire port (REPLSET_HOST, the set in this folder, else 127.0.0.1:27017)",
        default_factory=default_host,
        show_default=False,
    ),
]

AnyHost = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST:PORT",
        envvar="REPLSET_HOST",
        show_envvar=False,
        help="a member of the set (REPLSET_HOST, the first that answers of the set in this folder, else"
        " 127.0.0.1:27017)",
    ),
]
"""`--host` of commands that work while one member answers."""
