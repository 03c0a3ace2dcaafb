"""Settings of rollouts that are sampled ahead of the learner."""

from __future__ import annotations

from pydantic import Field

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
    max_reads: int = Field(default=1, ge=1)
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

    def check(self, updates_per_step: int) -> None:
        """Refuse bounds that contradict each other.

        Raises:
            ConfigError: rollouts would always be too stale, or nothing would ever be sampled ahead.
        """
        stale, each = self.max_staleness, updates_per_step
        if self.max_reads > 1 and stale < each:
            raise ConfigError(
                f"rollouts.max_reads {self.max_reads} needs max_staleness of at least {(self.max_reads - 1) * each}, "
                f"not {stale}",
                why=f"each step makes {each} updates, so the second read is {each} versions stale",
                fix=f"--set trainer.rollouts.max_staleness={(self.max_reads - 1) * each}, or use "
                "epochs_per_rollout_batch",
            )
        if 0 < stale < each:
            raise ConfigError(
                f"rollouts.max_staleness {stale} is less than the {each} updates of one step",
                why="a rollout batch "
                "sampled during a step is that many versions stale when it is read: nothing could be sampled ahead",
                fix=f"--set trainer.rollouts.max_staleness={each}",
            )
        if self.capacity and stale < each:
            raise ConfigError(
                f"rollouts.capacity {self.capacity} with max_staleness {stale}: every rollout batch "
                "sampled ahead would be thrown away",
                fix=f"--set trainer.rollouts.max_staleness={each}",
            )
