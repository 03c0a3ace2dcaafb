"""Verdicts on completions: the suite's verifier, and the same one in its strict and its lenient mode."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Sample, Score, ScoreStatus, VerifierConfig

if TYPE_CHECKING:
    from rlhf_eval.suites import SuiteConfig
    from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig

LENIENT = ("lenient", "loose")
NOT_JUDGED = "not judged"


def reward_of(suite: SuiteConfig, ctx: BuildContext, mode: str | None = None) -> VerifierRewardConfig:
    """The core's verifier reward, which runs in worker processes, for a resolved suite."""
    chosen: Any = suite.verifier
    verifier = {**chosen.model_dump(), **({"mode": mode} if mode else {})}
    timeout = {"timeout_s": suite.timeout_s} if suite.timeout_s else {}
    reward: Any = ctx.registry.config("reward", "verifier", {"verifier": verifier, "workers": suite.workers, **timeout})
    return reward


def modes_of(verifier: VerifierConfig) -> dict[str, str]:
    """``strict`` and ``lenient`` -> the verifier's own name of that mode; empty if it has not both."""
    field = type(verifier).model_fields.get("mode")
    modes = get_args(field.annotation) if field is not None else ()
    lenient = next((m for m in LENIENT if m in modes), None)
    return {"strict": "strict", "lenient": lenient} if lenient and "strict" in modes else {}


class Grader:
    """Worker processes for one verifier, and for its other mode, so that drift from strict to lenient shows."""

    def __init__(self, suite: SuiteConfig, ctx: BuildContext) -> None:
        verifier: Any = suite.verifier
        self.modes = modes_of(verifier)
        self.main = reward_of(suite, ctx).build(ctx)
        mode_of_main = getattr(verifier, "mode", None)
        self.other_modes: dict[str, Any] = {}
        self.same = next((name for name, mode in self.modes.items() if mode == mode_of_main), None)
        for name, mode in self.modes.items():
            if mode != mode_of_main:
                self.other_modes[name] = reward_of(suite, ctx, mode).build(ctx)

    def grade(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Columns of each sample's row: value, status, parts, detail, category, and strict and lenient values."""
        scores = self.main.score(samples)
        other_scores = {name: reward.score(samples) for name, reward in self.other_modes.items()}
        columns: list[dict[str, Any]] = []
        for i, score in enumerate(scores):
            columns.append(self._columns(score, {name: of_mode[i] for name, of_mode in other_scores.items()}))
        return columns

    def _columns(self, score: Score, other_scores: Mapping[str, Score]) -> dict[str, Any]:
        by_mode = {name: (score if name == self.same else other_scores[name]).value for name in self.modes}
        return {
            "value": score.value,
            "status": score.status.value,
            "parts": dict(score.parts),
            "detail": score.detail,
            "category": category(score),
            **by_mode,
        }

    def close(self) -> None:
        for reward in (self.main, *self.other_modes.values()):
            getattr(reward, "close", lambda: None)()


def category(score: Score) -> str:
    """Where a completion is counted: by form and answer if the verifier reports both, otherwise by the answer.

    Example:
        >>> category(Score(0.0, {"format": 1.0, "answer": 0.0}))
        'format only'
    """
    if score.status is not ScoreStatus.OK or score.value is None:
        return NOT_JUDGED
    right = score.value >= 1
    if "format" not in score.parts:
        return "right" if right else "wrong"
    form = score.parts["format"] >= 1
    return {
        (True, True): "format and answer",
        (True, False): "format only",
        (False, True): "answer only",
        (False, False): "neither",
    }[form, right]


def final_answer(detail: str) -> str | None:
    """The answer that a verifier reads (``stated '18'`` in ``Score.detail``), for majority votes; else None."""
    if not detail.startswith("stated "):
        return None
    answer = detail.removeprefix("stated ")
    try:
        return str(ast.literal_eval(answer)).strip() if answer[:1] in "'\"" else answer.strip()
    except (SyntaxError, ValueError):
        return answer.strip()
