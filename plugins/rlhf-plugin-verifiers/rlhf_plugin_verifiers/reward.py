"""A verifier as a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import DatasetError, Datasets
from rlhf_core.data.completions import SampledPrompts
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_verifiers.workers import VerifierPool, worker_spec

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig


class VerifierReward:
    """Scores completions by a verifier of the run's registry in killable worker processes."""

    def __init__(self, config: VerifierRewardConfig, ctx: BuildContext) -> None:
        self.ctx = ctx
        self._pools: dict[str, VerifierPool] = {}
        self.config = config

    @property
    def config(self) -> VerifierRewardConfig:
        """What is judged by from now on; each mode of the verifier that a schedule sets has its own workers."""
        return self._config

    @config.setter
    def config(self, config: VerifierRewardConfig) -> None:
        self._config, key = config, config.verifier.model_dump_json()
        if key not in self._pools:
            self._pools[key] = self._new_pool(config)
        self.pool = self._pools[key]

    def _new_pool(self, config: VerifierRewardConfig) -> VerifierPool:
        return VerifierPool(
            worker_spec("verifier", config.verifier, self.ctx.registry, self.ctx.run_dir, config.memory_mb),
            workers=config.workers,
            timeout_s=config.deadline_s,
            start_timeout_s=config.start_timeout_s,
            recycle_after_calls=config.recycle_after_calls,
            recycle_above_mb=config.recycle_above_mb,
        )

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return self.pool.verify(samples)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def check_deadline(config: VerifierRewardConfig) -> None:
    """Refuse a deadline that kills a verifier before its own, shorter deadlines can report what was wrong."""
    verifier = config.verifier
    needs = getattr(verifier, "seconds", 0.0)
    if config.deadline_s < needs:
        killed = f"its worker is killed after {config.deadline_s:g} s"
        raise ConfigError(
            f"a verdict of '{verifier.name}' may take {needs:g} s, {killed}",
            where="reward.timeout_s",
            why="a completion beyond the verifier's own deadline has a score; one whose worker is killed has none",
            fix=f"--set reward.timeout_s={needs:g}, or shorter deadlines of the verifier",
        )


def check_answers(config: VerifierRewardConfig, ctx: BuildContext) -> None:
    """Refuse prompts that the verifier cannot judge; a dry run reads no rows that may have to be downloaded."""
    if ctx.dry_run and any(s.source.downloads for s in ctx.config.dataset.sources):
        return
    datasets = Datasets.of(ctx)
    source_rewards = datasets.own_rewards()
    splits = [datasets.prompts(split) for split in ("train", "heldout")]
    rewarded = (p for rows in splits for p in rows if source_rewards.get(p.source, ctx.config.reward) is config)
    sampled = getattr(ctx.config, "trainer", None) is not None  # completions that exist already have their form
    compares = getattr(config.verifier, "needs_answer", False)
    optional = compares and not sampled and not isinstance(datasets, SampledPrompts)  # pairs, with --max-missing
    answered: dict[str, bool] = {}
    checked, refused = 0, list[tuple[str, str]]()
    for p in rewarded:
        answered[p.source] = answered.get(p.source, False) or p.answer is not None
        if not optional or p.answer is not None:
            checked += 1
            if (why := config.check_prompt(p, sampled=sampled)) is not None:
                refused.append((p.id, why))
    for source, has_answers in answered.items():
        if compares and not has_answers:
            raise DatasetError(
                f"dataset '{source}' has no reference answers",
                why=f"verifier '{config.verifier.name}' compares with them",
                fix="map the column: dataset.columns={answer: NAME}, or choose another reward",
            )
    if refused:
        name, why = refused[0]
        raise DatasetError(
            f"verifier '{config.verifier.name}' can judge no completion of a prompt",
            why=why,
            where=f"{datasets.where(name)} ({len(refused)} of {checked} prompts)",
            fix="correct or remove the row, or map dataset.columns; ask for the form (dataset.prompt=r1_zero where the "
            "data set has it, dataset.prompt_template, dataset.system_prompt); or choose another verifier",
        )
