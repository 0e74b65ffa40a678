"""The forecast of `replset what-if`, then the deed itself on the same set of whole members: they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from replset.bson import decode, encode
from replset.config import ReplSetConfig
from replset.features.what_if.forecast import Deed, Forecast, Kind, foresee
from replset.features.what_if.situation import deed_of, set_of
from tests.simulation.kit.cluster import SimCluster, quiet_logs
from tests.simulation.kit.wire import NoAnswerError

PLAYS = 12
SETTLES_S = 25
Options = Mapping[str, Mapping[str, object]]
HIDDEN = {"priority": 0, "hidden": True}
DELAYED = {**HIDDEN, "secondaryDelaySecs": 20}
VOTELESS = {"priority": 0, "votes": 0}


@dataclass(frozen=True)
class Situation:
    """A set, what has happened in it already, and a deed. a leads. down, cut_off: members that are gone already."""

    kind: Kind
    hosts: str = ""
    others: str = ""
    members: int = 3
    arbiters: int = 0
    witnesses: int = 0
    options: Options | None = None
    down: str = ""
    cut_off: str = ""
    change: Mapping[str, Mapping[str, object]] | None = None


SITUATIONS = {
    "the primary dies": Situation("kill", "a"),
    "a secondary dies": Situation("kill", "c"),
    "the primary dies beside an arbiter": Situation("kill", "a", members=2, arbiters=1),
    "the secondary dies beside an arbiter": Situation("kill", "b", members=2, arbiters=1),
    "the primary dies beside a witness": Situation("kill", "a", members=2, witnesses=1),
    "the secondary dies beside a witness": Situation("kill", "b", members=2, witnesses=1),
    "the one with the highest priority follows": Situation(
        "kill", "a", options={"a": {"priority": 3}, "c": {"priority": 2}}
    ),
    "only a hidden one is left": Situation("kill", "a", members=2, arbiters=1, options={"b": HIDDEN}),
    "a hidden one is passed over": Situation("kill", "a", options={"b": HIDDEN}),
    "a delayed one is passed over": Situation("kill", "a", options={"c": DELAYED}),
    "two of three are gone": Situation("kill", "a", down="c"),
    "two of five are gone": Situation("kill", "a", members=5, down="e"),
    "three of five are gone": Situation("kill", "b", members=5, down="de"),
    "the primary is cut off": Situation("cut", "a"),
    "a secondary is cut off": Situation("cut", "b"),
    "the primary loses one of its links": Situation("cut", "a", "b"),
    "the primary is stopped": Situation("stop", "a"),
    "a lagging one is left": Situation("stop", "a", cut_off="c"),
    "a secondary loses its disk": Situation("lose-disk", "b"),
    "a secondary loses its disk while another is gone": Situation("lose-disk", "b", down="c"),
    "the primary loses its disk": Situation("lose-disk", "a"),
    "a secondary is removed": Situation("remove", "c"),
    "the dead one is removed": Situation("remove", "c", down="c"),
    "a secondary gets a higher priority": Situation("reconfig", change={"b": {"priority": 9}}),
    "a secondary loses its vote": Situation("reconfig", change={"c": VOTELESS}),
    "two lose their votes at once": Situation("reconfig", change={"b": VOTELESS, "c": VOTELESS}),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_deed_does_what_was_foreseen(name: str) -> None:
    quiet_logs()
    given = SITUATIONS[name]
    with SimCluster(given.members, given.arbiters, witnesses=given.witnesses, options=given.options, seed=7) as cluster:
        cluster.initiate(priorities={"a": 3})
        cluster.run_until(lambda: cluster.primary() == "a" and cluster.all_counted(), 60, "a leads")
        write(cluster, "a", 1)
        cluster.run_for(3)
        for gone in given.down:
            cluster.kill(gone)
        if given.cut_off:
            cluster.cut(list(given.cut_off))
        write(cluster, "a", 2)
        cluster.run_for(6)

        found, deed = forecast(cluster, given)
        before = len(cluster.primaries_ever)
        refused = do(cluster, deed)
        cluster.run_for(SETTLES_S)
        leader = cluster.primary()
        if given.kind == "lose-disk" and len(cluster.primaries_ever) > before:
            leader = cluster.primaries_ever[before]  # until the member has its copy, which no play makes
        assert bool(refused) == bool(found.refused), (refused, found.refused)
        assert (None if leader is None else cluster.host(leader)) in found.leaders, (leader, found.leaders)
        goes_on = leader is not None and write(cluster, cluster.primary() or "", 3, wait_s=5)
        assert found.majority_writes in ({PLAYS} if goes_on else {0}) or 0 < found.majority_writes < PLAYS
        assert len(found.leaders) == 1 or given.kind in ("kill", "cut", "stop", "lose-disk"), found.leaders


def forecast(cluster: SimCluster, given: Situation) -> tuple[Forecast, Deed]:
    """As the command does: from the statuses of all that answer."""
    replies: dict[str, dict[str, Any]] = {}
    for name in cluster.alive():
        if name not in given.cut_off:
            replies[cluster.host(name)] = cluster.command(name, {"replSetGetStatus": 1})
    document = cluster.command("a", {"replSetGetConfig": 1})["config"]
    config = ReplSetConfig.parse(decode(encode(document)), keep=True)
    known, weights, _ = set_of(config, replies, cluster.host("a"))
    hosts = [str(cluster.host(name)) for name in given.hosts]
    deed = deed_of(known, given.kind, hosts, [str(cluster.host(name)) for name in given.others])
    if given.change is not None:
        rows = [{**row, **given.change.get(cluster.name_of(row["host"]), {})} for row in document["members"]]
        changed = {**document, "version": document["version"] + 1, "members": rows}
        deed = replace(deed, config=ReplSetConfig.parse(decode(encode(changed)), keep=True))
    return foresee(known, deed, weights, PLAYS), deed


def do(cluster: SimCluster, deed: Deed) -> str:
    """Do it to the real members; return why it was refused."""
    names = [cluster.name_of(host) for host in deed.hosts]
    match deed.kind:
        case "kill":
            cluster.kill(names[0])
        case "lose-disk":
            cluster.kill(names[0], wipe=True)
            cluster.run_for(1)
            cluster.start(names[0])
        case "stop":
            cluster.run(cluster.stop(names[0]))
        case "cut":
            for one in names:
                for other in map(cluster.name_of, deed.others):
                    cluster.network.cut(one, other)
                    cluster.network.cut(other, one)
        case "remove":
            reply = cluster.command("a", {"replSetRemoveMember": deed.hosts[0]}, timeout_s=30)
            return str(reply.get("errmsg", ""))
        case "reconfig" if deed.config is not None:
            reply = cluster.command("a", {"replSetReconfig": deed.config.document()}, timeout_s=30)
            return str(reply.get("errmsg", ""))
    return ""


def write(cluster: SimCluster, name: str, number: int, wait_s: float = 3) -> bool:
    """Whether a majority acknowledges a write."""
    concern = {"w": "majority", "wtimeout": int(wait_s * 1000)}
    command = {"insert": "c", "documents": [{"_id": number}], "writeConcern": concern}
    try:
        reply = cluster.command(name, command, "test", timeout_s=wait_s + 5)
    except NoAnswerError:
        return False
    return reply["ok"] == 1 and "writeConcernError" not in reply
