"""Checks of an on-policy run that need no model: pieces against each other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rlhf_core.data.curriculum import read_values
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.rl.config import OnlineTrainerConfig

log = logging.getLogger("rlhf")


def check_online(config: OnlineTrainerConfig, ctx: BuildContext) -> None:
    """Refuse combinations that cannot learn or would learn the wrong thing.

    Raises:
        ConfigError: with the setting to change.
    """
    run = ctx.config
    for slot in ("loss", "advantage", "reward"):
        if getattr(run, slot) is None:
            raise ConfigError(
                f"algorithm '{config.name}' needs a {slot}",
                fix=f"--set {slot}.name=...; rlhf plugins list --kind {slot}",
            )
    check_groups(config, ctx)
    warn_of_kl(config)
    config.micro_batches(ctx.world_size)
    if config.target_kl is not None and config.updates_per_step == 1:
        raise ConfigError(
            f"target_kl {config.target_kl} would have no effect: each rollout batch makes one update",
            fix="raise epochs_per_rollout_batch or lower train_batch_size, or leave it out",
        )
    if run.dataset.curriculum is not None:
        read_values(run.dataset.curriculum)
    config.check_precision(ctx)
    check_sampling(config)
    config.check_rollouts(ctx)
    check_update_shares(config, ctx.world_size)


def check_groups(config: OnlineTrainerConfig, ctx: BuildContext) -> None:
    """Groups are large enough for what compares their completions."""
    advantage = ctx.config.advantage
    assert advantage is not None
    least = advantage.least_group_size
    adaptive = config.adaptive_sampling
    size = config.group_size if adaptive is None else adaptive.smallest_group
    if size < least:
        raise ConfigError(
            f"group size {size} is too small: advantage '{advantage.name}' compares at least {least} "
            "completions of a prompt",
            why="with fewer every advantage is zero and nothing is learned",
            fix=f"--set trainer.group_size={max(least, 8)}"
            if adaptive is None
            else f"--set trainer.adaptive_sampling.chunk_size={least}",
        )
    if config.dynamic_sampling is not None and size < 2:
        raise ConfigError(
            "dynamic_sampling compares the completions of a prompt, but trainer.group_size is 1",
            why="every group would be set aside and nothing learned",
            fix="--set trainer.group_size=4, or leave out trainer.dynamic_sampling",
        )
    if config.dynamic_sampling is not None and least < 2:
        raise ConfigError(
            f"dynamic_sampling replaces groups of equal scores, but advantage '{advantage.name}' learns from them too",
            why="it does not compare a prompt's completions with each other",
            fix="--set advantage.name=group_norm, or leave out trainer.dynamic_sampling",
        )


def check_sampling(config: OnlineTrainerConfig) -> None:
    """What is sampled has the probabilities that the trainer computes."""
    sampling = config.sampling
    if sampling.temperature == 0:
        raise ConfigError(
            "temperature 0 samples the same completion for the whole group",
            fix="--set trainer.sampling.temperature=1.0",
        )
    if sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0:
        raise ConfigError(
            "truncated sampling (top_p, top_k or min_p) cannot be combined with importance ratios",
            why="the behaviour policy's renormalised probabilities differ from the trained policy's full ones",
            fix="set top_p=1, top_k=0, min_p=0 for training; eval_sampling may truncate",
        )


def warn_of_kl(config: OnlineTrainerConfig) -> None:
    """Say it where the KL in the reward does not pull towards the reference policy."""
    kl = config.kl
    if kl.where == "reward" and kl.coefficient > 0 and kl.estimator != "k1":
        log.warning(
            "trainer.kl.estimator %s in the reward: a policy gradient on it is not the KL's "
            "(only k1 is right there: --set trainer.kl.estimator=k1; in the loss each is: --set trainer.kl.where=loss)",
            kl.estimator,
        )


def check_update_shares(config: OnlineTrainerConfig, world_size: int) -> None:
    """Every process gets as many whole groups of an update."""
    size = config.sequences_per_update()
    if size % (config.group_size * world_size):
        raise ConfigError(
            f"train_batch_size {size} cannot be divided among {world_size} processes in whole groups of "
            f"{config.group_size}",
            fix=f"make train_batch_size a multiple of {config.group_size * world_size}",
        )
