"""A hot spare on real processes: it votes in the place of a member that was killed, until that is back."""

from __future__ import annotations

from typing import Any

from replset.cli.local_set import LocalMember, wait_until
from replset.cli.main import main
from tests.integration.conftest import MakeSet, next_ports


def row_of(asked: LocalMember, member: LocalMember) -> dict[str, Any]:
    members = asked.command({"replSetGetConfig": 1})["config"]["members"]
    found: dict[str, Any] = next(row for row in members if row["host"] == member.host)
    return found


def remarks(asked: LocalMember) -> str:
    return str(asked.command({"replSetGetStatus": 1}))


def test_a_spare_votes_for_a_member_that_was_killed(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    spare = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
    assert main(["add", spare.host, "--host", primary.host, "--spare-after", "2", "--wait", "20"]) == 0
    assert row_of(primary, spare)["spareAfterSecs"] == 2
    gone = next(member for member in local.members if member not in (primary, spare))

    def counted(member: LocalMember) -> bool:
        rows = primary.command({"replSetGetStatus": 1})["members"]
        row = next(row for row in rows if row["name"] == member.host)
        return row["stateStr"] in ("PRIMARY", "SECONDARY") and not row.get("newlyAdded")

    wait_until(lambda: counted(spare), 30, "the spare to have copied the data")
    local.kill(gone)
    wait_until(lambda: "spareFor" in row_of(primary, spare) and counted(spare), 30, "the spare to vote")
    assert row_of(primary, spare)["spareFor"] == row_of(primary, gone)["_id"]
    assert f"{spare.host} votes in the place of {gone.host}" in remarks(primary)
    other = next(member for member in local.members if member not in (primary, spare, gone))
    local.kill(other)
    insert = {"insert": "orders", "documents": [{"_id": 1}], "writeConcern": {"w": "majority", "wtimeout": 20_000}}
    reply = primary.command(insert, database="shop")
    assert reply["ok"] == 1
    assert "writeConcernError" not in reply, "the primary and the spare are two of three"
    local.start(gone)
    local.start(other)
    wait_until(lambda: not row_of(primary, spare)["votes"] and counted(gone), 60, "the vote to be given back")
    assert "spareFor" not in row_of(primary, spare)
