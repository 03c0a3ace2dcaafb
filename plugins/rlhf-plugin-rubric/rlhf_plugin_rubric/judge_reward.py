"""The rubric's reward: a judge grades every completion online."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Judge, JudgeRequest, Sample, Score
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_judge.grading import close_judge, response_of
from rlhf_plugin_judge.verdict import Unusable, ask_json
from rlhf_plugin_rubric.config import RubricRewardConfig
from rlhf_plugin_rubric.rubric import BadGrades, Rubric

SYSTEM = """You grade the response of an assistant by each of these criteria, independently of the others:
{criteria}
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "grades": {{{names}}}}}
where each N is a whole number on the criterion's scale."""


class RubricReward:
    """``sum_c w_c (g_c - low_c) / (high_c - low_c)``, weights adding up to 1; one part per criterion, from 0 to 1."""

    def __init__(self, config: RubricRewardConfig, judge: Judge) -> None:
        self.config, self.judge, self.rubric = config, judge, config.rubric
        self.system = system_text(config.rubric)

    @classmethod
    def from_config(cls, config: RubricRewardConfig, ctx: BuildContext) -> RubricReward:
        return cls(config, config.judge.build(ctx))

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample, each from its own question; without grades for every criterion it has a status."""
        requests = [self.request(i, s) for i, s in enumerate(samples)]
        verdicts = ask_json(self.judge, requests, self.parse, self.config.asking.repair)
        return [v.missing if v.value is None else Score(self.rubric.value(v.value), v.value) for v in verdicts]

    def request(self, at: int, sample: Sample) -> JudgeRequest:
        asking = self.config.asking
        return JudgeRequest(
            f"{sample.prompt.id}#{at}",
            ({"role": "user", "content": shown(sample)},),
            self.system,
            asking.max_tokens,
            asking.temperature,
            asking.seed,
        )

    def parse(self, answer: dict[str, Any]) -> dict[str, float]:
        try:
            return self.rubric.read(answer.get("grades"))
        except BadGrades as error:
            raise Unusable(str(error)) from error

    def close(self) -> None:
        close_judge(self.judge)


def system_text(rubric: Rubric) -> str:
    rows = [f"- {c.name}, from {c.scale[0]} (worst) to {c.scale[1]} (best): {c.question}" for c in rubric.criteria]
    names = ", ".join(f'"{n}": N' for n in rubric.names)
    return SYSTEM.format(criteria="\n".join(rows), names=names)


def shown(sample: Sample) -> str:
    """The conversation, calls and results of an episode included, and the response."""
    return fence_untrusted(("response", response_of(sample)), conversation=sample.before)
