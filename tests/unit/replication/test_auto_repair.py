"""A secondary takes over what the majority has of a document that its disk changed, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replset.bson import encode
from replset.core.member_state import MemberState
from replset.errors import OutOfDiskSpaceError
from replset.features.scrub import auto_repair as rules
from replset.features.scrub import scrubber
from replset.features.scrub.auto_repair import GOES_ON, REPAIRED, STOPPED, AutoRepair, is_clear
from replset.features.scrub.document_check import Difference
from replset.features.scrub.document_ranges import RangeRow
from replset.features.scrub.scrubber import Scrubber
from replset.replication.rollback_manifest import list_manifests
from tests.unit.replication.kit import Member
from tests.unit.replication.three import NS, A, B, C, Three, auto_repair, document, rot

WRONG = {"_id": 3, "n": 999}
RIGHT = {"_id": 3, "n": 3}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    members = Three(tmp_path)
    yield members
    members.close()


def put_right(three: Three, auto: AutoRepair, member: Member) -> list[object]:
    """One step of the background pass, against A; return the `_id`s that still differ."""

    async def step() -> list[object]:
        found = await three.check(member).compare(NS, b"", [A])
        return [one.id for one in (await auto.put_right(found, A)).differing]

    return asyncio.run(step())


def events(auto: AutoRepair) -> list[tuple[str, str]]:
    return [(line.event, line.detail) for line in reversed(auto._file.journal(100))]


def test_each_undamaged_reason_is_put_right_and_what_was_there_is_kept(three: Three) -> None:
    rot(three.b, 3, WRONG)
    rot(three.b, 5, None)
    rot(three.b, 77, {"_id": 77, "only": "here"})
    rot(three.b, 9, b"\x07\0\0\0bad")
    before = three.b.store.last_applied
    auto = auto_repair(three, three.b)
    assert put_right(three, auto, three.b) == []
    assert [three.differing(member) for member in three.members.values()] == [[], [], []]
    assert three.b.store.last_applied == before, "no entry says it"
    folder = three.b.folder / "rollback"
    kept = {one.reason: (folder / one.files[0].name).read_bytes() for one in list_manifests(three.b.dbpath)}
    assert kept == {
        f"auto repair {NS}: documents of this member, not as the majority has them": encode(WRONG)
        + encode({"_id": 77, "only": "here"}),
        f"auto repair {NS}: damaged bytes in the place of documents of this member, not as the majority has them": (
            b"\x07\0\0\0bad"
        ),
    }
    assert (auto.repaired, auto._rollbacks.unacknowledged) == (4, 2)
    assert events(auto) == [(REPAIRED, f"4 documents of {NS}")]


@pytest.mark.parametrize(
    ("rows", "voters", "expected"),
    [
        pytest.param({A: 1, B: 2, C: 1}, (A, B, C), True, id="other-bytes"),
        pytest.param({A: 1, B: None, C: 1}, (A, B, C), True, id="missing"),
        pytest.param({A: None, B: 2, C: None}, (A, B, C), True, id="extra"),
        pytest.param({A: 1, B: 2, C: 3}, (A, B, C), False, id="all-differ"),
        pytest.param({A: 1, B: 2, C: 1, "d": 1, "e": 3}, (A, B, C, "d", "e"), False, id="two-differ"),
        pytest.param({A: 1, B: 2, C: 1, "d": 1}, (A, B, C, "d", "e"), True, id="one-is-silent"),
        pytest.param({A: 1, B: 2, C: 1}, (A, B, "d"), False, id="one-voter-of-three"),
        pytest.param({A: 1, B: 2, C: 1}, (A, C), True, id="it-has-no-vote"),
    ],
)
def test_when_it_is_clear_which_version_is_right(rows: dict[Any, int | None], voters: Any, expected: bool) -> None:
    answers = {host: None if one is None else RangeRow(b"k", one) for host, one in rows.items()}
    assert is_clear(Difference(NS, b"k", answers), B, frozenset(voters)) is expected


def switched_off(three: Three) -> AutoRepair:
    return auto_repair(three, three.b, wanted=False)


def leads(three: Three) -> AutoRepair:
    auto = auto_repair(three, three.b)
    auto._node.state = MemberState.PRIMARY
    return auto


def elected_meanwhile(three: Three) -> AutoRepair:
    auto = auto_repair(three, three.b)

    def elect(command: dict[str, object]) -> None:
        if command.get("give") == "documents":
            auto._node.state = MemberState.PRIMARY

    three.network.before_call = elect
    return auto


def another_is_silent(three: Three) -> AutoRepair:
    three.network.down.add(C)
    return auto_repair(three, three.b)


def majority_is_damaged(three: Three) -> AutoRepair:
    for member in (three.a, three.c):
        rot(member, 3, b"\x07\0\0\0bad")
    return auto_repair(three, three.b)


def full_disk(three: Three) -> AutoRepair:
    def full(*_: object, **__: object) -> None:
        raise OutOfDiskSpaceError("no space")

    auto = auto_repair(three, three.b)
    three.b.disk.write_file = full  # type: ignore[method-assign]
    return auto


def over_the_bound(three: Three) -> AutoRepair:
    auto = auto_repair(three, three.b)
    auto._recent = [(0, rules.DOCUMENTS_AN_HOUR)]
    return auto


@pytest.mark.parametrize(
    "case",
    [
        switched_off,
        leads,
        elected_meanwhile,
        another_is_silent,
        majority_is_damaged,
        full_disk,
        over_the_bound,
    ],
)
def test_what_leaves_it_to_a_person(three: Three, case: Any) -> None:
    rot(three.b, 3, WRONG)
    auto = case(three)
    assert put_right(three, auto, three.b) == [3]
    assert document(three.b, 3) == WRONG
    assert auto.repaired == 0


def test_a_process_that_ends_behind_the_file_leaves_the_old_version(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    rot(three.b, 3, WRONG)
    auto = auto_repair(three, three.b)

    def end(write: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(three.b.write_queue, "submit", end)
    with pytest.raises(KeyboardInterrupt):
        put_right(three, auto, three.b)
    monkeypatch.undo()
    (record,) = list_manifests(three.b.dbpath)
    assert (three.b.folder / "rollback" / record.files[0].name).read_bytes() == encode(WRONG)
    assert document(three.b, 3) == WRONG
    assert put_right(three, auto, three.b) == []
    assert document(three.b, 3) == RIGHT


def test_a_primary_that_differs_is_reported_and_changes_nobody(three: Three) -> None:
    rot(three.a, 3, WRONG)
    for member in (three.b, three.c):
        assert put_right(three, auto_repair(three, member), member) == [3]
        assert document(member, 3) == RIGHT
    assert document(three.a, 3) == WRONG


def test_more_than_the_bound_in_an_hour_stops_it_until_all_are_alike(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "DOCUMENTS_AN_HOUR", 3)
    auto = auto_repair(three, three.b)
    for number in range(2):
        rot(three.b, number, {"_id": number, "n": 999})
    assert put_right(three, auto, three.b) == []
    auto._file.close()
    auto = auto_repair(three, three.b)  # a start forgets nothing
    for number in range(2):
        rot(three.b, number, {"_id": number, "n": 999})
    assert put_right(three, auto, three.b) == [0, 1], "all of a range or none"
    assert auto.stopped == f"more than 3 documents within an hour, 2 more of {NS}"
    auto._file.close()
    auto = auto_repair(three, three.b)
    three.b.clock.ms += rules.HOUR_MS
    assert put_right(three, auto, three.b) == [0, 1], "nor does an hour"
    assert len(three.repair(three.b).corrected) == 2, "a person"
    asyncio.run(auto.on_all_alike())
    rot(three.b, 3, WRONG)
    assert put_right(three, auto, three.b) == []
    assert [event for event, _ in events(auto)] == [REPAIRED, STOPPED, GOES_ON, REPAIRED]


async def one_pass(work: Scrubber) -> None:
    task = asyncio.create_task(work.run())
    async with asyncio.timeout(20):
        while not work.found.passes:  # noqa: ASYNC110 - a status has no event
            await asyncio.sleep(0.005)
    task.cancel()


async def test_the_background_pass_puts_right_what_it_finds_and_says_so(
    three: Three, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("START_AFTER_S", "PAUSE_S", "SHORTEST_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    rot(three.b, 3, WRONG)
    work = Scrubber(three.b.context, three.check(three.b), lambda: A, 1000.0, auto_repair(three, three.b))
    await one_pass(work)
    assert document(three.b, 3) == RIGHT
    status: Any = work.status()["documentCheck"]
    assert (status["differing"], status["repaired"], "autoRepairStopped" in status) == (0, 1, False)
    assert [figure.values for figure in work.figures()] == [{"": 0.0}, {"": 1.0}]
    assert not list(work.remarks())
    (record,) = list_manifests(three.b.dbpath)
    assert f"auto repair {NS}: 1 documents were replaced by the majority's; what was there: {record.id}" in caplog.text


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_member_that_does_not_answer_is_asked_again(
    three: Three, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    for name in ("START_AFTER_S", "SHORTEST_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    rot(three.b, 3, WRONG)
    three.network.down.add(C)
    asked: list[object] = []

    def come_back(command: dict[str, object]) -> None:
        asked.append(command)
        if is_back and len(asked) == 6:
            three.network.down.clear()

    three.network.before_call = come_back
    work = Scrubber(three.b.context, three.check(three.b), lambda: A, 1000.0, auto_repair(three, three.b))
    await one_pass(work)
    assert work.found.summary == ("" if is_back else f"1 of {NS}")
    assert document(three.b, 3) == (RIGHT if is_back else WRONG)


async def test_a_stop_is_in_the_status_with_the_next_step(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_AFTER_S", "SHORTEST_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    monkeypatch.setattr(rules, "DOCUMENTS_AN_HOUR", 0)
    rot(three.b, 3, WRONG)
    work = Scrubber(three.b.context, three.check(three.b), lambda: A, 1000.0, auto_repair(three, three.b))
    await one_pass(work)
    (remark,) = work.remarks()
    why = f"more than 0 documents within an hour, 1 more of {NS}"
    assert remark.why == (
        f"documents of {B} are not as the primary has them: 1 of {NS}; it repairs no more by itself: {why}"
    )
    assert remark.next_step == "replset check names them; then replset repair DB.COLLECTION"
    status: Any = work.status()["documentCheck"]
    assert status["autoRepairStopped"] == why
