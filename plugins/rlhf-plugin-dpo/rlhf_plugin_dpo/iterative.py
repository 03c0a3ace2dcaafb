"""The loop of `rlhf train --algo iterative_dpo`: rollouts, scores, pairs, updates, and again.

A step of the session is one rollout batch or one update, so a run can be saved and resumed between any two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import read_jsonl
from rlhf_core.hooks import BatchReady
from rlhf_core.rewards import Score
from rlhf_core.rl import (
    RolloutParts,
    TrainedModule,
    build_loss,
    build_rollout_parts,
    load_online_inputs,
    measure_kl,
    summarize_online_run,
)
from rlhf_core.rollouts import Rollout, RolloutBatch
from rlhf_core.runs import Checkpoint, win_rate
from rlhf_core.training import (
    Evaluation,
    LoopSchedule,
    PolicyModule,
    Timer,
    TrainingSample,
    micro_batches_of_size,
    prompt_rows,
    rollout_metrics,
    run_loop,
    score_metrics,
)
from rlhf_plugin_dpo.batches import SupervisedTerm, paired, scaled_by
from rlhf_plugin_dpo.buffer import PairBuffer, pack, unpack
from rlhf_plugin_dpo.choose import choose_pairs, summed
from rlhf_plugin_dpo.items import PairItem, Side, sides_of
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.ranks import deal, from_first, on_first, undealt
from rlhf_plugin_dpo.schedule import beta_scale


@dataclass(frozen=True)
class CollectedPairs:
    """What the rollouts of all ranks came to."""

    rollouts: Sequence[Rollout]
    """On rank 0, which traces them; empty elsewhere."""
    scores: Sequence[Score]
    pairs: Sequence[PairItem]
    """Made of the rollouts; on rank 0, which holds the buffer; empty elsewhere."""
    count: int
    """Of the pairs."""
    dropped: Counter[str]
    """Groups that gave no pair, by reason."""
    kl_sum: float
    kl_tokens: float
    metrics: Mapping[str, float]
    """Of the rollouts."""


def collected_for_each(shards: Sequence[Any]) -> list[CollectedPairs]:
    """What rank 0 sends to each rank, from every rank's (rollouts, scores, pairs, dropped groups, KL)."""
    rollouts, pairs = [r for shard in shards for r in shard[0]], [p for shard in shards for p in shard[2]]
    every = CollectedPairs(
        rollouts=rollouts,
        scores=[s for shard in shards for s in shard[1]],
        pairs=pairs,
        count=len(pairs),
        dropped=sum((shard[3] for shard in shards), Counter[str]()),
        kl_sum=sum(shard[4][0] for shard in shards),
        kl_tokens=sum(shard[4][1] for shard in shards),
        metrics=rollout_metrics(rollouts),
    )
    return [every, *[replace(every, rollouts=(), pairs=())] * (len(shards) - 1)]


class IterativeTrainer:
    """Collect pairs from the current policy, update on them, repeat.

    Args:
        config: sizes and settings.
        ctx: session, strategy, datasets and the run's configuration.
    """

    parts: RolloutParts

    def __init__(self, config: IterativeDpoConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config.micro_batches(ctx.world_size), ctx
        self.session, self.strategy = ctx.session, ctx.strategy
        self.inputs = load_online_inputs(self.config, ctx, wants_reference=config.kl.track)
        conversation = config.sft.weight > 0 and config.sft.on == "conversation"
        model, options = self.inputs.policy.model, self.inputs.options
        self.module = PairModule(model, config.ld_alpha, conversation, options)
        self.policy_module = PolicyModule(model, config.sampling.temperature, options)
        """How reference logprobs of rollouts are computed: at the sampler's temperature."""
        self.before: Evaluation | None = None
        self.buffer = PairBuffer(config.buffer, config.buffer_iterations)
        self.pending: list[PairItem] = []
        """Pairs of the iteration that is being collected; like the buffer's on rank 0 alone."""
        self.sums: dict[str, float] = {}
        """Sums over the rollouts of the iteration: reward, scores, kl, tokens, pairs."""

    @property
    def length(self) -> int:
        """Session steps of one iteration."""
        return self.config.rollout_batches + self.config.updates

    def run(self) -> Mapping[str, Any]:
        """Train to the last iteration and return the summary."""
        config, length = self.config, self.length
        every = config.eval_every * length
        schedule = LoopSchedule(config.steps * length, every, config.checkpoint_every, config.keep_checkpoints)
        return run_loop(self, self.session, schedule)

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Build the parts; evaluate the policy before training, or go on from the checkpoint."""
        self.parts = build_rollout_parts(self.config, self.ctx, self.inputs, checkpoint, self._trained_module)
        if checkpoint is None:
            self.before = self.evaluate(0)
            return 0
        self._restore(checkpoint)
        return checkpoint.step

    def _trained_module(self, ctx: BuildContext) -> TrainedModule:
        """The pair module, and the run's loss with the supervised term."""
        weight = self.config.sft.weight
        terms = [SupervisedTerm(weight)] if weight > 0 else []
        return TrainedModule(self.module, build_loss(ctx, terms), self.config.steps * self.config.updates)

    def step(self, step: int) -> None:
        """One rollout batch, or one update; the last of an iteration also ends it."""
        iteration, place = divmod(step - 1, self.length)
        timer = Timer()
        if place < self.config.rollout_batches:
            metrics = self._collect(step, iteration + 1, timer)
            if place == self.config.rollout_batches - 1:
                self.buffer.add(self.pending)
                self.pending = []
        else:
            metrics = self._update(step, iteration, place - self.config.rollout_batches, timer)
        self.session.metrics.log_step(step, {"iteration": iteration + 1.0, **metrics}, timer.seconds)
        if place == self.length - 1:
            self._end_iteration(step, iteration + 1)

    def _collect(self, step: int, iteration: int, timer: Timer) -> dict[str, float]:
        """Sample and score a rollout batch, and make pairs of it, which rank 0 keeps."""
        parts = self.parts
        batch = parts.source.next_batch(step, parts.learner.version, timer).batch
        with timer("reference"):
            collected = self._pairs_of_all_ranks(batch, iteration)
        self.pending += collected.pairs
        every_score = [*collected.scores, *batch.set_aside_scores]
        self._count(every_score, collected.dropped)
        parts.rewards.check(every_score)
        scores = [float(s.value or 0.0) for s in collected.scores if s.ok]
        kl, tokens = collected.kl_sum, collected.kl_tokens
        self._add(reward=sum(scores), scores=len(scores), kl=kl, tokens=tokens, pairs=collected.count)
        metrics = {
            **score_metrics(collected.scores),
            **collected.metrics,
            **batch.metrics,
            "pairs": float(collected.count),
            **{name: float(n) for name, n in collected.dropped.items()},
            **({"kl": kl / tokens} if tokens else {}),
        }
        if self.session.main:
            advantages = [None] * len(collected.rollouts)
            full = self.config.trace_prompts
            rows = prompt_rows(batch.groups, collected.rollouts, collected.scores, advantages, full)
            self.session.trace(step, "pairs", [*rows, {"event": "pairs", "names": [p.name for p in collected.pairs]}])
        return metrics

    def _pairs_of_all_ranks(self, batch: RolloutBatch, iteration: int) -> CollectedPairs:
        """Each rank makes the pairs of its own groups; rank 0 is sent them all, and tells what they come to."""
        references = self._rollout_references(batch.rollouts)
        pairs, dropped = self._pairs(batch, references, iteration)
        kl = measure_kl(batch.rollouts, references) if references is not None else (0.0, 0.0)
        shards = on_first(self.strategy, (batch.rollouts, batch.scores, pairs, dropped, kl))
        return from_first(self.strategy, collected_for_each(shards) if shards else [])

    def _rollout_references(self, rollouts: Sequence[Rollout]) -> list[Any] | None:
        """Reference logprobs ``[T]`` of each rollout, at the sampler's temperature; None without a reference."""
        if self.parts.reference is None:
            return None
        samples = [TrainingSample.from_rollout(r) for r in rollouts]
        return self.parts.reference.logprobs(
            samples, self.policy_module, micro_batches_of_size(self.config.micro_batch_size)
        )

    def _pairs(
        self, batch: RolloutBatch, references: Sequence[Any] | None, iteration: int
    ) -> tuple[list[PairItem], Counter[str]]:
        """This rank's pairs, with their reference logprobs at temperature 1, whatever was sampled at."""
        config = self.config
        groups, rollouts, scores = list(batch.own_groups), list(batch.rollouts), list(batch.scores)
        chosen, dropped = choose_pairs(groups, rollouts, scores, config.margin_threshold, iteration)
        need = getattr(self.ctx.config.loss, "reference", "optional")
        if references is None or config.reference_free or need == "unused":
            return [pair for pair, _, _ in chosen], dropped
        if config.sampling.temperature != 1:  # ``references`` are at the sampler's
            pairs = [pair for pair, _, _ in chosen]
            return [pair.with_refs(*sums) for pair, sums in zip(pairs, self._reference_sums(pairs))], dropped
        return [
            pair.with_refs(
                summed(references[best], pair.chosen, config.ld_alpha),
                summed(references[worst], pair.rejected, config.ld_alpha),
            )
            for pair, best, worst in chosen
        ], dropped

    def _reference_sums(self, items: Sequence[PairItem]) -> list[tuple[float, float]]:
        """Logprobs (chosen, rejected) under the reference policy as it is now, of this rank's pairs, maybe none."""
        reference, config = self.parts.reference, self.config
        assert reference is not None

        def compute(module: Any, sides: Sequence[Side]) -> list[float]:
            return PairModule(module.model, config.ld_alpha, paths=self.inputs.options).side_sums(sides)

        sums = reference.rows(sides_of(items), micro_batches_of_size(2 * config.micro_batch_size), compute)
        return list(zip(sums[::2], sums[1::2], strict=True))

    def _count(self, scores: Sequence[Score], dropped: Counter[str]) -> None:
        counts = self.session.counts
        counts.update(dropped)
        counts.update(f"score_{s.status.value}" for s in scores if not s.ok)
        counts["scores_ok"] += sum(s.ok for s in scores)

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def _update(self, step: int, iteration: int, place: int, timer: Timer) -> dict[str, float]:
        """One update on pairs of the buffer, of which each rank is sent its own; none if there are no pairs at all."""
        config, learner = self.config, self.parts.learner
        number = iteration * config.updates + place + 1
        scale = beta_scale(config.beta_schedule, number, config.steps * config.updates)
        batch = scaled_by(self.buffer.draw(config.pair_batch_size, place, (self.ctx.seed, iteration)), config, scale)
        dealt = deal(self.strategy, batch)
        if not dealt.size:
            self.session.counts["updates_without_pairs"] += 1
            return {"updates_without_pairs": 1.0}
        self.session.hooks.fire("rlhf_batch_ready", BatchReady(step, dealt.size, dealt.tokens))
        with timer("update"):
            metrics = learner.update(paired(dealt, batch, config, self.ctx.config.loss, learner))
        self.session.trace(step, "step", [{"event": "update", "examples": [i.name for i in batch], "metrics": metrics}])
        return metrics

    def _end_iteration(self, step: int, iteration: int) -> None:
        """Measure what the iteration made of the policy, and renew the reference if it is time to."""
        sums = self.sums
        row = {
            "iteration": float(iteration),
            "iteration/pairs": sums["pairs"],
            "iteration/buffer": self.strategy.sum_over_ranks([float(len(self.buffer.items))])[0],
            **({"iteration/reward": sums["reward"] / sums["scores"]} if sums["scores"] else {}),
            **({"iteration/kl": sums["kl"] / sums["tokens"]} if sums["tokens"] else {}),
        }
        self.sums = {}
        synced = {} if self.parts.reference is None else self.parts.reference.sync(iteration)
        if synced and self.config.buffer != "current":
            self._renew_references()
        self.session.metrics.log_eval(step, {**row, **synced})

    def _renew_references(self) -> None:
        """Compare the pairs that stay in the buffer with the reference policy of the next iteration."""
        items = self.buffer.items
        compared = items if items and items[0].chosen.ref is not None else []
        dealt = deal(self.strategy, compared)
        if dealt.size:
            sums = undealt(on_first(self.strategy, self._reference_sums(dealt.pairs)))
            self.buffer.replace([item.with_refs(*refs) for item, refs in zip(compared, sums, strict=True)])

    def evaluate(self, step: int) -> Evaluation | None:
        """Held-out completions, their scores and gold scores, against those before training; and the benchmarks."""
        config, parts = self.config, self.parts
        gold_samples = config.gold_samples if self.inputs.has_gold else 0
        count = max(config.eval_samples, gold_samples) if config.eval_samples else 0
        if not parts.evaluator.has_work(count):
            return None
        parts.source.sync_policy(parts.learner.version)
        return parts.evaluator.evaluate(step, parts.learner.version, count, partial(_win_metrics, self.before))

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""
        if self.parts.checkpoint.saved(step):
            return
        before = self.before.state() if self.before else None
        pairs = {"buffer": self.buffer.state_dict(), "pending": pack(self.pending)}
        self.parts.checkpoint.save(step, {"before": before, **pairs, "sums": dict(self.sums)})

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.parts.checkpoint.load_state_dict(state["online"])
        self.before = Evaluation.from_state(state["before"])
        if self.session.main:
            self.buffer.load_state_dict(state["buffer"])
            self.pending = unpack(state["pending"])
        self.sums = dict(state["sums"] if "sums" in state else state["tally"])  # its name in version 0.1
        self.parts.checkpoint.restore_components(checkpoint)

    def finish(self, step: int) -> Mapping[str, Any]:
        """Evaluate, write the final model and the summary."""
        after = self.evaluate(step)
        self.parts.checkpoint.write_final()
        rows = [r for r in read_jsonl(self.session.dir.path / "metrics.jsonl") if "iteration/pairs" in r]
        summary = summarize_online_run(
            self.session,
            algo=self.config.name,
            updates=self.parts.learner.version,
            seed=self.ctx.seed,
            groups=self.parts.evaluator.groups,
            before=self.before,
            after=after,
            reports=self.ctx.report,
        )
        iterations = [{k.removeprefix("iteration/"): v for k, v in r.items()} for r in rows]
        more = {"steps": step, "iterations": iterations, "win_rate": win_rate_over(self.before, after)}
        return self.session.finish({**summary, **more})

    def close(self) -> None:
        """Close every component of the run."""
        self.session.close()


def _win_metrics(before: Evaluation | None, now: Evaluation) -> dict[str, float]:
    wins = win_rate_over(before, now)
    return {} if wins is None else {"eval/win_rate": wins}


def win_rate_over(before: Evaluation | None, now: Evaluation | None) -> float | None:
    """Win rate over the start: by the gold score where there is one, else by the run's reward; ties count half.

    Prompts without both scores are left out; None if none is left.
    """
    if before is None or now is None:
        return None
    have_golds = now.golds and before.golds
    rows = zip(now.golds or (), before.golds or ()) if have_golds else zip(now.scores or (), before.scores or ())
    pairs = [(a, b) for a, b in rows if a is not None and b is not None]
    return win_rate([a for a, _ in pairs], [b for _, b in pairs]).rate if pairs else None
