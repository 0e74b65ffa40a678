"""A live member's oplog over HTTP and in its file, both while it runs."""

from __future__ import annotations

import pytest

from spark.columns import COLUMNS
from spark.members import open_members
from spark.oplog import EVERYTHING, START, GrowingOplog, OplogError
from tests.integration.conftest import MakeSet
from tests.integration.talk import insert


def test_both_ways_to_read_a_running_member(make_set: MakeSet) -> None:
    local = make_set(members=1)
    member = local.members[0]
    insert(member, *range(500))
    over_http, in_its_file = (oplog.pin() for oplog in open_members([member.http, f"file={member.dbpath}"]))
    last = min(over_http.bounds().newest, in_its_file.bounds().newest)
    rows = [
        [row for batch in oplog.read(EVERYTHING, COLUMNS) for row in batch.to_pylist() if row["ts"] <= last.ts]
        for oplog in (over_http, in_its_file)
    ]
    assert rows[0] == rows[1]
    assert sum(row["op"] == "i" and row["ns"] == "shop.orders" for row in rows[0]) == 500
    assert over_http.name == member.http.removeprefix("http://")
    assert over_http.bounds().oldest == in_its_file.bounds().oldest


def test_following_a_member_that_dies(make_set: MakeSet) -> None:
    local = make_set(members=1)
    member = local.members[0]
    insert(member, *range(10))
    for oplog in open_members([member.http, str(member.dbpath)]):
        assert isinstance(oplog, GrowingOplog)
        reached = oplog.follow(START, 5)
        assert oplog.follow(reached, 10_000).optime > reached.optime
        assert reached.chain is not None
    local.kill(member)
    live, file = open_members([member.http, str(member.dbpath)])
    with pytest.raises(OplogError, match=rf"{live.name}: (nobody answers|the member went away)"):
        live.bounds()
    assert sum(batch.num_rows for batch in file.read(EVERYTHING, ("ts",))) > 10
