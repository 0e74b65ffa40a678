"""Is the entry point of `replset`. Each family of subcommands has a file of its own.

`start` is taken out before typer is imported: a member carries neither typer nor rich in its memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from replset.own_process import put_product_first


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status. Errors are one line on standard error and status 2."""
    put_product_first()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["start"]:
        from replset.cli.start import main as start

        return start(arguments[1:])
    from replset.cli.administer import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
