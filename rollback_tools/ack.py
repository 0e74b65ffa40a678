"""`rollback-tools ack MANIFEST`: note that a person knows of a rollback, so that it is not counted any more."""

from __future__ import annotations

import getpass
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from replset.errors import CorruptDataError, ReplError
from replset.replication.rollback_files import (
    RollbackState,
    acknowledge,
    acknowledged,
    is_manifest_name,
    read_manifest,
)
from replset.storage.disk import RealDisk


def ack(
    manifests: Annotated[list[Path], typer.Argument(metavar="MANIFEST...", help="rollback-*.json files")],
    by: Annotated[str, typer.Option(help="who acknowledges; default: the user's name")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts")] = False,
) -> int:
    """Acknowledge rollbacks: the files stay, `replset status` and the metric stop counting them.

    A running member sees it within ten seconds. Acknowledging twice changes nothing.
    """
    for path in manifests:
        check(path)
    rows = []
    for path in manifests:
        is_new = acknowledge(
            RealDisk(), str(path.parent), path.stem, wall_ms=time.time_ns() // 1_000_000, by=by or getpass.getuser()
        )
        when = acknowledged(path.parent, path.stem)
        rows.append({"id": path.stem, "acknowledged": when, "new": is_new})
        if not as_json:
            typer.echo(f"{path.stem} {'is' if is_new else 'was'} acknowledged {when}")
    if as_json:
        typer.echo(json.dumps({"rollbacks": rows}, indent=2))
    return 0


def check(path: Path) -> None:
    """ReplError when this is no manifest, or its rollback is not over. One that is damaged may be acknowledged."""
    if not path.is_file() or not is_manifest_name(path.name):
        raise ReplError(f"{path} is no rollback-*.json file (see `rollback-tools list DBPATH`)")
    try:
        manifest = read_manifest(path)
    except CorruptDataError:
        return
    if manifest.state is RollbackState.PLANNED:
        raise ReplError(f"{manifest.id} is planned, not settled yet: start {manifest.member}, then come back")
