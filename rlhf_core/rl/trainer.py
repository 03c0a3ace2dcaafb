"""The on-policy loop, algorithm-blind: an algorithm is an advantage, a loss and defaults.

     prompts -> rollouts -> scores -> advantages -> samples -> update -> checkpoint
    |__________________________|          |                      |
           InlineSource             AdvantageStep           UpdateStep
     (RolloutCollector: PromptLoader,  (ReferencePolicy,   (PolicyMicroBatcher,
      RolloutGenerator, RewardManager)  estimator, critic)  PolicyModule, Learner)
              ^______________________ WeightSync ______________|

Up to the advantages everything is plain Python and numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.order import by_source
from rlhf_core.distributed.group import RankZero
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler, scheduling
from rlhf_core.plugins.loss_contract import LossTerm
from rlhf_core.rl.advantages import measure_kl, with_advantages
from rlhf_core.rl.build import OnlineParts, PartsBuilder, RolloutParts, TrainableModule, build_loss, build_online
from rlhf_core.rl.config import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.inputs import load_online_inputs
from rlhf_core.runs.checkpoint import Checkpoint
from rlhf_core.runs.metrics import first_and_last
from rlhf_core.training.generation import rollout_metrics
from rlhf_core.training.loop import run_loop
from rlhf_core.training.policy_evaluator import Evaluation, before_and_after
from rlhf_core.training.rewards import score_metrics
from rlhf_core.training.rollout_batch import RolloutBatch, TrainingSample, share_bounds
from rlhf_core.training.trace import Timer, TokenRecorder, prompt_rows
from rlhf_core.types.rollouts import PromptGroup, Score


class RolloutTrainer:
    """A trainer that learns from rollouts of its policy: inputs, parts, evaluation, checkpoints and the summary.

    A subclass makes the steps. It sets :attr:`module` and :attr:`total_updates`, defines :meth:`step`, and overrides
    what differs: :meth:`loss_terms`, :meth:`state` and :meth:`load_state`, :meth:`eval_metrics`, :meth:`more_summary`.

    Args:
        config: sizes and settings.
        ctx: session, strategy, datasets and the run's configuration.
        wants_reference: keep the policy as it is before training.
    """

    config: RolloutTrainerConfig
    parts: RolloutParts
    """What the run samples, scores and learns with; there from :meth:`start` on."""
    module: torch.nn.Module
    """``module(samples)`` returns the batch that the loss consumes; its part ``model`` is the policy."""
    total_updates: int
    """For the learning-rate schedule."""
    steps_per_iteration: int = 1
    """Steps of the loop for one of ``trainer.steps``, and one of ``trainer.eval_every``."""
    timer: Timer
    """Seconds of the parts of the step that is being made; :meth:`step` empties ``timer.seconds`` first."""
    rollout_metrics = staticmethod(rollout_metrics)
    measure_kl = staticmethod(measure_kl)
    always_gold: ClassVar[bool] = False
    """Compare ``gold_samples`` prompts at every evaluation, not only before and after the run."""

    def __init__(self, config: RolloutTrainerConfig, ctx: BuildContext, *, wants_reference: bool) -> None:
        self.config, self.ctx = config.micro_batches(ctx.world_size), ctx
        self.session, self.strategy, self.rank_zero = ctx.session, ctx.strategy, RankZero(ctx.strategy)
        self.inputs = load_online_inputs(self.config, ctx, wants_reference=wants_reference)
        self.before: Evaluation | None = None
        self.timer = Timer()

    def step(self, step: int) -> None:
        """Make one step."""
        raise NotImplementedError

    def loss_terms(self) -> Sequence[LossTerm]:
        """Terms that are added to the run's loss."""
        return ()

    def state(self) -> dict[str, Any]:
        """What else a checkpoint holds; ``torch.save`` writes it on rank 0."""
        return {}

    def rank_state(self) -> dict[str, Any] | None:
        """What a checkpoint holds of each rank."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, and from each rank's under ``written_by``."""

    def eval_metrics(self, now: Evaluation) -> Mapping[str, float]:
        """Further metrics of an evaluation."""
        return {}

    def more_summary(self, step: int, after: Evaluation | None) -> Mapping[str, Any]:
        """Further entries of the summary."""
        return {}

    def build(self, checkpoint: Checkpoint | None) -> RolloutParts:
        """Build the parts around :attr:`module`."""

        def trained(ctx: BuildContext) -> TrainableModule:
            return TrainableModule(self.module, build_loss(ctx, self.loss_terms()), self.total_updates)

        return PartsBuilder(self.config, self.ctx, self.inputs).build(checkpoint, trained)

    def run(self) -> Mapping[str, Any]:
        """Train to the last step and return the summary."""
        config, each = self.config, self.steps_per_iteration
        return run_loop(self, self.session, config, config.steps * each, each)

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Build the parts; evaluate the policy before training, or go on from the checkpoint."""
        self.parts = self.build(checkpoint)
        if checkpoint is None:
            self.before = self.evaluate(0, final=True)
            return 0
        state = checkpoint.state
        self.parts.checkpoint.load_state_dict(state["online"])
        self.before = Evaluation.from_state(state["before"])
        self.load_state(state)
        self.session.checkpoints.restore(checkpoint)
        return checkpoint.step

    def trace_prompts(
        self,
        step: int,
        stage: str,
        batch: RolloutBatch,
        scores: Sequence[Score],
        advantages: Sequence[Any],
        traced: Sequence[PromptGroup],
        recorder: TokenRecorder | None = None,
    ) -> None:
        """Append the prompts of a step to ``trace.jsonl``; each rank writes those whose completions it has. All ranks
        call it together.

        Args:
            stage: names the rows.
            scores: of this rank's completions.
            advantages: a number, an array ``[T]`` or None for each of these.
            traced: the batch's groups, or the first ones.
            recorder: knows what the update saw of each token.
        """
        rank, bounds = self.strategy.rank, share_bounds(len(batch.groups), self.strategy.world_size)
        shares = [traced[start:end] for start, end in pairwise(bounds)]
        tokens = {} if recorder is None else recorder.shared_out(self.strategy, shares)
        full = max(0, self.config.trace_prompts - bounds[rank])
        rows = prompt_rows(shares[rank], batch.rollouts, scores, advantages, full, tokens)
        self.session.trace(step, stage, rows, turns=sum(map(bool, shares)))

    def check_scores(self, scores: Sequence[Score], first_read: bool = True) -> None:
        """Count the scores of a batch once, and fail if too many are missing."""
        if first_read:
            missing = [s.status.value for s in scores if not s.ok]
            self.session.counts.update(f"score_{status}" for status in missing)
            self.session.counts["scores_ok"] += len(scores) - len(missing)
        self.parts.rewards.check(scores)

    def evaluate(self, step: int, *, final: bool = False) -> Evaluation | None:
        """Held-out evaluation; before and after the run on at least ``gold_samples`` prompts."""
        config, parts = self.config, self.parts
        gold_samples = config.gold_samples if (final or self.always_gold) and self.inputs.has_gold else 0
        count = max(config.eval_samples, gold_samples) if config.eval_samples else 0
        if not (count and parts.evaluator.groups) and not parts.evaluator.has_benchmarks:
            return None
        parts.source.sync_policy(parts.learner.version)
        return parts.evaluator.evaluate(step, parts.learner.version, count, self.eval_metrics)

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""
        if self.session.checkpoints.saved(step):
            return
        rank_state = self.rank_state()  # first: afterwards nothing is being sampled
        before = self.before.state() if self.before else None
        self.parts.checkpoint.save(step, {"before": before, **self.state()}, rank_state)

    def finish(self, step: int) -> Mapping[str, Any]:
        """Evaluate, write the final model and the summary."""
        after = self.evaluate(step, final=True)
        self.parts.checkpoint.write_final()
        return self.session.finish({**self._summary(after), **self.more_summary(step, after)})

    def _summary(self, after: Evaluation | None) -> dict[str, Any]:
        """What ``summary.json`` says of an on-policy run."""
        before = self.before
        steps = [r for r in read_jsonl(self.session.dir.path / "metrics.jsonl") if "tokens_generated" in r]
        return {
            "algo": self.config.name,
            "steps": len(steps),
            "updates": self.parts.learner.version,
            "seed": self.ctx.seed,
            "tokens_generated": int(sum(r["tokens_generated"] for r in steps)),
            **first_and_last(steps, "reward/mean", "reward"),
            **first_and_last(steps, "completion_length/mean", "completion_length"),
            "kl_last": _last(steps, "kl"),
            "entropy_last": _last(steps, "entropy"),
            "evaluation_before": dict(before.metrics) if before else None,
            "evaluation_after": dict(after.metrics) if after else None,
            "reports": dict(self.ctx.report),
            **before_and_after(self.parts.evaluator.groups, before, after),
        }


class OnlineTrainer(RolloutTrainer):
    """Sample, score, estimate, update."""

    config: OnlineTrainerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    parts: OnlineParts  # pyright: ignore[reportIncompatibleVariableOverride]
    with_advantages = staticmethod(with_advantages)
    traced_groups: Callable[[int, Sequence[PromptGroup]], Sequence[PromptGroup]] | None = None
    """Of a step's groups those that are traced; None: all."""

    def __init__(self, config: OnlineTrainerConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx, wants_reference=config.kl.coefficient > 0 or config.kl.track)

    def step(self, step: int) -> None:
        """One rollout batch: sample, score, estimate advantages, update."""
        parts, config, timer = self.parts, self.config, self.timer
        timer.seconds = {}
        with timer("step"):
            batch, first_read, source_metrics = parts.source.next_batch(step, parts.learner.version, timer)
            traced = batch.groups if self.traced_groups is None else self.traced_groups(step, batch.groups)
            parts.source.release_memory()
            samples = [TrainingSample.from_rollout(r, mask_truncated=config.mask_truncated) for r in batch.rollouts]
            if parts.forward_check is not None and not parts.forward_check.done:
                with timer("forward_check"):
                    parts.forward_check(samples)
            with timer("reference"):
                forward = parts.advantages.reference_and_values(samples)
            scored = parts.advantages.penalize_and_gather(batch, forward)
            scores = [*scored.scores, *scored.set_aside_scores]
            self.check_scores(scores, first_read)
            estimate = parts.advantages.estimate(scored, batch)
            groups = self.with_advantages(samples, batch, estimate.advantages, forward)
            with timer("update"):
                recorder = TokenRecorder(traced, config.trace_prompts) if config.trace_prompts else None
                critic_only = step <= parts.critic_warmup_steps
                update_metrics = parts.update(step, groups, batch.version, critic_only=critic_only, observe=recorder)
            self.session.counts.update({**estimate.truncated, **estimate.without_signal})
            metrics = {
                **score_metrics(scores),
                **estimate.metrics,
                **estimate.advantages.metrics,
                **update_metrics,
                **(batch.metrics if first_read else {"tokens_generated": 0.0}),
                **{name: float(count) for name, count in estimate.truncated.items()},
                **estimate.kl,
                **{name: float(count) for name, count in estimate.without_signal.items()},
            }
            self.trace_prompts(step, "step", batch, scored.own_scores, estimate.advantages.values, traced, recorder)
            self.session.trace(step, "step", [{"event": "update", "metrics": dict(metrics)}])
            metrics |= source_metrics
            if len(self.inputs.datasets.sources) > 1:
                sources = [group.prompt.source for group in batch.groups for _ in range(group.group_size)]
                for source, rows in by_source(sources).items():
                    metrics |= score_metrics([scored.scores[row] for row in rows], f"{source}/reward")
            metrics |= parts.reference.sync(step) if parts.reference is not None else {}
        self.session.metrics.log_step(step, metrics, timer.seconds)

    def build(self, checkpoint: Checkpoint | None) -> OnlineParts:
        """Build the stages of a step, and what stands around them."""
        parts = build_online(self.config, self.ctx, self.inputs, checkpoint)
        outlined = self.strategy.world_size > 1 and scheduling("trace")  # else every token would go to rank 0
        if outlined or "trace" in self.config.scheduled(self.ctx.config.dataset):
            self.traced_groups = scheduler("trace", "trainer.trace_completions")()(self.config, parts)
        return scheduler("settings", "trainer.schedules")()(self, parts) if self.config.schedules else parts

    def state(self) -> dict[str, Any]:
        """How engine and trainer drifted apart."""
        return {"drift": self.parts.update.drift.state_dict()}

    def rank_state(self) -> dict[str, Any]:
        """Prompts and rollouts that were drawn, and not yet learned from."""
        return {"source": self.parts.source.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state` and every rank's :meth:`rank_state`."""
        self.parts.source.load_state_dict([rank["source"] for rank in state["written_by"]])
        self.parts.update.drift.load_state_dict(state["drift"])


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((r[key] for r in reversed(rows) if r.get(key) is not None), None)
