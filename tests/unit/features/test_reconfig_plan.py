"""Plans of several reconfigs: each step is allowed, and of the allowed ones the safest comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.bson import ObjectId
from replset.config import ReplSetConfig, Settings
from replset.core.reconfig_rules import reconfig_refusal
from replset.errors import InvalidReplicaSetConfigError
from replset.features.administration.reconfig_plan import is_same, plan_reconfig
from replset.ids import HostPort


def config(*rows: str | dict[str, Any]) -> ReplSetConfig:
    """`a` is a member a:1, `a/` an arbiter; a document is taken as it is, with its host."""
    members = []
    for number, row in enumerate(rows):
        if isinstance(row, str):
            row = {"host": f"{row.strip('/')}:1", **({"arbiterOnly": True} if row.endswith("/") else {})}
        members.append({"_id": number, **row})
    return ReplSetConfig.parse({"_id": "rs0", "version": 3, "members": members})


WITHOUT_VOTE = {"_id": 2, "host": "b:1", "votes": 0, "priority": 0}


@pytest.mark.parametrize(
    ("current", "target", "steps"),
    [
        pytest.param(config("a", "b"), config("a", "b"), [], id="nothing-to-do"),
        pytest.param(config(*"abcde"), config(*"abc"), ["remove d:1", "remove e:1"], id="two-voters-less"),
        pytest.param(config(*"abc"), config(*"abd"), ["add member d:1", "remove c:1"], id="another-host"),
        pytest.param(config(*"abcdefg"), config(*"abcdefh"), ["remove g:1", "add member h:1"], id="no-eighth-voter"),
        pytest.param(
            config("a", "b"), config("a", "b", "x/", "c"), ["add member c:1", "add arbiter x:1"], id="data-first"
        ),
        pytest.param(
            config("a", "x/"),
            config("a", "x/", "b"),
            ["add member b:1 with priority 0", "set b:1: priority 1"],
            id="a-secondary-beside-an-arbiter",
        ),
        pytest.param(
            config("a", "b", "x/"), config("a", "b", "y/"), ["remove x:1", "add arbiter y:1"], id="another-arbiter"
        ),
        pytest.param(
            config("a", "b", "x/"),
            config("a", "b", {"host": "w:1", "witness": True}),
            ["add witness w:1", "remove x:1"],
            id="a-witness-for-an-arbiter",
        ),
        pytest.param(
            config("a", "x/", WITHOUT_VOTE),
            config("a", "x/", {"host": "b:1", "priority": 2}),
            ["give b:1 its vote with priority 0", "set b:1: priority 2"],
            id="a-vote-given-back",
        ),
        pytest.param(
            config("a", "b", "x/"),
            config("a", {"host": "b:1", "votes": 0, "priority": 0}, "x/"),
            ["take the vote of b:1 away"],
            id="a-vote-taken",
        ),
        pytest.param(
            config("a", "b"), config("a", {"host": "b:1", "tags": {"dc": "x"}}), ["set b:1: tags"], id="other-fields"
        ),
        pytest.param(
            config("a", "b"),
            replace(config("a", {"host": "b:1", "hidden": True, "priority": 0}), settings=Settings(min_in_sync=2)),
            ["set b:1: hidden True, priority 0; settings: minInSync"],
            id="several-fields-and-settings",
        ),
        pytest.param(
            config("a"),
            replace(config("a"), settings=Settings(chaining_allowed=False)),
            ["set settings: chaining"],
            id="settings",
        ),
    ],
)
def test_plans(current: ReplSetConfig, target: ReplSetConfig, steps: list[str]) -> None:
    plan = plan_reconfig(current, target)
    assert len(plan) == len(steps)
    for step, text in zip(plan, steps, strict=True):
        assert step.text.startswith(text)
    for step in plan:
        hosts = [member.host for member in step.config.members if member.is_electable]
        assert any(
            reconfig_refusal(current, step.config, host, force=False, default_set=True) is None for host in hosts
        )
        current = step.config


def test_a_host_under_the_id_of_another_gets_its_own() -> None:
    last = plan_reconfig(config(*"abc"), config(*"abd"))[-1].config
    assert {str(member.host): int(member.id) for member in last.members} == {"a:1": 0, "b:1": 1, "d:1": 3}


def test_all_members_may_be_replaced_and_the_primary_hands_over_first() -> None:
    plan = plan_reconfig(config(*"abc"), config(*"def"))
    assert len(plan) == 6
    assert [step.needs_other_primary(HostPort("a:1")) for step in plan] == [False] * 3 + [True] * 3
    assert min(step.config.tolerance.majority_writes for step in plan) == 1


def test_what_no_steps_can_do_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidReplicaSetConfigError, match="arbiterOnly cannot change"):
        plan_reconfig(config("a", "b", "c/"), config("a", "b", "c"))


def test_version_and_order_make_no_difference() -> None:
    one = replace(config("a", "b"), settings=Settings(replica_set_id=ObjectId(b"the set's id")))
    other = ReplSetConfig.parse({"_id": "rs0", "version": 9, "members": [m.document() for m in reversed(one.members)]})
    assert is_same(one, other)
