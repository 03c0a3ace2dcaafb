"""A flat list of facts against a scratchpad, on chains, for a model that reads a bounded number of words.

The model (`suites/chains.py` of rlhf-plugin-agents) makes no mistakes on what it sees and knows nothing else, so agents
differ only in what they send. The published figures of the same two agents were made with a service's model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, get_args

from rlhf_plugin_agents.agents.config import AgentConfig, MultiAgentConfig, ScratchpadConfig
from rlhf_plugin_agents.backends.scripted import Cut, ScriptedBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.suites.chains import ChainReader, chain_tasks

HOPS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
WINDOWS = (100, 150, 200, 300)
FACTS: dict[str, tuple[str, int]] = {
    "8 words": ("sentence", 0),
    "25 words": ("document", 0),
    "49 words": ("document", 3),
}
"""About so many words of each fact -> what the model makes of a document, and sentences added to each document."""
AGENTS: dict[str, AgentConfig] = {
    "flat list": MultiAgentConfig(max_turns=400, max_calls=400),
    "scratchpad": ScratchpadConfig(max_turns=400, max_calls=400),
}
PUBLISHED = {
    "flat list": {"2": 0.95, "4": 0.88, "6": 0.75, "8": 0.58},
    "scratchpad": {"2": 0.95, "4": 0.95, "6": 0.92, "8": 0.88},
    "latency of the scratchpad": "+15 %",
}


def played(agent: AgentConfig, facts: str, hops: int, count: int, window: int | None, cut: Cut) -> dict[str, float]:
    kind, filler = FACTS[facts]
    tasks = chain_tasks([hops], count, 0, filler)
    scripts: Any = {t.id: ChainReader(kind) for t in tasks}  # type: ignore[arg-type]
    backend = ScriptedBackend(scripts, context_words=window, cut=cut)
    rows = [play_one(agent, backend, task, 0, 0) for task in tasks]
    return {
        "right": mean(float(r["right"]) for r in rows),
        "requests": mean(r["requests"] for r in rows),
        "words": mean(r["prompt_tokens"] for r in rows),
    }


def crossover(hops: Sequence[int], curves: Mapping[str, Sequence[float]]) -> int | None:
    """The shortest chain on which the flat list does worse than the scratchpad."""
    pairs = zip(hops, curves["flat list"], curves["scratchpad"], strict=True)
    return min((n for n, flat, pad in pairs if flat < pad), default=None)


def condition(facts: str, window: int, cut: Cut, hops: Sequence[int], count: int) -> dict[str, Any]:
    curves = {
        name: [round(played(agent, facts, n, count, window, cut)["right"], 3) for n in hops]
        for name, agent in AGENTS.items()
    }
    return {"facts": facts, "window": window, "cut": cut, **curves, "crossover": crossover(hops, curves)}


def sent(facts: str, hops: Sequence[int], count: int) -> dict[str, Any]:
    """Requests and words of both agents where everything fits, and the scratchpad's over the flat list's."""
    costs = {name: {n: played(agent, facts, n, count, None, "refuse") for n in hops} for name, agent in AGENTS.items()}
    flat, pad = costs["flat list"], costs["scratchpad"]
    return {str(n): {what: round(pad[n][what] / flat[n][what], 3) for what in ("requests", "words")} for n in hops}


def run(count: int = 3) -> dict[str, Any]:
    """``count`` is how many chains there are of each length."""
    conditions = [
        condition(facts, window, cut, HOPS, count) for facts in FACTS for window in WINDOWS for cut in get_args(Cut)
    ]
    costs = {facts: sent(facts, HOPS, count) for facts in FACTS}
    return {"chains": count, "hops": HOPS, "published": PUBLISHED, "sent": costs, "conditions": conditions}
