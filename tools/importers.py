"""Which tests import a module of the product: `./dev test --quick` runs them, and `./dev mutate` judges by them.

`python -m tools.importers` prints the files of unit tests that `--quick` runs: those for what changed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("replset", "api", "rollback_tools", "spark", "tools")
BASES = ("origin/main", "main")


def module_of(path: str) -> str:
    """Return `replset.core.node` for `replset/core/node.py`."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def importing_tests(path: str, layers: Iterable[str]) -> list[str]:
    """Return the files of tests in these folders that import the module at `path`, or a kit that does, or are its own.

    The closest come first.
    """
    module, mirror = module_of(path), _mirror(path)
    found = [
        test
        for test in test_files(layers)
        if module in _imports_of_test(test) or (test.parent == mirror and path.startswith(TOPS))
    ]
    order = sorted(found, key=lambda test: (distance(path, test), test))
    return [test.relative_to(ROOT).as_posix() for test in order]


def distance(path: str, test: Path) -> tuple[bool, bool, bool]:
    """Return how far a file of tests is from the module: not named like it, does not import it, mirrors no folder."""
    return Path(path).stem not in test.stem, module_of(path) not in _imported(test), test.parent != _mirror(path)


def _mirror(path: str) -> Path:
    return ROOT / "tests" / "unit" / Path(path).parent.as_posix().removeprefix("replset/")


def test_files(layers: Iterable[str]) -> list[Path]:
    return [path for layer in layers for path in sorted((ROOT / "tests" / layer).rglob("test_*.py"))]


@cache
def _imports_of_test(path: Path) -> frozenset[str]:
    """Return what a file of tests imports of the product, itself or by other files of tests."""
    names = set(_imported(path))
    kits, seen = [name for name in names if name.startswith("tests.")], set[str]()
    while kits:
        name = kits.pop()
        kit = ROOT / f"{name.replace('.', '/')}.py"
        if name not in seen and kit.exists():
            seen.add(name)
            names |= _imported(kit)
            kits += [more for more in _imported(kit) if more.startswith("tests.")]
    return frozenset(names)


@cache
def _imported(path: Path) -> frozenset[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in names if name.partition(".")[0] in (*TOPS, "tests"))


# --- what changed -----------------------------------------------------------------------------------------------------


def changed_files() -> tuple[str, list[str]]:
    """Return the commit to compare with, and the Python files that differ from it, uncommitted ones too.

    It is where this branch left main. On main itself, with nothing changed, it is the commit before the last one.
    """
    base = next((found for name in BASES if (found := _git("merge-base", "HEAD", name))), "HEAD")
    files = _differing(base)
    if not files:
        base = _git("rev-parse", "HEAD~1") or "HEAD"
        files = _differing(base)
    return base, files


def _differing(base: str) -> list[str]:
    untracked = _git("ls-files", "--others", "--exclude-standard", "--", "*.py").split()
    return sorted({*_git("diff", "--name-only", "--diff-filter=d", base, "--", "*.py").split(), *untracked})


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    base, files = changed_files()
    chosen = [name for name in files if name.startswith("tests/unit/") and Path(name).name.startswith("test_")]
    for name in files:
        chosen += importing_tests(name, ["unit"]) if name.startswith(TOPS) else []
    chosen = list(dict.fromkeys(chosen)) or ["tests/unit/project"]
    print(f"{len(files)} files differ from {base[:12]}, {len(chosen)} files of tests import them", file=sys.stderr)
    print("\n".join(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
