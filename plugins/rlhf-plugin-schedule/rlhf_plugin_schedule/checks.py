"""What is refused of settings that need this plugin, before anything is loaded. Imports nothing heavy."""

from __future__ import annotations

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.rl import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.settings import AdaptiveSampling, RolloutSettings
from rlhf_plugin_schedule.schedules import check_schedules


def check(trainer: RolloutTrainerConfig, ctx: BuildContext) -> None:
    """Refuse settings that contradict each other.

    Raises:
        UserError: with the setting to change.
    """
    curriculum = ctx.config.dataset.curriculum
    if curriculum is not None:
        from rlhf_plugin_schedule.curriculum import Curriculum

        Curriculum(curriculum)
    if trainer.adaptive_sampling is not None:
        check_adaptive(trainer.adaptive_sampling)
    if isinstance(trainer, OnlineTrainerConfig):
        check_rollouts(trainer.rollouts, trainer.updates_per_step)
        if trainer.schedules:
            check_schedules(trainer, ctx.config)
        if trainer.dynamic_sampling is not None:
            check_dynamic(trainer, ctx)
        if trainer.sampling.truncates:
            check_engine(ctx)


def check_engine(ctx: BuildContext) -> None:
    """The engine says what each draw could choose from."""
    engine = ctx.config.rollout
    if engine is None or getattr(engine, "gives_support", False):
        return
    raise ConfigError(
        f"trainer.sampling truncates (top_p, top_k or min_p), but rollout engine '{engine.name}' does not say which "
        "tokens each draw could choose from",
        why="the update needs them: a sampled token's probability is renormalised over these",
        fix="--set rollout.name=native, or top_p=1, top_k=0 and min_p=0; eval_sampling may truncate",
    )


def check_rollouts(rollouts: RolloutSettings, each: int) -> None:
    """Bounds of rollouts sampled ahead, in a run of ``each`` updates a step."""
    stale, reads = rollouts.max_staleness, rollouts.max_reads
    if reads > 1 and stale < each:
        raise ConfigError(
            f"rollouts.max_reads {reads} needs max_staleness of at least {(reads - 1) * each}, not {stale}",
            why=f"each step makes {each} updates, so the second read is {each} versions stale",
            fix=f"--set trainer.rollouts.max_staleness={(reads - 1) * each}, or use epochs_per_rollout_batch",
        )
    if 0 < stale < each:
        raise ConfigError(
            f"rollouts.max_staleness {stale} is less than the {each} updates of one step",
            why="a rollout batch "
            "sampled during a step is that many versions stale when it is read: nothing could be sampled ahead",
            fix=f"--set trainer.rollouts.max_staleness={each}",
        )
    if rollouts.capacity and stale < each:
        raise ConfigError(
            f"rollouts.capacity {rollouts.capacity} with max_staleness {stale}: every rollout batch "
            "sampled ahead would be thrown away",
            fix=f"--set trainer.rollouts.max_staleness={each}",
        )


def check_adaptive(adaptive: AdaptiveSampling) -> None:
    """The limits of a group can be reached."""
    if adaptive.k_success + adaptive.k_failure > adaptive.max_completions:
        raise ConfigError(
            f"max_completions {adaptive.max_completions} cannot hold {adaptive.k_success} successes and "
            f"{adaptive.k_failure} failures",
            fix="raise it, or lower k_success or k_failure",
        )
    if adaptive.chunk_size > adaptive.max_completions:
        raise ConfigError(
            f"chunk_size {adaptive.chunk_size} is more than max_completions {adaptive.max_completions}",
            fix="lower chunk_size or raise max_completions",
        )


def check_dynamic(trainer: OnlineTrainerConfig, ctx: BuildContext) -> None:
    """Groups can be constant, and then teach nothing."""
    advantage, adaptive = ctx.config.advantage, trainer.adaptive_sampling
    assert advantage is not None
    if (trainer.group_size if adaptive is None else adaptive.smallest_group) < 2:
        raise ConfigError(
            "dynamic_sampling compares the completions of a prompt, but trainer.group_size is 1",
            why="every group would be set aside and nothing learned",
            fix="--set trainer.group_size=4, or leave out trainer.dynamic_sampling",
        )
    if advantage.least_group_size < 2:
        raise ConfigError(
            f"dynamic_sampling replaces groups of equal scores, but advantage '{advantage.name}' learns from them too",
            why="it does not compare a prompt's completions with each other",
            fix="--set advantage.name=group_norm, or leave out trainer.dynamic_sampling",
        )
