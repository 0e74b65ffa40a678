"""The rules of a configuration, one row each (map C1 to C8, C13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from replset.bson import Int64, ObjectId, decode, encode
from replset.config import (
    MAX_VOTERS,
    Member,
    ReplSetConfig,
    Settings,
    Tolerance,
    is_weaker,
    next_member_id,
    parse_host,
)
from replset.errors import BadValueError, ReplError
from replset.features.administration.replset_admin import refuse_unknown_fields
from replset.ids import HostPort, MemberId

Document = dict[str, Any]


def member(number: int, **fields: object) -> Document:
    return {"_id": number, "host": f"m{number}:27017", **fields}


def arbiter(number: int, **fields: object) -> Document:
    return member(number, arbiterOnly=True, **fields)


def document(*members: Mapping[str, object], **fields: object) -> Document:
    return {"_id": "rs0", "version": 1, "members": list(members or [member(0), member(1), member(2)]), **fields}


REFUSED = [
    pytest.param({"members": []}, 14, "_id", id="C1-no-name"),
    pytest.param({"_id": "", "members": []}, 2, "must not be empty", id="C1-empty-name"),
    pytest.param(document(formerHosts=[1]), 14, "formerHosts", id="former-hosts"),
    pytest.param(document(repaired=True), 270, "repaired", id="C1-repaired"),
    pytest.param(document(surprise=1), 2, "surprise", id="C1-unknown-field"),
    pytest.param(document(version=0), 2, "version", id="C1-version-zero"),
    pytest.param(document(version=2**53), 2, "version", id="C1-version-too-high"),
    pytest.param(document(version=1.5), 2, "version", id="C1-version-broken"),
    pytest.param(document(version="1"), 14, "version", id="C1-version-type"),
    pytest.param(document(term=-2), 2, "term", id="C1-term"),
    pytest.param(document(protocolVersion=0), 2, "protocolVersion", id="C1-protocol"),
    pytest.param(document(configsvr=True), 2, "configsvr", id="C1-config-server"),
    pytest.param({"_id": "rs0", "members": {}}, 14, "members", id="C1-members-type"),
    pytest.param(document(settings=[]), 14, "settings", id="C2-type"),
    pytest.param(document(settings={"heartbeatIntervalMillis": 0}), 2, "heartbeatIntervalMillis", id="C2-interval"),
    pytest.param(document(settings={"autoRepair": "no"}), 14, "autoRepair", id="C2-auto-repair"),
    pytest.param(document(settings={"heartbeatTimeoutSecs": 0}), 2, "heartbeatTimeoutSecs", id="C2-timeout"),
    pytest.param(document(settings={"electionTimeoutMillis": 0}), 2, "electionTimeoutMillis", id="C2-election"),
    pytest.param(document(settings={"catchUpTimeoutMillis": -2}), 2, "catchUpTimeoutMillis", id="C2-catch-up"),
    pytest.param(document(settings={"catchUpTakeoverDelayMillis": -2}), 2, "catchUpTakeover", id="C2-takeover"),
    pytest.param(document(settings={"chainingAllowed": "yes"}), 14, "chainingAllowed", id="C2-chaining-type"),
    pytest.param(document(settings={"getLastErrorDefaults": {"w": 2}}), 5_624_102, "getLastError", id="C2-defaults"),
    pytest.param(document(settings={"getLastErrorModes": {"a": {"b": 1}}}), 4, "Modes.a.b", id="C7-no-such-tag"),
    pytest.param(document(settings={"getLastErrorModes": 1}), 14, "Modes", id="C7-modes-type"),
    pytest.param(document(settings={"getLastErrorModes": {"a": 1}}), 14, "Modes.a", id="C7-mode-type"),
    pytest.param(document(settings={"getLastErrorModes": {"a": {"b": "c"}}}), 14, "Modes.a.b", id="C7-count-type"),
    pytest.param(document(settings={"getLastErrorModes": {"a": {"b": 0}}}), 2, "Modes.a.b", id="C7-count"),
    *(
        pytest.param(document(settings={"getLastErrorModes": {name: {}}}), 2, "server's own", id=f"C7-{name}")
        for name in ("majority", "inSync", "$x", "")
    ),
    pytest.param(document(settings={"minInSync": 0}), 2, "settings.minInSync", id="minInSync-0"),
    pytest.param(document(settings={"inSyncLagSecs": 0}), 2, "settings.inSyncLagSecs", id="inSyncLagSecs"),
    pytest.param(document(settings={"flowControlTargetLagSecs": -1}), 2, "flowControl", id="flowControl"),
    pytest.param(document(settings={"followerBytesPerSecond": -1}), 2, "followerBytes", id="followerBytes"),
    *(
        pytest.param(document(settings={"durabilityLevels": rules}), code, says, id=f"levels-{says}")
        for rules, code, says in (
            (1, 14, "durabilityLevels must be"),
            ({"shop": 2}, 14, "durabilityLevels.shop must be"),
            ({"shop": {}}, 14, "shop.level"),
            ({".x": {"level": 1}}, 2, "DB.COLLECTION"),
            ({"shop": {"level": 3}}, 2, "from 0 to 2"),
            ({"shop": {"level": 1, "atLeast": 2}}, 2, "from 0 to 1"),
            ({"shop": {"level": 1, "colour": 2}}, 2, "shop.colour"),
            ({"shop": {"level": 1, "degradeLagSecs": 5, "restoreLagSecs": 5}}, 2, "from 0 to 4"),
            ({"shop": {"level": 1.5}}, 2, "whole number"),
        )
    ),
    pytest.param(document(settings={"replicaSetId": "x"}), 14, "replicaSetId", id="C2-set-id"),
    pytest.param({"_id": "rs0", "members": []}, 2, "from 1 to 50", id="C3-nobody"),
    pytest.param(document(*(member(n, votes=0, priority=0) for n in range(51))), 2, "from 1 to 50", id="C3-51"),
    pytest.param(document(*(member(n) for n in range(8))), 2, "may vote", id="C3-eight-voters"),
    pytest.param(document(member(0, votes=0, priority=0)), 2, "may vote", id="C3-no-voter"),
    pytest.param(document(member(0, priority=0), arbiter(1)), 2, "priority above 0", id="C3-nobody-electable"),
    pytest.param(document(member(0), {**member(0), "host": "x:1"}), 2, "members.1._id", id="C3-same-id"),
    pytest.param(document(member(0), {**member(1), "host": "m0"}), 2, "members.1.host", id="C3-same-host"),
    pytest.param(document(member(0), {**member(1), "host": "localhost:1"}), 2, "localhost", id="C3-some-local"),
    pytest.param(document({"host": "a:1"}), 2, "members.0._id is missing", id="C4-no-id"),
    pytest.param(document(member(256)), 2, "from 0 to 255", id="C4-id-range"),
    pytest.param(document({"_id": True, "host": "a:1"}), 14, "_id", id="C4-id-type"),
    pytest.param(document({"_id": 0}), 14, "members.0.host", id="C4-no-host"),
    pytest.param(document({"_id": 0, "host": "a b"}), 2, "HOST:PORT", id="C4-host-form"),
    *(
        pytest.param(document({"_id": 0, "host": host}), 93, "members.0.host: ", id=f"C4-no-name-{host[:8]}")
        for host in (
            *("a..b:1", ".a", ".", "..", "a..", f"{'x' * 64}.b", "ü" * 60),
            *(".".join(["x" * 60] * 5), "x" * 4_000_000),
        )
    ),
    pytest.param(document({"_id": 0, "host": "a:70000"}), 2, "HOST:PORT", id="C4-port-range"),
    pytest.param(document("m0:1"), 14, "members.0 must be a document", id="C4-row-type"),
    pytest.param(document(member(0, colour="red")), 2, "members.0.colour", id="C4-unknown-field"),
    pytest.param(document(member(0, newlyAdded=False)), 93, "newlyAdded", id="C4-newly-added-false"),
    pytest.param(document(member(0, horizons={"x": "y:1"})), 2, "horizons", id="C4-horizons"),
    pytest.param(document(member(0, priority="1")), 14, "priority", id="C4-priority-type"),
    pytest.param(document(member(0, priority=1001)), 2, "priority", id="C4-priority-range"),
    pytest.param(document(member(0, priority=-1)), 2, "priority", id="C4-priority-negative"),
    pytest.param(document(member(0, votes=2)), 2, "votes", id="C4-votes"),
    pytest.param(document(member(0), member(1, tags=1)), 14, "members.1.tags", id="C4-tags-type"),
    pytest.param(document(member(0, tags={"dc": 1})), 14, "tags.dc", id="C4-tag-type"),
    pytest.param(document(member(0, tags={"$x": "y"})), 2, "tags.$x", id="C7-internal-tag"),
    pytest.param(document(member(0, secondaryDelaySecs=-1, priority=0)), 2, "secondaryDelaySecs", id="C4-delay"),
    pytest.param(document(member(0, secondaryDelaySecs=31_622_401)), 2, "secondaryDelaySecs", id="C4-delay-high"),
    pytest.param(document(member(0, incarnation=7)), 14, "incarnation", id="incarnation-type"),
    pytest.param(document(member(0), member(1, votes=0)), 2, "votes is 0", id="C5-no-vote"),
    pytest.param(document(member(0), member(1, secondaryDelaySecs=9)), 2, "secondaryDelaySecs is", id="C5-delayed"),
    pytest.param(document(member(0), member(1, hidden=True)), 2, "hidden is true", id="C5-hidden"),
    pytest.param(document(member(0), member(1, buildIndexes=False)), 2, "buildIndexes is", id="C5-no-indexes"),
    pytest.param(document(member(0), arbiter(1, votes=0)), 2, "votes must be 1", id="C6-arbiter-no-vote"),
    pytest.param(document(member(0), arbiter(1, priority=2)), 93, "priority", id="C6-arbiter-priority"),
    pytest.param(document(member(0), arbiter(1, tags={"a": "b"})), 2, "tags", id="C6-arbiter-tags"),
    pytest.param(document(member(0), member(1, witness=True, votes=0)), 2, "votes must be 1", id="witness-no-vote"),
    pytest.param(document(member(0), member(1, witness=True, priority=2)), 93, "priority", id="witness-priority"),
    pytest.param(document(member(0), member(1, witness=True, tags={"a": "b"})), 2, "tags", id="witness-tags"),
    pytest.param(document(member(0), arbiter(1, witness=True)), 2, "keeps no oplog", id="witness-and-arbiter"),
    pytest.param(document(member(0, witness=True)), 2, "no arbiter and no witness", id="witness-alone"),
    pytest.param(
        document(member(0), member(1, witness=True, secondaryDelaySecs=9)), 2, "cannot be delayed", id="witness-delayed"
    ),
]


@pytest.mark.parametrize(("broken", "code", "says"), REFUSED)
def test_what_can_never_be_right_is_refused(broken: Document, code: int, says: str) -> None:
    with pytest.raises(ReplError) as caught:
        ReplSetConfig.parse(broken)
    assert caught.value.code == code
    assert says in caught.value.message


def test_more_than_one_arbiter_needs_an_option() -> None:
    """Map C6."""
    two = document(member(0), arbiter(1), arbiter(2))
    assert len(ReplSetConfig.parse(two).members) == 3
    assert ReplSetConfig.parse(document(member(0), arbiter(1, priority=1))).members[1].priority == 0
    with pytest.raises(BadValueError, match="allow-multiple-arbiters"):
        ReplSetConfig.parse(two, allow_multiple_arbiters=False)


def test_defaults() -> None:
    """Map C2, C4."""
    config = ReplSetConfig.parse({"_id": "rs0", "members": [{"_id": 0, "host": " a "}]})
    assert config == ReplSetConfig("rs0", 1, -1, (Member(MemberId(0), HostPort("a:27017")),), Settings())
    assert (config.settings.heartbeat_interval_ms, config.settings.election_timeout_ms) == (2_000, 10_000)
    assert config.settings.heartbeat_timeout_ms == 10_000
    assert config.settings.catch_up_timeout_ms == -1


def test_the_document_has_mongodbs_order_and_reads_back() -> None:
    """Map C4."""
    config = ReplSetConfig.parse(
        document(
            member(0, priority=2.5, tags={"dc": "a"}, incarnation="i0"),
            member(1, newlyAdded=True),
            member(2, hidden=True, priority=0, secondaryDelaySecs=60),
            term=3,
            settings={"electionTimeoutMillis": 1_000, "replicaSetId": ObjectId(b"123456789012"), "own": 5},
            formerHosts=["c:27017"],
        )
    )
    shown = config.document()
    names = "_id host arbiterOnly buildIndexes hidden priority tags secondaryDelaySecs votes"
    assert list(shown["members"][1]) == names.split()
    assert shown["settings"]["own"] == 5
    internal = config.document(internal=True)
    assert internal["members"][1]["newlyAdded"] is True
    assert internal["members"][0]["incarnation"] == "i0"
    assert internal["formerHosts"] == ["c:27017"]
    assert list(internal["members"][1])[3] == "newlyAdded"
    assert ReplSetConfig.parse(decode(encode(internal))) == config
    plain = tuple(replace(each, newly_added=False, incarnation=None) for each in config.members)
    assert ReplSetConfig.parse(decode(encode(shown))) == replace(config, members=plain, former_hosts=())


def test_numbers_may_be_of_any_type_as_drivers_send_them() -> None:
    config = ReplSetConfig.parse(
        document({"_id": 0.0, "host": "a:1", "votes": 1.0, "priority": Int64(3)}, version=Int64(4))
    )
    assert (config.version, config.members[0].priority) == (4, 3)
    assert "term" not in config.document(), "map C1: omitted when -1"


def test_hosts() -> None:
    expected = {"a": "a:27017", "a:1": "a:1", "10.0.0.1:5": "10.0.0.1:5", "[::1]:5": "[::1]:5"}
    expected |= {" x.y ": "x.y:27017", "x.": "x.:27017", "x" * 63: "x" * 63 + ":27017"}
    assert {text: parse_host(text) for text in expected} == expected


KINDS: dict[str, dict[str, object]] = {
    "d": {},
    "a": {"arbiterOnly": True},
    "p": {"priority": 0},
    "n": {"votes": 0, "priority": 0},
    "+": {"newlyAdded": True},
    "w": {"witness": True},
}


def of_kinds(kinds: str) -> ReplSetConfig:
    return ReplSetConfig.parse(document(*(member(number, **KINDS[kind]) for number, kind in enumerate(kinds))))


def test_majorities() -> None:
    """Map C8: writeMajority = min(voters / 2 + 1, voting data-bearing members)."""
    expected = {
        "d": (1, 1),
        "dd": (2, 2),
        "ddd": (2, 2),
        "dda": (2, 2),
        "daa": (2, 1),
        "dddaa": (3, 3),
        "dddda": (3, 3),
    }
    expected |= {"dddnn": (2, 2), "dddd+": (3, 3), "dd+": (2, 2)}
    configs = {kinds: of_kinds(kinds) for kinds in expected}
    assert {kinds: (one.majority_vote_count, one.write_majority) for kinds, one in configs.items()} == expected


def test_the_id_of_a_member_that_is_added() -> None:
    assert [next_member_id(taken) for taken in ([], [0, 4, 2], [0, 1, 255, 3])] == [0, 5, 2]


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        pytest.param((5, 1), (4, 1), True, id="version"),
        pytest.param((4, 1), (4, 1), False, id="equal"),
        pytest.param((1, 2), (9, 1), True, id="term-first"),
        pytest.param((9, 1), (1, 2), False, id="lower-term"),
        pytest.param((5, -1), (4, 7), True, id="forced-by-version-alone"),
        pytest.param((3, 7), (4, -1), False, id="against-forced-by-version-alone"),
    ],
)
def test_which_is_newer(one: tuple[int, int], other: tuple[int, int], newer: bool) -> None:
    """Map C13: term first, then version; a term of -1 compares by version alone."""
    base = ReplSetConfig.parse(document())
    first = replace(base, version=one[0], term=one[1])
    assert first.is_newer_than(*other) is newer


def survives(config: ReplSetConfig, down: tuple[Member, ...]) -> tuple[bool, bool]:
    """Whether majority writes, and elections, go on with these down; counted, not calculated."""
    up = [member for member in config.voters if member not in down]
    elects = 2 * len(up) > len(config.voters) and any(member.is_electable for member in up)
    copies = sum(member.holds_oplog for member in up)
    return elects and copies >= config.write_majority, elects


@pytest.mark.parametrize("data", range(1, 6))
@pytest.mark.parametrize("arbiters", range(3))
@pytest.mark.parametrize("passive", range(3))
@pytest.mark.parametrize("witnesses", range(3))
def test_tolerance_is_what_any_choice_of_failing_members_leaves(
    data: int, arbiters: int, passive: int, witnesses: int
) -> None:
    if passive >= data or data + arbiters + witnesses > MAX_VOTERS:
        return
    config = of_kinds("p" * passive + "d" * (data - passive) + "a" * arbiters + "w" * witnesses)
    found = [0, 0]
    for what in (0, 1):
        while found[what] < data and all(
            survives(config, down)[what] for down in combinations(config.oplog_holders, found[what] + 1)
        ):
            found[what] += 1
    assert config.tolerance == Tolerance(*found)


def test_tolerance_of_some() -> None:
    """A member without a vote adds nothing, and an arbiter no majority write. Only one can lead in the last two."""
    expected = {
        "ddd": (1, 1),
        "dddn": (1, 1),
        "dd+": (0, 0),
        "dda": (0, 1),
        "ddw": (1, 1),
        "dpp": (0, 0),
        "dww": (0, 0),
    }
    assert {kinds: of_kinds(kinds).tolerance for kinds in expected} == {k: Tolerance(*v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("old", "new", "weaker"),
    [(3, 4, False), (4, 3, False), (3, 2, True), (2, 1, False), (5, 4, True), (1, 2, False), (3, 3, False)],
)
def test_which_change_is_weaker(old: int, new: int, weaker: bool) -> None:
    assert is_weaker(of_kinds("d" * new), of_kinds("d" * old)) is weaker


def test_modes_and_what_differs_from_the_defaults_are_shown() -> None:
    """Map C7; a default that MongoDB does not have is not shown."""
    given = {"getLastErrorModes": {"both": {"dc": 2}}, "minInSync": 2, "inSyncLagSecs": 3}
    given |= {"flowControlTargetLagSecs": 0}
    config = ReplSetConfig.parse(document(member(0, tags={"dc": "a"}), member(1, tags={"dc": "b"}), settings=given))
    assert given.items() <= config.settings.document().items()
    assert ReplSetConfig.parse(config.document()) == config
    assert config.settings.write_concern_modes == {"both": (("dc", 2),)}
    assert not {"minInSync", "inSyncLagSecs", "flowControlTargetLagSecs"} & Settings().document().keys()


def newer_document() -> Document:
    """A configuration with a field of a newer release at each place."""
    settings = {"durabilityLevels": {"shop": {"level": 2, "later": 1}}, "later": 2}
    return document({**member(0), "later": {"a": [3]}}, member(1), settings=settings, later=b"4")


def test_fields_of_a_newer_release_are_kept() -> None:
    config = ReplSetConfig.parse(newer_document(), keep=True)
    passed_on: Any = decode(encode(config.document(internal=True)))
    rows, settings = passed_on["members"], passed_on["settings"]
    assert (rows[0]["later"], passed_on["later"]) == ({"a": [3]}, b"4")
    assert (settings["durabilityLevels"], settings["later"]) == ({"shop": {"level": 2, "later": 1}}, 2)
    assert ReplSetConfig.parse(passed_on, keep=True) == config


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (lambda: document(member(0), later=1), "later"),
        (lambda: document({**member(0), "later": 1}), "members.0.later"),
        (
            lambda: document(member(0), settings={"durabilityLevels": {"shop": {"level": 2, "later": 1}}}),
            "settings.durabilityLevels.shop.later",
        ),
    ],
)
def test_a_user_may_not_add_unknown_fields(given: Callable[[], Document], place: str) -> None:
    with pytest.raises(BadValueError, match=f"unknown field {place}$"):
        ReplSetConfig.parse(given())
    old = ReplSetConfig.parse(document(member(0)))
    with pytest.raises(BadValueError, match=f"unknown field {place}$"):
        refuse_unknown_fields(ReplSetConfig.parse(given(), keep=True), old)


def test_a_user_may_give_back_what_a_newer_release_set() -> None:
    config = ReplSetConfig.parse(newer_document(), keep=True)
    refuse_unknown_fields(config, config)
