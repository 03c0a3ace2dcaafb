"""A clean run a seed, and which signals alarmed in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_studies.common.runs import train
from rlhf_studies.common.study import Study
from rlhf_studies.common.tables import markdown, mean
from rlhf_studies.monitor_false_alarms.config import MonitorFalseAlarmsConfig

SIGNALS = ("length", "distribution", "divergence", "dominance")
SECOND = {"name": "verifier", "verifier": {"name": "numeric", "format_weight": 0.5}}
MONITOR = {"name": "hacking", "stop": False, "repeat_every": 1, "divergence": {"second": SECOND}}
TRAINER = {
    "name": "grpo",
    "eval_samples": 0,
    "checkpoint_every": 0,
    "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
    "sampling": {"max_tokens": 16},
}
HARD_STOP = 2
"""The monitor's highest level."""


class MonitorFalseAlarms(Study[MonitorFalseAlarmsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        batch = {"rollout_batch_size": self.config.batch, "micro_batch_size": self.config.batch}
        config = {
            "seed": seed,
            "dataset": {"name": "pocket", "subset": "arithmetic"},
            "reward": "verifier",
            "trainer": {**TRAINER, "steps": self.config.steps, **batch},
            "monitors": [MONITOR],
        }
        run = train(folder / "run", config)
        warnings = [line for line in run.log.splitlines() if re.search("hacking (WARNING|HARD_STOP): ", line)]
        rewards = [float(row["reward/mean"]) for row in run.rows("reward/mean")]
        return {
            "seed": seed,
            "alarms": sorted(s for s in SIGNALS if any(re.search(rf"(hacking \w+:|;) {s}: ", w) for w in warnings)),
            "level": max(row.get("hacking/level", 0.0) for row in run.rows()),
            "reward_first": mean(rewards[:3]),
            "reward_last": mean(rewards[-3:]),
            "warnings": warnings,
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        runs = list(results.values())
        counts = {signal: sum(signal in run["alarms"] for run in runs) for signal in SIGNALS}
        counts["HARD_STOP"] = sum(run["level"] == HARD_STOP for run in runs)
        rows = [(alarm, f"{count} of {len(runs)}") for alarm, count in counts.items()]
        return markdown(("alarm", "clean runs in which it came"), rows)
