"""Nothing that is printed can steer a terminal or begin a line, and JSON stays the same JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.text import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Grüße, 世界 🙂", "Grüße, 世界 🙂"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x00\x07\x7f", "\\u001b[2J\\u0000\\u0007\\u007f"),
        ("\x85\x9b31m", "\\u0085\\u009b31m"),
        ("\u2028\u2029\u202e\u2066\u200b\u00a0", "\\u2028\\u2029\\u202e\\u2066\\u200b\\u00a0"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\udb40\\udc01"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.dictionaries(st.text(), st.text()))
def test_json_stays_the_same_json(document: dict[str, str]) -> None:
    for layout in (None, 2):
        text = printable(json.dumps(document, indent=layout, ensure_ascii=False), keep="\n")
        assert json.loads(text) == document
        assert all(line.isprintable() for line in text.split("\n"))
