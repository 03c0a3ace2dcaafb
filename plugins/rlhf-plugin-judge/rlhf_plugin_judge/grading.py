"""One completion at a time: a grade on a scale, or a yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data import message_text
from rlhf_core.rewards import JudgeRequest, Sample, Score
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_judge.texts import read_completion
from rlhf_plugin_judge.verdict import Unusable, Verdict, ask_json, number

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.rewards import Judge
    from rlhf_plugin_judge.rewards import JudgeRewardConfig, JudgeVerifierConfig


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
        requests = [self.request(i, s) for i, s in enumerate(samples)]
        return [self.as_score(v) for v in ask_json(self.judge, requests, self.parse, self.config.asking.repair)]

    def request(self, at: int, sample: Sample) -> JudgeRequest:
        text = fence_untrusted(("response", response_of(sample)), conversation=sample.before)
        return self.config.asking.request(f"{sample.prompt.id}#{at}", text, self.system)

    def parse(self, answer: dict[str, Any]) -> float:
        return number(answer, "grade", self.config.low, self.config.high)

    def as_score(self, verdict: Verdict[float]) -> Score:
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
    if callable(close := getattr(judge, "close", None)):
        close()


YES_OR_NO = """You check the response of an assistant. {criterion}
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "verdict": true}}
where "verdict" is true for yes and false for no."""
COMPARE = "\nThe reference answer is right; a response that says the same in other words is right too."


class JudgeVerifier:
    """1.0 for yes, 0.0 for no; parts ``yes`` and ``repaired``."""

    def __init__(self, config: JudgeVerifierConfig, judge: Judge) -> None:
        self.config, self.judge = config, judge
        self.system = YES_OR_NO.format(criterion=config.criterion)

    @classmethod
    def from_config(cls, config: JudgeVerifierConfig, ctx: BuildContext) -> JudgeVerifier:
        return cls(config, config.judge.build(ctx))

    def verify(self, sample: Sample) -> Score:
        verdict = ask_json(self.judge, [self.request(sample)], yes, self.config.asking.repair)[0]
        if verdict.value is None:
            return verdict.missing
        parts = {"yes": float(verdict.value), "repaired": float(verdict.repaired)}
        return Score(float(verdict.value), parts, detail=verdict.why)

    def request(self, sample: Sample) -> JudgeRequest:
        answer = sample.prompt.answer
        shown = answer is not None and self.config.reference != "never"
        text = fence_untrusted(
            *([("reference", str(answer))] if shown else []),
            ("response", response_of(sample)),
            conversation=sample.before,
        )
        return self.config.asking.request(sample.prompt.id, text, self.system + (COMPARE if shown else ""))

    def close(self) -> None:
        close_judge(self.judge)


def yes(answer: dict[str, Any]) -> bool:
    value = answer.get("verdict")
    if not isinstance(value, bool):
        raise Unusable('"verdict" must be true or false')
    return value
