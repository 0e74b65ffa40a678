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
        help="a member of the set, its wire port (the set in ./replset-data, else 127.0.0.1:27017)",
        default_factory=default_host,
        show_default=False,
    ),
]
