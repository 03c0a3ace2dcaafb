"""The loop of `rlhf train --algo ALGORITHM`: the core's on-policy step, with the signals of algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rl.advantages import AdvantageStep
from rlhf_core.rl.trainer import OnlineTrainer
from rlhf_core.training import TrainingSample
from rlhf_plugin_algorithms.config import AlgorithmTrainerConfig
from rlhf_plugin_algorithms.module import Scale, of_example, of_rollout
from rlhf_plugin_algorithms.shares import TEACHER, Share
from rlhf_plugin_algorithms.teachers import Teacher


class SignalStep(AdvantageStep):
    """Tells the algorithms which prompts the rollouts answer, and keeps what each rank learns."""

    share: Share
    """This rank's, of the last batch."""

    def estimate(self, scored: Any, batch: Any) -> Any:
        """The core's estimate; the signals are shared out after it."""
        signals: Any = self.estimator.estimator
        signals.groups = batch.groups
        estimate = super().estimate(scored, batch)
        with self.rank_zero.section() as section:
            section.sent = signals.shares([len(one.rollouts) for one in scored.ranks])
        self.share = section.received
        return estimate


class AlgorithmTrainer(OnlineTrainer):
    """Sample, score, ask the algorithms, update."""

    config: AlgorithmTrainerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    signals: SignalStep
    teachers: Mapping[int, Teacher]
    """Position of an algorithm -> what it has a teacher for."""

    def __init__(self, config: AlgorithmTrainerConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx.with_(config=config.run_of(ctx.config)))

    def build(self, checkpoint: Any) -> Any:
        """The core's parts; groups of equal scores are left out only where nothing else is learned from them."""
        parts = super().build(checkpoint)
        self.signals = SignalStep(**vars(parts.advantages))
        self.teachers = parts.trained.estimator.teachers
        if self.config.components - {"policy_gradient", "value"}:
            parts.update.config = self.config.model_copy(update={"drop_constant_groups": False})
        return replace(parts, advantages=self.signals)

    def with_advantages(
        self, samples: Sequence[TrainingSample], batch: Any, advantages: Advantages, forward: Any
    ) -> list[list[TrainingSample]]:
        """This rank's samples with their signals, group by group, and its examples."""
        groups = OnlineTrainer.with_advantages(samples, batch, advantages, forward)
        share, prompts = self.signals.share, [g.prompt for g in batch.own_groups for _ in range(g.group_size)]
        scale = Scale(self.config.reduction, share.totals)
        rows = zip(share.rows, share.algorithms, prompts, batch.rollouts, strict=True)
        learned = (row for row in rows if row[0])
        signalled: list[list[TrainingSample]] = []
        for group in groups:
            made: list[TrainingSample] = []
            for sample, (terms, position, prompt, rollout) in zip(group, learned):
                one = of_rollout(sample, terms, scale, position)
                taught = TEACHER in terms
                made.append(
                    self.teachers[position].with_teacher_prompt(one, terms[TEACHER], prompt, rollout) if taught else one
                )
            signalled.append(made)
        for position, teacher in self.teachers.items():
            signalled = teacher.with_teacher_logprobs(signalled, position)
        if not share.examples:
            return signalled
        zeros = Advantages([0.0] * len(samples), returns=advantages.returns)  # some have no signal, and are left out
        like = next((s for group in OnlineTrainer.with_advantages(samples, batch, zeros, forward) for s in group), None)
        return [*signalled, *([of_example(example, scale, like)] for example in share.examples)]

    def check_scores(self, scores: Sequence[Score], first_read: bool = True) -> None:
        """As the core's; what learns from no score may have none."""
        reward: Any = self.ctx.config.reward
        if "policy_gradient" in self.config.components or reward.name != "unscored":
            super().check_scores(scores, first_read)

    def more_summary(self, step: int, after: Any) -> Mapping[str, Any]:
        """The algorithms' names instead of the trainer's."""
        return {"algo": "+".join(one.name for one in self.config.chosen)}
