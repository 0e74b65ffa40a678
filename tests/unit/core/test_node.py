"""What the rest of a member reads of its node: addresses, and what the configuration says of this member."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.config import Settings
from replset.core.node import Node
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import CONFIG, at, named, place, single_node


def test_the_http_address_of_each_member() -> None:
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1, http_address="http://elsewhere:8080")
    node.receive_heartbeat(2, http_address="")
    assert node.http_address_of(host(0)) == f"http://{host(0)}"
    assert node.http_address_of(host(1)) == "http://elsewhere:8080"
    assert node.http_address_of(host(2)) is None, "it serves no HTTP"
    assert node.http_address_of(host(7)) is None, "it is no member"


def values(node: Node) -> tuple[object, ...]:
    return (
        node.builds_indexes(),
        node.secondary_delay_ms(),
        node.flow_control_target_ms(),
        node.follower_bytes_per_second(),
    )


@pytest.mark.parametrize("number", [0, 1])
def test_what_the_configuration_says_of_this_member(number: int) -> None:
    first, *others = members_of(3)
    delayed = replace(first, priority=0.0, build_indexes=False, secondary_delay_secs=60)
    settings = Settings(flow_control_target_lag_secs=7, follower_bytes_per_second=1_000)
    node = single_node(number, config=named(delayed, *others, settings=settings))
    assert values(node) == ((False, 60_000, 7_000, 1_000) if number == 0 else (True, 0, 7_000, 1_000))


def test_a_member_without_a_configuration_builds_indexes_and_waits_for_nothing() -> None:
    assert values(single_node(config=None))[:2] == (True, 0)


def test_the_oldest_entry_that_another_member_needs() -> None:
    node = single_node(config=CONFIG, position=place(at(1, 9)))
    node.receive_heartbeat(1, position=place(at(1, 3)))
    node.receive_heartbeat(2, position=place(at(1, 5)))
    assert node.oldest_needed() == at(1, 3)
    assert single_node(config=None).oldest_needed() is None
