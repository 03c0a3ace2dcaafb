"""Verifier: a judge's yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_core.rewards import JudgeRequest, Sample, Score
from rlhf_plugin_judge.delimiters import delimited
from rlhf_plugin_judge.grading import close_judge, response_of
from rlhf_plugin_judge.verdict import Unusable, ask_json

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.rewards import Judge
    from rlhf_plugin_judge.rewards import JudgeVerifierConfig

SYSTEM = """You check the response of an assistant. {criterion}
Think in one or two sentences. Then write one JSON object and nothing after it:
{{"why": "...", "verdict": true}}
where "verdict" is true for yes and false for no."""
COMPARE = "\nThe reference answer is right; a response that says the same in other words is right too."


class JudgeVerifier:
    """1.0 for yes, 0.0 for no; parts ``yes`` and ``repaired``."""

    def __init__(self, config: JudgeVerifierConfig, judge: Judge) -> None:
        self.config, self.judge = config, judge
        self.system = SYSTEM.format(criterion=config.criterion)

    @classmethod
    def from_config(cls, config: JudgeVerifierConfig, ctx: BuildContext) -> JudgeVerifier:
        return cls(config, config.judge.build(ctx))

    def verify(self, sample: Sample) -> Score:
        asking = self.config.asking
        verdict = ask_json(self.judge, [self.request(sample)], yes, asking.repair)[0]
        if verdict.value is None:
            return verdict.missing
        parts = {"yes": float(verdict.value), "repaired": float(verdict.repaired)}
        return Score(float(verdict.value), parts, detail=verdict.why)

    def request(self, sample: Sample) -> JudgeRequest:
        asking, answer = self.config.asking, sample.prompt.answer
        shown = answer is not None and self.config.reference != "never"
        text = delimited(
            *([("reference", str(answer))] if shown else []),
            ("response", response_of(sample)),
            conversation=sample.before,
        )
        system = self.system + (COMPARE if shown else "")
        return JudgeRequest(
            sample.prompt.id,
            ({"role": "user", "content": text},),
            system,
            asking.max_tokens,
            asking.temperature,
            asking.seed,
        )

    def close(self) -> None:
        close_judge(self.judge)


def yes(answer: dict[str, Any]) -> bool:
    value = answer.get("verdict")
    if not isinstance(value, bool):
        raise Unusable('"verdict" must be true or false')
    return value
