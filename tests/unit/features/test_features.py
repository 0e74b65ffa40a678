"""A member without one of its features lacks that feature, and nothing else."""

from __future__ import annotations

import pytest

from replset.cli.start_options import all_options
from replset.features.all import COMMANDS, OPTIONS, all_features
from replset.member.feature import Feature, Features
from tests.rig import Client, a_set

FEATURES = {feature.name: feature for feature in all_features()}
NEEDED_TO_LEAD = {"administration"}
"""Has replSetInitiate: without it there is no set."""


def test_no_command_is_declared_twice_but_those_that_also_read_views() -> None:
    declared = [name for feature in FEATURES.values() for row in feature.commands for name in (row.name, *row.aliases)]
    assert sorted(name for name in declared if declared.count(name) > 1)[::2] == ["count", "distinct", "find"]


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_a_member_starts_without_it(feature: Feature) -> None:
    with a_set(initiates=feature.name not in NEEDED_TO_LEAD, left_out=[feature.name]) as rig:
        client = rig.client()
        others = {row.name for other in FEATURES.values() if other is not feature for row in other.commands}
        lost = {row.name for row in feature.commands} - others
        assert {row.name for row in rig.member().dispatcher.commands.values()} == COMMANDS.keys() - lost
        for name in lost:
            assert client.code({name: 1}, "admin") == 59
        if feature.name not in NEEDED_TO_LEAD:
            _is_well(client, feature.name)
        for part in rig.member()[Features]:
            list(part.figures())


@pytest.mark.parametrize("feature", [one for one in FEATURES.values() if one.options], ids=lambda one: one.name)
def test_its_options_go_with_it(feature: Feature) -> None:
    others = [row.name for row in all_options(one for one in OPTIONS if one is not feature.options)]
    assert [row.name for row in all_options(OPTIONS) if row.name not in others] == [*feature.options.__slots__]


def _is_well(client: Client, left_out: str) -> None:
    client.rig.wait(70)  # the jobs in the background have had a turn
    assert client.ok({"replSetGetStatus": 1}, "admin")["myState"] == 1
    if left_out != "crud":  # it has the inserts
        client.ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": "majority"}})
        assert client.ok({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1}]
    if left_out not in {"aggregation", "change_streams"}:
        pipeline = [{"$changeStream": {}}]
        assert client.ok({"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["id"]
