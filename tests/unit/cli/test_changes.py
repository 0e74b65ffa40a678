"""What a change means for how many members may fail is said before it is made, and refused unless it is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replset.cli import calls
from replset.cli.changes import NotAcceptedError, check_effect, with_members, without_member
from replset.cli.main import main
from replset.cli.plans import with_vote
from replset.config import ReplSetConfig
from tests.rig import Rig, a_set, rig_wire

CHANGES = ("replSetAddMember", "replSetRemoveMember", "replSetReconfig", "setDefaultRWConcern")
Capture = pytest.CaptureFixture[str]
Changes = Callable[[], list[dict[str, Any]]]


def config(data: int, arbiters: int = 0) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"_id": number, "host": f"m{number}:1", **({"arbiterOnly": True} if number >= data else {})}
        for number in range(data + arbiters)
    ]
    return {"_id": "rs0", "version": 3, "members": rows}


def test_an_arbiter_beside_three_needs_all_copies() -> None:
    three = config(3)
    weaker = with_members(three, [{"host": "a:1", "arbiterOnly": True}])
    with pytest.raises(NotAcceptedError, match="will need 3 of 3 copies and go on with 0 data members down"):
        check_effect(three, weaker, accept=False)
    assert "now: 2 of 3, 1 down" in check_effect(three, weaker, accept=True)


def test_the_advice_names_what_would_serve() -> None:
    with pytest.raises(NotAcceptedError, match=r"instead: .*a data member .*majority writes go on with 1 down"):
        check_effect(config(3), with_members(config(3), [{"host": "a:1", "arbiterOnly": True}]), accept=False)
    with pytest.raises(NotAcceptedError, match="add another data member first"):
        check_effect(config(3), without_member(config(3), "m2:1"), accept=False)
    unelectable = config(3)
    for row in unelectable["members"][1:]:
        row["priority"] = 0
    with pytest.raises(NotAcceptedError, match="keep more members that vote and have a priority above 0"):
        check_effect(config(3), unelectable, accept=False)


def test_a_fourth_member_and_an_arbiter_together_are_no_loss() -> None:
    both = with_members(config(3), [{"host": "m3:1"}, {"host": "a:1", "arbiterOnly": True}])
    assert check_effect(config(3), both, accept=False) == ""


def test_a_member_that_has_no_vote_yet_does_not_count() -> None:
    """It may never get one: leaning on it, a removal would leave two voters that both must stay up."""
    before = config(4)
    before["members"][3]["newlyAdded"] = True
    with pytest.raises(NotAcceptedError):
        check_effect(before, without_member(before, "m0:1"), accept=False)
    edited = without_member(config(4), "m0:1")  # as a person would write it: newlyAdded is not shown
    with pytest.raises(NotAcceptedError):
        check_effect(before, edited, accept=False)
    assert check_effect(before, without_member(before, "m3:1"), accept=False) == ""


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A set of three, and machines that are no members yet."""
    with a_set(3, spare=True, spare_arbiter=True) as made:
        for name in "nz":
            made.cluster.start(name)
        made.until(lambda: all(made.cluster.machines[name].started for name in "nz"))
        yield made


@pytest.fixture
def changes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Changes:
    """Gives what was asked of the set that changes it."""
    asked = rig_wire(rig, monkeypatch, calls)
    return lambda: [command for command in asked if next(iter(command)) in CHANGES]


@pytest.mark.parametrize("command", ["add-witness", "add-arbiter"])
def test_if_needed_does_not_take_another_kind_of_member_for_it(changes: Changes, command: str, capsys: Capture) -> None:
    assert main([command, "b:27017", "--host", "a:27017", "--if-needed", "--accept"]) != 0
    assert "b:27017 is in the set already as data member" in capsys.readouterr().err
    assert main(["add", "b:27017", "--host", "a:27017", "--if-needed"]) == 0
    assert "b:27017 is in the set already" in capsys.readouterr().out
    assert changes() == []


@pytest.mark.parametrize(
    "command",
    [
        ["add-arbiter", "z:27017"],
        ["remove", "c:27017"],
        ["add", "nobody:1"],
        ["add", "n:27017", "--votes", "0", "--priority", "0", "--arbiter", "z:27017"],
    ],
)
def test_what_has_a_price_is_refused_until_it_is_accepted(
    changes: Changes, command: list[str], capsys: Capture
) -> None:
    assert main([*command, "--host", "a:27017"]) == 2
    assert "--accept" in capsys.readouterr().err
    assert changes() == []
    assert main([*command, "--host", "a:27017", "--accept"]) == 0
    assert changes()


def test_a_reconfig_with_a_price(changes: Changes, tmp_path: Any, capsys: Capture) -> None:
    file = tmp_path / "new.json"
    file.write_text('{"_id": "rs0", "members": [{"_id": 0, "host": "a:27017"}, {"_id": 1, "host": "b:27017"}]}')
    for more in ([], ["--force"]):
        assert main(["reconfig", str(file), "--host", "a:27017", *more]) == 2
        assert "go on with 0 data members down (now: 2 of 3, 1 down)" in capsys.readouterr().err
    assert changes() == []
    assert main(["reconfig", str(file), "--host", "a:27017", "--accept"]) == 0
    assert changes()[0]["replSetReconfig"]["version"] == 2


def test_an_arbiter_that_nobody_reaches_is_said_before_and_after(changes: Changes, capsys: Capture) -> None:
    assert main(["add-arbiter", "nobody:1", "--host", "a:27017"]) == 2
    assert "nobody:1 cannot be reached" in capsys.readouterr().err
    assert main(["add-arbiter", "nobody:1", "--host", "a:27017", "--accept"]) == 0
    said = capsys.readouterr().out
    assert "\nnobody:1 cannot be reached: Connection refused\n" in said
    assert "majority writes will need 3 of 3 copies" in said
    assert said.endswith("nobody:1 is added as arbiter, not reachable yet\n")


def test_force_is_refused_where_a_plan_would_ignore_it(changes: Changes, capsys: Capture) -> None:
    assert main(["reconfig", "--restore", "b:27017", "--force", "--host", "a:27017"]) == 2
    assert "--force goes with FILE or --demote" in capsys.readouterr().err
    assert changes() == []


@pytest.mark.parametrize("kind", ["arbiterOnly", "witness"])
def test_a_member_without_documents_keeps_its_priority(kind: str) -> None:
    current = with_members(config(2), [{"host": "z:27017", kind: True}])
    assert with_vote(current, "z:27017", 1, 2) == ReplSetConfig.parse(current)


def test_what_costs_nothing_is_done(changes: Changes, capsys: Capture) -> None:
    assert main(["add", "n:27017", "--host", "a:27017", "--arbiter", "z:27017"]) == 0
    assert [change["replSetAddMember"]["host"] for change in changes()] == ["n:27017", "z:27017"]
    assert "majority writes will need 3 of 4 copies and go on with 1 data members down" in capsys.readouterr().out


def test_add_takes_every_field_of_a_member(changes: Changes, capsys: Capture) -> None:
    options = ["--priority", "0", "--votes", "0", "--hidden", "--delay", "60", "--tag", "dc=east", "--tag", "use=x=y"]
    assert main(["add", "n:27017", "--host", "a:27017", *options, "--no-build-indexes"]) == 0
    assert changes()[0]["replSetAddMember"] == {
        "host": "n:27017",
        "priority": 0.0,
        "votes": 0,
        "hidden": True,
        "secondaryDelaySecs": 60,
        "tags": {"dc": "east", "use": "x=y"},
        "buildIndexes": False,
    }
    assert capsys.readouterr().out == "n:27017 is added; it copies the data\n"
    assert main(["add", "n:27017", "--host", "a:27017", "--tag", "east"]) == 2
    assert "--tag 'east' is not NAME=VALUE" in capsys.readouterr().err


def test_a_reconfig_that_would_change_the_default_stores_it_first(
    changes: Changes, tmp_path: Any, capsys: Capture
) -> None:
    file = tmp_path / "new.json"
    members: list[dict[str, Any]] = [{"_id": n, "host": f"{name}:27017"} for n, name in enumerate("abcz")]
    members[3]["arbiterOnly"] = True
    file.write_text(json.dumps({"_id": "rs0", "members": members}))
    assert main(["reconfig", str(file), "--host", "a:27017", "--accept"]) == 0
    assert [next(iter(change)) for change in changes()] == ["setDefaultRWConcern", "replSetReconfig"]
    assert "the default write concern is {w: 'majority'} from now on" in capsys.readouterr().out


def test_start_is_for_loopback_addresses(changes: Changes, tmp_path: Any, capsys: Capture) -> None:
    assert main(["add-arbiter", "db9:27017", "--host", "a:27017", "--start", str(tmp_path / "arbiter")]) == 2
    assert "replset start --replSet NAME" in capsys.readouterr().err
    assert not (tmp_path / "arbiter").exists()


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("replset ")
