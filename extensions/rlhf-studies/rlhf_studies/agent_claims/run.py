"""Plays what has no verdict yet, and asks every claim."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import UserError
from rlhf_core.data import read_jsonl
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.harness import Job, evaluate, prepare
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from rlhf_studies.agent_claims.claims import CLAIMS, NOT_HERE
from rlhf_studies.agent_claims.config import AgentClaimsConfig
from rlhf_studies.agent_claims.verdict import Row, right, verdict
from rlhf_studies.common.outside import data_file
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean

BY_PATH = {"bfcl": "bfcl", "tau_bench": "tau_bench_retail"}
"""Suite -> its folder."""
LIMITS: Mapping[str, Any] = {"max_turn_tokens": 160}
IN_TURNS: Mapping[str, Any] = {"max_turns": 8}
"""Besides, of agents that go on until they answer: small models do not stop by themselves."""


class AgentClaims(Study[AgentClaimsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Every agent on every suite; evaluations are kept, as `rlhf eval` keeps them."""
        lines, rows = list[dict[str, Any]](), dict[tuple[str, str], Sequence[Row]]()
        for suite in self.config.suites:
            for agent in self.config.agents:
                began = time.monotonic()
                try:
                    rows[suite, agent] = self.played(suite, agent, folder, seed)
                    line = summed(rows[suite, agent])
                except UserError as error:
                    line = {"refused": str(error).splitlines()[0]}
                lines.append({"suite": suite, "agent": agent, **line, "minutes": (time.monotonic() - began) / 60})
        return {"lines": lines, "claims": [verdict(claim, rows) for claim in CLAIMS]}

    def played(self, suite: str, agent: str, folder: Path, seed: int) -> Sequence[Row]:
        ctx = context_of(open_registry())
        chosen: Any = ctx.registry.config("benchmark", suite, self.settings(suite, agent))
        assert isinstance(chosen, AgentSuiteConfig)
        backend = backend_of("native", {"model": {"path": self.config.agent_model}})
        job, target = Job(chosen, chosen.agent_config(agent), backend, seed), folder / f"{suite}-{agent}"
        if prepare(job, ctx, target).todo:
            evaluate(job, ctx, target, None)
        return list(read_jsonl(target / "rows.jsonl"))

    def settings(self, suite: str, agent: str) -> dict[str, Any]:
        limits = {**LIMITS, **(IN_TURNS if agent in ("react", "code_executor") else {})}
        settings: dict[str, Any] = {"max_per_category": self.config.tasks, "agent_settings": limits}
        if suite in BY_PATH:
            folders, below = self.config.folders, BY_PATH[suite]
            settings["path"] = str(data_file(folders and folders / below, below))
        if suite == "agentbench_generated":
            settings |= {"max_per_category": self.config.claim_tasks, "count": self.config.claim_tasks}
        if suite == "chains":
            settings |= {"max_per_category": None, "count": self.config.tasks}
        return settings

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        keys = ("tasks", "right", "process", "calls", "minutes")
        lines = [
            (seed, line["suite"], line["agent"], *(number(line.get(key)) for key in keys), line.get("refused", ""))
            for seed, figures in results.items()
            for line in figures["lines"]
        ]
        claims = [
            (seed, row["claim"], f"{row['published_points']:+.1f}", here(row), row.get("tasks", 0), row["verdict"])
            for seed, figures in results.items()
            for row in figures["claims"]
        ]
        claims += [("", claim, "", "", "", f"not resolvable here: {why}") for claim, why in NOT_HERE.items()]
        played = markdown(("seed", "suite", "agent", *keys, "refused"), lines)
        return f"{played}\n\n{markdown(('seed', 'published', 'points there', 'here, 95 %', 'tasks', ''), claims)}"


def summed(rows: Sequence[Row]) -> dict[str, Any]:
    judged = [r for r in rows if r["value"] is not None]
    categories = dict.fromkeys(r["category"] for r in rows)

    def average(*keys: str) -> float | None:
        judged_both = [sum(r[key] for key in keys) for r in judged if all(r[key] is not None for key in keys)]
        return mean(judged_both) if judged_both else None

    return {
        "tasks": len(rows),
        "missing": len(rows) - len(judged),
        "right": right(rows),
        "categories": {c: right(rows, c) for c in categories},
        **{key: average(key) for key in ("value", "process", "calls")},
        "tokens": average("prompt_tokens", "completion_tokens"),
        "stopped": dict(Counter(r["stop_reason"] for r in rows)),
    }


def here(row: Mapping[str, Any]) -> str:
    return f"{row['points']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})" if "points" in row else "-"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
