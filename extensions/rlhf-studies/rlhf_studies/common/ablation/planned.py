"""What each arm holds in memory at its peak, by `rlhf memory plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from rlhf_study.ablation.config import AblationConfig
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run, rlhf

PEAK = "measured/peak_megabytes"
ConfigOf = TypeVar("ConfigOf", bound=AblationConfig)


class Planned(Ablation[ConfigOf]):
    """Plans every run's memory; the run's model is not needed."""

    def measured(self, run: Run) -> Mapping[str, float]:
        plan = rlhf("memory", "plan", "--config", run.folder.with_name(f"{run.folder.name}.yaml"), "--json")
        return {"peak_megabytes": json.loads(plan)["peak"] / 1e6}
