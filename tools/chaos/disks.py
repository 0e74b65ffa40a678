"""Small file systems of the members' own, so that a fault can fill one or make it read-only.

They need mounts: the run starts itself again in a mount namespace of its own, so that nothing stays behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DISK_MB = 512
"""An initial sync wants 256 MB free beside what it copies."""
OWN_NAMESPACE = "REPLSET_CHAOS_MOUNTS"


def fill(ballast: Path) -> None:
    """Until there is no byte left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def mount_disks(paths: Sequence[Path]) -> None:
    for path in paths:
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)], check=True)


def unmount_disks(folder: Path) -> None:
    """What the disks hold is put where they were."""
    for path in [path for path in folder.iterdir() if path.is_mount()]:
        held = path.with_name(f"{path.name}.held")
        shutil.copytree(path, held)
        subprocess.run(["umount", str(path)], check=True)
        path.rmdir()
        held.rename(path)


def can_mount() -> tuple[str, ...]:
    """The options with which `unshare` lets this user mount a file system of his own; empty where it does not."""
    if shutil.which("unshare") is not None:
        for options in (("--mount",), ("--mount", "--map-root-user")):
            probe = ["unshare", *options, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return options
    return ()


def enter_own_mounts() -> bool:
    """Start this program again where mounts are its own and end with it; False where the machine does not allow it."""
    if os.environ.get(OWN_NAMESPACE):
        return os.environ[OWN_NAMESPACE] == "yes"
    options = can_mount()
    os.environ[OWN_NAMESPACE] = "yes" if options else "no"
    if options:
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", *options, sys.executable, "-m", "tools.chaos", *sys.argv[1:]])
    return False
