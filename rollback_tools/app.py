"""The tools as one typer application. `dump` is only listed here: main.py passes it its arguments unchanged."""

from __future__ import annotations

import typer

from rollback_tools import ack, diff, list_rollbacks, restore, show, verify

app = typer.Typer(
    help="See what a rollback took, and put it back. Only diff and restore need a running set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables show a type for flags, which take none
    context_settings={"max_content_width": 110},
)
app.command("list")(list_rollbacks.list_rollbacks)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("restore")(restore.restore)
app.command("verify")(verify.verify)
app.command("ack")(ack.ack)


@app.command("dump")
def dump() -> None:
    """Print a BSON file as bsondump does (`rollback-tools dump --help` lists the options)."""
