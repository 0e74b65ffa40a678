"""docs/query.md names every operator and every error code that the package knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replset.query.conditions import NOT_BUILT
from replset.query.update import OPERATORS

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs/query.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "replset/query").glob("*.py")))


@pytest.mark.parametrize("name", sorted({*NOT_BUILT, *OPERATORS, *re.findall(r'case "(\$\w+)"', SOURCES)}))
def test_every_operator_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("code", sorted(set(re.findall(r"(?:code|FIELD) ?= ?(\d+)\b", SOURCES)), key=int))
def test_every_error_code_is_documented(code: str) -> None:
    assert re.search(rf"(?<![\d.]){code}(?![\d.])", DOCS.split("## Errors")[1])
