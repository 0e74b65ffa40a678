"""A file imports only from lines below it (the picture is in docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.layers import (
    COMPOSITION_ROOT,
    FILES,
    LEVELS,
    PAGE,
    ROOT,
    circles,
    imports_of,
    module_of,
    part_of,
    shortest,
    with_drawing,
)

SEPARATE = (3, 8)  # on these levels, neighbours do not import each other


def faults(path: Path) -> Iterator[str]:
    module = module_of(path)
    part = part_of(module)
    for imported in sorted(imports_of(path)):
        other = part_of(imported)
        if not part:
            yield f"{module} imports {imported}; the package itself imports nothing"
        elif not other:
            yield f"{module} imports {imported}, which stands on no level"
        elif other == part or (module == COMPOSITION_ROOT and other == "api"):
            continue
        elif LEVELS[other] > LEVELS[part]:
            yield f"{module} imports {imported} from above"
        elif LEVELS[other] == LEVELS[part] and LEVELS[part] in SEPARATE:
            yield f"{module} imports its neighbour {imported}"


def test_imports_go_downward() -> None:
    assert [fault for path in FILES for fault in faults(path)] == []


IMPURE = {"asyncio", "time", "socket", "sqlite3", "apsw", "threading", "os", "subprocess", "datetime", "pathlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "replset/core").glob("*.py")), ids=module_of)
def test_the_core_reaches_no_clock_socket_disk_or_thread(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not IMPURE & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in IMPURE


MEANT = [
    # What is unusual about a prepared write is run as any other command. A connection uses what its server has for all.
    {
        "replset.operations.dispatcher",
        "replset.operations.prepared",
    },
    {
        "replset.member.net.server",
        "replset.member.net.wire_connection",
    },
]


def test_no_files_import_each_other_in_a_circle() -> None:
    found = circles()
    assert all(circle in MEANT for circle in found), found
    assert len(found) == len(MEANT), "MEANT names a circle that is gone"


def test_the_drawing_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_drawing(page) == page, "run ./dev layers, and commit docs/architecture.md"


def test_the_drawing_leaves_out_what_follows() -> None:
    imports = {"top": {"middle", "low"}, "middle": {"low"}}
    assert shortest(imports) == {"top": {"middle"}, "middle": {"low"}}
