"""Remembers, for each folder, the set that the last `--host` there led to, so that it need not be said each time.

The file is the user's own, not in the folder: a folder may belong to others, or be read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

MOST_FOLDERS = 200


def remembered_hosts() -> list[str]:
    """Return the member that was named last in this folder, and the others of its set; empty: none was."""
    found = _read().get(_folder())
    return [host for host in found if isinstance(host, str)] if isinstance(found, list) else []


def remember_hosts(hosts: Sequence[str]) -> None:
    """Note these for this folder. Without a home that can be written, nothing is remembered."""
    folder, folders = _folder(), _read()
    if not folder:
        return
    folders.pop(folder, None)
    kept = dict([*folders.items(), (folder, list(hosts))][-MOST_FOLDERS:])
    with contextlib.suppress(OSError):
        path = _file()
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


def _file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if home.startswith("~"):  # a user of a container, who has no home
        home = os.devnull
    return Path(home, "replset", "hosts.json")


def _read() -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}
