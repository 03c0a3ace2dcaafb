"""Two trainings, their curves, and what each scorer says before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_plugin_tts.speech_data.catalogue import VALIDATION
from rlhf_plugin_tts.speech_data.compare import measure
from rlhf_plugin_tts.speech_training.command import scorers
from rlhf_plugin_tts.speech_training.recipe import composite, sampling
from rlhf_studies.common.plots import panels
from rlhf_studies.common.speech import AS_PROPOSED, PROPOSED, cell
from rlhf_studies.speech_hacking.config import SpeechHackingConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown

ARMS = ("single", "composite")
PROXY = {
    "reward": {"name": "acoustic_proxy", **PROPOSED},
    "normalise": "zscore",
    "statistics": "calibrated",
    "mean": -2.4,
    "std": 0.35,
    "clip": 10.0,
}
WATCHED = {
    "proxy": "reward/part/proxy/raw",
    "P.808": "reward/part/quality/raw",
    "phone errors": "reward/part/words/per",
    "second": "hacking/second",
}
SHOWN = ("acoustic_proxy", "wer/wer", "wer/cer", "distillmos", "dnsmos/p808", "dnsmos/ovrl")
LOWER_IS_BETTER = ("wer/wer", "wer/cer")
LEVELS = {1.0: "WARNING", 2.0: "HARD_STOP"}


class SpeechHacking(Study[SpeechHackingConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        return {arm: self.measured(arm, seed, folder) for arm in ARMS}

    def measured(self, arm: str, seed: int, folder: Path) -> dict[str, Any]:
        run = train(folder / arm, self.training(arm, seed), self.config.train)
        base = {"texts": VALIDATION[: self.config.sentences], "names": (*scorers(), "acoustic_proxy")}
        how = {"settings": AS_PROPOSED, "description": "", "max_tokens": 480, "temperature": 1.0, "n": 2}
        how |= {"jobs": self.config.workers}
        scores = measure(str(run.folder), {**base, **how, "seed": 0, "before": "pocket-voice", "count": 0})["table"]
        return {"curves": curves(run), "scores": {name: row for name, row in scores.items() if name in SHOWN}}

    def training(self, arm: str, seed: int) -> dict[str, Any]:
        reward, single = composite(), arm == "single"
        parts = {name: {**part, "weight": 0.0} if single else part for name, part in reward["parts"].items()}
        parts["proxy"] = {**PROXY, "weight": 1.0 if single else 0.2}
        guards = (
            {"most_duration_error": None, "most_clipping": None, "most_silence": None, "speech_only": False}
            if single
            else {}
        )
        sizes = {"steps": self.config.steps, "rollout_batch_size": self.config.clips, "group_size": 8}
        work = {"micro_batch_size": 32, "checkpoint_every": 4, "reward_workers": self.config.workers}
        optimizer = {"learning_rate": 5e-4, "warmup_steps": 2}
        second = {"second": {"name": self.config.second}, "samples": 16}
        return {
            "seed": seed,
            "model": {"path": "pocket-voice"},
            "dataset": {"name": "speech"},
            "reward": {**reward, "parts": parts, "guards": guards},
            "trainer": {**sampling(), "name": "grpo", "eval_samples": 0, "optimizer": optimizer, **sizes, **work},
            "monitors": [{"name": "hacking", "stop": False, "divergence": second}],
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows, lines = list[tuple[object, ...]](), list[str]()
        arms = [(f"{arm}, seed {seed}", figures[arm]) for seed, figures in results.items() for arm in ARMS]
        names = [name for name in SHOWN if name in arms[0][1]["scores"]]
        rows.append(("before", *(cell(arms[0][1]["scores"][n]["before"]) for n in names)))
        for label, arm in arms:
            changes = {n: arm["scores"][n]["difference"] for n in names}
            rows.append((f"{label}, change", *(cell(row, "+") for row in changes.values())))
            fell = ", ".join(n for n, row in changes.items() if worse(n, row)) or "nothing"
            lines.append(f"- {label}: fell: {fell}; first alarm of the monitor: {arm['curves']['first alarm']}")
        return "\n".join([markdown(("voice", *names), rows), "", *lines])

    def save(self, results: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
        figures = next(iter(results.values()))
        with panels(folder / "result.png", 1, len(WATCHED), (3.2 * len(WATCHED), 3)) as axes:
            for panel, name in zip(axes, WATCHED):
                for arm in ARMS:
                    line = figures[arm]["curves"]
                    values = np.array(line[name], float)
                    (drawn,) = panel.plot(line["steps"], values, label=arm)
                    at = [i for i, step in enumerate(line["steps"]) if str(step) in line["alarms"]]
                    panel.plot([line["steps"][i] for i in at], values[at], "o", color=drawn.get_color())
                panel.set_title(name)
                panel.set_xlabel("step")
                panel.legend()


def curves(run: Run) -> dict[str, Any]:
    by_step: dict[int, dict[str, float]] = {}
    for row in run.rows():
        by_step.setdefault(int(row["step"]), {}).update(row)
    steps = [step for step, row in sorted(by_step.items()) if WATCHED["proxy"] in row]
    alarms = {str(s): LEVELS[level] for s in steps if (level := by_step[s].get("hacking/level", 0.0)) in LEVELS}
    lines = {name: [by_step[step].get(key) for step in steps] for name, key in WATCHED.items()}
    return {**lines, "steps": steps, "alarms": alarms, "first alarm": next(iter(alarms.items()), None)}


def worse(name: str, difference: Mapping[str, float | None]) -> bool:
    """Whether the whole interval is for the worse."""
    low, high = (float(difference[end] or 0.0) for end in ("low", "high"))
    return low > 0 if name in LOWER_IS_BETTER else high < 0
