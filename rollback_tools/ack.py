"""`rollback-tools ack MANIFEST`: notes that a person knows of a rollback, so that it is no longer counted."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.errors import CorruptDataError, ReplError
from replset.replication.rollback_manifest import (
    RollbackState,
    acknowledge,
    acknowledged,
    is_manifest_name,
    read_manifest,
)
from replset.storage.disk import RealDisk
from replset.terminal import echo, echo_json
from rollback_tools import manifest_source


def ack(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST...", help=manifest_source.HELP)],
    by: Annotated[str, typer.Option(help="who acknowledges; default: the user's name")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts")] = False,
) -> int:
    """Acknowledge rollbacks: the files stay, `replset status` and the metric stop counting them.

    A running member sees it within ten seconds. Acknowledging twice changes nothing.
    """
    for text in manifests:
        if manifest_source.is_remote(text):
            manifest_source.client_and_id(text)
        else:
            _check(Path(text))
    rows = []
    for text in manifests:
        who = by or getpass.getuser()
        row = _acknowledge_remote(text, who) if manifest_source.is_remote(text) else _acknowledge_file(Path(text), who)
        rows.append(row)
        if not as_json:
            echo(f"{row['id']} {'is' if row['new'] else 'was'} acknowledged {row['acknowledged']}")
    if as_json:
        echo_json({"rollbacks": rows})
    return 0


def _acknowledge_file(path: Path, by: str) -> dict[str, Any]:
    wall_ms = time.time_ns() // 1_000_000
    is_new = acknowledge(RealDisk(), str(path.parent), path.stem, wall_ms=wall_ms, by=by)
    return {"id": path.stem, "acknowledged": acknowledged(path.parent, path.stem), "new": is_new}


def _acknowledge_remote(text: str, by: str) -> dict[str, Any]:
    client, identifier = manifest_source.client_and_id(text)
    answer = client.post(f"{manifest_source.ROUTE}/{identifier}/ack", {"by": by})
    return {name: answer[name] for name in ("id", "acknowledged", "new")}


def _check(path: Path) -> None:
    """ReplError when this is no manifest, or its rollback is not over. A damaged manifest may be acknowledged."""
    if not path.is_file() or not is_manifest_name(path.name):
        raise ReplError(f"{path} is no rollback-*.json file (see `rollback-tools list DBPATH`)")
    try:
        manifest = read_manifest(path)
    except CorruptDataError:
        return
    if manifest.state is RollbackState.PLANNED:
        raise ReplError(f"{manifest.id} is planned, not settled yet: start {manifest.member}, then come back")
