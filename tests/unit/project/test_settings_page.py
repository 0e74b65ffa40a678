"""docs/settings.md and docs/cli.md have every setting, with the default that the program has."""

from __future__ import annotations

import re
from dataclasses import MISSING
from pathlib import Path

import pytest
import yaml

from replset.cli.start_options import all_options, flag_of
from replset.config import ReplSetConfig, member, settings
from replset.errors import ReplError
from replset.features.administration.parameters import PARAMETERS
from replset.features.all import OPTIONS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "settings.md").read_text(encoding="utf-8")


def rows_of(heading: str) -> dict[str, list[str]]:
    """The table below a heading: name -> its other cells. A row may name several settings."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines() if "| `" in line]
    return {name: row[1:] for row in cells for name in re.findall(r"`(\w+)`", row[0])}


def default_of(cell: str) -> object:
    return yaml.safe_load(cell)


def test_every_setting_of_the_set_is_there() -> None:
    assert rows_of("Settings of the set").keys() == settings._SETTINGS_FIELDS


@pytest.mark.parametrize(("name", "cells"), rows_of("Settings of the set").items())
def test_a_setting_has_this_default_and_this_least_value(name: str, cells: list[str]) -> None:
    default, least = default_of(cells[0]), default_of(cells[1])
    if default is not None:
        assert settings.parse_settings({name: default}) == settings.parse_settings({})
    if isinstance(default, int) and not isinstance(default, bool):
        assert isinstance(least, int)
        settings.parse_settings({name: least})
        with pytest.raises(ReplError, match=f"{least} or above"):
            settings.parse_settings({name: least - 1})
    else:
        assert least is None


NOT_FOR_USERS = {"newlyAdded", "incarnation", "horizons", "slaveDelay"}
"""Members' own fields, MongoDB's old name of one, and one that is refused."""


def test_every_field_of_a_member_is_there_with_its_default() -> None:
    rows = rows_of("Fields of a member")
    assert rows.keys() == member._MEMBER_FIELDS - NOT_FOR_USERS
    least: dict[str, object] = {"_id": 0, "host": "a:1"}
    for name, cells in rows.items():
        default = default_of(cells[0])
        if default not in (None, "required"):
            assert member.parse_member({**least, name: default}, "m") == member.parse_member(least, "m"), name


def test_every_other_field_of_the_configuration_is_named() -> None:
    named = re.findall(r"`(\w+)`", PAGE.split("Beside `settings`,")[1].split("\n\n")[0])
    assert ReplSetConfig("", 1, 0, ()).document().keys() - {"settings"} <= set(named)


def test_every_server_parameter_is_there_and_whether_it_can_be_set() -> None:
    rows = rows_of("Server parameters")
    assert rows.keys() == PARAMETERS.keys()
    assert {name for name, cells in rows.items() if cells[-1] != "no"} == {
        name for name, parameter in PARAMETERS.items() if parameter.set is not None
    }


@pytest.mark.parametrize("field", all_options(OPTIONS), ids=lambda field: field.name)
def test_an_option_of_start_has_this_default(field: object) -> None:
    name, default = field.name, field.default
    row = re.search(rf"^\| `--{flag_of(name)}[ `].*$", (DOCS / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    cell = row[0].strip("|").split(" |")[2].strip()
    if default is MISSING:
        assert cell == "required"
    elif isinstance(default, bool):
        assert cell == ("yes" if default else "no")
    elif default not in (None, ()):
        assert cell == (f"{default:g}" if isinstance(default, float) else str(default))
