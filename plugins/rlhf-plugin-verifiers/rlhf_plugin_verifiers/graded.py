"""What most verifiers here are: a comparison of a completion with its prompt, as a verdict with parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus, VerifierConfig


class Comparison(NamedTuple):
    """Whether an answer is in the required form, whether it is right, and why not."""

    format: bool
    right: bool
    detail: str


class GradedVerifier:
    """A comparison with parts ``format``, ``answer`` and ``reward``; ``format_weight`` is the form's share."""

    def __init__(
        self, config: VerifierConfig, compare: Callable[[str, Prompt], Comparison], format_weight: float = 0.0
    ) -> None:
        self.config, self.compare, self.format_weight = config, compare, format_weight

    def verify(self, sample: Sample) -> Score:
        prompt = sample.prompt
        why = self.config.check_prompt(prompt)
        if why is None and self.config.needs_answer and prompt.answer is None:
            why = f"prompt {prompt.id} has no reference answer"
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        comparison = self.compare(sample.completion, prompt)
        value = (1 - self.format_weight) * comparison.right + self.format_weight * comparison.format
        parts = {
            "format": float(comparison.format),
            "answer": float(comparison.right),
            "reward": float(comparison.right),
        }
        return Score(value, parts, detail=comparison.detail)
