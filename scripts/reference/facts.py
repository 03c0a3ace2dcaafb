"""Names and numbers inside pages that are written by hand: what stands between ``<!-- fact: NAME -->`` and
``<!-- end -->`` is written from entry points, the planner and the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    return written(*table_of(states_of(PUBLISHED)))


def written(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table between a fact's marks."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def published_steps() -> str:
    """The simulation beside step times that others published, as `rlhf simulate --published` has it."""
    from rlhf_plugin_preflight.cost.published import HEADERS, rows

    return written(HEADERS, [row.cells() for row in rows()])


def simulated_steps() -> str:
    """Steps of the configurations for eight cards, in turn and a batch ahead, on 1 to 1,024 GPUs."""
    from rlhf_core.models import ModelConfig
    from rlhf_plugin_preflight.cli.simulate import HEADERS, cells, layout_of, work_of
    from rlhf_plugin_preflight.cost.hardware import gpu_of, shape_of
    from rlhf_plugin_preflight.cost.published import FACTORS
    from rlhf_plugin_preflight.cost.step import simulate

    file = ROOT / "configs" / "qwen3_8b_grpo_colocated_8gpu.yaml"
    work = work_of(resolve(Registry(disabled=()), files=[str(file)]), 3000, 0.7, 512, 0.0)
    shape = shape_of(ModelConfig.model_validate({"path": "qwen3-8b"}))
    layouts = [layout_of(count, 0, 1, 0, 0) for count in (1, 8, 64, 512, 1024)]
    layouts += [layout_of(count, 0.5, 1, 1, 2_000_000_000) for count in (8, 64, 512, 1024)]
    return written(
        HEADERS, [cells(layout, simulate(shape, gpu_of("h100"), work, layout, FACTORS)) for layout in layouts]
    )


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
    "published_steps": published_steps,
    "simulated_steps": simulated_steps,
    "kept_references": lambda: listed(filter(keeps_reference, names("trainer"))),
}
