"""`replset check` compares the members' documents; `replset repair DB.COLLECTION` puts right what differs.

A member does the work, a part with each command, and asks the others itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from replset.cli import calls
from replset.cli.host_option import AnyHost, say_if_remembered
from replset.ejson import to_ejson
from replset.errors import ErrorCode, ReplError
from replset.long_work import LongWork
from replset.terminal import echo

T = TypeVar("T")
SAME, DIFFERENT, NOT_COMPARED = 0, 1, 2
SHOWN_MAX = 100
TRIES = 5
_PASSING = (ErrorCode.SNAPSHOT_UNAVAILABLE, ErrorCode.SNAPSHOT_TOO_OLD)


def check(
    host: AnyHost = None,
    ns: Annotated[str, typer.Argument(metavar="[DB|DB.COLLECTION]", help="only these documents; nothing: all")] = "",
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of text")] = False,
) -> int:
    """Compare the documents of all members and name those that differ: status 0 same, 1 different, 2 not compared."""
    member = _primary_or(host)
    documents = size = 0
    differing: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    after: dict[str, Any] = {}
    with LongWork("replset") as work:
        work.begin("comparing documents")
        while True:
            command = {"replSetCheckDocuments": 1, "ns": ns, **({"after": after} if after else {})}
            reply = _again(lambda: calls.ask(member, command))  # noqa: B023 - runs at once
            documents, size = documents + int(reply["documents"]), size + int(reply["bytes"])
            differing += reply["differing"]
            failed |= {row["member"]: row["reason"] for row in reply["notCompared"]}
            work.update(documents)
            if "next" not in reply:
                break
            after = reply["next"]
    rows = [{"member": name, "reason": reason} for name, reason in sorted(failed.items())]
    if json:
        found = {"documents": documents, "bytes": size, "differing": differing, "notCompared": rows}
        echo(to_ejson(found))
    else:
        echo(f"{documents} documents of {member} compared, {len(differing)} differ")
        _show(differing, "")
        for row in rows:
            echo(f"not compared everywhere: {row['member']}: {row['reason']}")
        names = sorted({row["ns"] for row in differing})
        for name in names:
            echo(f"to put it right: replset repair {name}")
    return DIFFERENT if differing else NOT_COMPARED if failed else SAME


def repair_documents(ns: str, host: str | None, trusted: str | None, *, as_json: bool = False) -> int:
    """Have each member correct its documents of `ns`, and print what they did. Status 0 if all members are alike now.

    trusted: the member whose version is taken where there is no majority. A member that cannot be asked is named, and
    the others go on.
    """
    primary = _primary_or(host)
    config = calls.ask(primary, {"replSetGetConfig": 1})["config"]
    members = [row["host"] for row in config["members"] if not row.get("arbiterOnly") and not row.get("witness")]
    members.sort(key=lambda name: name != primary)
    members = [member for member in members if member != trusted]
    results = [_repair_one(member, ns, trusted, is_first=member == members[0]) for member in members]
    if as_json:
        echo(to_ejson({"members": results}))
    else:
        for result in results:
            _print_repair(ns, result)
    is_done = not any(result["undecided"] or result["skipped"] or result["notCompared"] for result in results)
    return SAME if is_done else DIFFERENT


def _repair_one(member: str, ns: str, trusted: str | None, *, is_first: bool) -> dict[str, Any]:
    """Have one member correct its documents. An error ends only its part, unless the first member refuses at once."""
    total: dict[str, Any] = {"member": member, "corrected": [], "undecided": [], "skipped": [], "records": []}
    failed: dict[str, str] = {}
    after: dict[str, Any] = {}
    tries = 0
    with LongWork("replset") as work:
        work.begin(f"correcting documents of {member}")
        while True:
            command = {"replSetRepairDocuments": ns, **after, **({"from": trusted} if trusted else {})}
            try:
                reply = _again(lambda: calls.ask(member, command))  # noqa: B023 - runs at once
            except ReplError as error:
                if is_first and not after and not total["corrected"]:
                    raise
                failed[member] = error.message
                break
            tries += 1
            for name in ("corrected", "records"):
                total[name] += reply[name]
            work.update(len(total["corrected"]))
            if reply["skipped"] and tries < TRIES:  # somebody wrote them meanwhile: compare the same documents again
                time.sleep(0.2)
                continue
            tries = 0
            total["undecided"] += reply["undecided"]
            total["skipped"] += reply["skipped"]
            failed |= {row["member"]: row["reason"] for row in reply["notCompared"]}
            if "next" not in reply:
                break
            after = {"after": reply["next"]}
    return {**total, "notCompared": [{"member": name, "reason": reason} for name, reason in failed.items()]}


def _print_repair(ns: str, result: Mapping[str, Any]) -> None:
    corrected, member = result["corrected"], result["member"]
    failures = {row["member"]: row["reason"] for row in result["notCompared"]}
    why = failures.pop(member, None)
    if corrected or why is None:
        done = f"{len(corrected)} documents of {ns} corrected" if corrected else "nothing to do"
        echo(f"{member}: {done}")
    if why is not None:
        echo(f"{member}: not repaired to the end: {why}")
    _show(corrected, "before that ")
    if result["records"]:
        echo(f"  what was there: {', '.join(result['records'])} (rollback-tools show, restore)")
    for row in result["undecided"][:SHOWN_MAX]:
        echo(f"  no majority for {_named(row)}; to take one member's version: --from HOST:PORT")
    for row in result["skipped"][:SHOWN_MAX]:
        echo(f"  written meanwhile, try again: {_named(row)}")
    for name, reason in failures.items():
        echo(f"  not compared with {name}: {reason}")


def _show(rows: Iterable[Mapping[str, Any]], when: str) -> None:
    rows = list(rows)
    for row in rows[:SHOWN_MAX]:
        versions: dict[str | None, list[str]] = {}
        for one in row["members"]:
            versions.setdefault(one["hash"], []).append(one["member"])
        parts = [
            f"{' and '.join(names)} {'without it' if version is None else version}"
            for version, names in sorted(versions.items(), key=lambda item: -len(item[1]))
        ]
        echo(f"  {_named(row)}: {when}{'; '.join(parts)}")
    if len(rows) > SHOWN_MAX:
        echo(f"  and {len(rows) - SHOWN_MAX} more (--json lists them all)")


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['ns']} {to_ejson({'_id': row['_id']})}"


def _primary_or(host: str | None) -> str:
    """Return the primary, or the member that was asked for while there is none."""
    answered, reply = calls.ask_status(host)
    if host is None:
        say_if_remembered(answered)
    return next((str(row["name"]) for row in reply["members"] if row["stateStr"] == "PRIMARY"), answered)


def _again(action: Callable[[], T]) -> T:
    """Repeat what a checkpoint or a change of the collection cut off."""
    for _ in range(TRIES - 1):
        try:
            return action()
        except calls.CommandFailedError as error:
            if error.code not in _PASSING:
                raise
        time.sleep(0.5)
    return action()


def is_namespace(text: str) -> bool:
    """Whether the argument of `replset repair` is DB.COLLECTION, and not a folder."""
    database, dot, collection = text.partition(".")
    return bool(database and dot and collection) and "/" not in text
