"""`replset follow`: a second set that follows this one, at another site; the switch-over between the two."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replset.bson import RawDocument
from replset.cli import calls
from replset.cli.host_option import Host
from replset.ejson import to_ejson
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry
from replset.optime import parse_optime
from replset.terminal import echo

if TYPE_CHECKING:  # the storage, which takes longer to import than most subcommands to run
    from replset.features.follower.follow_source import SourceSet

DRAIN_S, PAUSE_S = 60, 0.1


def follow(
    host: Host,
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="HOST:PORT,... of the other set's members")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="how far this set is")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="follow no more and take writes, whatever is missing")] = False,
    switch_over: Annotated[
        bool, typer.Option("--switch-over", help="change roles with the source; nothing is lost")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="list what SOURCE, followed before, has beyond what came here")
    ] = False,
) -> None:
    """Let the set of HOST follow the set of SOURCE: it takes every write of that, and none of clients."""
    given = [name for name, is_given in (("status", status), ("stop", stop), ("switch-over", switch_over)) if is_given]
    if len(given) > 1 or bool(given) == (source is not None):
        raise BadValueError("give a SOURCE (also with --missing), or one of --status, --stop and --switch-over")
    if missing and source is not None:
        list_missing(host, source)
    elif source is not None:
        reply = calls.on_primary(host, {"replSetFollow": "start", "source": source})
        echo(f"this set follows {reply['setName']} from {_place(reply)} on; it takes no writes of clients")
    elif status:
        print_status(host)
    elif stop:
        reply = calls.on_primary(host, {"replSetFollow": "stop"})
        echo(f"this set takes writes. It has what {reply['setName']} had up to {_place(reply)}")
        echo("when the other set is back: replset follow --missing OTHER lists what it has beyond that")
    else:
        change_roles(host)


def _place(reply: dict[str, Any]) -> OpTime:
    return parse_optime(reply["position"])


def _status(host: str) -> dict[str, Any]:
    return calls.on_primary(host, {"replSetFollowStatus": 1})


def print_status(host: str) -> None:
    """Print how far the set is; exit status 1 while nothing comes."""
    reply = _status(host)
    mode = reply["mode"]
    if mode == "none":
        echo("this set follows nobody")
        return
    if mode == "closed":
        echo('this set takes no writes, so that its follower can take over ({replSetFollow: "open"} ends that)')
        return
    echo(f"{mode}: {reply['setName']} ({', '.join(reply['hosts'])}), consumer {reply['consumer']}")
    echo(f"applied up to {_place(reply)}")
    if mode == "following":
        from replset.cli.status import age_of_newest

        echo(age_of_newest(reply.get("lagSecs")))
        if reply.get("error"):
            echo(f"nothing comes: {reply['error']}")
            raise typer.Exit(1)


def change_roles(host: str) -> None:
    """Stop the source's writes, wait until everything is here, take writes here, let the source follow."""
    from replset.features.follower.follow_source import SourceSet

    reply = _status(host)
    if reply["mode"] != "following":
        raise BadValueError(f"{host}: its set follows nobody")
    name, source = reply["setName"], SourceSet(reply["hosts"], reply["setName"], timeout_s=60)
    hosts = ",".join(calls.ask(host, {"hello": 1})["hosts"])
    try:
        closed = parse_optime(source.command({"replSetFollow": "close"}).get("opTime"))
        echo(f"{name} takes no writes")
        newest = _newest_entry(source, closed)
        deadline = time.monotonic() + DRAIN_S
        while _place(reply) < newest:
            if time.monotonic() > deadline:
                raise ReplError(
                    f"{host} is at {_place(reply)}, not at {newest}, after {DRAIN_S} s: {reply.get('error')}"
                )
            time.sleep(PAUSE_S)
            reply = _status(host)
    except (ReplError, KeyboardInterrupt) as error:
        _open_again(source, _failure(error))
        raise
    try:
        calls.on_primary(host, {"replSetFollow": "stop"})
    except (ReplError, KeyboardInterrupt) as error:
        why = _failure(error)  # it may have taken effect all the same: the source must not take writes beside it
        raise ReplError(
            f"{why.message}; {name} takes no writes meanwhile. If `replset follow --status` says"
            " following, run --switch-over again; if it says stopped, run: replset follow"
            f" {hosts} --host {source.hosts[0]}",
            code=why.code,
        ) from error
    echo(f"this set has everything up to {newest}, and takes writes")
    source.command({"replSetFollow": "start", "source": hosts})
    echo(f"{name} follows it")
    source.command({"replSetConsumerRemove": reply["consumer"]})


def _failure(error: ReplError | KeyboardInterrupt) -> ReplError:
    return error if isinstance(error, ReplError) else ReplError("interrupted")


def _open_again(source: SourceSet, why: ReplError) -> None:
    """Let the source take writes again. why: what failed; the close itself may have been done, or not."""
    try:
        source.command({"replSetFollow": "open"})
    except ReplError as error:
        if error.code == ErrorCode.ILLEGAL_OPERATION:  # it was not closed
            return
        raise ReplError(
            f"{why.message}; {source.set_name} may take no writes now ({error.message}): run --switch-over again, or"
            ' {replSetFollow: "open"} on its primary',
            code=why.code,
        ) from error
    echo(f"{source.set_name} takes writes again: nothing was changed")


def _newest_entry(source: SourceSet, closed: OpTime) -> OpTime:
    """The newest committed entry. closed: the one that closed the set, which a new primary may show a moment later."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        newest = OplogEntry(source.find("local.oplog.rs", {}, 1, newest_first=True)[0]).optime
        if newest >= closed:
            return newest
        if time.monotonic() > deadline:
            raise ReplError(f"{source.set_name} shows nothing behind {newest} after {DRAIN_S} s")
        time.sleep(PAUSE_S)


def list_missing(host: str, source: str) -> None:
    """Print the entries that the source has beyond the last one that came here; exit status 1 if there are some."""
    from replset.features.follower.follow_source import SourceSet
    from replset.features.follower.followed import came_from, is_followed

    reply = _status(host)
    if reply["mode"] == "none":
        raise BadValueError(f"{host}: its set followed nobody")
    position, other = _place(reply), SourceSet(source.split(","), reply["setName"])
    name = str(calls.ask(host, {"hello": 1})["setName"])
    found, at = 0, position
    try:
        while page := other.entries_after(at):
            for raw in page:
                entry = OplogEntry(raw)
                at = entry.optime
                is_missing = is_followed(entry) and not came_from(raw, name)
                for one in entry.operations if is_missing else ():
                    found += 1
                    echo(f"{at}  {one.op}  {one.ns}  {_shown(one)}")
    except ReplError as error:
        if error.code == ErrorCode.CAPPED_POSITION_LOST:
            raise ReplError(f"{source} has no entries as old as {position} any more", code=error.code) from error
        raise
    finally:
        other.close()
    echo(f"{found} operations of {reply['setName']} behind {position} are not here")
    if found:
        raise typer.Exit(1)


def _shown(operation: OplogEntry) -> str:
    about = operation.o2 if operation.op == "u" and operation.o2 is not None else operation.o
    if operation.op == "c":
        return to_ejson(about.decode())[:100]
    return to_ejson({"_id": RawDocument(about.raw).get("_id")})
