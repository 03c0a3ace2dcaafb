"""The teacher of an algorithm, as `rlhf-plugin-distill` has it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Prompt
from rlhf_core.rollouts import Rollout
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_algorithms.check import Term
from rlhf_plugin_algorithms.module import SignalSample
from rlhf_plugin_distill.module import DistillModule, DistillSample
from rlhf_plugin_distill.teacher import TeacherPrompts, open_teacher

Groups = list[list[Any]]


class Teacher:
    """Opens ``teacher`` of an algorithm's Config, and compares by its ``loss``."""

    def __init__(self, config: Any, ctx: BuildContext) -> None:
        self.teacher, self.loss = open_teacher(config.teacher, ctx), config.loss.build(ctx)
        self.prompts = TeacherPrompts(config.teacher, ctx.policy, ctx, self.teacher)

    def beside(self, policy: PolicyModule) -> DistillModule:
        """What compares the policy with it."""
        return DistillModule(policy, self.teacher, self.loss)

    def with_teacher_prompt(self, sample: SignalSample, term: Term, prompt: Prompt, rollout: Rollout) -> SignalSample:
        """The sample with what the teacher is to read."""
        values: dict[str, Any] = {one.name: getattr(sample, one.name) for one in fields(TrainingSample)}
        reads = self.prompts.of_rollout(prompt, rollout.info, len(rollout.completion_ids))
        values |= {"mask_T": term.mask_T, "behaviour_T": None, "teacher_prompt": reads}
        taught = DistillSample(**values)
        return replace(sample, taught=taught)

    def with_teacher_logprobs(self, groups: Groups, position: int) -> Groups:
        """The samples with what a server says; this rank's, before the update."""
        every = [one for group in groups for one in group if one.taught is not None and one.algorithm == position]
        answers = iter(self.teacher.with_teacher_logprobs([one.taught for one in every]))
        known = {id(one): replace(one, taught=next(answers)) for one in every}
        return [[known.get(id(one), one) for one in group] for group in groups]
