"""Every algorithm has a page, whose defaults are those of the code."""

from __future__ import annotations

from rlhf_core.plugins.registry import Registry
from scripts.reference.algorithms import MARKED, PAGES, pages


def test_every_trainer_has_a_page_and_a_row_in_the_index() -> None:
    ours = {e.name for e in Registry(disabled=()).entries("trainer") if e.distribution.startswith("rlhf-")}
    described = {m["name"] for page in PAGES.glob("*.md") for m in MARKED.finditer(page.read_text())}
    assert ours == described
    index = (PAGES / "index.md").read_text()
    assert [name for name in ours if name not in index] == []


def test_defaults_are_those_of_the_code() -> None:
    stale = [page.name for page, text in pages().items() if page.read_text() != text]
    assert stale == [], "python -m scripts.reference"
