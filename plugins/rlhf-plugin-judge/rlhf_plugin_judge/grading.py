"""Absolute grades: each completion on a scale, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data import message_text
from rlhf_core.rewards import JudgeRequest, Sample, Score
from rlhf_plugin_judge.delimiters import delimited
from rlhf_plugin_judge.texts import read_completion
from rlhf_plugin_judge.verdict import Verdict, ask_json, number

if TYPE_CHECKING:
    from rlhf_core.rewards import Judge
    from rlhf_plugin_judge.rewards import JudgeRewardConfig

SYSTEM = """You grade the response of an assistant. {criterion}
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "grade": N}}
where N is a whole number from {low} (worst) to {high} (best)."""


class GradeReward:
    """``(grade - low) / (high - low)``; parts ``grade`` and ``repaired`` (1 where the judge had to be asked twice)."""

    def __init__(self, config: JudgeRewardConfig, judge: Judge) -> None:
        self.config, self.judge = config, judge
        self.system = SYSTEM.format(criterion=config.criterion, low=config.low, high=config.high)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        asking = self.config.asking
        requests = [self.request(i, s) for i, s in enumerate(samples)]
        return [self.as_score(v) for v in ask_json(self.judge, requests, self.parse, asking.repair)]

    def request(self, at: int, sample: Sample) -> JudgeRequest:
        asking = self.config.asking
        text = delimited(("response", response_of(sample)), conversation=sample.before)
        return JudgeRequest(
            f"{sample.prompt.id}#{at}",
            ({"role": "user", "content": text},),
            self.system,
            asking.max_tokens,
            asking.temperature,
            asking.seed,
        )

    def parse(self, answer: dict[str, Any]) -> float:
        """The grade; :class:`Unusable` if there is none on the scale."""
        return number(answer, "grade", self.config.low, self.config.high)

    def as_score(self, verdict: Verdict[float]) -> Score:
        """A grade on the scale from 0 to 1."""
        if verdict.value is None:
            return verdict.missing
        span = self.config.high - self.config.low
        parts = {"grade": verdict.value, "repaired": float(verdict.repaired)}
        return Score((verdict.value - self.config.low) / span, parts, detail=verdict.why)

    def close(self) -> None:
        close_judge(self.judge)


def response_of(sample: Sample) -> str:
    """What a judge grades: the completion, of an episode its last turn, with the calls that it ended in."""
    return read_completion(sample) if sample.call is None else message_text(sample.call)


def close_judge(judge: Any) -> None:
    """Close a judge that can be closed."""
    if callable(close := getattr(judge, "close", None)):
        close()
