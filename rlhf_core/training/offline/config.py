"""Settings of trainers that learn from data. An algorithm subclasses one and changes defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.training.config import ModelLoopSettings, ReferencePlacement, SamplingSettings
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class OfflineTrainerConfig(ModelLoopSettings):
    """The offline loop: demonstrations or pairs, one update per batch."""

    learns_from_rows: ClassVar[bool] = True
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the data; fractions are fine. Of a mixture: as many draws, by weight, as all sources have rows."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after at most this many updates; ``epochs`` may end the run earlier."""
    batch_size: int = Field(default=32, ge=1)
    """Examples per optimizer update over all ranks; the last update of the run may have fewer."""
    max_length: int = Field(default=1024, ge=2)
    """Longer examples (prompt + completion tokens) are dropped, counted and summarised."""

    def sequences_per_update(self) -> int:
        """Examples of a full batch."""
        return self.batch_size

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse settings that only an on-policy run has a use for."""
        self.micro_batches(ctx.world_size)
        self.check_precision(ctx)
        if ctx.config.benchmarks:
            raise ConfigError(
                f"benchmarks have no effect with algorithm '{self.name}'",
                why="only an on-policy run samples completions during training",
                fix="leave them out; `rlhf eval watch RUN SUITE` evaluates its checkpoints",
            )
        for name in ("curriculum", "difficulty"):
            if getattr(ctx.config.dataset, name) is not None:
                raise ConfigError(
                    f"dataset.{name} has no effect with algorithm '{self.name}'",
                    why="only an on-policy run selects its prompts",
                    fix=f"leave dataset.{name} out",
                )


class PolicyTrainerConfig(OfflineTrainerConfig):
    """An offline trainer whose model can be sampled from."""

    sample_prompts: int = Field(default=0, ge=0)
    """Held-out prompts on which every evaluation samples the policy: lengths, KL from the start, the run's reward if
    there is one, and the gold score where the dataset has one. 0 samples nothing."""
    sampling: SamplingSettings = SamplingSettings()
    """How they are sampled."""
    track_kl: bool = True
    """Measure the KL of the samples; without LoRA this keeps a frozen copy of the model."""
    reference: ReferencePlacement | None = None
    """Of that copy. What a loss compares with is computed once, before training, in this ``dtype`` too;
    ``precomputed`` says that nothing else needs a copy."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a reward that would score nothing, besides what every offline run refuses."""
        super().preflight(ctx)
        if self.sample_prompts:
            scheduler("samples", "trainer.sample_prompts")
        if self.reference is not None:
            scheduler("reference", "trainer.reference")
            scheduler("checks", "trainer.reference")()(self, ctx)
        if ctx.config.reward is not None and not self.sample_prompts:
            raise ConfigError(
                f"reward '{ctx.config.reward.name}' has no effect: this run samples nothing",
                fix="--set trainer.sample_prompts=64, or leave the reward out",
            )
