"""Gains of single iterations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from rlhf_studies.speech_iterations.config import SpeechIterationsConfig
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run
from rlhf_study.tables import mean


class SpeechIterations(Ablation[SpeechIterationsConfig]):
    def measured(self, run: Run) -> Mapping[str, float]:
        values = [float(row[self.config.metric]) for row in run.rows(self.config.metric)]
        gains = [after - before for before, after in pairwise(values)]
        named = {f"gain_{number}": gain for number, gain in enumerate(gains, 1)}
        return {**named, **({"fourth_over_mean_of_three": gains[3] - mean(gains[:3])} if len(gains) > 3 else {})}
