"""docs/query.md names every operator and every error code that the package knows."""

from __future__ import annotations

import re
from pathlib import Path

from replset.errors import ErrorCode
from replset.query.conditions import NOT_BUILT
from replset.query.expressions import OPERATORS as EXPRESSIONS
from replset.query.update import OPERATORS

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs/query.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "replset/query").glob("*.py")))


def test_every_operator_is_documented() -> None:
    names = {*NOT_BUILT, *OPERATORS, *re.findall(r'case "(\$\w+)"', SOURCES)}
    assert [name for name in sorted(names) if f"`{name}`" not in DOCS] == []


def test_every_error_code_is_documented() -> None:
    codes = {ErrorCode[name].value for name in re.findall(r"ErrorCode\.([A-Z_]+)", SOURCES)}
    assert len(codes) > 20
    table = DOCS.split("## Errors")[1]
    assert [code for code in codes if not re.search(rf"(?<![\d.]){code}(?![\d.])", table)] == []


PAGE = (ROOT / "docs/expressions.md").read_text(encoding="utf-8")


def test_every_operator_of_expressions_is_documented() -> None:
    table = PAGE.split("## Operators")[1]
    assert [name for name in EXPRESSIONS if f"`{name}`" not in table] == []


def test_every_number_of_an_error_of_expressions_is_documented() -> None:
    files = sorted((ROOT / "replset/query/expressions").glob("*.py"))
    numbers = {
        number for path in files for number in re.findall(r"(?<![\w.#-])[1-9]\d{4,6}(?![\w.])", path.read_text("utf-8"))
    } - {"32767"}  # a bound, no error
    assert len(numbers) > 150
    table = PAGE.split("## Errors")[1]
    assert [number for number in sorted(numbers) if not re.search(rf"(?<!\d){number}(?!\d)", table)] == []
