"""Which members get a page before the others, and what the others wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replset.config import ReplSetConfig
from replset.core.messages import MemberProgress, Position, ProgressRequest
from replset.ids import MemberId, OpTime
from replset.member.peers.majority_first import FIRST_MS, LATER_MS, MajorityFirst
from replset.member.positions import Positions
from tests.rig import Client, Rig, a_set


class Primary:
    """In the place of a member: leads a set of so many, whose last ones have no vote."""

    def __init__(self, members: int, without_vote: int = 0) -> None:
        rows: list[dict[str, object]] = [{"_id": number, "host": f"m{number}:1"} for number in range(members)]
        for row in rows[members - without_vote :]:
            row |= {"votes": 0, "priority": 0}
        config = ReplSetConfig.parse({"_id": "rs0", "version": 1, "members": rows})
        self.node = SimpleNamespace(config=config, writable=True)
        self.store = SimpleNamespace(last_applied=OpTime(1, 10))
        self.positions = SimpleNamespace(awaits_only_majority=True)
        self.first = MajorityFirst(self)  # type: ignore[arg-type]
        self.now = 100.0

    def __getitem__(self, kind: type) -> Any:
        assert kind is Positions
        return self.positions

    def tells(self, sender: int, ts: int, *, moved: bool = False) -> None:
        """Member `sender` has the entries up to `ts`, and so has this one."""
        at = OpTime(1, ts)
        self.store.last_applied = max(self.store.last_applied, at)
        row = MemberProgress(MemberId(sender), "incarnation", Position(at, at, 0, 0))
        told = ProgressRequest(MemberId(sender), 1, 1, 1, (row,))
        self.first.on_position(told, self.now, moved_commit_point=moved)

    def later(self) -> list[int]:
        """Who comes later now."""
        members = range(1, len(self.node.config.members))
        return [number for number in members if self.first.comes_later(MemberId(number), self.now)]


def with_first(members: int = 3) -> Primary:
    """One whose first ones have told what they have."""
    primary = Primary(members)
    primary.tells(1, 10)
    for sender in range(1, members // 2 + 1):
        primary.tells(sender, 11)
    return primary


@pytest.mark.parametrize(("members", "later"), [(2, []), (3, [2]), (5, [3, 4]), (7, [4, 5, 6])])
def test_as_many_as_make_a_majority_are_first(members: int, later: list[int]) -> None:
    primary = Primary(members)
    primary.tells(1, 10)
    assert primary.later() == [], "nobody has anything new"
    for sender in range(1, members // 2 + 1):
        assert primary.later() == []
        primary.tells(sender, 11)
    assert primary.later() == later


def test_they_are_first_for_a_second() -> None:
    primary = with_first()
    primary.now += FIRST_MS / 1000 - 0.01
    assert primary.later() == [2]
    primary.now += 0.02
    assert primary.later() == []
    primary.tells(1, 11)
    primary.tells(2, 12)
    assert primary.later() == [1], "the other one was quicker now"


def test_one_without_a_vote_is_never_first() -> None:
    primary = Primary(4, without_vote=1)
    primary.tells(3, 10)
    primary.tells(3, 11)
    assert primary.later() == []
    primary.tells(2, 11)
    assert primary.later() == [1, 3]


def test_all_are_equal_again_once_another_one_had_to_move_the_commit_point() -> None:
    primary = with_first()
    primary.tells(2, 12)
    primary.tells(1, 12, moved=True)
    assert primary.later() == [2]
    primary.tells(2, 13, moved=True)
    assert primary.later() == []
    primary.tells(2, 14)
    assert primary.later() == [1]


def test_whoever_only_passes_on_what_others_have_is_not_first() -> None:
    primary = Primary(3)
    primary.tells(1, 10)
    at = OpTime(1, 11)
    row = MemberProgress(MemberId(2), "incarnation", Position(at, at, 0, 0))
    for rows in ((), (row,)):
        told = ProgressRequest(MemberId(1), 1, 1, 1, rows)
        primary.first.on_position(told, primary.now, moved_commit_point=False)
    assert primary.later() == []


@pytest.mark.parametrize("what", ["waits for more", "leads no more", "who asks is unknown"])
def test_nobody_comes_later_where(what: str) -> None:
    primary = with_first()
    if what == "who asks is unknown":
        assert not primary.first.comes_later(None, primary.now)
        return
    primary.positions.awaits_only_majority = what != "waits for more"
    primary.node.writable = what != "leads no more"
    assert primary.later() == []


# --- whole members --------------------------------------------------------------------------------------------------


def insert(number: int, **concern: object) -> dict[str, object]:
    return {"insert": "c", "documents": [{"_id": number}], "writeConcern": concern or {"w": "majority"}}


def counting_pages(rig: Rig) -> dict[str, int]:
    """From now on, how many pages with entries each of the others applies."""
    pages = dict.fromkeys("bc", 0)
    for name in pages:
        fetcher: Any = rig.member(name)._fetcher

        def counted(session: Any, page: Any, name: str = name, apply: Any = fetcher._apply_page) -> Any:
            pages[name] += bool(page.entries)
            return apply(session, page)

        fetcher._apply_page = counted
    return pages


def writes(client: Client, numbers: range, **concern: object) -> float:
    """Insert them one after the other; return how long that took, in milliseconds."""
    clock = client.member.clock
    began = clock.now()
    for number in numbers:
        client.ok(insert(number, **concern))
    return clock.now() - began


def test_the_other_secondary_gets_fewer_pages_and_has_all_in_the_end() -> None:
    with a_set(3) as rig:
        client = rig.client()
        writes(client, range(20))
        pages = counting_pages(rig)
        writes(client, range(20, 120))
        rig.wait(2 * LATER_MS / 1000)
        assert rig.newest("b") == rig.newest("c") == rig.newest()
        assert 100 < sum(pages.values()) < 170, "200, if both got one for each write"


@pytest.mark.parametrize("concern", [{"w": 3}, {"w": 3, "j": True}, {"w": "inSync"}])
def test_who_waits_for_all_members_waits_no_longer(concern: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who waited for a majority a moment ago have no part in it."""
    took: list[float] = []
    for is_off in (False, True):
        if is_off:
            monkeypatch.setattr(MajorityFirst, "comes_later", lambda *_: False)
        with a_set(3) as rig:
            client = rig.client()
            writes(client, range(20))
            took.append(writes(client, range(20, 60), **concern))
    assert took[0] <= took[1] + 2 * LATER_MS


def test_a_write_goes_on_by_the_other_one_if_the_first_ends() -> None:
    for gone in "bc":
        with a_set(3) as rig:
            client = rig.client()
            writes(client, range(20))
            rig.cluster.kill(gone)
            assert writes(client, range(20, 40)) < 1_000
