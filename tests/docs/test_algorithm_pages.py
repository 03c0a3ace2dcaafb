"""Every algorithm has a page, a row in the index, and its defaults in the reference."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.plugins.registry import Registry
from scripts.reference import algorithms

DOCS = Path(__file__).parents[2] / "docs"


def test_every_trainer_has_a_page_that_links_to_its_defaults_and_a_row_in_the_index() -> None:
    ours = {e.name for e in Registry(disabled=()).entries("trainer") if e.distribution.startswith("rlhf-")}
    pages = "".join(page.read_text() for page in (DOCS / "algorithms").glob("*.md"))
    assert [name for name in ours if f"(../reference/algorithms.md#{name})" not in pages] == []
    index = (DOCS / "algorithms/index.md").read_text()
    assert [name for name in ours if name not in index] == []


def test_defaults_are_those_of_the_code() -> None:
    assert (DOCS / "reference/algorithms.md").read_text().endswith(algorithms.page()), "python -m scripts.reference"
