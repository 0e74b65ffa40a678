"""The command lines print only through what escapes control characters: replset/terminal.py and `printable`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.layers import FILES, ROOT, module_of

COLOURS_BY_ITSELF = ROOT / "rollback_tools/diff.py"  # its lines are made of escaped texts and their colours
PRINTING = [
    path
    for path in FILES
    if path.relative_to(ROOT).as_posix().startswith(("replset/cli/", "rollback_tools/", "spark/"))
]


def is_escaped(argument: ast.expr) -> bool:
    is_call = isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name)
    return isinstance(argument, ast.Constant) or (is_call and argument.func.id == "printable")


def raw_output(source: str) -> list[str]:
    """Return the lines that print what may hold control characters, or import what does."""
    found: list[ast.stmt | ast.expr] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="rich.text" | "rich.markup" | "rich"):
                found.append(node)
            case ast.ImportFrom(module="rich.console", names=names) if any(name.name == "Console" for name in names):
                found.append(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="typer"), attr="echo" | "secho")):
                found.append(node)
            case ast.Call(func=ast.Name(id="print"), args=arguments) if not all(map(is_escaped, arguments)):
                found.append(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="typer"), attr="prompt" | "confirm"), args=[text, *_]):
                if not is_escaped(text):
                    found.append(node)
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in found]


@pytest.mark.parametrize("path", PRINTING, ids=module_of)
def test_a_command_line_prints_through_what_escapes(path: Path) -> None:
    if path != COLOURS_BY_ITSELF:
        assert raw_output(path.read_text(encoding="utf-8")) == []


def test_raw_output_is_found() -> None:
    for line in ("print(name)", "typer.echo(name)", "from rich.text import Text", "from rich.console import Console"):
        assert raw_output(line) != [], line
    assert raw_output('print("done"); print(printable(name)); echo(name)') == []
