"""`./dev layers` draws the layers in docs/architecture.md from the imports of the product.

Each part of the product stands on a level and imports only from lower levels. `tests/unit/project/test_layers.py`
checks every file by this table, and fails when the drawing is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LEVELS = {
    "replset.errors": 0,
    "replset.ids": 0,
    "replset.imports": 0,
    "replset.auth": 1,
    "replset.bson": 1,
    "replset.config": 1,
    "replset.ejson": 1,
    "replset.connection_string": 1,
    "replset.own_process": 0,
    "replset.release": 0,
    "replset.text": 0,
    "replset.key_file": 1,
    "replset.manifest": 1,
    "replset.oplog_entry": 1,
    "replset.oplog_row": 1,
    "replset.optime": 1,
    "replset.message_fields": 1,
    "replset.core": 2,
    "replset.query": 2,
    "replset.wire": 3,
    "replset.storage": 3,
    "replset.replication": 4,
    "replset.client": 4,
    "replset.target": 5,
    "replset.processes": 4,
    "replset.local_set": 5,
    "replset.terminal": 4,
    "replset.long_work": 4,
    "replset.operations": 5,
    "replset.member": 6,
    "replset.features": 7,
    "replset.testing": 7,
    "replset.pytest_plugin": 8,
    "replset.cli": 8,
    "api": 8,
    "rollback_tools": 8,
    "spark": 8,
}
TOPS = ("replset", "api", "rollback_tools", "spark")
NOT_PRODUCT = ("tests", "tools")  # the product imports neither, so these stand on no level
COMPOSITION_ROOT = "replset.cli.start"  # the one file that knows api
FILES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
_BLOCK = re.compile(r"(<!-- layers: .*? -->\n).*?(<!-- end of layers -->\n)", re.DOTALL)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """The name in LEVELS under which `module` stands; empty when there is none."""
    return next((part for part in LEVELS if module == part or module.startswith(f"{part}.")), "")


@cache
def imports_of(path: Path) -> set[str]:
    """Full names of all that a file imports from the product, the tests and the tools."""
    return _imported(ast.parse(path.read_text(encoding="utf-8")))


def imports_that_run(path: Path) -> set[str]:
    """The same without what only type checkers read."""
    text = path.read_text(encoding="utf-8")
    if "TYPE_CHECKING" not in text:
        return imports_of(path)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return _imported(tree)


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in (*TOPS, *NOT_PRODUCT)}


def parts_imported() -> dict[str, set[str]]:
    """Part -> the other parts that its files import."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        part = part_of(module_of(path))
        for name in imports_that_run(path):
            other = part_of(name)
            if part and other and other != part:
                found[part].add(other)
    return found


def circles() -> list[set[str]]:
    """The sets of files that import each other in a circle, what only type checkers read included."""
    names = {module_of(path) for path in FILES}

    def in_product(name: str) -> str:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name

    imports = {module_of(path): {in_product(name) for name in imports_of(path)} - {""} for path in FILES}
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, left = set[str](), [start]
        while left:
            new = imports.get(left.pop(), set()) - found
            found |= new
            left += new
        reached[start] = found
    in_circle = {name: frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return [set(found) for found in {*in_circle.values()} if len(found) > 1]


def shortest(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """`imports` without what follows: A to C goes when there is A to B and B to C. A circle is refused."""
    reached: dict[str, set[str]] = {}
    for part in TopologicalSorter(imports).static_order():
        direct = imports.get(part, set())
        reached[part] = direct.union(*(reached[other] for other in direct))
    return {part: direct - set().union(*(reached[other] for other in direct)) for part, direct in imports.items()}


def drawing() -> str:
    """A Mermaid flowchart: a box for each level, highest first, and an arrow for each import that is not implied."""
    lines = ["```mermaid", "flowchart TD"]
    for level in sorted(set(LEVELS.values()), reverse=True):
        lines.append(f'    subgraph level{level}["level {level}"]')
        lines += [f'        {_id(part)}["{_folder(part)}"]' for part, own in LEVELS.items() if own == level]
        lines.append("    end")
    arrows = shortest(parts_imported())
    for part in reversed(LEVELS):
        lines += [f"    {_id(part)} --> {_id(other)}" for other in reversed(LEVELS) if other in arrows.get(part, ())]
    return "\n".join([*lines, "```", ""])


def _id(part: str) -> str:
    return part.replace(".", "_")


def _folder(part: str) -> str:
    path = ROOT / part.replace(".", "/")
    return f"{path.relative_to(ROOT)}/" if path.is_dir() else f"{path.relative_to(ROOT)}.py"


def with_drawing(page: str) -> str:
    """The text of the page with the drawing as it should be."""
    if not _BLOCK.search(page):
        raise SystemExit(f"{PAGE.name} has no place for the layers")
    return _BLOCK.sub(lambda block: block[1] + drawing() + block[2], page)


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    drawn = with_drawing(page)
    PAGE.write_text(drawn, encoding="utf-8")
    print("docs/architecture.md is as it was" if drawn == page else "docs/architecture.md: the layers are drawn anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
