"""Configurations of the data sets with labelled steps; importing this imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from rlhf_core.config import ComponentConfig, ConfigError
from rlhf_core.data import JsonlConfig

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_prm.data.sources import Gsm8kSource, ProcessBenchSource


class ChainStepsConfig(ComponentConfig):
    """Chains of sums with labelled steps, generated; also prompts with answers and a gold score for policies.

    Right solutions and three kinds of wrong ones: ``carried`` ends in a wrong answer, ``slip`` and ``cancelled`` in the
    right one by wrong steps.
    """

    name: str = "chain_steps"
    component: ClassVar[str] = "rlhf_plugin_prm.data.sources:ChainSource"
    downloads: ClassVar[bool] = False
    chains: int = Field(default=2000, ge=2, le=100_000)
    """Different questions to train on; a quarter as many are held out."""
    terms: tuple[int, int] = (2, 4)
    """Fewest and most numbers added or taken away."""
    largest: int = Field(default=9, ge=3, le=99)
    """No number is larger, none below 0."""
    carried: float = Field(default=1.0, ge=0, le=4)
    """Wrong solutions of that kind per question; of a share below 1 the rest has none. A right one there always is."""
    slip: float = Field(default=0.0, ge=0, le=4)
    cancelled: float = Field(default=0.0, ge=0, le=4)
    seed: int = 0

    @model_validator(mode="after")
    def _order(self) -> ChainStepsConfig:
        low, high = self.terms
        if not 1 <= low <= high <= 12:
            raise ConfigError(f"terms {list(self.terms)} is not a range", fix="give fewest and most, from 1 to 12")
        return self


class Gsm8kStepsConfig(JsonlConfig):
    """GSM8K's files as solutions with labelled steps: each as published, and with one computed number changed.

    Without ``heldout_path`` a share of the *problems* is set aside, so that no solution of a held-out one is learned.
    """

    name: str = "gsm8k_steps"
    carried: int = Field(default=1, ge=0, le=8)
    """Wrong solutions per problem in which the later steps go on from the wrong number, to a wrong answer."""
    slip: int = Field(default=0, ge=0, le=8)
    """Wrong solutions per problem in which they do not, and the answer is right."""
    problems: int | None = Field(default=None, ge=2)
    """Use so many problems of each file, drawn by ``seed``; None takes all."""
    heldout_share: float = Field(default=0.05, gt=0, lt=1)
    """Of the problems, without ``heldout_path``."""
    seed: int = 0

    def build(self, ctx: BuildContext) -> Gsm8kSource:
        from rlhf_plugin_prm.data.sources import Gsm8kSource

        return Gsm8kSource(self, super().build(ctx))


class ProcessBenchConfig(JsonlConfig):
    """ProcessBench's files (Zheng et al. 2024): ``problem``, ``steps``, ``label`` = first wrong step or -1, and
    ``final_answer_correct``."""

    name: str = "processbench"

    def build(self, ctx: BuildContext) -> ProcessBenchSource:
        from rlhf_plugin_prm.data.sources import ProcessBenchSource

        return ProcessBenchSource(super().build(ctx))
