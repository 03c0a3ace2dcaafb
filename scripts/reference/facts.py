"""Names and numbers inside pages that are written by hand: what stands between ``<!-- fact: NAME -->`` and
``<!-- end -->`` is written from entry points, the planner and the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
FACT = re.compile(r"(<!-- fact: (\w+) -->).*?(<!-- end -->)", re.DOTALL)
PUBLISHED = ("gpt2-117m", "gpt2-medium", "gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-2-70b")


def pages() -> Mapping[Path, str]:
    """Every page with a fact, its facts written anew."""
    texts = {file: file.read_text() for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    return {f: FACT.sub(lambda m: f"{m[1]}{FACTS[m[2]]()}{m[3]}", t) for f, t in texts.items() if FACT.search(t)}


def names(kind: str, distribution: str = "rlhf-") -> Iterator[str]:
    """Components of a kind that we ship."""
    yield from (e.name for e in Registry(disabled=()).entries(kind) if e.distribution.startswith(distribution))


def keeps_reference(algorithm: str) -> bool:
    """Whether the plan of the algorithm's defaults holds a frozen copy of the policy."""
    user = {"trainer": {"name": algorithm}, "model": {"path": "MODEL"}, "dataset": {"name": "jsonl", "path": "FILE"}}
    from rlhf_plugin_preflight.dry_run.look import keeps_reference as keeps

    return keeps(resolve(Registry(disabled=()), sugar=user))


def listed(components: Iterator[str]) -> str:
    return ", ".join(f"`{name}`" for name in components)


def states() -> str:
    """The table of training states, as `rlhf memory plan --table` has it."""
    from rlhf_plugin_preflight.memory.states import states_of, table_of

    headers, rows = table_of(states_of(PUBLISHED))
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def one_card() -> str:
    """GB of gpt2-medium's training states on a card, as the planner shares them out."""
    from rlhf_plugin_preflight.memory.layouts import shares
    from rlhf_plugin_preflight.memory.states import states_of

    (row,) = states_of(("gpt2-medium",))

    def size(strategy: str, ranks: int) -> str:
        of = shares(strategy, ranks, ranks)
        return f"{row.parameters * 4 * (of.weights + of.gradients + 2 * of.moments) / 1e9:.1f} GB"

    return f"{size('single', 1)} without FSDP, {size('fsdp', 1)} with it on one card, {size('fsdp', 4)} on each of four"


def long_contexts() -> str:
    """GB of a card by tokens and ``strategy.sequence_parallel``, of the record."""
    results = json.loads((ROOT / "docs/bench/long_contexts.json").read_text())["cases"]["run"]["results"]
    sizes = next(iter(results.values()))

    def cell(plan: Mapping[str, Any]) -> str:
        return f"{plan['peak'] / 1e9:.1f}" + ("" if plan["fits"] else ", does not fit")

    lines = [["tokens", *sizes], ["---"] * (len(sizes) + 1)]
    lines += [[f"{int(tokens):,}", *map(cell, row.values())] for tokens, row in results.items()]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


FACTS: Mapping[str, Callable[[], str]] = {
    "core_packages": lambda: str(len([*(ROOT / "rlhf_core").glob("*/__init__.py")])),
    "agents": lambda: listed(names("agent", "rlhf-plugin-agents")),
    "agent_suites": lambda: listed(names("benchmark", "rlhf-plugin-agents")),
    "training_states": states,
    "one_card": one_card,
    "long_contexts": long_contexts,
    "kept_references": lambda: listed(filter(keeps_reference, names("trainer"))),
}
