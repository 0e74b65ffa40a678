"""`replset why`: why this member is primary, or why there is none. It reads the election journals of all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from replset.bson import DateTime
from replset.cli import calls
from replset.cli.host_option import AnyHost
from replset.ejson import to_ejson
from replset.terminal import echo

REASONS = {
    "electionTimeout": "it had not heard of a primary for an election timeout",
    "singleNodePromptElection": "it is the only voter",
    "fastFailover": "the process of the primary was gone: a fresh connection to it was refused",
    "initiate": "the set was initiated",
    "priorityTakeover": "its priority is higher than the primary's was",
    "catchupTakeover": "it was ahead of a primary that was still catching up",
    "stepUpRequest": "it was asked to (replSetStepUp)",
    "stepUpRequestSkipDryRun": "the primary before it handed over",
    "standsAgain": "its last election had ended the primary, and found no majority",
}


def why(
    host: AnyHost = None,
    last: Annotated[int, typer.Option(min=1, max=100, help="how many elections to show")] = 3,
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts, with all lines of the journals")] = False,
) -> None:
    """Show why this member is primary, or why there is none: who stood, who refused and why, how long it took."""
    answered, status = calls.ask_status(host)
    reply = calls.ask(answered, {"replSetGetElections": 1, "all": True, "limit": last})
    if json:
        echo(to_ejson(reply))
        return
    for line in [*headline(status), *(line for row in reply["elections"] for line in story(row))]:
        echo(line)
    for reason in reply.get("unreachable", {}).values():
        echo(f"one member could not be asked: {reason}")


def headline(status: Mapping[str, Any]) -> list[str]:
    """Return who is primary, or why there is none."""
    for row in status["members"]:
        if row["stateStr"] == "PRIMARY":
            return [f"{row['name']} is primary of term {status['term']}, since {clock(row.get('electionDate'))}"]
    remarks = [remark for remark in status.get("remarks", ()) if "no primary" in remark["why"]]
    lines = [line for remark in remarks for line in (remark["why"], f"  next: {remark['next']}")]
    return lines or [f"no primary is known to {next(row['name'] for row in status['members'] if row.get('self'))}"]


def story(row: Mapping[str, Any]) -> list[str]:
    """Return one election as lines: the reason, what came before, each phase, and its end."""
    outcome = {"won": "was elected", "lost": "was not elected", "open": "stands for election"}[row["outcome"]]
    lines = [f"{clock(row['date'])}  {row['member']} {outcome} (term {row['term']}): {reason_of(str(row['reason']))}"]
    lines += [f"    before  {clock(line['date'])} {line['event']}: {line['detail']}" for line in row["before"]]
    if row["asked"]:
        lines.append(f"    asked   {', '.join(row['asked'])}")
    if row["grantedInDryRun"]:
        lines.append(f"    dry run granted by {', '.join(row['grantedInDryRun'])}")
    if row["granted"]:
        lines.append(f"    votes   of {', '.join(row['granted'])}")
    refusals = [f'    refused by {refusal["member"]}: "{refusal["reason"]}"' for refusal in row["refused"]]
    lines += dict.fromkeys(refusals)  # a dry run and the election after it may be refused alike
    phases = ", ".join(f"{phase['phase']} {phase['millis']} ms" for phase in row["phases"])
    if phases:
        lines.append(f"    took    {phases}")
    if row.get("why"):
        lines.append(f"    ended   {row['why']}")
    if row.get("ended"):
        lines.append(f"    ended   {clock(row['ended']['date'])} it stepped down: {row['ended']['detail']}")
    return lines


def reason_of(reason: str) -> str:
    return f"{REASONS[reason]} ({reason})" if reason in REASONS else reason


def clock(value: object) -> str:
    """Return a time in UTC with milliseconds."""
    if not isinstance(value, DateTime) or not value.ms:
        return "-"
    text = value.to_datetime().strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{value.ms % 1000:03d}"
