"""Builds the load generator in `load/` with the C compiler of the machine, and runs it as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "load"
FIRST_FOUND = 1 << 40
"""The number of the first document that `find` looks for."""


class NoCompilerError(Exception):
    """There is no C compiler."""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile the generator into `folder`."""
    found = compiler()
    if found is None:
        raise NoCompilerError("the load generator is a C program, and there is no C compiler (cc) on PATH")
    program = folder / "load"
    subprocess.run([found, "-O2", "-o", str(program), *sorted(map(str, SOURCES.glob("*.c")))], check=True)
    return program


@dataclass(slots=True)
class Loaded:
    """Holds what one run of the generator measured. all_operations: with those of the warm-up.

    cpu_share: of one core, that the generator itself used.
    """

    seconds: float
    operations: int
    all_operations: int
    batch: int
    operations_per_s: float
    documents_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    errors: int
    error_text: str
    cpu_share: float

    @property
    def cpu_us(self) -> float:
        """CPU time of the generator for one operation."""
        return self.cpu_share * self.seconds / max(self.operations, 1) * 1e6


def run(program: Path, port: int, mode: str, **options: float) -> Loaded:
    """Load the server on `port`. options: those of the program, with _ for -."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [str(program), f"--port={port}", f"--mode={mode}", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(f"the load generator ended: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return Loaded(
        seconds=found["seconds"],
        operations=found["operations"],
        all_operations=found["allOperations"],
        batch=found["batch"],
        operations_per_s=found["operationsPerS"],
        documents_per_s=found["documentsPerS"],
        p50_ms=found["p50Ms"],
        p90_ms=found["p90Ms"],
        p99_ms=found["p99Ms"],
        max_ms=found["maxMs"],
        errors=found["errors"],
        error_text=found["errorText"],
        cpu_share=found["cpuShare"],
    )
