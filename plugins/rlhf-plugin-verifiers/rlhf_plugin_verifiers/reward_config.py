"""Configurations of verifiers and of the reward that calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.slots import component

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.types.rollouts import Prompt


VerifierField = component("verifier")
DEADLINE_S = 5.0
"""For a verdict, unless the verifier needs longer."""


class VerifierConfig(ComponentConfig):
    """Base of a verifier's Config. It is built in a worker process: the context has a registry, no run config."""

    needs_answer: ClassVar[bool] = True
    """Whether the verdict compares with ``Prompt.answer``; if so, a dataset without answers is refused."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """Why no completion of this prompt could be judged (for example a reference answer that does not parse); None
        if it can. Called for every row when the dataset loads, so it must be quick; the error names file and line.
        """
        return None

    @property
    def asked_form(self) -> tuple[str, ...]:
        """Strings that no completion brings unless its prompt asks for them, such as ``<answer>``, and without which
        every verdict is 0. A run whose prompts do not hold them is refused.
        """
        return ()

    @property
    def seconds(self) -> float:
        """The longest that a verdict takes with these settings, by the verifier's own deadlines; 0 if it has none."""
        return 0.0

    @property
    def busy_seconds(self) -> float:
        """The longest that a verdict takes on a machine that is busy with other things; the worker's deadline unless
        the user sets one.
        """
        return self.seconds

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables with keys or tokens that its worker needs, which gets no others of that kind."""
        return ()


class NumericVerifierConfig(VerifierConfig):
    """Compares the number that a completion states with the reference answer.

    The number is the last one after ``####``, "the answer is" or inside ``\\boxed{}``, otherwise the last one of the
    text. Signs, thousands separators, ``$``, ``%``, units and fractions are understood; ``3/4`` equals ``0.75``.
    """

    name: str = "numeric"
    component: ClassVar[str] = "rlhf_plugin_verifiers.numeric:NumericVerifier"
    tolerance: float = Field(default=1e-6, ge=0)
    """Relative difference that still counts as equal; absolute below 1."""
    format_weight: float = Field(default=0.0, ge=0, lt=1)
    """Share of the value given for stating the answer in one of the three forms, right or wrong."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """A reference answer must hold a number."""
        from rlhf_plugin_verifiers.numeric import stated_number

        if prompt.answer is None or stated_number(prompt.answer) is not None:
            return None
        return f"the reference answer {prompt.answer[:60]!r} holds no number"


class VerifierRewardConfig(ComponentConfig):
    """Rewards a completion with the verdict of a verifier, which runs in worker processes that are killed when late."""

    name: str = "verifier"
    component: ClassVar[str] = "rlhf_plugin_verifiers.reward:VerifierReward"
    verifier: VerifierField = NumericVerifierConfig()  # pyright: ignore[reportInvalidTypeForm]
    """Which verifier; ``numeric`` unless another is named."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds for one verdict; a late worker is killed and the score's status is ``timeout``. None is 5 s, or as long
    as the verifier's own deadlines need on a busy machine."""
    workers: int = Field(2, ge=1)
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
        """Seconds for one verdict."""
        needed_s = getattr(self.verifier, "busy_seconds", getattr(self.verifier, "seconds", 0.0))
        return max(DEADLINE_S, needed_s) if self.timeout_s is None else self.timeout_s

    def preflight(self, ctx: BuildContext) -> None:
        """Check that there are reference answers, that every prompt can be judged, and that there is time enough."""
        from rlhf_plugin_verifiers.reward import check_answers, check_deadline

        check_deadline(self)
        check_answers(self, ctx)
