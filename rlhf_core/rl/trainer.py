"""The on-policy loop, algorithm-blind: an algorithm is an advantage, a loss and defaults.

     prompts -> rollouts -> scores -> advantages -> samples -> update -> checkpoint
    |__________________________|          |                      |
           RolloutSource            AdvantageStep           UpdateStep
     (RolloutCollector: PromptLoader,  (ReferencePolicy,   (PolicyMicroBatcher,
      RolloutGenerator, RewardManager)  estimator, critic)  PolicyModule, Learner)
              ^______________________ WeightSync ______________|

Up to the advantages everything is plain Python and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.plugins.context import BuildContext
from rlhf_core.rl.advantages import with_advantages
from rlhf_core.rl.build import OnlineParts, build_online
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.inputs import load_online_inputs
from rlhf_core.rl.summary import summarize_online_run
from rlhf_core.rl.token_record import TokenRecorder
from rlhf_core.runs.checkpoint_manager import Checkpoint
from rlhf_core.training.loop import LoopSchedule, run_loop
from rlhf_core.training.policy_evaluator import Evaluation
from rlhf_core.training.rewards import score_metrics
from rlhf_core.training.timer import Timer
from rlhf_core.training.trace import prompt_rows, update_row
from rlhf_core.training.training_sample import TrainingSample
from rlhf_core.types.rollouts import Score


class OnlineTrainer:
    """Sample, score, estimate, update.

    Args:
        config: sizes and settings.
        ctx: session, strategy, datasets and the run's configuration.
    """

    parts: OnlineParts

    def __init__(self, config: OnlineTrainerConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config.micro_batches(ctx.world_size), ctx
        self.session, self.strategy = ctx.session, ctx.strategy
        wants_reference = config.kl.coefficient > 0 or config.kl.track
        self.inputs = load_online_inputs(self.config, ctx, wants_reference=wants_reference)
        self.before: Evaluation | None = None

    def run(self) -> Mapping[str, Any]:
        """Train to the last step and return the summary."""
        config = self.config
        schedule = LoopSchedule(config.steps, config.eval_every, config.checkpoint_every, config.keep_checkpoints)
        return run_loop(self, self.session, schedule)

    def step(self, step: int) -> None:
        """One rollout batch: sample, score, estimate advantages, update."""
        parts, config, timer = self.parts, self.config, Timer()
        with timer("step"):
            batch, first_read, source_metrics = parts.source.next_batch(step, parts.learner.version, timer)
            parts.source.release_memory()
            samples = [TrainingSample.from_rollout(r, mask_truncated=config.mask_truncated) for r in batch.rollouts]
            if parts.forward_check is not None and not parts.forward_check.done:
                with timer("forward_check"):
                    parts.forward_check(samples)
            with timer("reference"):
                forward = parts.advantages.forward(samples)
            scored = parts.advantages.score(batch, forward)
            self._check_scores(scored.all_scores, first_read)
            estimate = parts.advantages.estimate(scored, batch)
            groups = with_advantages(samples, batch, estimate.advantages, forward)
            with timer("update"):
                recorder = TokenRecorder(batch.groups, config.trace_prompts) if config.trace_prompts else None
                critic_only = step <= parts.critic_warmup_steps
                update_metrics = parts.update(step, groups, batch.version, critic_only=critic_only, observe=recorder)
            self.session.counts.update({**estimate.truncated, **estimate.without_signal})
            metrics = {
                **score_metrics(scored.all_scores),
                **estimate.metrics,
                **estimate.advantages.metrics,
                **update_metrics,
                **(batch.metrics if first_read else {"tokens_generated": 0.0}),
                **{name: float(count) for name, count in estimate.truncated.items()},
                **estimate.kl,
                **{name: float(count) for name, count in estimate.without_signal.items()},
            }
            tokens = {} if recorder is None else recorder.of_all_ranks(self.strategy)
            if self.session.main:
                values = estimate.advantages.values
                rows = prompt_rows(batch.groups, scored.rollouts, scored.scores, values, config.trace_prompts, tokens)
                self.session.trace(step, "step", [*rows, update_row(metrics)])
            metrics |= source_metrics
            metrics |= parts.reference.sync(step) if parts.reference is not None else {}
        self.session.metrics.log_step(step, metrics, timer.seconds)

    def _check_scores(self, scores: Sequence[Score], first_read: bool) -> None:
        """Count the scores of a batch once, and fail if too many are missing."""
        if first_read:
            missing = [s.status.value for s in scores if not s.ok]
            self.session.counts.update(f"score_{status}" for status in missing)
            self.session.counts["scores_ok"] += len(scores) - len(missing)
        self.parts.rewards.check(scores)

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Build the parts; evaluate the policy before training, or go on from the checkpoint."""
        self.parts = build_online(self.config, self.ctx, self.inputs, checkpoint)
        if checkpoint is None:
            self.before = self.evaluate(0, final=True)
            return 0
        state = checkpoint.state
        self.parts.checkpoint.load_state_dict(state["online"])
        self.parts.source.load_state_dict([rank["scheduler"] for rank in state["written_by"]])
        self.parts.update.drift.load_state_dict(state.get("drift", {"compared": state["checked_mismatch"]}))
        self.before = Evaluation.from_state(state["before"])
        self.parts.checkpoint.restore_components(checkpoint)
        return checkpoint.step

    def evaluate(self, step: int, *, final: bool = False) -> Evaluation | None:
        """Held-out evaluation; before and after the run on at least ``gold_samples`` prompts."""
        config, parts = self.config, self.parts
        gold_samples = config.gold_samples if final and self.inputs.has_gold else 0
        count = max(config.eval_samples, gold_samples) if config.eval_samples else 0
        if not parts.evaluator.has_work(count):
            return None
        parts.source.sync_policy(parts.learner.version)
        return parts.evaluator.evaluate(step, parts.learner.version, count)

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""
        if self.parts.checkpoint.saved(step):
            return
        rank_state = {"scheduler": self.parts.source.state_dict()}  # first: afterwards nothing is being sampled
        before = self.before.state() if self.before else None
        drift = self.parts.update.drift
        state = {"before": before, "checked_mismatch": drift.compared, "drift": drift.state_dict()}
        self.parts.checkpoint.save(step, state, rank_state)

    def finish(self, step: int) -> Mapping[str, Any]:
        """Evaluate, write the final model and the summary."""
        after = self.evaluate(step, final=True)
        self.parts.checkpoint.write_final()
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
        return self.session.finish(summary)

    def close(self) -> None:
        """Close every component of the run."""
        self.session.close()
