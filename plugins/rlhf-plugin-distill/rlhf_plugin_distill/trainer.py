"""The loop of `rlhf train --algo distill`: sample, ask the teacher, update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.hooks import StepMetrics
from rlhf_core.rl import RolloutTrainer
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_distill.config import DistillConfig
from rlhf_plugin_distill.module import DistillModule, DistillSample
from rlhf_plugin_distill.teacher import open_teacher


class DistillTrainer(RolloutTrainer):
    """One update on each rollout batch, towards the teacher."""

    config: DistillConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: DistillConfig, ctx: BuildContext) -> None:
        teacher = open_teacher(config.teacher, ctx)
        super().__init__(config, ctx, wants_reference=False)
        loss = ctx.config.loss
        assert loss is not None
        policy = PolicyModule(self.inputs.policy.model, config.sampling.temperature or 1.0, self.inputs.options)
        self.module = DistillModule(policy, teacher, loss.build(ctx))
        self.teacher, self.total_updates = teacher, config.steps

    def step(self, step: int) -> None:
        """One rollout batch and one update."""
        parts, timer = self.parts, self.timer
        timer.seconds = {}
        with timer("step"):
            batch, first_read, source_metrics = parts.source.next_batch(step, parts.learner.version, timer)
            parts.source.release_memory()
            samples = [self._sample(r) for r in batch.rollouts]
            if parts.forward_check is not None and not parts.forward_check.done:
                with timer("forward_check"):
                    parts.forward_check(samples)
            with timer("teacher"):
                samples = self.teacher.asked(samples)
            tokens = sum(s.tokens for s in samples)
            self.session.hooks.fire("rlhf_batch_ready", StepMetrics(step, {"sequences": len(samples), "tokens": tokens}))
            with timer("update"):
                update = parts.learner.update(samples)
            shards = self.rank_zero.gather((batch.rollouts, batch.scores))
            with self.rank_zero.section() as section:
                rollouts, scores = ([one for shard in shards for one in shard[n]] for n in range(2))
                section.sent = [(self.rollout_metrics(rollouts, scores), scores)] * len(shards)
            metrics, scores = section.received
            if getattr(self.ctx.config.reward, "name", "") != "unscored":
                self.check_scores(scores, first_read)
            metrics = {**metrics, **update, **(batch.metrics if first_read else {"tokens_generated": 0.0}), **source_metrics}
            self.trace_prompts(step, "step", batch.groups, rollouts, scores, [None] * len(rollouts))
            self.session.trace(step, "step", [{"event": "update", "metrics": dict(metrics)}])
        self.session.metrics.log_step(step, metrics, timer.seconds)

    def _sample(self, rollout: Any) -> DistillSample:
        sample = TrainingSample.from_rollout(rollout, mask_truncated=self.config.mask_truncated)
        return DistillSample(**{field.name: getattr(sample, field.name) for field in fields(sample)})

    def rank_state(self) -> dict[str, Any]:
        """Prompts and rollouts that were drawn, and not yet learned from."""
        return {"source": self.parts.source.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from every rank's :meth:`rank_state`."""
        self.parts.source.load_state_dict([rank["source"] for rank in state["written_by"]])
