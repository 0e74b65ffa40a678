"""`replset user`: adds, lists, changes and removes users of the set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.cli import calls
from replset.cli.host_option import Host
from replset.client import read_password
from replset.errors import BadValueError
from replset.terminal import echo
from replset.text import printable

app = typer.Typer(help="Users of the set, for members that were started with --auth.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the user's name")]
Database = Annotated[str, typer.Option("--db", help="the database that the user belongs to")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE[@DB]", help="a role, of --db unless it says another; repeat it"),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--new-password-file", metavar="FILE", help="the new password is its first line (asked for without)"),
]


@app.command()
def add(host: Host, name: Name, db: Database = "admin", role: Roles = None, new: PasswordFile = None) -> None:
    """Add a user. The first one is made on a member's own machine, without a login."""
    command = {"createUser": name, "pwd": _new_password(name, new), "roles": _documents(role or [], db)}
    _on_primary(host, db, command)
    echo(f"{name} of {db} may log in")


@app.command()
def password(host: Host, name: Name, db: Database = "admin", new: PasswordFile = None) -> None:
    """Give a user another password. His logins and tokens end."""
    _on_primary(host, db, {"updateUser": name, "pwd": _new_password(name, new)})
    echo(f"{name} of {db} has another password")


@app.command()
def grant(host: Host, name: Name, db: Database = "admin", role: Roles = None) -> None:
    """Give a user more roles."""
    _on_primary(host, db, {"grantRolesToUser": name, "roles": _documents(role or [], db)})


@app.command()
def revoke(host: Host, name: Name, db: Database = "admin", role: Roles = None) -> None:
    """Take roles from a user."""
    _on_primary(host, db, {"revokeRolesFromUser": name, "roles": _documents(role or [], db)})


@app.command()
def drop(host: Host, name: Name, db: Database = "admin") -> None:
    """Remove a user. His logins and tokens end."""
    _on_primary(host, db, {"dropUser": name})
    echo(f"{name} of {db} is no user any more")


@app.command("list")
def list_users(host: Host) -> None:
    """Print all users and their roles."""
    for row in calls.ask(host, {"usersInfo": {"forAllDBs": True}})["users"]:
        roles = ", ".join(f"{role['role']}@{role['db']}" for role in row["roles"])
        echo(f"{row['user']} of {row['db']}: {roles or 'no role'}")


def _on_primary(host: str, database: str, command: dict[str, Any]) -> None:
    calls.on_primary(host, command, database=database)


def _documents(roles: list[str], database: str) -> list[dict[str, str]]:
    """`read` is a role of `database`, `read@shop` of shop."""
    parts = [role.partition("@") for role in roles]
    return [{"role": name, "db": other or database} for name, _, other in parts]


def _new_password(name: str, path: Path | None) -> str:
    if path is not None:
        return read_password(str(path))
    if not sys.stdin.isatty():
        raise BadValueError("a password is asked for on a terminal; elsewhere give --new-password-file")
    found: str = typer.prompt(printable(f"password for {name}"), hide_input=True, confirmation_prompt=True)
    return found
