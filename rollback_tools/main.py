"""`rollback-tools`: see what a rollback took. Works on files alone; no member needs to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rollback_tools import dump


def main(argv: Sequence[str] | None = None) -> int:
    """Run one tool; its exit status. An error is one line on standard error and status 2 (dump: 1, as bsondump)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["dump"]:
        return dump.main(arguments[1:])
    from replset.terminal import run_app
    from rollback_tools.tools import app

    return run_app(app, "rollback-tools", arguments)


if __name__ == "__main__":
    sys.exit(main())
