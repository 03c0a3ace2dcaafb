"""The loop of `rlhf train --algo distill`: sample, ask the teacher, update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Prompt
from rlhf_core.hooks import StepMetrics
from rlhf_core.rl import RolloutTrainer
from rlhf_core.rollouts import Rollout
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_distill.config import DistillConfig
from rlhf_plugin_distill.module import DistillModule, DistillSample
from rlhf_plugin_distill.teacher import TeacherPrompts, distill_sample, open_teacher


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
        sampling = config.sampling
        self.truncates = sampling.temperature == 0 or sampling.truncates
        self.teacher, self.total_updates = teacher, config.steps
        self.teacher_prompts = TeacherPrompts(config.teacher, self.inputs.policy, ctx, teacher)
        for prompt in self.inputs.prompts.by_name().values():  # what a row lacks is found now
            self.teacher_prompts.of_rollout(prompt, {}, config.sampling.max_tokens)

    def step(self, step: int) -> None:
        """One rollout batch and one update."""
        parts, timer = self.parts, self.timer
        timer.seconds = {}
        with timer("step"):
            batch, first_read, source_metrics = parts.source.next_batch(step, parts.learner.version, timer)
            parts.source.release_memory()
            prompts = [group.prompt for group in batch.own_groups for _ in range(group.group_size)]
            samples = [self._sample(r, p) for r, p in zip(batch.rollouts, prompts, strict=True)]
            if parts.forward_check is not None and not parts.forward_check.done:
                with timer("forward_check"):
                    parts.forward_check(samples)
            with timer("teacher"):
                samples = self.teacher.with_teacher_logprobs(samples)
            sizes = {"sequences": len(samples), "tokens": sum(s.tokens for s in samples)}
            self.session.hooks.fire("rlhf_batch_ready", StepMetrics(step, sizes))
            with timer("update"):
                update = parts.learner.update(samples)
            shards = self.rank_zero.gather((batch.rollouts, batch.scores))
            rollouts, scores = [r for shard in shards for r in shard[0]], [s for shard in shards for s in shard[1]]
            with self.rank_zero.section() as section:
                section.sent = [(self.rollout_metrics(rollouts, scores), scores)] * len(shards) if shards else []
            sampled, every_score = section.received
            if self.ctx.config.reward is not None and self.ctx.config.reward.name != "unscored":
                self.check_scores(every_score, first_read)
            generated = batch.metrics if first_read else {"tokens_generated": 0.0}
            metrics = {**sampled, **update, **generated, **source_metrics}
            self.trace_prompts(step, "step", batch, batch.scores, [None] * len(batch.scores), batch.groups)
            self.session.trace(step, "step", [{"event": "update", "metrics": dict(metrics)}])
        self.session.metrics.log_step(step, metrics, timer.seconds)

    def _sample(self, rollout: Rollout, prompt: Prompt) -> DistillSample:
        sample = TrainingSample.from_rollout(rollout, mask_truncated=self.config.mask_truncated)
        if self.truncates:  # the engine's logprobs are not those of the policy's whole distribution
            sample = replace(sample, behaviour_T=None)
        reads = self.teacher_prompts.of_rollout(prompt, rollout.info, len(rollout.completion_ids))
        return distill_sample(sample, reads)

    def rank_state(self) -> dict[str, Any]:
        """Prompts and rollouts that were drawn, and not yet learned from."""
        return {"source": self.parts.source.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from every rank's :meth:`rank_state`."""
        self.parts.source.load_state_dict([rank["source"] for rank in state["written_by"]])
