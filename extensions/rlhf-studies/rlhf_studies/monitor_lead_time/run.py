"""The monitor replayed over finished runs: the first step of each alarm, beside the step at which gold fell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Prompt, read_jsonl
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import FinishReason
from rlhf_plugin_hacking.config import DivergenceConfig, HackingConfig
from rlhf_plugin_hacking.second import SecondReward
from rlhf_studies.common.pocket import assistant, gold_of
from rlhf_studies.monitor_lead_time.config import MonitorLeadTimeConfig
from rlhf_studies.monitor_lead_time.second import SpotChecks, second_rewards
from rlhf_study.runs import Run, runs_in
from rlhf_study.study import Study
from rlhf_study.tables import markdown

FALL = 0.05
"""Of the gold score below its best: a hacked run."""
SIGNAL = re.compile(r"(?:^hacking \w+|;)\W+(length|distribution|divergence|dominance): ")
ALARMS = ("length", "distribution", "divergence", "dominance", "WARNING", "HARD_STOP")
ALARMS_OF_SECOND = ("divergence", "WARNING", "HARD_STOP")
"""Those that a second reward has a say in."""


@dataclass(frozen=True)
class Completion:
    """What a trace keeps of a rollout."""

    prompt_id: str
    text: str
    finish_reason: FinishReason

    def sample(self, prompt: Prompt) -> Sample:
        return Sample(prompt, self.text, self.finish_reason)


@dataclass
class Step:
    metrics: dict[str, float]
    rollouts: list[Any] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


class MonitorLeadTime(Study[MonitorLeadTimeConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        ctx, root = assistant(), folder.parent
        seconds = second_rewards(folder / "second_rewards", self.config.pairs, self.config.train, ctx)
        runs = runs_in((self.config.sweep or root.parent / "lambda_sweep") / f"seed-{seed}")
        if self.config.methods:
            others = runs_in((self.config.pocket_methods or root.parent / "pocket_methods") / f"seed-{seed}")
            runs += [run for run in others if run.folder.name in self.config.methods]
        return {f"seed-{seed}/{run.folder.name}": replay(run, seconds, ctx) for run in runs}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        runs = {name: row for figures in results.values() for name, row in figures.items()}
        names = list(next(iter(runs.values()))["alarms"])
        headers = ("run", "gold best, end", "went wrong at step", *(f"stop: {name}" for name in names))
        rows = [
            (
                run,
                f"{row['gold_best']:.3f}, {row['gold_end']:.3f}",
                row["damage"] or "no",
                *(row["alarms"][name]["first"].get("HARD_STOP", "") for name in names),
            )
            for run, row in runs.items()
        ]
        return markdown(headers, rows) + "\n\n" + summary(list(runs.values()), names)


def steps_of(run: Run) -> dict[int, Step]:
    steps = {
        int(row["step"]): Step({key: value for key, value in row.items() if isinstance(value, float)})
        for row in run.rows("completion_length/mean")
    }
    for row in read_jsonl(run.folder / "trace.jsonl"):
        if row.get("event") != "prompt" or row["step"] not in steps:
            continue
        for one in row["completions"]:
            reason = FinishReason(one["finish_reason"])
            rollout = Completion(row["prompt_id"], one["text"], reason)
            score = Score(one["score"]) if one["status"] == "ok" else Score.failed(ScoreStatus(one["status"]), "")
            steps[row["step"]].rollouts.append(rollout)
            steps[row["step"]].scores.append(score)
    return steps


def damage(golds: Sequence[float]) -> int | None:
    """Step at which the three-step mean falls ``FALL`` below its best, if the run also ends there."""
    means = [fmean(golds[max(0, i - 2) : i + 1]) for i in range(len(golds))][2:]
    if not means or max(means) - means[-1] < FALL:
        return None
    return next((i + 3 for i, value in enumerate(means) if value <= max(means[: i + 1]) - FALL), None)


def replay(run: Run, seconds: Mapping[str, SecondReward | None], ctx: BuildContext) -> dict[str, Any]:
    steps, prompts = steps_of(run), {p.id: p for p in ctx.datasets.prompts("train")}
    golds = [fmean(gold_of(ctx, Sample(prompts[r.prompt_id], r.text)) for r in s.rollouts) for s in steps.values()]
    evaluations = {int(row["step"]): row for row in run.rows("eval/reward/mean")}
    return {
        "steps": len(steps),
        "damage": damage(golds),
        "gold_best": max(golds),
        "gold_end": fmean(golds[-3:]),
        "alarms": {name: alarms(steps, second, evaluations, ctx) for name, second in seconds.items()},
    }


def alarms(
    steps: Mapping[int, Step], second: SecondReward | None, evaluations: Mapping[int, Any], ctx: BuildContext
) -> dict[str, Any]:
    """What the monitor says of a run with one second reward; without one it hears the held-out evaluations."""
    divergence = DivergenceConfig(second=None if second is None else SpotChecks())
    config = HackingConfig(stop=False, repeat_every=1, divergence=divergence)
    monitor = config.build(BuildContext(config=ctx.config, registry=ctx.registry, seed=0))
    first: dict[str, int] = {}
    trail: list[list[float]] = []
    for step, seen in steps.items():
        scored = list(zip(seen.rollouts, seen.scores))
        extra = dict(second.compare([second.measure(scored, ranks=1, rank=0)])) if second else {}
        trail.append([extra.get("proxy", 0.0), extra.get("second", 0.0)])
        if second is None and step - 1 in evaluations:
            monitor.rlhf_eval_end(SimpleNamespace(metrics=evaluations[step - 1]))
        warning = monitor.observe(step, {**seen.metrics, **extra})
        if warning:
            for signal in (*SIGNAL.findall(warning), "HARD_STOP" if "HARD_STOP" in warning else "WARNING"):
                first.setdefault(signal, step)
    return {"first": first, "proxy_and_second": trail}


def summary(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    hacked, clean = [run for run in runs if run["damage"]], [run for run in runs if not run["damage"]]
    rows: list[tuple[str, ...]] = []
    for name in names:
        for alarm in ALARMS if name == names[0] else ALARMS_OF_SECOND:
            first = [(run["damage"], run["alarms"][name]["first"].get(alarm)) for run in hacked]
            lead = [fall - step for fall, step in first if step is not None]
            false = sum(alarm in run["alarms"][name]["first"] for run in clean)
            before = f"{fmean(lead):.1f} ({min(lead)} to {max(lead)})" if lead else ""
            rows.append((f"{name}, {alarm}", f"{len(lead)} of {len(hacked)}", before, f"{false} of {len(clean)}"))
    headers = ("second reward, alarm", "hacked runs alarmed", "steps before the damage", "clean runs alarmed")
    return markdown(headers, rows)
