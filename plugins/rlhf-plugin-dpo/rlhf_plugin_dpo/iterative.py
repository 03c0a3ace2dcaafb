"""The loop of `rlhf train --algo iterative_dpo`; a step is one rollout batch or one update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import read_jsonl
from rlhf_core.hooks import StepMetrics
from rlhf_core.rewards import Score
from rlhf_core.rl import RolloutTrainer
from rlhf_core.rollouts import Rollout
from rlhf_core.runs import win_rate
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_dpo.batches import PAIRINGS, SupervisedTerm, policy_sums, scaled_by, sides_apart
from rlhf_plugin_dpo.buffer import PairBuffer, pack, unpack
from rlhf_plugin_dpo.choose import choose_pairs, summed
from rlhf_plugin_dpo.items import PairItem, Side, sides_of
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.ranks import DealtPairs, dealt_to_each, undealt
from rlhf_plugin_dpo.schedule import beta_scale

OLD_PAIRS = 256
"""Of which the margin is measured."""


@dataclass(frozen=True)
class CollectedPairs:
    """What the rollouts of all ranks came to."""

    scores: Sequence[Score]
    pairs: Sequence[PairItem]
    """Made of the rollouts; on rank 0, which holds the buffer; empty elsewhere."""
    count: int
    dropped: Counter[str]
    """Groups that gave no pair, by reason."""
    kl_sum: float
    kl_tokens: float
    metrics: Mapping[str, float]
    """Of the rollouts and their scores."""


def collected_for_each(shards: Sequence[Any]) -> list[CollectedPairs]:
    """What rank 0 sends to each rank, from every rank's (rollouts, scores, pairs, dropped groups, KL)."""
    rollouts, pairs = [r for shard in shards for r in shard[0]], [p for shard in shards for p in shard[2]]
    scores = [s for shard in shards for s in shard[1]]
    every = CollectedPairs(
        scores=scores,
        pairs=pairs,
        count=len(pairs),
        dropped=sum((shard[3] for shard in shards), Counter[str]()),
        kl_sum=sum(shard[4][0] for shard in shards),
        kl_tokens=sum(shard[4][1] for shard in shards),
        metrics=RolloutTrainer.rollout_metrics(rollouts, scores),
    )
    return [every, *[replace(every, pairs=())] * (len(shards) - 1)]


class IterativeTrainer(RolloutTrainer):
    """Collect pairs from the current policy, update on them, repeat."""

    config: IterativeDpoConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    always_gold = True

    def __init__(self, config: IterativeDpoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx, wants_reference=config.kl.track)
        conversation = config.sft.weight > 0 and config.sft.on == "conversation"
        model, options = self.inputs.policy.model, self.inputs.options
        self.module = PairModule(model, config.ld_alpha, conversation, options.as_arguments)
        self.policy_module = PolicyModule(model, config.sampling.temperature, options)
        """How reference logprobs of rollouts are computed: at the sampler's temperature."""
        self.steps_per_iteration = config.rollout_batches + config.updates
        self.total_updates = config.steps * config.updates
        self.buffer = PairBuffer(config.buffer, config.buffer_iterations)
        self.pending: list[PairItem] = []
        """Pairs of the iteration that is being collected; like the buffer's on rank 0 alone."""
        self.sums: dict[str, float] = {}
        """Sums over the rollouts of the iteration: reward, scores, kl, tokens, pairs."""

    def loss_terms(self) -> Sequence[SupervisedTerm]:
        weight = self.config.sft.weight
        return [SupervisedTerm(weight)] if weight > 0 else []

    def step(self, step: int) -> None:
        """One rollout batch, or one update; the last of an iteration also ends it."""
        iteration, stage = divmod(step - 1, self.steps_per_iteration)
        self.timer.seconds = {}
        if stage < self.config.rollout_batches:
            metrics = self._collect(step, iteration + 1)
            if stage == self.config.rollout_batches - 1:
                self.buffer.add(self.pending)
                self.pending = []
        else:
            metrics = self._update(step, iteration, stage - self.config.rollout_batches)
        self.session.metrics.log_step(step, {"iteration": iteration + 1.0, **metrics}, self.timer.seconds)
        if stage == self.steps_per_iteration - 1:
            self._end_iteration(step, iteration + 1)

    def _collect(self, step: int, iteration: int) -> dict[str, float]:
        """Sample and score a rollout batch, and make pairs of it, which rank 0 keeps."""
        parts = self.parts
        batch = parts.source.next_batch(step, parts.learner.version, self.timer).batch
        with self.timer("reference"):
            collected = self._pairs_of_all_ranks(batch, iteration)
        self.pending += collected.pairs
        self.session.counts.update(collected.dropped)
        self.check_scores([*collected.scores, *batch.set_aside_scores])
        scores = [float(s.value or 0.0) for s in collected.scores if s.ok]
        kl, tokens = collected.kl_sum, collected.kl_tokens
        self._add(reward=sum(scores), scores=len(scores), kl=kl, tokens=tokens, pairs=collected.count)
        metrics = {
            **collected.metrics,
            **batch.metrics,
            "pairs": float(collected.count),
            **{name: float(n) for name, n in collected.dropped.items()},
            **({"kl": kl / tokens} if tokens else {}),
        }
        self.trace_prompts(step, "pairs", batch, batch.scores, [None] * len(batch.scores), batch.groups)
        self.session.trace(step, "pairs", [{"event": "pairs", "names": [p.name for p in collected.pairs]}])
        return metrics

    def _pairs_of_all_ranks(self, batch: Any, iteration: int) -> CollectedPairs:
        """Each rank makes the pairs of its own groups; rank 0 is sent them all, and tells what they come to."""
        references = self._rollout_references(batch.rollouts)
        pairs, dropped = self._pairs(batch, references, iteration)
        kl = self.measure_kl(batch.rollouts, references)
        shards = self.rank_zero.gather((batch.rollouts, batch.scores, pairs, dropped, kl))
        with self.rank_zero.section() as section:
            section.sent = collected_for_each(shards) if shards else []
        return section.received

    def _rollout_references(self, rollouts: Sequence[Rollout]) -> list[Any] | None:
        """Reference logprobs ``[T]`` of each rollout, at the sampler's temperature; None without a reference."""
        if self.parts.reference is None:
            return None
        samples = [TrainingSample.from_rollout(r) for r in rollouts]
        return self.parts.reference.logprobs(samples, self.policy_module, self.config.micro_batch_size)

    def _pairs(
        self, batch: Any, references: Sequence[Any] | None, iteration: int
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
            return PairModule(module.model, config.ld_alpha, paths=self.inputs.options.as_arguments).side_sums(sides)

        sums = reference.rows(sides_of(items), 2 * config.micro_batch_size, compute)
        return list(zip(sums[::2], sums[1::2], strict=True))

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def _update(self, step: int, iteration: int, update: int) -> dict[str, float]:
        """One update on pairs of the buffer, of which each rank is sent its own; none if there are no pairs at all."""
        config, learner = self.config, self.parts.learner
        number = iteration * config.updates + update + 1
        scale = beta_scale(config.beta_schedule, number, config.steps * config.updates)
        batch = scaled_by(self.buffer.draw(config.pair_batch_size, update, (self.ctx.seed, iteration)), config, scale)
        dealt = self._deal(batch)
        if not dealt.size:
            self.session.counts["updates_without_pairs"] += 1
            return {"updates_without_pairs": 1.0}
        event = StepMetrics(step, {"sequences": dealt.size, "tokens": dealt.tokens})
        self.session.hooks.fire("rlhf_batch_ready", event)
        with self.timer("update"):
            metrics = learner.update(self._paired(dealt, batch))
        self.session.trace(step, "step", [{"event": "update", "examples": [i.name for i in batch], "metrics": metrics}])
        return metrics

    def _paired(self, dealt: DealtPairs, batch: Sequence[PairItem]) -> list[PairItem]:
        """This rank's pairs as the loss is to see them, of a batch that rank 0 holds; all ranks call it together."""
        pairing = PAIRINGS.get(getattr(self.ctx.config.loss, "pairing", "pairs"))
        if pairing is None:
            return dealt.pairs
        shards = self.rank_zero.gather(policy_sums(dealt.pairs, self.parts.learner, self.config.micro_batch_size))
        return self._deal(pairing(batch, *sides_apart(shards)) if shards else []).pairs

    def _deal(self, items: Sequence[PairItem]) -> DealtPairs:
        """Send each rank its pairs of a batch that rank 0 holds; all ranks call it together."""
        with self.rank_zero.section() as section:
            section.sent = dealt_to_each(items, self.strategy.world_size)
        return section.received

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
        row |= self._old_margins()
        self.sums = {}
        synced = {} if self.parts.reference is None else self.parts.reference.sync(iteration)
        if synced and self.config.buffer != "current":
            self._renew_references()
        self.session.metrics.log_eval(step, {**row, **synced})

    def _old_margins(self) -> dict[str, float]:
        """Mean size of the margins that the policy as it is gives to the oldest pairs of earlier iterations. Nothing
        where the buffer keeps none, or no loss looks at a reference."""
        old = [item for items in self.buffer.iterations[:-1] for item in items if item.chosen.ref is not None]
        dealt = self._deal(old[:OLD_PAIRS])
        if not dealt.size:
            return {}
        shards = self.rank_zero.gather(policy_sums(dealt.pairs, self.parts.learner, self.config.micro_batch_size))
        rows = zip(old, undealt(shards)) if shards else ()
        beta = float(getattr(self.ctx.config.loss, "beta", 1.0))
        sizes = [beta * abs(c - (i.chosen.ref or 0.0) - r + (i.rejected.ref or 0.0)) for i, (c, r) in rows]
        return {"iteration/old_margin": self.strategy.sum_over_ranks([sum(sizes)])[0] / dealt.size}

    def _renew_references(self) -> None:
        """Compare the pairs that stay in the buffer with the reference policy of the next iteration."""
        items = self.buffer.items
        compared = items if items and items[0].chosen.ref is not None else []
        dealt = self._deal(compared)
        if dealt.size:
            sums = undealt(self.rank_zero.gather(self._reference_sums(dealt.pairs)))
            self.buffer.replace([item.with_refs(*refs) for item, refs in zip(compared, sums, strict=True)])

    def eval_metrics(self, now: Any) -> Mapping[str, float]:
        wins = win_rate_over(self.before, now)
        return {} if wins is None else {"eval/win_rate": wins}

    def state(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict(), "pending": pack(self.pending), "sums": dict(self.sums)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if self.session.main:
            self.buffer.load_state_dict(state["buffer"])
            self.pending = unpack(state["pending"])
        self.sums = dict(state["sums"])

    def more_summary(self, step: int, after: Any) -> Mapping[str, Any]:
        rows = [r for r in read_jsonl(self.session.dir.path / "metrics.jsonl") if "iteration/pairs" in r]
        iterations = [{k.removeprefix("iteration/"): v for k, v in r.items()} for r in rows]
        return {"steps": step, "iterations": iterations, "win_rate": win_rate_over(self.before, after)}


def win_rate_over(before: Any, now: Any) -> float | None:
    """Win rate over the start by the gold score, else the run's reward, ties as half; None without scores."""
    if before is None or now is None:
        return None
    have_golds = now.golds and before.golds
    rows = zip(now.golds or (), before.golds or ()) if have_golds else zip(now.scores or (), before.scores or ())
    pairs = [(a, b) for a, b in rows if a is not None and b is not None]
    return win_rate([a for a, _ in pairs], [b for _, b in pairs]).rate if pairs else None
