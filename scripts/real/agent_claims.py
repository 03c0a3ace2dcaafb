"""Every agent on every suite with small models on this machine, beside what another repository publishes.

    python -m scripts.real.agent_claims --work FOLDER --data DATA      # DATA: bfcl/ and tau_bench_retail/ are below it

Models are the embedded tool-user and, if $RLHF_SMOLLM2_GGUF names its file, SmolLM2-135M; ``--model`` adds others. Each
agent plays ``--tasks`` tasks of each category of each suite, of `agentbench_generated`, which has as many as are wanted
and is asked about most claims, ``--claim-tasks``. Zeros are kept. Evaluations are folders of `rlhf eval`, so the same
command goes on where it stopped; minutes are those of the clock, an evaluation's tasks being played side by side.

A published row is of a service's model on 36, 12 or 30 tasks, so the figures themselves cannot come out the same with
models of this size. What is asked of each row is what it claims: that an agent is better than the one before it, by so
many points. It is

reproduced              the 95 % interval of our difference (over tasks, paired) holds the claimed one and lies above
                        zero; of a claimed difference of zero: it holds zero and is at most 20 points long
contradicted            it does not hold the claimed one, and is short enough for that to mean something: at most twice
                        as long as the claimed difference (20 points for less than 10)
not resolvable here     anything else; always below 30 tasks, or where neither agent got a single one right
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import UserError
from rlhf_core.data import read_jsonl
from rlhf_core.data.atomic import write_json
from rlhf_eval.statistics import paired_difference
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.commands import compare
from rlhf_plugin_agents.harness import Job, evaluate, prepare
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from scripts.bench.__main__ import commit, machine
from scripts.real._claims import CLAIMS, NOT_HERE, Claim

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "bench" / "agent_claims.json"
AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent", "scratchpad", "code_executor")
OWN = ("agentbench_mini", "agentbench_generated", "chains", "injection", "code_debug", "gaia_mini")
BY_PATH = {"bfcl": "bfcl", "tau_bench": "tau_bench_retail"}
"""Suite -> its folder below --data."""
LIMITS: Mapping[str, Any] = {"max_turn_tokens": 160}
"""Of every play."""
IN_TURNS: Mapping[str, Any] = {"max_turns": 8}
"""Besides, of agents that go on until they answer: small models do not stop by themselves."""
ENOUGH = 30
"""Fewer tasks decide nothing."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """One agent on one suite with one model."""

    model: str
    suite: str
    agent: str
    rows: Sequence[Row]
    refused: str = ""
    minutes: float = 0.0

    def right(self, category: str = "") -> float | None:
        """Share of right answers, of those with a verdict."""
        rows = [r for r in self.of(category) if r["value"] is not None]
        return sum(bool(r["right"]) for r in rows) / len(rows) if rows else None

    def of(self, category: str = "") -> list[Row]:
        """Rows of a category, or of a level as ``level 1``; "" is all."""
        if category.startswith("level "):
            return [r for r in self.rows if str(r.get("level")) == category.removeprefix("level ")]
        return [r for r in self.rows if not category or r["category"] == category]

    def line(self) -> dict[str, Any]:
        """As it is recorded."""
        judged = [r for r in self.rows if r["value"] is not None]
        kinds = dict.fromkeys(r["category"] for r in self.rows)
        return {
            "model": self.model, "suite": self.suite, "agent": self.agent, "tasks": len(self.rows),
            "missing": len(self.rows) - len(judged), "right": self.right(),
            "categories": {c: self.right(c) for c in kinds},
            "answer": mean([r["value"] for r in judged]), "process": mean([r["process"] for r in judged]),
            "calls": mean([r["calls"] for r in judged]), "refused": self.refused,
            "tokens": mean([r["prompt_tokens"] + r["completion_tokens"] for r in judged]),
            "minutes": round(self.minutes, 2),
            "stopped": {s: sum(r["stop_reason"] == s for r in self.rows)
                        for s in dict.fromkeys(r["stop_reason"] for r in self.rows)},
        }  # fmt: skip


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that there are."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def suite_named(name: str, agent: str, args: argparse.Namespace, ctx: Any) -> AgentSuiteConfig | None:
    """A suite with its settings; None where its files are not there."""
    limits = {**LIMITS, **(IN_TURNS if agent in ("react", "code_executor") else {})}
    settings: dict[str, Any] = {"max_per_category": args.tasks, "agent_settings": limits}
    if name in BY_PATH:
        if args.data is None or not (args.data / BY_PATH[name]).is_dir():
            return None
        settings["path"] = str(args.data / BY_PATH[name])
    if name == "agentbench_generated":
        settings |= {"max_per_category": args.claim_tasks, "count": args.claim_tasks}
    if name == "chains":
        settings |= {"max_per_category": None, "count": args.tasks}
    suite = ctx.registry.config("benchmark", name, settings)
    assert isinstance(suite, AgentSuiteConfig)
    return suite


def short_of(model: str) -> str:
    """Its name in the tables: without its folder, and of a file without its ending."""
    return Path(model).stem if model.endswith(".gguf") else Path(model).name


def played(model: str, name: str, agent: str, args: argparse.Namespace) -> Played:
    """Play what has no verdict yet; what cannot be played at all says why."""
    ctx = context_of(open_registry())
    suite = suite_named(name, agent, args, ctx)
    short = short_of(model)
    if suite is None:
        return Played(short, name, agent, (), "its files are not there")
    job = Job(suite, suite.agent_config(agent), backend_of("native", {"model": {"path": model}}))
    count = args.claim_tasks if name == "agentbench_generated" else args.tasks
    place = args.work / short / f"{name}-{agent}-{count}"
    began, clock = time.monotonic(), place.with_name(f"{place.name}.seconds")
    try:
        if prepare(job, ctx, place).todo:
            evaluate(job, ctx, place, None, lambda text: None)
            spent = float(clock.read_text()) if clock.is_file() else 0.0
            clock.write_text(str(spent + time.monotonic() - began))
    except UserError as error:
        return Played(short, name, agent, (), str(error).splitlines()[0])
    minutes = float(clock.read_text()) / 60 if clock.is_file() else 0.0
    return Played(short, name, agent, list(read_jsonl(place / "rows.jsonl")), minutes=minutes)


def verdict(claim: Claim, found: Mapping[tuple[str, str], Played]) -> dict[str, Any]:
    """What becomes of a published difference with one model."""
    first, second = found.get((claim.suite, claim.first)), found.get((claim.suite, claim.second))
    told = {"claim": claim.text, "published_points": claim.points}
    if first is None or second is None or not first.rows or not second.rows:
        why = next((p.refused for p in (first, second) if p is not None and p.refused), "not played")
        return {**told, "verdict": f"not resolvable here: {why}"}
    result = compare(first.of(claim.category), second.of(claim.category))
    if not result["tasks"]:
        return {**told, "verdict": "not resolvable here: no task that both have a verdict on"}
    if claim.by == "value":
        result["difference"] = of_values(first.of(claim.category), second.of(claim.category))
    low, high = (100 * result["difference"][k] for k in ("low", "high"))
    measured = {
        **told, "tasks": result["tasks"], "first": first.right(claim.category), "second": second.right(claim.category),
        "points": 100 * result["difference"]["value"], "low": low, "high": high, "mcnemar": result["mcnemar"],
    }  # fmt: skip
    some = bool(measured["first"] or measured["second"])
    return {**measured, "verdict": called(claim.points, low, high, result["tasks"], any_right=some)}


def of_values(first: Sequence[Row], second: Sequence[Row]) -> dict[str, float]:
    """The paired difference of the tasks' values, where there is one trial of each."""
    a, b = ({r["task"]: float(r["value"]) for r in rows if r["value"] is not None} for rows in (first, second))
    shared = [task for task in a if task in b]
    return dict(paired_difference([a[t] for t in shared], [b[t] for t in shared])._asdict())


def called(points: float, low: float, high: float, tasks: int, *, any_right: bool) -> str:
    """The word for a difference, by the rule of this module."""
    if not any_right:
        return "not resolvable here: neither agent got a task right"
    if tasks < ENOUGH:
        return f"not resolvable here: {tasks} tasks"
    holds = low <= points <= high
    if points > 0 and low > 0 and holds:
        return "reproduced"
    if points == 0 and holds and high - low <= 20:
        return "reproduced"
    if not holds and high - low <= 2 * max(abs(points), 10):
        return "contradicted"
    return "not resolvable here"


def table(lines: Sequence[Mapping[str, Any]], claims: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Both tables as Markdown."""
    text = [
        "| model | suite | agent | tasks | right | process | calls | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in lines:
        cells = [number(one[k]) for k in ("right", "process", "calls", "minutes")]
        where = f"{one['model']} | {one['suite']} | {one['agent']} | {one['tasks']}"
        text.append(f"| {where} | {one['refused'] or cells[0]} | {' | '.join(cells[1:])} |")
    text += ["", "| published | model | points there | here, 95 % | tasks | |", "|---|---|---|---|---|---|"]
    for model, rows in claims.items():
        for row in rows:
            here = f"{row['points']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})" if "points" in row else "-"
            cells = [row["claim"], model, f"{row['published_points']:+.1f}", here, row.get("tasks", 0), row["verdict"]]
            text.append(f"| {' | '.join(map(str, cells))} |")
    text += [f"| {claim} | - | - | - | - | not resolvable here: {why} |" for claim, why in NOT_HERE.items()]
    return "\n".join(text)


def number(value: float | None) -> str:
    """Three digits, or "-"."""
    return "-" if value is None else f"{value:.3g}"


def main() -> None:
    """Play what is missing, print, record after each agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the evaluations are kept")
    data = os.environ.get("RLHF_TEST_DATA")
    parser.add_argument("--data", type=Path, default=Path(data) if data else None)
    parser.add_argument("--model", dest="models", action="append", default=[], help="beside the two")
    parser.add_argument("--suites", nargs="+", choices=[*OWN, *BY_PATH], default=[*OWN, *BY_PATH])
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--tasks", type=int, default=2, help="of each category")
    parser.add_argument("--claim-tasks", type=int, default=4, help="of each category of agentbench_generated")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args()
    gguf = os.environ.get("RLHF_SMOLLM2_GGUF")
    named: list[str] = ["pocket-tools", *([gguf] if gguf else []), *args.models]
    models = dict.fromkeys(named)
    if len({short_of(m) for m in models}) < len(models):
        parser.error(f"two models have the same name: {', '.join(map(short_of, models))}")
    everything: list[Played] = []
    for model in models:
        for suite in args.suites:
            for agent in args.agents:
                everything.append(played(model, suite, agent, args))
                print(everything[-1].line(), file=sys.stderr, flush=True)
                keep(everything, args)
    print(table(*keep(everything, args)), flush=True)


def keep(everything: Sequence[Played], args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write what there is so far; the lines and, by model, the claims."""
    lines = [one.line() for one in everything]
    claims: dict[str, Any] = {}
    for model in dict.fromkeys(one.model for one in everything):
        found = {(one.suite, one.agent): one for one in everything if one.model == model}
        claims[model] = [verdict(claim, found) for claim in CLAIMS]
    facts = {
        "tasks": args.tasks,
        "claim_tasks": args.claim_tasks,
        "limits": [LIMITS, IN_TURNS],
        "date": time.strftime("%Y-%m-%d"),
    }
    record = {"command": "python -m scripts.real.agent_claims", **facts, "commit": commit(), "machine": machine()}
    minutes = {m: round(sum(line["minutes"] for line in lines if line["model"] == m), 1) for m in claims}
    write_json(args.record, {**record, "minutes": minutes, "lines": lines, "claims": claims, "not_here": NOT_HERE})
    return lines, claims


if __name__ == "__main__":
    main()
