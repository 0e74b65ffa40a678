"""`replset add-witness` on real processes, and docs/witness.md, word for word."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from replset.cli.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program
from tests.integration.page import differences, running_shell


def test_a_witness_is_added_to_a_set_that_runs(make_set: MakeSet) -> None:
    """It copies the oplog, then its vote counts; clients see an arbiter that serves nothing."""
    local = make_set(members=2)
    primary = local.wait_for_primary()
    for number in range(20):
        insert(primary, number)
    witness = local.add(next_ports(1)[0], witness=True)
    done = run_program("replset.cli.main", "add-witness", witness.host, "--host", primary.host)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{witness.host} is added as witness; it copies the oplog, then it votes" in done.stdout
    assert "majority writes will need 2 of 3 copies and go on with 1 data members down" in done.stdout
    wait_until(lambda: row_of(primary, witness).get("counted"), 60, "its vote")
    row = row_of(primary, witness)
    assert (row["stateStr"], row["witness"], "optimeDurable" in row) == ("ARBITER", True, True)

    hello = witness.command({"hello": 1})
    assert (hello["arbiterOnly"], hello["secondary"], hello["arbiters"]) == (True, False, [witness.host])
    refused = witness.command({"find": "orders", "$readPreference": {"mode": "secondaryPreferred"}}, "shop")
    assert refused["code"] == 13436
    answers = {path: status_of(witness, path) for path in ("arbiter", "secondary", "ready", "primary")}
    assert answers == {"arbiter": 200, "secondary": 503, "ready": 503, "primary": 503}
    assert "WITNESS" in run_program("replset.cli.main", "status", "--host", primary.host).stdout

    (second,) = (member for member in local.members if member not in (primary, witness))
    local.kill(second)
    insert(primary, 100)
    three = primary.command(concern(101, w=3), "shop")
    assert three["writeConcernError"]["code"] == 100  # type: ignore[index]


def insert(primary: LocalMember, number: int) -> None:
    reply = primary.command(concern(number), "shop", timeout_s=30)
    assert (reply["ok"], reply.get("writeConcernError")) == (1, None), reply


def concern(number: int, w: object = "majority") -> dict[str, object]:
    documents = [{"_id": number}]
    return {"insert": "orders", "documents": documents, "writeConcern": {"w": w, "wtimeout": 20_000}}


def row_of(asked: LocalMember, member: LocalMember) -> dict[str, Any]:
    rows: list[dict[str, Any]] = asked.command({"replSetGetStatus": 1})["members"]  # type: ignore[assignment]
    return next((row for row in rows if row["name"] == member.host), {})


def status_of(member: LocalMember, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{member.http}/{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_page_is_true(tmp_path: Path) -> None:
    with running_shell(tmp_path, next_ports(3)) as shell:
        wrong = differences("witness.md", shell)
    assert wrong == [], "\n".join(wrong)
