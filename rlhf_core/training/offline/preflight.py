"""Checks of an offline run that need no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.training.offline.config import OfflineTrainerConfig


def check_offline(config: OfflineTrainerConfig, ctx: BuildContext) -> None:
    """Refuse what only an on-policy run has a use for.

    Raises:
        ConfigError: with the setting to leave out.
    """
    config.micro_batches(ctx.world_size)
    config.check_precision(ctx)
    if ctx.config.benchmarks:
        raise ConfigError(
            f"benchmarks have no effect with algorithm '{config.name}'",
            why="only an on-policy run samples completions during training",
            fix="leave them out; `rlhf eval watch RUN SUITE` evaluates its checkpoints",
        )
    for name in ("curriculum", "difficulty"):
        if getattr(ctx.config.dataset, name) is not None:
            raise ConfigError(
                f"dataset.{name} has no effect with algorithm '{config.name}'",
                why="only an on-policy run selects its prompts",
                fix=f"leave dataset.{name} out",
            )
