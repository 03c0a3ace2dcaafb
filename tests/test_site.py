"""The documentation's site: strict, whole, and without anything from a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link rel="(?:stylesheet|preconnect|icon)")[^>]*(?:src|href)="?(?:https?:)?//"""
)
"""What a browser fetches when it opens a page; a link that a reader may follow is not."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return folder


@pytest.mark.slow
def test_no_page_fetches_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [p.name for p in pages if FETCHED.search(p.read_text())] == []
    assert not re.search(r"url\(\"?(?:https?:)?//", (site / "assets" / "site.css").read_text())


@pytest.mark.slow
def test_types_in_tables_have_their_pipes(site: Path) -> None:
    page = (site / "reference" / "contracts.html").read_text()
    assert "torch.Tensor | None" in page
    assert "\\|" not in page


@pytest.mark.slow
def test_search_works_without_a_server(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")
    assert "iframe-worker.js" in (site / "index.html").read_text()


@pytest.mark.slow
def test_code_that_a_page_links_to_is_in_the_site(site: Path) -> None:
    page = (site / "architecture.html").read_text()
    assert 'href="repository/rlhf_core/config/plan.py.html"' in page
    assert "class" in (site / "repository" / "rlhf_core" / "config" / "plan.py.html").read_text()
    assert 'href="../../../' not in page


@pytest.mark.slow
def test_every_plugin_has_a_page(site: Path) -> None:
    index = (site / "index.html").read_text()
    missing = [f.parent.name for f in ROOT.glob("plugins/*/README.md") if f"plugins/{f.parent.name}/" not in index]
    assert missing == []
