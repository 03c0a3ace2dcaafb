"""The on-policy loop, algorithm-blind: an algorithm is an advantage, a loss and defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core import hooks as hk
from rlhf_core.context import BuildContext
from rlhf_core.runs.session import log
from rlhf_core.runs.timer import Timer
from rlhf_core.trainers.common.config import OnlineTrainerConfig
from rlhf_core.trainers.common.learner import MetricSums, means
from rlhf_core.trainers.common.metrics import rollout_metrics, score_metrics
from rlhf_core.trainers.common.policy_evaluator import Evaluation
from rlhf_core.trainers.common.training_sample import TrainingSample, by_group, make_item, regrouped
from rlhf_core.trainers.online.build import OnlineParts
from rlhf_core.trainers.online.collector import RolloutBatch
from rlhf_core.trainers.online.critic import with_returns
from rlhf_core.trainers.online.entropy import keep_uncertain
from rlhf_core.trainers.online.importance import with_sample_size
from rlhf_core.trainers.online.logprob_mismatch import mismatch_warning
from rlhf_core.trainers.online.penalties import charge, charge_length, measured
from rlhf_core.trainers.online.report import online_summary, step_trace
from rlhf_core.types import FinishReason, Rollout, Score, ScoreStatus


class OnlineTrainer:
    """Sample, score, estimate, update; every room is built before step 0.

    Args:
        config: sizes and settings.
        ctx: session, strategy, datasets and the run's configuration.
    """

    def __init__(self, config: OnlineTrainerConfig, ctx: BuildContext) -> None:
        config = config.micro_batches(ctx.world_size)
        self.config, self.session, self.strategy = config, ctx.session, ctx.strategy
        self.house = OnlineParts(config, ctx)
        self.before: Evaluation | None = None
        self.timed = Timer()
        self.checked_drift = False

    def run(self) -> Mapping[str, Any]:
        """Train to the last step and return the summary."""
        with self.session.guard():
            found = self.session.open(self.config.keep_checkpoints)
            self.house.furnish(found)
            start = self._restore(found[1]) if found else 0
            if found is None:
                self.before = self._evaluate(0, final=True)
            return self._finish(self._loop(start))

    def _loop(self, start: int) -> int:
        """Run the steps; return the last one made, which is an earlier one if a hook or monitor ends the run."""
        last, every = self.config.steps, self.config.checkpoint_every
        self.session.total_steps = last
        for step in range(start, last + 1):
            if step > start:
                self.step(step)
                if self.config.eval_every and step % self.config.eval_every == 0 and step < last:
                    self._evaluate(step)
            if self.session.boundary(step, last, every, self._save):
                return step
        return last

    def step(self, step: int) -> None:
        """One rollout batch: rooms 1 to 6."""
        self.timed = Timer()
        with self.timed("step"):
            slot, batch = self.house.pipeline.next(step, self.timed)
            staleness = self.house.pipeline.metrics(slot)
            self.timed.seconds |= batch.seconds if slot.reads == 1 else {}
            metrics = self._learn(step, batch, first=slot.reads == 1) | staleness
            metrics |= self.house.sync_reference(step)
        self.session.log_step(step, metrics, self.timed.seconds)

    def _learn(self, step: int, batch: RolloutBatch, *, first: bool = True) -> dict[str, float]:
        """Rooms 4 to 6: advantages over all ranks, then this rank's share of the update.

        Args:
            step: the step.
            batch: what it learns from.
            first: no earlier step has; what was sampled and scored is counted once.
        """
        groups, rollouts, scores = batch.groups, batch.rollouts, batch.scores
        with self.timed("self_check"):
            self.house.self_check(rollouts)
        with self.timed("reference"):
            references = self.house.reference_logprobs(rollouts)
            tokens = self.house.token_values(rollouts, references)
        penalised = self.config.kl.where == "reward" and self.config.kl.coefficient > 0
        if references is not None and penalised and tokens is None:
            scores = [charge(s, r, ref, self.config.kl) for s, r, ref in zip(scores, rollouts, references)]
        limit, overlong = self.config.sampling.max_tokens, self.config.overlong
        scores = [charge_length(s, r, limit, overlong) for s, r in zip(scores, rollouts)]
        shards = self.strategy.gather_objects((rollouts, scores, tokens))
        all_rollouts = [r for shard in shards for r in shard[0]]
        all_scores = [s for shard in shards for s in shard[1]]
        aside = [charge_length(s, r, limit, overlong) for s, r in zip(batch.aside_scores, batch.aside_rollouts)]
        every_score = [*all_scores, *aside]
        if first:
            self._count(every_score)
        self.house.court.check(every_score)
        group_ids = [i for i, g in enumerate(groups) for _ in range(g.group_size)]
        all_tokens = None if tokens is None else [t for shard in shards for t in shard[2]]
        estimate = self.house.advantages(all_rollouts, all_scores, group_ids, all_tokens)
        values = estimate.values[batch.offset : batch.offset + len(rollouts)]
        items = with_returns(self._items(rollouts, values, references), tokens, estimate, batch.offset)
        with self.timed("update"):
            updates = self._update(step, by_group(items, batch.mine), batch.version)
        metrics = {
            **score_metrics(every_score),
            **rollout_metrics([*all_rollouts, *batch.aside_rollouts]),
            **estimate.metrics,
            **updates,
        }
        metrics |= batch.metrics if first else {"tokens_generated": 0.0}
        metrics |= self._masked(all_rollouts) | self._kl(rollouts, references)
        metrics |= self._dead_groups(estimate.values, all_scores, group_ids)
        self.session.trace(
            step,
            "step",
            step_trace(groups, all_rollouts, all_scores, estimate.values, metrics, self.config.trace_prompts),
        )
        return metrics

    def _items(
        self, rollouts: Sequence[Rollout], values: Sequence[Any], references: list[Any] | None
    ) -> list[TrainingSample | None]:
        """One item per rollout, None where there is no score."""
        items: list[TrainingSample | None] = []
        for i, (rollout, value) in enumerate(zip(rollouts, values)):
            item = None if value is None else make_item(rollout, value, self.config.mask_truncated)
            items.append(item if item is None or references is None else item.with_(ref_T=references[i]))
        return items

    def _update(self, step: int, groups: list[list[TrainingSample]], sampled_by: int) -> dict[str, float]:
        """All optimizer updates of one rollout batch; old logprobs are computed once.

        Args:
            step: the step.
            groups: this rank's.
            sampled_by: policy version that sampled them.

        Returns:
            Each metric's weighted mean over the updates, over the sequences that were run; counts are added.
            ``drift/`` is that of the update made with the very weights that sampled.
        """
        house = self.house
        groups, found = self._measure(groups)
        items = [i for g in groups for i in g]
        self.session.hooks.fire("rlhf_batch_ready", hk.BatchReady(step, len(items), sum(i.tokens for i in items)))
        rows: list[MetricSums] = []
        house.updater.critic_only = house.critic_only(step)
        for batch in self._batches(step, groups):
            totals = (float(sum(i.tokens for i in batch)), float(sum(i.tokens > 0 for i in batch)))
            kept = self._kept(batch)
            fresh = house.updater.version == sampled_by
            row = house.updater.update_rows(kept, totals)
            if fresh and not self.checked_drift:
                self.check_drift(means([row]))
            rows.append(row if fresh else {k: v for k, v in row.items() if not k.startswith("drift/")})
            if self._too_far(row, len(rows)):
                break
        return {**with_sample_size(means(rows)), **found}

    def _measure(self, groups: list[list[TrainingSample]]) -> tuple[list[list[TrainingSample]], dict[str, float]]:
        """What is measured once per rollout batch, before any update: old logprobs, and which tokens are uncertain."""
        config, several, choose = self.config, self.config.updates_per_step > 1, self.config.entropy_quantile < 1
        items = [i for g in groups for i in g]
        if config.importance.old_policy == "behaviour":
            assert all(i.behaviour_T is not None for i in items), "an engine's logprobs come with every rollout"
            items, several = [i.with_(old_T=i.behaviour_T) for i in items if i.behaviour_T is not None], False
        if not several and not choose:
            return regrouped(items, groups), {}
        with self.strategy.gathered(self.house.module):
            old, entropies = self.house.foundry.measure(items, self.house.cut, entropy=choose)
        metrics: dict[str, float] = {}
        if several:
            items = [i.with_(old_T=row) for i, row in zip(items, old)]
        if choose:
            items, metrics = keep_uncertain(items, entropies, config.entropy_quantile, self.strategy)
        return regrouped(items, groups), metrics

    def _too_far(self, row: MetricSums, made: int) -> bool:
        """Whether the policy has left the one that sampled by more than ``target_kl``, with updates still to come."""
        limit, left = self.config.target_kl, self.config.updates_per_step - made
        total, weight = row.get("approx_kl", (0.0, 0.0))
        if limit is None or not left or not weight or total / weight <= limit:
            return False
        self.session.counts["updates_beyond_target_kl"] += left
        return True

    def _kept(self, items: Sequence[TrainingSample]) -> list[TrainingSample]:
        """The items that can contribute a gradient."""
        return [i for i in items if i.tokens and not (self._may_drop and i.flat)]

    @property
    def _may_drop(self) -> bool:
        config, foundry = self.config, self.house.foundry
        kl_in_loss = config.kl.where == "loss" and config.kl.coefficient > 0
        return (
            config.drop_constant_groups
            and not kl_in_loss
            and config.entropy_coefficient == 0
            and foundry.critic is None
        )

    def _batches(self, step: int, groups: list[list[TrainingSample]]) -> Iterator[list[TrainingSample]]:
        """This rank's share of every optimizer batch.

        With several batches the groups of *all* ranks are permuted (anew in every epoch), cut into batches, and each
        batch is shared out, so that the process count changes no batch. With micro-batches by tokens a single batch is
        shared out anew too, by the work of what is left to train on.
        """
        epochs, rank = self.config.epochs_per_rollout_batch, self.strategy.rank
        parts = self.config.updates_per_step // epochs
        if parts > 1 or self.config.micro_batch_tokens is not None:
            groups = [g for shard in self.strategy.gather_objects(groups) for g in shard]
        else:
            yield from [[i for g in groups for i in g]] * epochs
            return
        for epoch in range(epochs):
            order = np.arange(len(groups))
            if parts > 1:
                order = np.random.default_rng([self.house.seed, step, epoch]).permutation(len(groups))
            for cut in np.array_split(order, parts):
                chosen = [groups[n] for n in np.sort(cut)]
                mine = self.house.share([self._kept(g) for g in chosen])[rank]
                yield [i for n in mine for i in chosen[n]]

    def _masked(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Count the truncated completions that ``mask_truncated`` leaves out of the loss."""
        if not self.config.mask_truncated:
            return {}
        count = sum(r.finish_reason is FinishReason.LENGTH for r in rollouts)
        self.session.counts["truncated_masked"] += count
        return {"truncated_masked": float(count)}

    def _kl(self, rollouts: Sequence[Rollout], references: Sequence[Any] | None) -> dict[str, float]:
        """KL(policy that sampled || reference) per token, k3, over every rollout of all ranks."""
        if references is None:
            return {}
        total, tokens = self.strategy.sum_over_ranks(measured(rollouts, references))
        return {"kl": total / tokens} if tokens else {}

    def _count(self, scores: Sequence[Score]) -> None:
        for score in scores:
            if not score.ok:
                self.session.counts[f"score_{score.status.value}"] += 1
        self.session.counts["scores_ok"] += sum(s.ok for s in scores)
        assert all(s.ok or s.status in ScoreStatus for s in scores)

    def _dead_groups(
        self, values: Sequence[Any], scores: Sequence[Score], group_ids: Sequence[int]
    ) -> dict[str, float]:
        """Count groups that teach nothing: equal scores, or (under another name) too few scores to compare."""
        alive = {g for g, v in zip(group_ids, values) if v is not None and np.any(v)}
        size, good = Counter(group_ids), Counter(g for g, s in zip(group_ids, scores) if s.ok)
        dead = [g for g in size if g not in alive]
        unscored = sum(good[g] < min(2, size[g]) for g in dead)
        found = {"constant_groups": len(dead) - unscored, "unscored_groups": unscored}
        self.session.counts.update(found)
        return {k: float(n) for k, n in found.items()}

    def _evaluate(self, step: int, *, final: bool = False) -> Evaluation | None:
        """Held-out evaluation; before and after the run on at least ``gold_samples`` prompts."""
        count = max(self.config.eval_samples, self.config.gold_samples if final and self.house.has_gold else 0)
        held = self.config.eval_samples > 0 and self.house.evaluator.groups
        if not held and not self.house.ctx.config.benchmarks:
            return None
        self.house.pipeline.lend()
        with self.strategy.gathered(self.house.module):
            result = self.house.evaluator.run(self.house.updater.version, count) if held else None
            measured = self.house.measure()
        if result is None:
            self.session.log_eval(step, measured)
            return None
        self.session.counts.update({f"eval_score_{k}": n for k, n in result.missing.items()})
        self.session.log_eval(step, {**result.metrics, **measured})
        self.session.samples(
            step,
            [
                {"prompt_id": g.prompt.id, "prompt": g.prompt.text, "completion": t}
                for g, t in zip(self.house.evaluator.groups[:8], result.texts)
            ],
        )
        return result

    def _save(self, step: int) -> None:
        if self.session.saved(step):
            return
        mine = {"rollouts": self.house.pipeline.state_dict()}  # first: afterwards nothing is being sampled
        state = {
            "house": self.house.state_dict(),
            "before": self.before.state() if self.before else None,
            "checked_drift": self.checked_drift,
        }
        self.session.checkpoint(step, state, self.house.policy.model, self.house.writer(), mine)

    def _restore(self, state: dict[str, Any]) -> int:
        self.house.load_state_dict(state["house"])
        own = state["ranks"][self.strategy.rank]
        self.house.pipeline.load_state_dict(own["rollouts"])
        self.before = Evaluation(**state["before"]) if state["before"] else None
        self.checked_drift = bool(state["checked_drift"])
        self.session.restore(state)
        return int(state["step"])

    def _finish(self, step: int) -> dict[str, Any]:
        after = self._evaluate(step, final=True)
        self.session.write_final(self.house.policy.model, self.house.write_final)
        return self.session.finish(online_summary(self, after, self.session.stop_reason()))

    def close(self) -> None:
        """Close every component of the run."""
        self.session.close()

    def check_drift(self, metrics: Mapping[str, float]) -> None:
        """Warn once if the engine's and the trainer's logprobs disagree on the first batch."""
        self.checked_drift = "drift/mean_abs" in metrics
        warning = mismatch_warning(metrics)
        if warning:
            self.session.counts["drift_warnings"] += 1
            log.warning("%s", warning)
