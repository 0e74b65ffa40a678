"""`rollback-tools`: shows what a rollback undid, and puts it back. Only diff and restore need a running set."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rollback_tools import dump


def main(argv: Sequence[str] | None = None) -> int:
    """Run one tool and return its exit status. An error is one line on standard error and status 2 (dump: 1)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["dump"]:
        return dump.main(arguments[1:])
    from replset.terminal import run_app
    from rollback_tools.app import app

    return run_app(app, "rollback-tools", _with_collection(arguments))


def _with_collection(arguments: list[str]) -> list[str]:
    """Join `--policy to-collection NAME` to one value, because a typer option takes one."""
    for index, argument in enumerate(arguments[:-1]):
        is_value = argument == "to-collection" and arguments[index - 1 : index] == ["--policy"]
        if is_value or argument == "--policy=to-collection":
            return [*arguments[:index], f"{argument} {arguments[index + 1]}", *arguments[index + 2 :]]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
