"""Sections of the settings of trainers that sample from their policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.plugins.component import Config
from rlhf_core.types.errors import ConfigError


class RolloutSettings(Config):
    """How far sampling may run ahead of learning (ADR 0009).

    A policy version is one optimizer update, as in ``Rollout.policy_version``; a rollout batch's staleness is the
    number of updates since its weights, when its step begins.
    """

    max_staleness: int = Field(default=0, ge=0)
    """Most updates by which the weights that sampled may be older than those that learn. 0 samples and learns in
    turn; more lets the next batches be sampled while this one is learned from."""
    max_reads: int = Field(default=1, ge=1, le=1024)
    """Steps that train on the same rollout batch, one after another, each with advantages, old and reference logprobs
    of its own. Reads that ``max_staleness`` forbids are left out and counted (``reads_evicted``)."""
    capacity: int | None = Field(default=None, ge=0)
    """Rollout batches that may lie ready or be in the making beyond the one that is learned from; the worker waits
    where there are so many. None takes the most that can never become too stale. More pays only if steps often make
    fewer updates than they could (``target_kl``, ``dynamic_sampling``); what becomes too stale before it is read is
    thrown away when the version moves, counted (``prompts_evicted``), and its prompts are sampled again."""
    timeout_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """Longest wait for one rollout batch, seconds; then the run fails and says what it waited for."""

    def ahead(self, updates_per_step: int) -> int:
        """Rollout batches that may wait: ``capacity``, or the most of which each read is within ``max_staleness``."""
        if self.capacity is not None:
            return self.capacity
        return max(0, (self.max_staleness // updates_per_step - (self.max_reads - 1)) // self.max_reads)


class ImportanceSettings(Config):
    """Correction for tokens that another policy, or another engine's arithmetic, has sampled: the policy's loss is
    multiplied by ``exp(old - behaviour)``, which carries no gradient. KL, entropy and value terms are not."""

    mode: Literal["off", "truncate", "mask"] | None = None
    """``truncate``: weights above ``cap`` become ``cap`` (TIS: Yao et al. 2025). ``mask``: they become 0 (MIS). None
    truncates where ``rollouts.max_staleness`` or ``max_reads`` lets rollouts be stale, and is off elsewhere."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or one per completion: the product over its tokens."""
    cap: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Upper bound of the weights."""
    low: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Lower bound: smaller weights are raised to it (``truncate``) or become 0 (``mask``)."""
    old_policy: Literal["start_of_step", "behaviour"] = "start_of_step"
    """What the loss's own ratio and clip are relative to. ``start_of_step``: the policy with which the step begins
    (decoupled PPO: Hilton et al. 2022; AReaL: Fu et al. 2025), so that clipping bounds this step and the weights
    correct for what was before. ``behaviour``: the policy that sampled, as in plain PPO; no weights then."""

    @model_validator(mode="after")
    def _bounds(self) -> ImportanceSettings:
        if self.low is not None and self.low > self.cap:
            raise ConfigError(
                f"importance.low {self.low:g} is more than importance.cap {self.cap:g}", fix="lower low or raise cap"
            )
        if self.old_policy == "behaviour" and self.mode in ("truncate", "mask"):
            raise ConfigError(
                f"importance.mode {self.mode} cannot be combined with importance.old_policy=behaviour",
                why="the loss's own ratio is then relative to the policy that sampled: it would be corrected twice",
                fix="leave one of them out",
            )
        return self


class ReferenceSettings(Config):
    """The reference policy: the policy before training, or as it was when last synced."""

    no_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("coefficient", "estimator", "where"), "loss.beta holds the policy to the reference; raise it instead"
    )
    track: bool = True
    """Report the KL from it even where nothing else uses it (one more forward without gradient). The metric ``kl`` is
    k3 per token over all completions of the step, of the policy that sampled them, whatever ``estimator`` says."""
    sync_every: int = Field(default=0, ge=0)
    """Steps after which the policy as it then is becomes the reference; 0 keeps the one before training. A penalty then
    limits the speed of the policy, not its distance. Not with LoRA, whose reference is the adapter off."""


class KLSettings(ReferenceSettings):
    """KL divergence from the reference policy (Schulman 2020, "Approximating KL divergence")."""

    no_effect: ClassVar[Mapping[str, str]] = {}
    coefficient: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the KL's value. In the loss the gradient is that of the KL with each; in the reward only k1 gives that."""
    where: Literal["loss", "reward"] = "loss"


class OverlongSettings(Config):
    """Soft penalty for long completions (Yu et al. 2025, DAPO, eq. 13)."""

    cache: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Length of the interval before ``sampling.max_tokens`` over which the penalty grows from 0 to ``weight``, in
    tokens; below 1 a share of ``max_tokens`` (the paper: 4096 of 20480, 0.2). 0 switches it off."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Taken off the score of a completion of ``max_tokens`` tokens."""

    def tokens(self, max_tokens: int) -> float:
        """The interval's length."""
        return self.cache * max_tokens if self.cache < 1 else self.cache


class DynamicSampling(Config):
    """Fill the rollout batch with groups that teach something (Yu et al. 2025, DAPO, section 3.2)."""

    max_rounds: int = Field(default=10, ge=1)
    """Rounds of sampling in one step, the first included; then the step trains on the groups there are."""
    keep: Literal["non_constant"] = "non_constant"
    """Groups whose scores are all equal, or of which fewer than two exist, are set aside and replaced by others."""


class AdaptiveSampling(Config):
    """Sample a prompt until it has successes and failures; easy to judge prompts cost little, hard ones get more."""

    k_success: int = Field(default=1, ge=1)
    """Scores above ``threshold`` that end a prompt's sampling, together with ``k_failure`` others."""
    k_failure: int = Field(default=1, ge=1)
    """Scores not above ``threshold``."""
    max_completions: int = Field(default=32, ge=2)
    """A prompt gets no more than these."""
    chunk_size: int = Field(default=4, ge=1)
    """Completions drawn of each unfinished prompt at a time."""
    threshold: float = Field(default=0.5, allow_inf_nan=False)

    @property
    def smallest_group(self) -> int:
        """Completions of a prompt that has enough as early as possible."""
        chunks = -(-(self.k_success + self.k_failure) // self.chunk_size)
        return min(chunks * self.chunk_size, self.max_completions)
