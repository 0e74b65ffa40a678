"""The table of states, its picture in the documentation, and the documentation's list of tests."""

from __future__ import annotations

import re
from itertools import chain, product
from pathlib import Path

import pytest

from replset.core.member_state import LEGAL_TRANSITIONS, MemberState, diagram, is_legal
from replset.errors import InvariantError
from tests.simulation.core_kit.machine import members_of
from tests.unit.core.single_node import named, single_node

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/core.md").read_text(encoding="utf-8")


def test_mongodbs_numbers_and_what_they_allow() -> None:
    """Map A2; 4 (FATAL) is retired. No member reports itself as down or unknown."""
    assert [state.value for state in MemberState] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [state.name for state in MemberState if state.is_readable] == ["PRIMARY", "SECONDARY"]
    assert [state.name for state in MemberState if is_legal(state, MemberState.PRIMARY)] == ["PRIMARY", "SECONDARY"]
    assert not {MemberState.DOWN, MemberState.UNKNOWN} & {*LEGAL_TRANSITIONS, *chain(*LEGAL_TRANSITIONS.values())}


@pytest.mark.parametrize(("before", "after"), [p for p in product(MemberState, repeat=2) if not is_legal(*p)])
def test_an_illegal_state_change_stops_the_member(before: MemberState, after: MemberState) -> None:
    node = single_node(config=named(*members_of(3)))
    node._state.state = before
    with pytest.raises(InvariantError):
        node._state.become(after)


def test_the_drawing_equals_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE


def test_every_test_that_the_page_names_exists() -> None:
    """One row for each sentence of the design that the core has to hold."""
    table = PAGE[PAGE.index("## Which test holds which sentence") :]
    wanted = set(re.findall(r"`(test_\w+)`", table))
    elsewhere = ("tests/unit/test_config.py", "tests/unit/member/test_shell.py", "tests/simulation/test_core_only.py")
    others = [ROOT / path for path in elsewhere]
    sources = [*(ROOT / "tests/unit/core").glob("test_*.py"), *others]
    defined = {
        name for path in sources for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    assert wanted - defined == set()
    rows = [row for row in table.splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 25
    assert all("`test_" in row for row in rows)


def test_every_file_of_the_core_is_on_the_page() -> None:
    for path in (ROOT / "replset/core").glob("*.py"):
        if path.name != "__init__.py":
            assert f"`{path.name}`" in PAGE, path.name
