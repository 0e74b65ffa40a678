"""Finds the files of a rollback: on this machine, or behind a member's HTTP API, from which it fetches them."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from replset.client import HttpClient
from replset.errors import BadValueError, CorruptDataError, ReplError
from replset.features.recovery import mongod_files
from replset.features.recovery.live_set import LiveSet
from replset.ids import OPTIME_NULL
from replset.long_work import LongWork
from replset.replication.rollback_manifest import Manifest, read_manifest
from replset.target import Target
from replset.terminal import echo

ROUTE = "/v1/replset/rollbacks"
HELP = (
    "a rollback-*.json file, or http://HOST:PORT/v1/replset/rollbacks/ID of the member that holds it; of mongod: its"
    " dbpath, its rollback folder, FOLDER/TIME of one rollback, or one file"
)
"""What MANIFEST may be."""
HOST_HELP = "any member of the set, HOST:PORT of its wire port, or mongodb:// or mongodb+srv:// of the set"
COMMON_POINT_HELP = "of mongod's files: SECONDS:INC of the common point in its log; without it: two versions"


def is_remote(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def client_and_id(text: str) -> tuple[HttpClient, str]:
    """The member's API and the rollback's id. BadValueError when the address is not that of a rollback."""
    path = urlsplit(text).path
    identifier = path.removeprefix(f"{ROUTE}/")
    if identifier in ("", path) or "/" in identifier:
        raise BadValueError(f"{text} is not http://HOST:PORT{ROUTE}/ID")
    return HttpClient(text), identifier


@contextmanager
def local_manifest(text: str, work: LongWork | None = None) -> Iterator[Path]:
    """The path of a manifest on this machine, with its files beside it. Fetches them to a temporary folder if needed.
    `read_rollback` reads it, also where the files are mongod's and there is no manifest.

    work: shows how far that is. ReplError when there is no such manifest; HttpAnswerError and HostUnreachableError from
    a member.
    """
    if is_remote(text):
        with tempfile.TemporaryDirectory(prefix="rollback-tools-") as folder:
            yield _fetch(text, Path(folder), work)
        return
    path = Path(text)
    if (found := mongod_files.locate(path)) is not None:
        yield found
        return
    if path.is_dir():
        raise ReplError(f"{text} has no rollback of a mongod (see `rollback-tools list {text}` for others)")
    if not path.is_file():
        raise ReplError(f"{text} is not a file (see `rollback-tools list DBPATH`)")
    if path.suffix == ".bson":
        raise ReplError(
            f"{text} holds documents: give the rollback-*.json file beside it, or see them with `rollback-tools dump`"
        )
    yield path


def target_of(host: str) -> Target:
    """The set that `--host` names. What is wrong with its options is told before anything else fails by it."""
    target = Target(host)
    for warning in target.warnings:
        echo(f"rollback-tools: {warning}", err=True)
    return target


def read_rollback(path: Path) -> Manifest:
    """The rollback at a path that `local_manifest` gave."""
    return mongod_files.read_rollback(path) if mongod_files.is_mongods(path) else read_manifest(path)


def with_common_point(manifest: Manifest, text: str) -> Manifest:
    """Give the common point to a rollback of mongod's. BadValueError where the manifest has its own."""
    if not text:
        return manifest
    if not manifest.from_mongod:
        raise BadValueError("--common-point is for mongod's files: the manifest has the common point")
    return replace(manifest, common_point=mongod_files.parse_common_point(text))


def tell_unknown(manifest: Manifest, live: LiveSet | None = None) -> None:
    """Say what mongod's files do not tell. live: say which common points are possible, too."""
    if not manifest.from_mongod:
        return
    echo("not in mongod's files: deletes, dropped collections, and whether a write was an insert or an update")
    if manifest.common_point != OPTIME_NULL:
        return
    echo("the common point is not known: with --common-point of mongod's log this compares three versions")
    try:
        points = [] if live is None else live.ends_of_terms(manifest.first_wall_ms // 1000)
    except ReplError as error:
        echo(f"what it may be is not known: {error.message}")
        return
    for point in points:
        when = f"{datetime.datetime.fromtimestamp(point.seconds, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        echo(f"it may be {point.seconds}:{point.increment} ({when}): a new primary came then")


def _fetch(text: str, folder: Path, work: LongWork | None) -> Path:
    client, identifier = client_and_id(text)
    document = client.get(f"{ROUTE}/{identifier}")
    path = folder / f"{identifier}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    manifest = Manifest.parse(path.read_bytes(), path.name)
    if work is not None:
        work.begin("fetching the files of the rollback", sum(file.size for file in manifest.files), "B")
    for file in manifest.files:
        if Path(file.name).name != file.name:  # a name with a folder in it could write anywhere on this machine
            raise CorruptDataError(f"{manifest.id}: {file.name!r} is no file beside the manifest")
        with (folder / file.name).open("wb") as out:
            client.download(f"{ROUTE}/{identifier}/{quote(file.name, safe='')}", out)
        if work is not None:
            work.advance(file.size)
    return path


def list_remote(text: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rollbacks of all members, as one member lists them; and error texts by rollback id or by member."""
    answer = HttpClient(text).get(ROUTE)
    rows: list[dict[str, Any]] = answer["rollbacks"]
    damaged = {str(row["id"]): str(row["error"]) for row in rows if "error" in row}
    for host, reason in answer.get("unreachable", {}).items():
        damaged[str(host)] = f"{host} did not answer: {reason}"
    return [row for row in rows if "error" not in row], damaged
