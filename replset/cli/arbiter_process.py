"""Starts the process of an arbiter on this machine, for `replset add-arbiter --start DIR`."""

from __future__ import annotations

from pathlib import Path

from replset.cli.local_set import DEFAULT_FOLDER, LocalMember, LocalSet, LocalSetError
from replset.config import parse_host

LOOPBACK = ("127.0.0.1", "localhost")


def check_startable(arbiter: str, folder: Path) -> None:
    """Raise LocalSetError unless `arbiter` is a loopback address."""
    name, _, port = parse_host(arbiter).rpartition(":")
    if name not in LOOPBACK:
        raise LocalSetError(
            f"--start starts an arbiter on a loopback address, and {name} is none: run it there with `replset start"
            f" --replSet NAME --dbpath {folder} --port {port} --bind-ip {name} --key-file FILE`"
            " and what else the others have, then add it without --start"
        )


def start_arbiter(host: str, arbiter: str, folder: Path, set_name: str, key_file: Path | None, *, auth: bool) -> str:
    """Start `arbiter` with its files in `folder`, unless its process runs already. Return how to stop it.

    host: a member of the set. If it belongs to the set in `replset-data`, the arbiter becomes part of that set.
    Otherwise `folder` becomes a set of its own for `replset cluster`. auth: the set asks clients for logins.
    """
    name, _, port_text = parse_host(arbiter).rpartition(":")
    port = int(port_text)
    local = _set_of(host, folder, set_name)
    member = next((member for member in local.members if member.port == port), None)
    if member is None:
        flags = ["--advertise", name] if name != LOOPBACK[0] else []
        if key_file is not None:
            flags += ["--key-file", str(key_file.resolve())]
        if auth:
            flags.append("--auth")
        member = _planned(local, port, folder.resolve(), flags)
    if not member.is_running():
        local.start(member)
    return f"{member.name} runs as process {member.pid}; `replset cluster down --dir {local.folder}` stops it"


def _set_of(host: str, folder: Path, set_name: str) -> LocalSet:
    if (DEFAULT_FOLDER / "set.json").exists():
        local = LocalSet.load(DEFAULT_FOLDER)
        if any(member.host == parse_host(host) for member in local.members):
            return local
    if (folder / "set.json").exists():
        return LocalSet.load(folder)
    local = LocalSet(folder.resolve(), set_name)
    local.initiated = True  # the others are not in this folder
    return local


def _planned(local: LocalSet, port: int, folder: Path, flags: list[str]) -> LocalMember:
    """Add the arbiter to `set.json`, before its process starts."""
    name = f"m{len(local.members) + 1}"
    dbpath = folder if local.members else folder / name
    member = LocalMember(name, port, dbpath, dbpath.with_name(f"{dbpath.name}.log"), arbiter=True, flags=flags)
    local.members.append(member)
    local.folder.mkdir(parents=True, exist_ok=True)
    local.save()
    return member
