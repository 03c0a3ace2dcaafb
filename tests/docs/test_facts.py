"""What pages say about ourselves holds: names and numbers come from entry points, the planner, records and files."""

from __future__ import annotations

import json
import re

import pytest

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.config import BuildContext
from rlhf_core.plugins.entry_points import entries_of
from rlhf_core.plugins.registry import Registry
from rlhf_plugin_preflight.memory.footprint import footprint
from scripts.reference import facts, peers
from tests.docs.blocks import PAGES, ROOT

CHANGELOG = ROOT / "CHANGELOG.md"
TEXTS = {page: page.read_text() for page in (*PAGES, CHANGELOG)}
NUMBERS = {"five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12}


def ours(kind: str, distribution: str = "rlhf-") -> list[str]:
    return list(facts.names(kind, distribution))


COUNTS = {
    r"(\w+) attacks\b": len(json.loads((ROOT / "docs/bench/redteam.json").read_text())),
    r"(\w+) suites \(`rlhf eval": len(ours("benchmark", "rlhf-plugin-agents")),
    r"(\w+) agents, replay": len(ours("agent", "rlhf-plugin-agents")),
    r"all (\w+) types of IFEval": 25,
    r"(\w+)(?:<!-- end -->)? packages in layers": len([*(ROOT / "rlhf_core").glob("*/__init__.py")]),
}
"""What is counted somewhere -> how many there are."""


@pytest.mark.parametrize("pattern", COUNTS)
def test_what_is_counted_is_so_many(pattern: str) -> None:
    counted = {
        f"{page.relative_to(ROOT)}: {match[0]}": NUMBERS.get(match[1].lower(), match[1])
        for page, text in TEXTS.items()
        for match in re.finditer(pattern, text)
        if match[1].isdigit() or match[1].lower() in NUMBERS
    }
    assert counted, "no page has such a number any more: remove the pattern"
    assert {where: number for where, number in counted.items() if int(number) != COUNTS[pattern]} == {}


def test_facts_inside_pages_are_those_of_the_code() -> None:
    for page, text in {**facts.pages(), **peers.pages()}.items():
        assert page.read_text() == text, "make docs"


def test_what_a_test_shows_is_ours_wherever_the_test_lies() -> None:
    by_test = [pattern for pattern in peers.FEATURES.values() if pattern.endswith(".py")]
    assert any(pattern.startswith("plugins/") for pattern in by_test)
    assert all(peers.cell(pattern, []).startswith("● [tested]") for pattern in by_test)


@pytest.mark.slow
def test_an_algorithm_keeps_a_reference_if_its_plan_holds_one() -> None:
    registry, _ = open_plugins()
    for algorithm in ("sft", "dpo", "reward_model"):
        run = resolve_options(registry, (), (), {"algo": algorithm, "model": "pocket"}).config
        context = BuildContext(config=run, registry=registry, seed=0)
        planned = footprint(context, on_cpu=True, prompt=8, reply=8).reference
        assert bool(planned) == facts.keeps_reference(algorithm), algorithm


def test_every_configuration_has_a_row() -> None:
    page = (ROOT / "configs/README.md").read_text()
    files = [file for ending in ("yaml", "sbatch") for file in (ROOT / "configs").rglob(f"*.{ending}")]
    assert [f.name for f in files if f"({f.relative_to(ROOT / 'configs')})" not in page] == []


def test_every_component_that_an_option_names_is_installed() -> None:
    kinds = {
        "--algo": "trainer",
        "--reward": "reward",
        "--loss": "loss",
        "--advantage": "advantage",
        "--agent": "agent",
    }
    registry = Registry(disabled=())
    known = {option: {entry.name for entry in registry.entries(kind)} for option, kind in kinds.items()}
    known["--algo"] |= {entry.name for entry in registry.entries("algorithm")}
    wrong = [
        f"{page.relative_to(ROOT)}: {option} {name}"
        for page, text in TEXTS.items()
        for option, name in re.findall(r"(--(?:algo|reward|loss|advantage|agent)) ([a-z_]+)\b(?!-)", text)
        if name not in known[option] and not re.search(rf'^(    name: str = "{name}"|{name} = )', text, re.MULTILINE)
    ]
    assert wrong == []


MISSING = {
    "pipeline parallelism": lambda: [o for o in peers.offers(Registry(disabled=())) if "pipeline_par" in o],
    "SGLang": lambda: [name for name in ours("rollout") if "sglang" in name],
}
"""What docs/scaling.md says is not there -> what would be."""


def test_what_is_missing_is_missing() -> None:
    section = (ROOT / "docs/scaling.md").read_text().partition("## What is missing")[2]
    for words, offers in MISSING.items():
        if words in section:
            assert offers() == [], words
    assert any(words in section for words in MISSING)


def test_models_that_are_named_as_shipped_are() -> None:
    names = {entry.name for entry in entries_of("rlhf.model")}
    used = {m for text in TEXTS.values() for m in re.findall(r"--model (pocket[\w-]*)", text)}
    assert used <= names
