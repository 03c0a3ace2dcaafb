"""Configurations of verifiers and of the reward that calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, create_model

from rlhf_core.config import ComponentConfig, component
from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt


VerifierField = component("verifier")
AnyReward = component("reward")
DEADLINE_S = 5.0
"""For a verdict, unless the verifier needs longer."""


class NumericVerifierConfig(VerifierConfig):
    """Compares the number that a completion states with the reference answer.

    The number is the last one after ``####``, "the answer is" or inside ``\\boxed{}``, otherwise the last one of the
    text. Signs, thousands separators, ``$``, ``%``, units and fractions are understood; ``3/4`` equals ``0.75``.
    """

    name: str = "numeric"
    component: ClassVar[str] = "rlhf_plugin_verifiers.numeric:NumericVerifier"
    tolerance: float = Field(default=1e-6, ge=0)
    """Relative difference that still counts as equal where one side has a decimal point; below 1 absolute, and at most
    its root relative to the larger: 1e-7 is not 2e-7."""
    format_weight: float = Field(default=0.0, ge=0, lt=1)
    """Share of the value given for stating the answer in one of the three forms, right or wrong."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """A reference answer is a number and nothing else, or a GSM8K solution that ends with ``#### X``."""
        from rlhf_plugin_verifiers.numeric import why_no_number

        return None if prompt.answer is None else why_no_number(prompt.answer)


class VerifierRewardConfig(ComponentConfig):
    """Rewards a completion with the verdict of a verifier, which runs in worker processes that are killed when late."""

    name: str = "verifier"
    component: ClassVar[str] = "rlhf_plugin_verifiers.reward:VerifierReward"
    has_workers: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ("verifier.mode",)
    """Settings that may change between steps (``trainer.schedules``)."""
    verifier: VerifierField = NumericVerifierConfig()  # pyright: ignore[reportInvalidTypeForm]
    """Which verifier; ``numeric`` unless another is named."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds for one verdict; a late worker is killed and the score's status is ``timeout``. None is 5 s, or as long
    as the verifier's own deadlines need on a busy machine."""
    workers: int = Field(2, ge=1, le=1024)
    """Processes of each training process."""
    start_timeout_s: float = Field(60.0, gt=0)
    """Seconds for a worker to import and build the verifier."""
    memory_mb: int | None = Field(4096, ge=64)
    """Address space of a worker (Linux); a call that wants more gets ``MemoryError``. None lifts the limit."""
    recycle_after_calls: int | None = Field(None, ge=1)
    """A worker is replaced after so many calls; None keeps it."""
    recycle_above_mb: int | None = Field(None, ge=64)
    """A worker whose resident memory is above this after a call is replaced (Linux); None keeps it."""

    @property
    def deadline_s(self) -> float:
        needed_s = getattr(self.verifier, "busy_seconds", getattr(self.verifier, "seconds", 0.0))
        return max(DEADLINE_S, needed_s) if self.timeout_s is None else self.timeout_s

    def check_prompt(self, prompt: Prompt, *, sampled: bool = False) -> str | None:
        """Why no completion of a prompt can be judged; see :func:`rlhf_plugin_verifiers.graded.why_refused`."""
        from rlhf_plugin_verifiers.graded import why_refused

        return why_refused(self.verifier, prompt, sampled=sampled)

    def preflight(self, ctx: BuildContext) -> None:
        """Check that there are reference answers, that every prompt can be judged, and that there is time enough."""
        from rlhf_plugin_verifiers.reward import check_answers, check_deadline

        check_deadline(self)
        check_answers(self, ctx)


def reward_of(verifier: Any, module: str, rewarded: str) -> type[VerifierRewardConfig]:
    """The configuration, in ``module``, of a reward that calls one verifier, under its name."""
    name = verifier.model_fields["name"].default
    return create_model(
        verifier.__name__.removesuffix("Config").removesuffix("Verifier") + "RewardConfig",
        __base__=VerifierRewardConfig,
        __module__=module,
        __doc__=f"Rewards {rewarded}; see verifier ``{name}``.",
        name=(str, name),
        verifier=(VerifierField, verifier(name=name)),
    )


class RewardWorkersConfig(ComponentConfig):
    """Calls a reward in worker processes, one completion at a time: what ``trainer.reward_workers`` makes of the run's
    reward. One that hangs or crashes is killed and replaced, and its completion has no score."""

    name: str = "workers"
    component: ClassVar[str] = "rlhf_plugin_verifiers.workers.pool:RewardWorkers"
    has_workers: ClassVar[bool] = True
    of: AnyReward  # pyright: ignore[reportInvalidTypeForm]
    """The reward. It may keep no state and needs neither the policy nor other completions."""
    workers: int = Field(2, ge=1, le=1024)
    """Processes of each training process."""
    timeout_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Seconds for one completion."""

    def check_prompt(self, prompt: Prompt, *, sampled: bool = False) -> str | None:
        """What the reward says of a prompt."""
        check = getattr(self.of, "check_prompt", None)
        return None if check is None else check(prompt, sampled=sampled)

    def preflight(self, ctx: BuildContext) -> None:
        """Check the reward as if it were the run's."""
        if getattr(ctx.config, "reward", None) is self:
            ctx = ctx.with_(config=ctx.config.model_copy(update={"reward": self.of}))
        self.of.preflight(ctx)
