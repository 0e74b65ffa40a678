"""A file imports only from lines below it (the picture is in docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEVELS = {
    "replset.errors": 0,
    "replset.ids": 0,
    "replset.bson": 1,
    "replset.config": 1,
    "replset.key_file": 1,
    "replset.oplog_entry": 1,
    "replset.oplog_row": 1,
    "replset.optime": 1,
    "replset.core": 2,
    "replset.query": 3,
    "replset.wire": 3,
    "replset.storage": 3,
    "replset.commands": 4,
    "replset.replication": 4,
    "replset.client": 4,
    "replset.terminal": 4,
    "replset.runtime": 5,
    "replset.recovery": 5,
    "replset.cli": 6,
    "api": 6,
    "rollback_tools": 6,
    "spark": 6,
}
TOPS = ("replset", "api", "rollback_tools", "spark")
SEPARATE = (3, 6)  # on these levels, neighbours do not import each other
NOT_PRODUCT = ("tests", "tools")  # the product imports neither, so these stand on no level
COMPOSITION_ROOT = "replset.cli.start"  # the one that knows api
FILES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    return next((part for part in LEVELS if module == part or module.startswith(f"{part}.")), "")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in (*TOPS, *NOT_PRODUCT)}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_downward(path: Path) -> None:
    module = module_of(path)
    part = part_of(module)
    if part == "":
        assert not imports_of(path), "the package itself imports nothing"
        return
    for imported in sorted(imports_of(path)):
        other = part_of(imported)
        assert other, f"{module} imports {imported}, which stands on no level"
        if other == part or (module == COMPOSITION_ROOT and other == "api"):
            continue
        assert LEVELS[other] <= LEVELS[part], f"{module} imports {imported} from above"
        assert LEVELS[other] < LEVELS[part] or LEVELS[part] not in SEPARATE, (
            f"{module} imports its neighbour {imported}"
        )


IMPURE = {"asyncio", "time", "socket", "sqlite3", "apsw", "threading", "os", "subprocess", "datetime", "pathlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "replset/core").glob("*.py")), ids=module_of)
def test_the_core_reaches_no_clock_socket_disk_or_thread(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not IMPURE & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in IMPURE
