"""What each arm's policy is worth beside the policy it began with: `rlhf eval policies` after every run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rlhf_studies.common.ablation.assistants import PAIRS
from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.run import Ablation, number_at
from rlhf_study.runs import Run, rlhf

FIGURES = {
    "gold": "gold/value",
    "hollow": "gold/hollow",
    "words": "gold/words",
    "reward": "reward/mean",
    "wins": "wins/gold/win_rate/rate",
    "kl": "kl/per_sequence",
    "gain_per_nat": "per_nat/value",
}
"""Metric ``measured/NAME`` -> where `rlhf eval policies` has it."""
GOLD, HOLLOW, WORDS, REWARD, WINS, KL, PER_NAT = (f"measured/{name}" for name in FIGURES)
ConfigOf = TypeVar("ConfigOf", bound=WorldAblation)


class Policies(Ablation[ConfigOf]):
    """Compares each arm's policy with the model that it began with, scored by the reward model ``@judge``."""

    data: ClassVar[Mapping[str, tuple[str, int]]] = {"pocket": ("pocket/assistant", 48), "real": (PAIRS["path"], 256)}
    """World -> where 200 held-out prompts come from, and most tokens of an answer."""

    def prior_artifacts(self, seed: int, folder: Path) -> dict[str, Path]:
        made = super().prior_artifacts(seed, folder)
        self.judge = made["judge"]
        return made

    def measured(self, run: Run) -> Mapping[str, float]:
        out = run.folder.with_name(f"{run.folder.name}-compared")
        if not (out / "result.json").is_file():
            start = run.config["model"]["path"]
            dataset, tokens = self.data[self.config.world]
            words = ["--baseline", start, "--policy", f"arm={run.final}", "--dataset", dataset, "--max-tokens", tokens]
            rlhf("eval", "policies", *words, "--reward-model", self.judge, "--out", out)
        policy: Any = json.loads((out / "result.json").read_text())["policies"]["arm"]
        values = {name: number_at(policy, path.split("/")) for name, path in FIGURES.items()}
        return {name: value for name, value in values.items() if value is not None}
