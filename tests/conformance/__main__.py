"""`python -m tests.conformance`: runs the suites against a set of its own and writes `docs/conformance.md`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pymongo

from tests.conformance.real_set import real_set
from tests.conformance.report import page, unexpected
from tests.conformance.runner import Result, Runner, Status, fast_monitoring
from tests.conformance.suites import FOLDERS, VARIABLE, files_of, specifications

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(FOLDERS)}; without: all")
    parser.add_argument("--only", default="", metavar="REGEX", help="only tests whose SUITE/FILE: TEST it matches")
    parser.add_argument("--hosts", default="", help="a set that runs, HOST:PORT,...; without: one is started")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    options = parser.parse_args()
    clone = specifications()
    if clone is None:
        print(f"{VARIABLE} names no clone of mongodb/specifications", file=sys.stderr)
        return 2
    if options.hosts:
        results = run(options.hosts.split(","), options.suites, clone, options.only)
    else:
        with tempfile.TemporaryDirectory() as folder, real_set(Path(folder)) as local:
            results = run([member.host for member in local.members], options.suites, clone, options.only)
    if options.json:
        options.json.write_text(json.dumps([_as_json(result) for result in results], indent=1))
    if not options.suites and not options.only:
        if (clone / ".git").exists():
            PAGE.write_text(page(results, driver=pymongo.version, commit=_commit(clone)))
        else:
            print(f"{clone} is no git clone, whose commit the page could name: {PAGE.name} stays as it is")
    surprises = unexpected(results) if not options.only else []
    print("\n".join(surprises))
    return 1 if surprises else 0


def run(hosts: list[str], suites: list[str], clone: Path, only: str = "") -> list[Result]:
    """Run the suites, print what fails, and return all results."""
    runner, results = Runner(hosts, "rs0"), list[Result]()
    with fast_monitoring():
        for suite in suites or FOLDERS:
            for file in files_of(suite, clone):
                for test in file.tests():
                    if re.search(only, f"{suite}/{file.name}: {test['description']}"):
                        results.append(runner.run(file, test))
                        _print(results[-1])
            counts = Counter(result.status for result in results if result.suite == suite)
            print(f"{suite}: " + ", ".join(f"{counts[status]} {status.value}" for status in Status), flush=True)
    runner.close()
    return results


def _print(result: Result) -> None:
    if result.status is Status.FAILED:
        print(f"FAILED {result.name}\n       {result.reason[:400]}", flush=True)


def _as_json(result: Result) -> dict[str, object]:
    return {
        "name": result.name, "status": result.status.value, "reason": result.reason, "seconds": round(result.seconds, 3)
    }  # fmt: skip


def _commit(clone: Path) -> str:
    command = ["git", "-C", str(clone), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
