"""Configurations of the reasoning-gym adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt

INSTRUCTION = "\n\nGive your final answer between <answer> and </answer>."


class GymDataConfig(ComponentConfig):
    """Problems of one reasoning-gym task (Stojanovski et al. 2025, arXiv:2505.24760), generated from a seed."""

    name: str = "reasoning_gym"
    component: ClassVar[str] = "rlhf_plugin_verifiers.gym.source:GymSource"
    downloads: ClassVar[bool] = False
    task: str
    """Its name there, for example ``chain_sum``."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The task's own options. Example: ``{min_terms: 2, max_terms: 4}``"""
    size: int = Field(500, ge=1)
    """Problems to train on."""
    seed: int = 0
    heldout_size: int = Field(100, ge=0)
    """Problems for held-out evaluation, from another seed; with 0 a share of the others is set aside."""
    instruction: str = INSTRUCTION
    """Follows every question."""

    def preflight(self, ctx: BuildContext) -> None:
        """Check that reasoning-gym is installed and knows the task and its options."""
        from rlhf_plugin_verifiers.gym.source import check_task

        check_task(self)


class GymVerifierConfig(VerifierConfig):
    """The task's own score of an answer, for rows of the data set ``reasoning_gym``, with its partial credit."""

    name: str = "reasoning_gym"
    component: ClassVar[str] = "rlhf_plugin_verifiers.gym.verifier:GymVerifier"
    needs_answer: ClassVar[bool] = False
    mode: Literal["strict", "lenient"] = "strict"
    """``strict`` wants ``<answer>...</answer>``; ``lenient`` else takes the last box, or the whole completion."""
    value: Literal["score", "right"] = "score"
    """``right`` gives nothing for less than a full score."""

    @property
    def format_markers(self) -> tuple[str, ...]:
        return ("<answer>",) if self.mode == "strict" else ()

    def check_prompt(self, prompt: Prompt) -> str | None:
        """The row must come from the data set ``reasoning_gym``."""
        if isinstance(prompt.meta.get("reasoning_gym"), dict):
            return None
        return "the row is not from the data set 'reasoning_gym' (dataset.name=reasoning_gym)"
