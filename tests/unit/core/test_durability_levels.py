"""Durability levels by namespace: which concern they give, and when they fall and rise (settings.durabilityLevels)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.config import Settings
from replset.config.durability_rules import DurabilityRule, parse_rules
from replset.core.effects import Effect, ProgressChanged, RecordElectionEvent
from replset.core.messages import LocalPosition
from replset.core.quorum import IN_SYNC, WriteConcern
from replset.ids import Millis
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, at, lead, named, only, place, single_node

RULES = parse_rules(
    {
        "shop": {"level": 2, "atLeast": 1, "degradeLagSecs": 5, "restoreLagSecs": 1},
        "shop.log": {"level": 0},
        "bank": {"level": 2},
        "shop.cart": {"level": 1},
    }
)


def leading() -> SingleNode:
    """Member 0 of three leads term 2; its first entry is committed."""
    node = lead(single_node(config=named(*members_of(3), settings=Settings(durability_levels=RULES))))
    node.receive(LocalPosition(place(at(2))), NOW)
    hear(node, 0, at_number=1)
    return node


def hear(node: SingleNode, after_ms: int, *, at_number: int) -> list[Effect]:
    """Both others answer a heartbeat: they are at this entry."""
    effects = node.tick(Millis(NOW + after_ms))
    for number in (1, 2):
        effects += node.receive_heartbeat(number, NOW + after_ms, config_term=2, position=place(at(2, at_number)))
    return effects


@pytest.mark.parametrize(
    ("ns", "w", "j"),
    [("shop.orders", IN_SYNC, None), ("shop.log", 1, False), ("shop.cart", 1, True), ("bank.accounts", IN_SYNC, None)],
)
def test_the_collection_s_own_rule_comes_before_its_database_s(ns: str, w: object, j: bool | None) -> None:
    concern = leading()._state and leading().concern_of_level(ns)
    assert (concern.w, concern.j, concern.provenance) == (w, j, "durabilityLevel")
    assert leading().concern_of_level("other.things") is None


def test_a_level_falls_to_its_bound_and_rises_again_with_the_reason_in_the_journal() -> None:
    node = leading()
    waiting = node.concern_of_level("shop.orders")
    assert waiting is not None
    node.receive(LocalPosition(place(at(2, 2))), Millis(NOW + 1_000))
    for after_ms in (2_000, 4_000):
        assert not only(hear(node, after_ms, at_number=1), ProgressChanged) or not node.lowered_levels
    assert not node.is_satisfied(waiting, at(2, 2))
    effects = hear(node, 8_000, at_number=1)
    assert node.lowered_levels == {"shop": 1}
    (line,) = [one.record for one in only(effects, RecordElectionEvent) if one.record.event == "durability level"]
    assert line.detail.startswith("shop: from 2 to 1, as the majority is 7.0 s behind and waits for")
    assert f"{host(1)} (7.0 s behind)" in line.detail
    assert only(effects, ProgressChanged), "who waits is looked at again"
    assert node.is_satisfied(waiting, at(2, 2)), "what waited before waits for the disk alone"
    lowered, fixed = node.concern_of_level("shop.orders"), node.concern_of_level("bank.accounts")
    assert (lowered and (lowered.w, lowered.j), fixed and fixed.w) == ((1, True), IN_SYNC)
    assert not node.is_satisfied(fixed or WriteConcern(1), at(2, 2)), "a level without a bound never falls"
    hear(node, 10_000, at_number=2)
    hear(node, 12_000, at_number=2)
    assert node.lowered_levels == {}


def test_what_the_client_asks_of_the_disk_stays_while_a_level_is_lowered() -> None:
    rules = parse_rules({"shop": {"level": 2, "atLeast": 0, "degradeLagSecs": 5}})
    node = lead(single_node(config=named(*members_of(3), settings=Settings(durability_levels=rules))))
    level = node.concern_of_level("shop.orders")
    assert level is not None
    node.receive(LocalPosition(place(at(2, 2), at(2))), Millis(NOW + 1_000))
    hear(node, 8_000, at_number=1)
    assert node.lowered_levels == {"shop": 0}
    assert node.is_satisfied(level, at(2, 2))
    assert not node.is_satisfied(replace(level, j=True), at(2, 2))
    node.receive(LocalPosition(place(at(2, 2))), Millis(NOW + 8_000))
    assert node.is_satisfied(replace(level, j=True), at(2, 2))


def test_a_stepdown_forgets_what_was_lowered() -> None:
    node = leading()
    node.receive(LocalPosition(place(at(2, 2))), Millis(NOW + 1_000))
    hear(node, 9_000, at_number=1)
    assert node.lowered_levels
    node.receive_heartbeat(1, NOW + 9_000, term=9)
    assert not node.lowered_levels


def test_only_what_was_given_is_shown() -> None:
    assert RULES["bank"].document() == {"level": 2}
    assert RULES["shop"].document() == {"level": 2, "atLeast": 1, "degradeLagSecs": 5, "restoreLagSecs": 1}
    assert parse_rules({"shop": {"level": 2.0, "atLeast": 0}}) == {"shop": DurabilityRule(2, 0, 10, 2)}
