"""Puts the subcommands of `replset` together. `start` is only listed here: main.py takes it out before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from replset import release
from replset.cli import (
    archive,
    backup,
    calls,
    check,
    cluster,
    confirm,
    consumers,
    follow,
    history,
    members,
    operations,
    oplog,
    run_tests,
    status,
    undo,
    users,
    what_if,
    why,
)
from replset.cli.host_option import Host, remember_given
from replset.ejson import to_ejson_value
from replset.terminal import echo, echo_json, run_app

app = typer.Typer(
    help="A MongoDB-style replica set: run members and look after them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables show a type for flags, which take none
    context_settings={"max_content_width": 110},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(oplog.app, name="oplog")
app.add_typer(users.app, name="user")
app.add_typer(consumers.app, name="consumers")
app.add_typer(archive.app, name="archive")
app.add_typer(what_if.app, name="what-if")


def print_version(asked: bool) -> None:
    if asked:
        echo(f"replset {release.described()}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand and return its exit status."""
    status = run_app(app, "replset", arguments)
    remember_given(status)
    return status


@app.callback()
def replset(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Run members of a MongoDB-style replica set, and look after them."""


@app.command()
def start() -> None:
    """Run one member until SIGTERM (`replset start --help` lists its options)."""


@app.command()
def conf(host: Host) -> None:
    """Print the configuration as JSON (edit it and give it to `reconfig`)."""
    echo_json(to_ejson_value(calls.ask(host, {"replSetGetConfig": 1})["config"]))


app.command()(status.status)
app.command()(why.why)
app.command()(history.history)
app.command()(confirm.confirm)
app.command()(undo.undo)
app.command()(members.initiate)
app.command()(members.add)
app.command("add-arbiter")(members.add_arbiter)
app.command("add-witness")(members.add_witness)
app.command()(members.remove)
app.command()(members.reconfig)
app.command("step-down")(operations.step_down)
app.command("step-up")(operations.step_up)
app.command()(operations.freeze)
app.command("sync-from")(operations.sync_from)
app.command("feature-version")(operations.feature_version)
app.command()(operations.maintenance)
app.command("resize-oplog")(operations.resize_oplog)
app.command()(operations.resync)
app.command()(follow.follow)
app.command()(check.check)
app.command()(operations.repair)
app.command()(backup.backup)
app.command()(backup.restore)
app.command("test")(run_tests.run_tests)
