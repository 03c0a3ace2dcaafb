"""What plugin authors look up is written down, for every field, hook and kind there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlhf_testing as testing
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.hooks import HOOK_NAMES
from rlhf_testing.scaffold.write import kinds
from scripts.reference import contracts

DOCS = Path(__file__).parents[2] / "docs"
EVENTS = [event for name in HOOK_NAMES if (event := contracts.event_of(name))]


@pytest.mark.parametrize("cls", [*contracts.BATCHES, BuildContext, *EVENTS], ids=lambda cls: cls.__name__)
def test_every_field_says_what_it_is(cls: type) -> None:
    docs = contracts.field_docs(cls)
    assert set(docs) == set(cls.__dataclass_fields__)  # type: ignore[attr-defined]
    assert [name for name, (_, text) in docs.items() if not text] == []


def test_every_value_that_may_be_missing_says_what_none_means() -> None:
    for cls in (*contracts.BATCHES, *contracts.VALUES, BuildContext):
        docs = contracts.field_docs(cls)
        open_ends = [name for name, (kind, text) in docs.items() if "None" in kind and "None" not in text]
        assert open_ends == [], cls
        assert [name for name, (_, text) in docs.items() if name == "seed" and not text] == [], cls


def test_the_page_has_every_field_and_hook() -> None:
    page = (DOCS / "reference" / "contracts.md").read_text()
    for cls in (*contracts.BATCHES, *contracts.VALUES, BuildContext):
        section = page.partition(f"### {cls.__name__}\n")[2].partition("\n### ")[0]
        assert all(f"| `{name}` |" in section for name in contracts.field_docs(cls)), cls
    for name in HOOK_NAMES:
        assert f"### {name}\n" in page
    for name in ("recipe", "companions", "recipes", "min_group_size"):
        assert f"| `{name}` |" in page


def test_the_tutorial_names_every_kind_and_every_check() -> None:
    text = (DOCS / "plugin-authors.md").read_text()
    assert [kind for kind in kinds() if f"| {kind} |" not in text] == []
    assert [name for name in testing.__all__ if name.startswith("check_") and f"`{name}`" not in text] == []
    assert all(word in text for word in ("companions", "min_group_size", "BuildContext", "recipe_of", "--into"))
