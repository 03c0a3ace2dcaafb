"""The loop of `rlhf train --algo iterative_dpo`: rollouts, scores, pairs, updates, and again.

A step of the session is one rollout batch or one update, so a run can be saved and resumed between any two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from rlhf_core.api import BuildContext, PromptGroup, Rollout, Score
from rlhf_core.functional import win_rate
from rlhf_core.sdk import (
    BatchReady,
    Evaluation,
    Timer,
    measure_kl,
    online_summary,
    read_jsonl,
    rollout_metrics,
    score_metrics,
    step_trace,
)
from rlhf_plugin_dpo.batches import prepare
from rlhf_plugin_dpo.buffer import PairBuffer, pack, unpack
from rlhf_plugin_dpo.choose import choose_pairs, summed
from rlhf_plugin_dpo.house import PairParts
from rlhf_plugin_dpo.items import PairItem
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.schedule import beta_scale


class IterativeTrainer:
    """Collect pairs from the current policy, update on them, repeat.

    Args:
        config: sizes and settings.
        ctx: session, strategy, datasets and the run's configuration.
    """

    def __init__(self, config: IterativeDpoConfig, ctx: BuildContext) -> None:
        self.config, self.ctx, self.session, self.strategy = config, ctx, ctx.session, ctx.strategy
        self.house = PairParts(config, ctx)
        self.before: Evaluation | None = None
        self.buffer = PairBuffer(config.buffer, config.buffer_iterations)
        self.pending: list[PairItem] = []
        """Pairs of the iteration that is being collected."""
        self.tally: dict[str, float] = {}
        """Sums over the rollouts of the iteration: reward, scores, kl, tokens, pairs."""
        self.timed = Timer()

    @property
    def length(self) -> int:
        """Session steps of one iteration."""
        return self.config.rollout_batches + self.config.updates

    def run(self) -> Mapping[str, Any]:
        """Train to the last iteration and return the summary."""
        with self.session.guard():
            found = self.session.open(self.config.keep_checkpoints)
            self.house.furnish(found)
            start = self._restore(found[1]) if found else 0
            if found is None:
                self.before = self._evaluate(0)
            return self._finish(self._loop(start))

    def _loop(self, start: int) -> int:
        """Run the steps; return the last one made, which is an earlier one if a hook or monitor ends the run."""
        last = self.session.total_steps = self.config.steps * self.length
        for step in range(start, last + 1):
            if step > start:
                self.step(step)
            if self.session.boundary(step, last, self.config.checkpoint_every, self._save):
                return step
        return last

    def step(self, step: int) -> None:
        """One rollout batch, or one update; the last of an iteration also ends it."""
        iteration, place = divmod(step - 1, self.length)
        self.timed = Timer()
        if place < self.config.rollout_batches:
            metrics = self._collect(step, iteration + 1)
            if place == self.config.rollout_batches - 1:
                self.buffer.add(self.pending)
                self.pending = []
        else:
            metrics = self._learn(step, iteration, place - self.config.rollout_batches)
        self.session.log_step(step, {"iteration": iteration + 1.0, **metrics}, self.timed.seconds)
        if place == self.length - 1:
            self._end_iteration(step, iteration + 1)

    def _collect(self, step: int, iteration: int) -> dict[str, float]:
        """Rooms 1 to 3, and the pairs of the rollouts; the same on every rank afterwards."""
        house = self.house
        batch = house.intake.draw(step, self.timed)
        with self.timed("reference"):
            references = house.reference_logprobs(batch.rollouts)
            pairs, dropped = self._pairs(batch.mine, batch.rollouts, batch.scores, references, iteration)
        kl = measure_kl(batch.rollouts, references) if references is not None else (0.0, 0.0)
        shards = self.strategy.gather_objects((batch.rollouts, batch.scores, pairs, dropped, kl))
        rollouts = [r for shard in shards for r in shard[0]]
        scores = [s for shard in shards for s in shard[1]]
        found = [p for shard in shards for p in shard[2]]
        self.pending += found
        counts = sum((shard[3] for shard in shards), Counter[str]())
        self._count([*scores, *batch.aside_scores], counts)
        house.court.check([*scores, *batch.aside_scores])
        kl_sum, tokens = (sum(shard[4][n] for shard in shards) for n in (0, 1))
        good = [float(s.value or 0.0) for s in scores if s.ok]
        self._add(reward=sum(good), scores=len(good), kl=kl_sum, tokens=tokens, pairs=len(found))
        metrics = {
            **score_metrics(scores),
            **rollout_metrics(rollouts),
            **batch.metrics,
            "pairs": float(len(found)),
            **{k: float(n) for k, n in counts.items()},
        }
        metrics |= {"kl": kl_sum / tokens} if tokens else {}
        rows = step_trace(batch.groups, rollouts, scores, [None] * len(rollouts), metrics, self.config.trace_prompts)
        self.session.trace(step, "pairs", [*rows[:-1], {"event": "pairs", "names": [p.name for p in found]}])
        return metrics

    def _pairs(
        self,
        groups: list[PromptGroup],
        rollouts: list[Rollout],
        scores: list[Score],
        references: list[Any] | None,
        iteration: int,
    ) -> tuple[list[PairItem], Counter[str]]:
        """This rank's pairs, with their reference logprobs at temperature 1, whatever was sampled at."""
        chosen, dropped = choose_pairs(groups, rollouts, scores, self.config.margin_threshold, iteration)
        need = getattr(self.ctx.config.loss, "reference", "optional")
        if references is None or self.config.reference_free or need == "unused":
            return [pair for pair, _, _ in chosen], dropped
        if self.config.sampling.temperature != 1:  # ``references`` are at the sampler's
            return self.house.referenced([pair for pair, _, _ in chosen]), dropped
        alpha = self.config.ld_alpha
        return [
            pair.with_refs(
                summed(references[best], pair.chosen, alpha), summed(references[worst], pair.rejected, alpha)
            )
            for pair, best, worst in chosen
        ], dropped

    def _count(self, scores: list[Score], dropped: Counter[str]) -> None:
        counts = self.session.counts
        counts.update(dropped)
        counts.update(f"score_{s.status.value}" for s in scores if not s.ok)
        counts["scores_ok"] += sum(s.ok for s in scores)

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self.tally[name] = self.tally.get(name, 0.0) + value

    def _learn(self, step: int, iteration: int, place: int) -> dict[str, float]:
        """One update on pairs of the buffer; none if there are no pairs at all."""
        config, house = self.config, self.house
        if not self.buffer.items:
            self.session.counts["updates_without_pairs"] += 1
            return {"updates_without_pairs": 1.0}
        drawn = self.buffer.draw(config.pair_batch_size, place, (house.seed, iteration))
        number = iteration * config.updates + place + 1
        scale = beta_scale(config.beta_schedule, number, config.steps * config.updates)
        self.session.hooks.fire("rlhf_batch_ready", BatchReady(step, len(drawn), sum(i.tokens for i in drawn)))
        with self.timed("update"):
            items = prepare(drawn, config, self.ctx.config.loss, scale, house.updater)
            metrics = house.updater.update(items[self.strategy.rank :: self.strategy.world_size])
        self.session.trace(step, "step", [{"event": "update", "examples": [i.name for i in drawn], "metrics": metrics}])
        return metrics

    def _end_iteration(self, step: int, iteration: int) -> None:
        """Measure what the iteration made of the policy, and renew the reference if it is time to."""
        t = self.tally
        row = {
            "iteration": float(iteration),
            "iteration/pairs": t["pairs"],
            "iteration/buffer": float(len(self.buffer.items)),
        }
        row |= {"iteration/reward": t["reward"] / t["scores"]} if t["scores"] else {}
        row |= {"iteration/kl": t["kl"] / t["tokens"]} if t["tokens"] else {}
        self.tally = {}
        every = self.config.eval_every
        if every and iteration % every == 0 and iteration < self.config.steps:
            self._evaluate(step)
        row |= (synced := self.house.sync_reference(iteration))
        if synced and self.config.buffer != "current":
            self._renew_references()
        self.session.log_eval(step, row)

    def _renew_references(self) -> None:
        """Let the pairs that stay in the buffer be compared with the reference policy of the next iteration."""
        items, rank, world = self.buffer.items, self.strategy.rank, self.strategy.world_size
        if items and items[0].chosen.ref is not None:
            shards = self.strategy.gather_objects(self.house.referenced(items[rank::world]))
            self.buffer.replace([shards[n % world][n // world] for n in range(len(items))])

    def _evaluate(self, step: int) -> Evaluation | None:
        """Held-out completions, their scores and gold scores, against those before training; and the benchmarks."""
        house, config = self.house, self.config
        held = config.eval_samples > 0 and house.evaluator.groups
        if not held and not self.ctx.config.benchmarks:
            return None
        count = max(config.eval_samples, config.gold_samples if house.has_gold else 0)
        with self.strategy.gathered(house.module):
            found = house.evaluator.run(house.updater.version, count) if held else None
            benchmarks = house.measure()
        if found is None:
            self.session.log_eval(step, benchmarks)
            return None
        self.session.counts.update({f"eval_score_{k}": n for k, n in found.missing.items()})
        wins = against(self.before, found)
        won = {} if wins is None else {"eval/win_rate": wins}
        self.session.log_eval(step, {**found.metrics, **benchmarks, **won})
        self.session.samples(
            step,
            [
                {"prompt_id": g.prompt.id, "prompt": g.prompt.text, "completion": t}
                for g, t in zip(house.evaluator.groups[:8], found.texts)
            ],
        )
        return found

    def _save(self, step: int) -> None:
        if self.session.saved(step):
            return
        state = {
            "house": self.house.state_dict(),
            "before": self.before.state() if self.before else None,
            "buffer": self.buffer.state_dict(),
            "pending": pack(self.pending),
            "tally": dict(self.tally),
        }
        self.session.checkpoint(step, state, self.house.policy.model, self.house.writer())

    def _restore(self, state: dict[str, Any]) -> int:
        self.house.load_state_dict(state["house"])
        self.before = Evaluation(**state["before"]) if state["before"] else None
        self.buffer.load_state_dict(state["buffer"])
        self.pending, self.tally = unpack(state["pending"]), dict(state["tally"])
        self.session.restore(state)
        return int(state["step"])

    def _finish(self, step: int) -> dict[str, Any]:
        after = self._evaluate(step)
        self.session.write_final(self.house.policy.model, self.house.write_final)
        rows = [r for r in read_jsonl(self.session.dir.path / "metrics.jsonl") if "iteration/pairs" in r]
        own = {
            "steps": step,
            "iterations": [{k.removeprefix("iteration/"): v for k, v in r.items()} for r in rows],
            "win_rate": against(self.before, after),
        }
        return self.session.finish({**online_summary(cast(Any, self), after, self.session.stop_reason()), **own})

    def close(self) -> None:
        """Close every component of the run."""
        self.session.close()


def against(before: Evaluation | None, now: Evaluation | None) -> float | None:
    """Win rate over the start: by the gold score where there is one, else by the run's reward; ties count half.

    Prompts without both scores are left out; None if none is left.
    """
    if before is None or now is None:
        return None
    ours, theirs = (now.golds, before.golds) if now.golds and before.golds else (now.scores, before.scores)
    pairs = [(a, b) for a, b in zip(ours or (), theirs or ()) if a is not None and b is not None]
    return win_rate([a for a, _ in pairs], [b for _, b in pairs]).rate if pairs else None
