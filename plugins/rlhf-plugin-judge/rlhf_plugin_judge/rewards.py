"""Settings of the reward and the verifier that ask a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, Config, ConfigError, component
from rlhf_core.data import Message, Prompt
from rlhf_core.rewards import JudgeRequest, VerifierConfig
from rlhf_plugin_judge.config import AnthropicConfig

if TYPE_CHECKING:
    from rlhf_plugin_judge.grading import GradeReward
    from rlhf_plugin_judge.pairwise import PairwiseReward

JudgeField = component("judge")


class Asking(Config):
    """How a question is put."""

    max_tokens: int = Field(default=512, ge=1)
    """Longest answer, its reasons included."""
    temperature: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**64)
    repair: bool = True
    """Ask once more where the answer is not the JSON that was asked for."""

    def request(self, name: str, text: str, system: str) -> JudgeRequest:
        turns: tuple[Message, ...] = ({"role": "user", "content": text},)
        return JudgeRequest(name, turns, system, self.max_tokens, self.temperature, self.seed)


class Comparing(Asking):
    """How two responses are compared."""

    form: Literal["json", "short"] = "json"
    """``short`` asks as a generative reward model was trained (`rlhf judge prompts`): A or B, without a criterion."""
    votes: int = Field(default=1, ge=1)
    """Answers in each order, by their own seeds; the share of votes is the probability of being better. Several need a
    temperature."""

    @model_validator(mode="after")
    def _differ(self) -> Comparing:
        if self.votes > 1 and self.temperature == 0:
            raise ConfigError(
                f"asking.votes {self.votes} with temperature 0",
                why="all votes would be the same answer",
                fix="asking.temperature=1, or asking.votes=1",
            )
        return self


class JudgeRewardConfig(ComponentConfig):
    """Grades of a judge, or its comparisons within a group."""

    name: str = "judge"
    judge: JudgeField = AnthropicConfig(name="anthropic")  # pyright: ignore[reportInvalidTypeForm]
    mode: Literal["grade", "pairwise"] = "grade"
    """``grade``: each completion on a scale. ``pairwise``: the share of comparisons won within its group, each asked in
    both orders, so that liking what comes first cancels out. Held-out prompts get one completion, with nothing to
    compare it with: ``eval/reward/missing`` counts them."""
    criterion: str = "How well does the response do what the user asked for: is it right, complete, and to the point?"
    low: int = 1
    """Worst grade; it becomes 0."""
    high: int = 10
    """Best grade; it becomes 1."""
    rivals: int | None = Field(default=None, ge=2)
    """``pairwise``: compare each completion with so many of its group, an odd number less one; None with all."""
    asking: Comparing = Comparing()

    @model_validator(mode="after")
    def _scale(self) -> JudgeRewardConfig:
        if self.mode == "grade" and (self.asking.form, self.asking.votes) != ("json", 1):
            raise ConfigError("reward 'judge': asking.form and asking.votes compare", fix="reward.mode=pairwise")
        if self.low >= self.high:
            raise ConfigError(
                f"reward 'judge': the scale from {self.low} to {self.high} is empty",
                fix="reward.low must be below reward.high",
            )
        return self

    def preflight(self, ctx: BuildContext) -> None:
        self.judge.preflight(ctx)
        size = getattr(getattr(ctx.config, "trainer", None), "group_size", None)
        if self.mode == "pairwise" and size == 1:
            raise ConfigError(
                "reward 'judge' compares the completions of a prompt, and there is one of each",
                where="trainer.group_size",
                fix="trainer.group_size=4, or reward.mode=grade",
            )

    def build(self, ctx: BuildContext) -> GradeReward | PairwiseReward:
        judge: Any = self.judge.build(ctx)
        if self.mode == "grade":
            from rlhf_plugin_judge.grading import GradeReward

            return GradeReward(self, judge)
        from rlhf_plugin_judge.pairwise import PairwiseReward

        return PairwiseReward(self, judge)


class JudgeVerifierConfig(VerifierConfig):
    """A judge's yes or no, one completion at a time, in a worker process; 1.0 or 0.0."""

    name: str = "judge"
    component: ClassVar[str] = "rlhf_plugin_judge.grading:JudgeVerifier.from_config"
    needs_answer: ClassVar[bool] = False
    judge: JudgeField = AnthropicConfig(name="anthropic")  # pyright: ignore[reportInvalidTypeForm]
    criterion: str = "Is the response correct?"
    """A question that yes answers where the completion is good."""
    reference: Literal["if_any", "required", "never"] = "if_any"
    """Whether the judge is shown the prompt's reference answer."""
    asking: Asking = Asking()

    @model_validator(mode="after")
    def _no_batches(self) -> JudgeVerifierConfig:
        if getattr(self.judge, "batches", False):
            raise ConfigError(
                "verifier 'judge' asks one question at a time, and its judge sends message batches",
                why="each would be a batch of one, which may take a day",
                fix="verifier.judge.batches=false, or --reward judge, which asks all questions together",
            )
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(getattr(self.judge, "secrets", ()))

    @property
    def seconds(self) -> float:
        """Two questions at most, each as long as the judge may take."""
        return (2 if self.asking.repair else 1) * float(getattr(self.judge, "seconds", 0.0))

    def check_prompt(self, prompt: Prompt) -> str | None:
        """With ``reference: required``, a prompt has an answer."""
        return "it has no reference answer" if self.reference == "required" and prompt.answer is None else None

    def preflight(self, ctx: BuildContext) -> None:
        self.judge.preflight(ctx)
