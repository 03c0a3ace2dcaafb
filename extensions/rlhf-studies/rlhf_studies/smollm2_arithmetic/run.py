"""Train, and ask the model before and after."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.models import Formatter, ModelConfig
from rlhf_core.runs import wilson
from rlhf_core.training import SamplingSettings
from rlhf_plugin_verifiers.numeric import final_number
from rlhf_studies.common.outside import model_path
from rlhf_studies.common.real import configuration, recorded_cost
from rlhf_studies.smollm2_arithmetic.config import Smollm2ArithmeticConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown

Z = 1.959964
"""95 %."""
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}


class Smollm2Arithmetic(Study[Smollm2ArithmeticConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        model = model_path(self.config.model)
        settings = {**configuration("smollm2_arithmetic"), "seed": seed}
        cost_file = folder / "cost.json"
        with recorded_cost(cost_file):
            run = train(folder / "run", settings, {"model": {"path": model}}, self.config.train)
        before, after = (right(run.config, path, self.config.sums) for path in (model, str(run.final)))
        return {
            "heldout_sums": self.config.sums,
            **{how: compare(before[how], after[how]) for how in TEMPERATURES},
            "training": {**figures(run), "cost": json.loads(cost_file.read_text())},
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows: list[tuple[object, ...]] = []
        for seed, result in results.items():
            for how in TEMPERATURES:
                before, after, gain = (result[how][key] for key in ("before", "after", "gain"))
                shares = [interval((share["accuracy"], *share["interval"])) for share in (before, after)]
                rows.append((seed, how, *shares, interval((gain["points"], *gain["interval"]), 1)))
        return markdown(("seed", "asked", "before", "after", "more right, points"), rows)


def figures(run: Run) -> dict[str, Any]:
    """What the run's own files say of it; ``seconds`` has loading and held-out evaluations too."""
    steps, evaluations = run.rows("time"), run.rows("eval/reward/mean")
    trainer = run.config["trainer"]
    return {
        "steps": len(steps),
        "completions": len(steps) * trainer["rollout_batch_size"],
        "learning_rate": trainer["optimizer"]["learning_rate"],
        "seconds": run.summary["seconds"],
        "seconds_of_steps": round(sum(sum(step["time"].values()) for step in steps), 1),
        "reward_by_step": [round(step["reward/mean"], 3) for step in steps],
        "heldout_by_step": {str(row["step"]): round(row["eval/reward/mean"], 3) for row in evaluations},
    }


def right(settings: Mapping[str, Any], model: str, count: int) -> dict[str, list[bool]]:
    """Which of the first held-out sums of a configuration a model gets right, by way of asking."""
    ctx = context_of(open_registry(), seed=settings["seed"], dataset=settings["dataset"])
    prompts = ctx.datasets.prompts("heldout")[:count]
    sampler = load_sampler(ctx.registry, ModelConfig.model_validate({**settings["model"], "path": model}))
    formatter = Formatter(sampler.policy.tokenizer, "raw")
    sampling = SamplingSettings.model_validate(settings["trainer"]["sampling"])
    right: dict[str, list[bool]] = {}
    for how, temperature in TEMPERATURES.items():
        params = sampling.params(temperature=temperature)
        rollouts = sampler.sample(prompts, params, 1, settings["seed"], formatter)
        numbers = [final_number(rollout.text) for rollout in rollouts]
        right[how] = [n is not None and n.value == int(str(p.answer)) for n, p in zip(numbers, prompts)]
    return right


def compare(before: Sequence[bool], after: Sequence[bool]) -> dict[str, Any]:
    """Accuracies with Wilson intervals, and the difference with the interval of paired samples, all at 95 %."""
    change = [int(b) - int(a) for a, b in zip(before, after)]
    count, gain = len(change), sum(change) / len(change)
    half = Z * math.sqrt(sum((c - gain) ** 2 for c in change) / (count - 1) / count)
    return {
        "before": share(before),
        "after": share(after),
        "gain": {"points": round(100 * gain, 1), "interval": [round(100 * (gain + s * half), 1) for s in (-1, 1)]},
    }


def share(hits: Sequence[bool]) -> dict[str, Any]:
    rate = sum(hits) / len(hits)
    return {"accuracy": round(rate, 3), "interval": [round(bound, 3) for bound in wilson(rate, len(hits), Z)]}
