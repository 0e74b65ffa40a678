"""No name, host or reason that a member sends makes a line of its own or steers the terminal, whatever prints it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replset.bson import DateTime, Int64, Timestamp
from replset.cli import calls, operations, oplog
from replset.cli.main import main
from replset.ejson import to_ejson

Capture = pytest.CaptureFixture[str]
NASTY = "eve\nforged\r\x1b[2J\x9b31m\u2028\u202e[red]:smile:"
SHOWN = "eve\\nforged\\r\\u001b[2J\\u009b31m\\u2028\\u202e[red]:smile:"
POINT = {"ts": Timestamp(10, 1), "t": Int64(2)}
AT = DateTime(1_795_387_446_000)
MEMBER = {"name": NASTY, "stateStr": NASTY, "health": 1.0, "optimeDate": AT, "optime": POINT, "syncSourceHost": NASTY}
STATUS = {
    "set": NASTY,
    "term": 1,
    "date": AT,
    "members": [
        {**MEMBER, "self": True, "unacknowledgedRollbacks": 1},
        {**MEMBER, "stateStr": "PRIMARY", "electionDate": AT, "infoMessage": NASTY, "lastHeartbeat": AT},
    ],
    "startupWarnings": [NASTY],
    "blocking": NASTY,
    "electionCandidateMetrics": {"lastElectionReason": NASTY},
    "following": {"setName": NASTY, "lagSecs": 1},
    "remarks": [{"why": f"no primary {NASTY}", "next": NASTY}],
    "rollbackStatus": {"text": NASTY},
}
CONSUMER = {"name": NASTY, "ns": NASTY, "mode": NASTY, "lagSecs": 1, "holder": NASTY}
ELECTION = {
    **{
        "outcome": "lost",
        "date": AT,
        "member": NASTY,
        "term": 1,
        "reason": NASTY,
        "asked": [NASTY],
        "granted": [NASTY],
    },
    **{"before": [{"date": AT, "event": NASTY, "detail": NASTY}], "grantedInDryRun": [NASTY], "phases": []},
    "refused": [{"member": NASTY, "reason": NASTY}],
}
DIFFERING = {"ns": NASTY, "_id": NASTY, "members": [{"member": NASTY, "hash": None}, {"member": "b", "hash": NASTY}]}
REPLIES: dict[str, dict[str, Any]] = {
    "hello": {"primary": "m0:1", "me": NASTY},
    "replSetGetStatus": {**STATUS, "consumers": [CONSUMER]},
    "replSetGetConfig": {"config": {"_id": NASTY, "members": [{"_id": 0, "host": NASTY}]}},
    "replSetGetElections": {"elections": [ELECTION], "unreachable": {"x": NASTY}},
    "usersInfo": {"users": [{"user": NASTY, "db": NASTY, "roles": [{"role": NASTY, "db": NASTY}]}]},
    "replSetConsumers": {"consumers": [CONSUMER]},
    "replSetConsumerUnpark": {"n": 1},
    "replSetConsumerParked": {
        "parked": [{"id": NASTY, "at": DateTime(0), "refusals": 1, "reasons": [{"reader": NASTY, "reason": NASTY}]}],
        "events": [{"x": NASTY}],
    },
    "replSetConsumerCreate": {"mode": NASTY, "optime": NASTY},
    "replSetCheckDocuments": {
        **{"documents": 1, "bytes": 1, "differing": [DIFFERING]},
        "notCompared": [{"member": NASTY, "reason": NASTY}],
    },
    "replSetRepairDocuments": {
        **{"corrected": [DIFFERING], "records": [NASTY], "undecided": [DIFFERING], "skipped": []},
        "notCompared": [{"member": "b", "reason": NASTY}],
    },
    "replSetFollowStatus": {
        **{"mode": "following", "setName": NASTY, "hosts": [NASTY], "consumer": NASTY, "position": POINT},
        **{"lagSecs": 1, "error": NASTY},
    },
    "replSetSyncFrom": {"warning": NASTY, "prevSyncTarget": NASTY},
    "replSetStepDown": {"info": NASTY},
}
ENTRY = {"op": "i", "ns": NASTY, "o": {NASTY: NASTY}}


class FakeHttp:
    """Gives names that no member of ours would give, as the replies here do."""

    def get(self, path: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"first": None, "last": None, NASTY: NASTY}
        row = {"optime": NASTY, "entry": json.loads(to_ejson(ENTRY))}
        return facts if path.endswith("info") else {"entries": [row], "next": None}


COMMANDS = (
    "status, status --json, why, why --json, conf, user list, user drop *, consumers list, consumers list --json,"
    " consumers create *, consumers remove *,"
    " consumers parked *, consumers parked * --json, consumers unpark * --all,"
    " check, check --json, repair shop.orders, repair shop.orders --json,"
    " oplog info, oplog info --json, oplog tail --after 1:1:1, oplog tail --after 1:1:1 --json, follow --status,"
    " sync-from m1:1, step-up m1:1, step-down, *, add *"
)
"""`*` stands for the name."""


@pytest.mark.parametrize("command", COMMANDS.split(", "))
def test_a_name_neither_begins_a_line_nor_steers_the_terminal(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ask", lambda host, command, *_, **__: REPLIES.get(next(iter(command)), {}))
    monkeypatch.setattr(oplog, "http_of", lambda host: FakeHttp())
    monkeypatch.setattr(operations, "STEP_UP_WITHIN_S", 0)  # it never leads
    words = command.split(" ")
    if words[0] not in ("repair", "step-up", "*"):
        words += ["--host", "m0:1"]
    main([NASTY if word == "*" else word for word in words])
    out, err = capsys.readouterr()
    text = out + err
    assert "forged" in text
    assert [line for line in text.split("\n") if not line.isprintable() or line.lstrip().startswith("forged")] == []
