"""`rollback-tools`: see what a rollback took. Works on files alone; no member needs to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from replset.errors import ReplError
from rollback_tools import dump, listing, manifest

app = typer.Typer(
    help="Inspect the files that a rollback wrote.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("list")(listing.list_rollbacks)
app.command("show")(manifest.show)


@app.command(
    "dump", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def _dump() -> None:
    """Print a BSON file as bsondump does (`rollback-tools dump --help` lists the options)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one tool; its exit status. An error is one line on standard error and status 2 (dump: 1, as bsondump)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["dump"]:
            return dump.main(arguments[1:])
        status = app(args=arguments, prog_name="rollback-tools", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except ReplError as error:
        print(f"rollback-tools: {error.message}", file=sys.stderr)
        return 2
    return int(status) if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
