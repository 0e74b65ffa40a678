"""The last release as a package of another name, so that a simulated set has members of it beside those of this tree.

Members meet only in bytes, on the network and on disk. What the checkers read of a member in memory is shared with this
tree: values that stay what they are.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.simulation.kit.threads import SIM_THREADING

(WHEEL,) = (Path(__file__).parents[2] / "releases").glob("*.whl")
NAME = "last_release"
SHARED = (
    *("bson.decimal128", "bson.errors", "bson.raw", "bson.values", "core.member_state", "errors", "ids"),
    *("replication.initial_sync_progress", "replication.rollback_progress"),
)
_OWN = rf"(?!\.(?:{'|'.join(map(re.escape, SHARED))})\b)(?=[\s.])"
_IMPORT = re.compile(rf"^(\s*(?:from|import) )replset{_OWN}", re.MULTILINE)
_UNREAD = re.compile(r'(NotWritablePrimaryError\(\s*(?:text, |"[^"]*", )?)primary=[\w.]+')
"""An argument that this tree's `errors` do not take any more, since nobody read it."""


@cache
def last_release(module: str) -> ModuleType:
    """Return a module of it, by its name within the package."""
    if NAME not in sys.modules:
        sys.path.append(_unpacked().name)
        options: Any = importlib.import_module(f"{NAME}.member.options")
        options.is_loopback = is_loopback
        for guarded in ("member_file", "store"):
            with_locks: Any = importlib.import_module(f"{NAME}.storage.{guarded}")
            with_locks.threading = SIM_THREADING
    return importlib.import_module(f"{NAME}.{module}")


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    """The folder that has the package; it is removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="replset-release-")
    with zipfile.ZipFile(WHEEL) as wheel:
        for file in wheel.namelist():
            if file.startswith("replset/") and file.endswith(".py"):
                path = Path(folder.name, NAME, file.removeprefix("replset/"))
                path.parent.mkdir(parents=True, exist_ok=True)
                text = _UNREAD.sub(r"\1", wheel.read(file).decode())
                path.write_text(_IMPORT.sub(rf"\1{NAME}", text), encoding="utf-8")
    return folder


def is_loopback(_host: str) -> bool:
    """Names of simulated machines are no business of the real one's name server, which may take 5 s to answer."""
    return True
