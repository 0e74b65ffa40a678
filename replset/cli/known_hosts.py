"""The members of the set that is meant where no `--host` is given.

They are those of the set in this folder, else of the one that the last `--host` here led to. That is remembered in a
file of the user's own: a folder may belong to others, or be read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from replset.local_set import DEFAULT_FOLDER, LocalMember, LocalSet, LocalSetError

DEFAULT_HOST = "127.0.0.1:27017"
MOST_FOLDERS = 200


def default_host() -> str:
    """Return the member for commands without --host: the first of `known_hosts`."""
    return next(iter(known_hosts()), DEFAULT_HOST)


def known_hosts() -> list[str]:
    """Return the members of the set in this folder, else of the one that the last `--host` here led to; maybe none."""
    return hosts_of_folder() or remembered_hosts()


def hosts_of_folder() -> list[str]:
    """Return the members of the set in this folder or its `replset-data`, running ones first; none: there is no set."""
    members: list[LocalMember] = []
    if (DEFAULT_FOLDER / "set.json").exists():
        members = LocalSet.load(DEFAULT_FOLDER).members
    elif Path("set.json").exists():
        with contextlib.suppress(LocalSetError):  # it may be somebody else's file
            members = LocalSet.load(Path()).members
    return [member.host for member in sorted(members, key=lambda member: not member.is_running())]


def remembered_hosts() -> list[str]:
    """Return the member that was named last in this folder, and the others of its set; empty: none was."""
    found = _folders().get(_folder())
    return [host for host in found if isinstance(host, str)] if isinstance(found, list) else []


def remember_hosts(hosts: Sequence[str]) -> None:
    """Note these for this folder. Without a home that can be written, nothing is remembered."""
    folder, folders = _folder(), _folders()
    if not folder:
        return
    folders.pop(folder, None)
    kept = dict([*folders.items(), (folder, list(hosts))][-MOST_FOLDERS:])
    with contextlib.suppress(OSError):
        path = _folders_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _folder() -> str:
    """Where this process runs; empty: that folder is gone."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _folders_file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if home.startswith("~"):  # a user of a container, who has no home
        home = os.devnull
    return Path(home, "replset", "hosts.json")


def _folders() -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_folders_file().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}
