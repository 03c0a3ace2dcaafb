"""Settings of trainers that sample from their policy, and what is checked of them before anything is loaded.

An algorithm subclasses one and changes defaults.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.rl.settings import (
    AdaptiveSampling,
    DynamicSampling,
    ImportanceSettings,
    KLSettings,
    OverlongSettings,
    ReferenceSettings,
    RolloutSettings,
)
from rlhf_core.training.config import ModelLoopSettings, ReferencePlacement, SamplingSettings
from rlhf_core.types.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from rlhf_core.data.settings import DatasetSettings
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.plugins.registry import Registry

log = logging.getLogger("rlhf")
PLUGIN = "rlhf-plugin-verifiers"
"""Has the reward ``workers``, which calls another reward in worker processes."""


class RolloutTrainerConfig(ModelLoopSettings):
    """A trainer that samples completions of prompts and scores them: the settings of every such algorithm."""

    steps: int = Field(default=100, ge=1)
    """Rollout batches."""
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Passes over the training rows, instead of ``steps``, which the plan then says (``rlhf-plugin-schedule``)."""
    rollout_batch_size: int = Field(default=64, ge=1, le=2**20)
    """Completions per step over all ranks: prompts x ``group_size``."""
    group_size: int = Field(default=8, ge=1, le=2**16)
    sampling: SamplingSettings = SamplingSettings()
    eval_sampling: SamplingSettings | None = None
    """None evaluates with ``sampling``."""
    kl: ReferenceSettings = ReferenceSettings()
    reference: ReferencePlacement | None = None
    dynamic_sampling: DynamicSampling | None = None
    """Sample further prompts in place of groups with constant scores; None trains on the groups as they come."""
    adaptive_sampling: AdaptiveSampling | None = None
    """Let group sizes vary; ``rollout_batch_size`` is then the number of prompts x ``group_size``, which is nominal."""
    share_prefix: bool = True
    """One forward per prompt for all its completions. Never changes the update, as the next two."""
    packing: Literal["auto", "on", "off"] = "auto"
    """Sequences of a micro-batch end to end in one row without padding, where the model's attention allows it
    (``sdpa``); ``on`` refuses a model that does not."""
    chunked_head: bool = True
    """The language-model head a chunk of tokens at a time, so that all logits are never in memory at once."""
    reward_workers: int = Field(default=0, ge=0, le=1024)
    """Processes in which the reward is called, one completion at a time, on each rank; one that hangs or crashes is
    killed and replaced, and its completion has no score. For rewards that are functions: they may keep no state and
    need neither the policy nor other completions. 0 calls the reward in this process; more needs
    ``rlhf-plugin-verifiers``."""
    reward_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds for one completion in a worker."""
    gold_samples: int = Field(default=200, ge=0)
    """Held-out prompts compared by the dataset's gold score before and after, where it has one."""

    @field_validator("packing", "drift_check", mode="before", check_fields=False)
    @classmethod
    def _words(cls, value: Any) -> Any:
        """YAML reads ``on`` and ``off`` as booleans."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        total, size = self.rollout_batch_size, self.group_size
        if total % size:
            divisor = next(d for d in range(min(size, total), 0, -1) if total % d == 0)
            raise ConfigError(
                f"group_size {size} does not divide rollout_batch_size {total}",
                fix=f"--set trainer.group_size={divisor}"
                + (f", or trainer.rollout_batch_size={total // size * size}" if size < total else ""),
            )
        return self

    @property
    def constant_length(self) -> float:
        """C of ``reduction: constant`` in tokens: as many as a completion may have, unless it is set."""
        return float(self.sampling.max_tokens) if self.reduction_constant is None else self.reduction_constant

    @property
    def prompts_per_step(self) -> int:
        """Prompts in one rollout batch."""
        return self.rollout_batch_size // self.group_size

    def check_rollouts(self, ctx: BuildContext) -> None:
        """Refuse a reference policy that cannot be renewed or that nothing uses, prompts that ranks cannot share, and
        reward workers without the plugin that has them.

        Raises:
            UserError: with the setting to change.
        """
        if self.kl.sync_every and ctx.config.model.lora is not None:
            raise ConfigError(
                f"trainer.kl.sync_every {self.kl.sync_every} cannot be combined with model.lora",
                why="with LoRA the reference policy is the model without its adapter, which cannot be replaced",
                fix="leave one of them out",
            )
        if self.kl.sync_every and getattr(self.kl, "coefficient", 0) == 0 and not self.kl.track:
            raise ConfigError(
                "trainer.kl.sync_every has no effect: nothing uses the reference policy",
                fix="--set trainer.kl.coefficient=0.01, or leave sync_every out",
            )
        if ctx.config.model.lora is not None and ctx.config.model.lora.dropout:
            raise ConfigError(
                f"model.lora.dropout {ctx.config.model.lora.dropout} cannot be used with algorithm '{self.name}'",
                why="the same tokens must have the same logprobs when they are sampled and in every pass after",
                fix="leave it out; lower model.lora.r or trainer.steps against overfitting",
            )
        if self.prompts_per_step % ctx.world_size:
            raise ConfigError(
                f"{self.prompts_per_step} prompts per step cannot be divided among {ctx.world_size} processes",
                fix=f"make rollout_batch_size a multiple of {self.group_size * ctx.world_size}",
            )
        scheduled = self.scheduled(ctx.config.dataset)
        for part, setting in scheduled.items():
            scheduler(part, setting)
        for setting in list(scheduled.values())[:1]:
            scheduler("checks", setting)()(self, ctx)
        every = (ctx.config.reward, *(source.reward for source in ctx.config.dataset.sources))
        rewards = [reward for reward in every if reward is not None]
        for reward in rewards:
            self.workers_of(reward, ctx.registry)
        if self.reward_workers and rewards and all(reward.has_workers for reward in rewards):
            raise ConfigError(
                f"trainer.reward_workers={self.reward_workers} has no effect",
                why=f"reward '{rewards[0].name}' has worker processes of its own",
                fix=f"--set reward.workers={self.reward_workers}, and leave trainer.reward_workers out",
            )

    def scheduled(self, dataset: DatasetSettings) -> dict[str, str]:
        """Part of a plugin that schedules rollouts -> the setting that needs it."""
        rows = (
            ("curriculum", "dataset.curriculum", dataset.curriculum),
            ("difficulty", "dataset.difficulty", dataset.difficulty),
            ("groups", "dataset.difficulty", dataset.difficulty),
            ("groups", "trainer.adaptive_sampling", self.adaptive_sampling),
            ("groups", "trainer.dynamic_sampling", self.dynamic_sampling),
            ("reference", "trainer.reference", self.reference),
        )
        return {part: setting for part, setting, value in rows if value is not None}

    def workers_of(self, reward: ComponentConfig, registry: Registry) -> ComponentConfig | None:
        """The Config of the worker processes that call a reward; None if this process calls it, or it brings its own.

        Raises:
            PluginError: the plugin that has them is not installed.
        """
        if not self.reward_workers or reward.has_workers:
            return None
        name = f"{PLUGIN}/workers"
        if name not in [entry.qualified for entry in registry.entries("reward")]:
            raise PluginError(
                f"trainer.reward_workers={self.reward_workers} needs {PLUGIN}",
                why="it is not installed, or disabled",
                fix=f"pip install {PLUGIN}, or enable it, or --set trainer.reward_workers=0",
            )
        settings = {"of": reward, "workers": self.reward_workers, "timeout_s": self.reward_timeout_s}
        return registry.config("reward", name, settings)


class OnlineTrainerConfig(RolloutTrainerConfig):
    """The on-policy loop: sample, score, estimate advantages, update."""

    component: ClassVar[str] = "rlhf_core.rl.trainer:OnlineTrainer"
    feeds: ClassVar[str | None] = "token_advantages"

    train_batch_size: int | None = Field(default=None, ge=1)
    """Completions per optimizer update, in whole groups, over all ranks; None takes the whole rollout batch."""
    epochs_per_rollout_batch: int = Field(default=1, ge=1)
    target_kl: float | None = Field(default=None, gt=0)
    """The remaining updates of a rollout batch are left out once the policy is this far (``approx_kl``, nats per token)
    from the one that sampled; None makes them all."""
    schedules: tuple[dict[str, Any], ...] = ()
    """Settings that change over steps, each ``{setting, from, to, start, end, shape}`` (``rlhf-plugin-schedule``)."""
    trace_every: int = Field(default=1, ge=0)
    """Prompts and completions are traced in steps that this divides; 0 traces none. Metrics are kept of every step."""
    trace_completions: int | None = Field(default=None, ge=0)
    """Completions traced in such a step, in whole groups, the first prompts'; None traces all. Each rank writes those
    of its share."""
    rollouts: RolloutSettings = RolloutSettings()
    importance: ImportanceSettings = ImportanceSettings()
    kl: KLSettings = KLSettings()  # pyright: ignore[reportIncompatibleVariableOverride]
    entropy_coefficient: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Entropy bonus: this much of each token's entropy is taken off its loss, and reduced with it."""
    entropy_quantile: float = Field(default=1.0, gt=0, le=1)
    """Only tokens in this top share of the rollout batch's entropies get a policy gradient (Wang et al. 2025, "Beyond
    the 80/20 rule": 0.2). The denominator still counts every token. 1 takes all; less costs one more forward."""
    overlong: OverlongSettings = OverlongSettings()
    mask_truncated: bool = False
    """Leave completions that ran into ``max_tokens`` out of the loss."""
    drop_constant_groups: bool = True
    """Skip the forward of groups whose advantages are all zero, unless KL in the loss, an entropy bonus or a critic
    needs it; the gradient is the same. ``entropy`` and the loss's
    own metrics then cover what was run; ``kl`` and the reward's metrics always cover every completion."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Cut micro-batches by positions of one forward (prompts, completions, padding) instead of ``micro_batch_size``
    sequences: nearly equal work in each and on each process, a prompt's completions together, no sequence cut (one
    that is longer gets a micro-batch of its own)."""
    self_check: bool = True
    """Compare prefix sharing, packing and the chunked head with the plain computation on the first batch; what differs
    is switched off, with a warning."""

    drift_check: Literal["stop", "warn", "off"] = "stop"
    """Compare the engine's logprobs with the trainer's in every step (``drift/mean_abs``): a warning with the likely
    cause where they differ by more than chance and rounding explain, and the end of the run (``stop``) where rounding
    cannot be the cause: beyond 0.02 nats per token in float32, 0.1 where policy or engine compute in less, 0.5 with an
    importance correction. Both numbers are there anyway."""

    @model_validator(mode="after")
    def _sizes(self) -> OnlineTrainerConfig:
        size = self.train_batch_size
        if size is not None and (size > self.rollout_batch_size or self.rollout_batch_size % size):
            raise ConfigError(
                f"train_batch_size {size} does not divide rollout_batch_size {self.rollout_batch_size}",
                fix="use a divisor, or leave it out for one update per rollout batch",
            )
        if size is not None and size % self.group_size:
            raise ConfigError(
                f"train_batch_size {size} would cut groups of {self.group_size} completions",
                fix=f"make it a multiple of group_size, such as {self.group_size}, or leave it out",
            )
        if self.overlong.tokens(self.sampling.max_tokens) > self.sampling.max_tokens:
            raise ConfigError(
                f"overlong.cache {self.overlong.cache:g} is longer than max_tokens {self.sampling.max_tokens}",
                fix="make it a share below 1, such as 0.2, or fewer tokens",
            )
        return self

    def sequences_per_update(self) -> int:
        """Completions of one optimizer update."""
        return self.train_batch_size or self.rollout_batch_size

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates made from one rollout batch."""
        return self.epochs_per_rollout_batch * (self.rollout_batch_size // self.sequences_per_update())

    @property
    def batches_ahead(self) -> int:
        """Rollout batches that may be sampled before they are needed; 0 samples and learns in turn."""
        return self.rollouts.ahead(self.updates_per_step)

    @property
    def correction(self) -> Literal["off", "truncate", "mask"]:
        """``importance.mode``; None is resolved by whether rollouts may be stale."""
        stale = self.rollouts.max_staleness > 0 and self.importance.old_policy == "start_of_step"
        return self.importance.mode or ("truncate" if stale else "off")

    def scheduled(self, dataset: DatasetSettings) -> dict[str, str]:
        """See :meth:`RolloutTrainerConfig.scheduled`."""
        rows = (
            ("ahead", "trainer.rollouts.max_staleness", self.rollouts.max_staleness),
            ("checks", "trainer.rollouts", self.rollouts.max_reads > 1 or self.rollouts.capacity),
            ("uncertain", "trainer.entropy_quantile", self.entropy_quantile < 1),
            ("settings", "trainer.schedules", self.schedules),
            ("trace", "trainer.trace_completions", self.trace_every != 1 or self.trace_completions is not None),
            ("importance", "trainer.importance.mode", self.correction != "off"),
            ("truncated", "trainer.sampling.top_p (or top_k, min_p)", self.sampling.truncates),
        )
        return super().scheduled(dataset) | {part: setting for part, setting, needed in rows if needed}

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse combinations that cannot learn or would learn the wrong thing, before anything is loaded."""
        run = ctx.config
        for slot in ("loss", "advantage", "reward"):
            if getattr(run, slot) is None:
                raise ConfigError(
                    f"algorithm '{self.name}' needs a {slot}",
                    fix=f"--set {slot}.name=...; rlhf plugins list --kind {slot}",
                )
        check_groups(self, ctx)
        warn_of_kl(self)
        self.micro_batches(ctx.world_size)
        if self.target_kl is not None and self.updates_per_step == 1:
            raise ConfigError(
                f"target_kl {self.target_kl} would have no effect: each rollout batch makes one update",
                fix="raise epochs_per_rollout_batch or lower train_batch_size, or leave it out",
            )
        self.check_precision(ctx)
        if self.sampling.temperature == 0:
            raise ConfigError("temperature 0 samples equal completions", fix="--set trainer.sampling.temperature=1")
        self.check_rollouts(ctx)
        check_update_shares(self, ctx.world_size)


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
