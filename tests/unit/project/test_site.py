"""mkdocs.yml: the site of docs/ has every page, every link leads somewhere, and nothing comes from other hosts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LOADS = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")


def pages_of(nav: Any) -> Iterator[str]:
    """Every page that the navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_every_page_is_in_the_navigation_once() -> None:
    named = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert there - set(named) == set(), "pages that `nav` in mkdocs.yml does not name"
    assert sorted(set(named)) == sorted(named)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `./dev docs` does: a link to a page or a heading that is not there ends the build."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs Material is not installed (the extra `docs`)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.in_turns
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {url for page in pages for url in LOADS.findall(page.read_text(encoding="utf-8"))}
    assert loaded == set()
    styles = {url for style in site.rglob("*.css") for url in re.findall(r"url\((https?:[^)]*)\)", style.read_text())}
    assert styles == set()
