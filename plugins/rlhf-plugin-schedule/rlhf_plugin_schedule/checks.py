"""What is refused of settings that need this plugin, before anything is loaded. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.rl import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.settings import AdaptiveSampling, RolloutSettings
from rlhf_core.training import PolicyTrainerConfig
from rlhf_plugin_schedule.schedules import check_schedules


def check(trainer: RolloutTrainerConfig | PolicyTrainerConfig, ctx: BuildContext) -> None:
    """Refuse settings that contradict each other.

    Raises:
        UserError: with the setting to change.
    """
    if getattr(trainer, "reference", None) is not None:
        check_reference(trainer, ctx)
    if not isinstance(trainer, RolloutTrainerConfig):
        return
    curriculum = ctx.config.dataset.curriculum
    if curriculum is not None:
        from rlhf_plugin_schedule.curriculum import Curriculum

        Curriculum(curriculum)
    if trainer.adaptive_sampling is not None:
        check_adaptive(trainer.adaptive_sampling)
    if isinstance(trainer, OnlineTrainerConfig):
        check_rollouts(trainer.rollouts, trainer.updates_per_step)
        check_trace(trainer)
        if trainer.schedules:
            check_schedules(trainer, ctx.config)
        if trainer.dynamic_sampling is not None:
            check_dynamic(trainer, ctx)
        if trainer.sampling.truncates:
            check_engine(ctx)


def check_trace(trainer: OnlineTrainerConfig) -> None:
    """A sampled trace has room for a group, since it has whole ones."""
    most, adaptive = trainer.trace_completions, trainer.adaptive_sampling
    size = trainer.group_size if adaptive is None else adaptive.max_completions
    if most is not None and not trainer.trace_every:
        raise ConfigError(
            f"trainer.trace_completions {most} has no effect with trainer.trace_every 0, which traces no step",
            fix="leave one of them out",
        )
    if most is not None and most < size:
        raise ConfigError(
            f"trainer.trace_completions {most} is less than a group of {size}",
            why="groups are traced whole, and this would trace none",
            fix=f"--set trainer.trace_completions={size}, or trainer.trace_every=0 for no trace",
        )


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


def check_reference(trainer: Any, ctx: BuildContext) -> None:
    """A frozen copy is kept that can lie where ``trainer.reference`` says, or none that is wanted."""
    kind, online = trainer.reference.kind, isinstance(trainer, RolloutTrainerConfig)
    if ctx.config.model.lora is not None:
        raise ConfigError(
            "trainer.reference has no effect with model.lora",
            why="the reference is the model with its adapter switched off: there is no copy",
            fix="leave it out",
        )
    if kind == "precomputed" and online:
        raise ConfigError(
            f"trainer.reference.kind=precomputed cannot be used with algorithm '{trainer.name}'",
            why="each step samples new completions, whose reference logprobs nobody can compute before",
            fix="--set trainer.reference.kind=offload, which holds no copy on the device between uses",
        )
    sampled = online or bool(trainer.sample_prompts and trainer.track_kl)
    if kind == "precomputed" and sampled:
        raise ConfigError(
            "trainer.reference.kind=precomputed cannot measure the KL of samples",
            why=f"every evaluation samples trainer.sample_prompts={trainer.sample_prompts} completions anew",
            fix="--set trainer.track_kl=false, or trainer.sample_prompts=0",
        )
    if kind == "sharded" and ctx.world_size == 1:
        raise ConfigError(
            "trainer.reference.kind=sharded with one process",
            why="there is no other rank to hold a part",
            fix="--nproc 2 with --set strategy=fsdp, or --set trainer.reference.kind=offload",
        )
    if kind == "sharded" and getattr(ctx.config.strategy, "name", "auto") in ("auto", "single", "ddp"):
        raise ConfigError(
            "trainer.reference.kind=sharded: this strategy divides no weights",
            fix="--set strategy=fsdp, or trainer.reference.kind=whole",
        )
    kept = trainer.kl.track or getattr(trainer.kl, "coefficient", 0) > 0 if online else sampled
    computed = not online and getattr(ctx.config.loss, "reference", "unused") != "unused"
    if not kept and kind != "precomputed" and not (computed and trainer.reference.dtype):
        raise ConfigError(
            "trainer.reference has no effect: this run keeps no reference policy",
            fix="leave it out, or " + ("--set trainer.kl.track=true" if online else "--set trainer.track_kl=true"),
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
