"""`rlhf train --algo distill_offline`: demonstrations to training items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.training import OfflineTrainer, TrainingSample
from rlhf_plugin_distill.config import DistillOfflineConfig
from rlhf_plugin_distill.module import DistillModule
from rlhf_plugin_distill.teacher import TeacherPrompts, distill_sample, open_teacher
from rlhf_plugin_sft.task import SftTask


class DistillTask(SftTask):
    """A student, a teacher, and the completions on which one learns from the other."""

    def __init__(self, config: DistillOfflineConfig, ctx: BuildContext) -> None:
        self.teacher = open_teacher(config.teacher, ctx)
        super().__init__(config, ctx)
        loss = ctx.config.loss
        assert loss is not None
        self.module = DistillModule(self.module, self.teacher, loss.build(ctx))
        self.teacher_prompts = TeacherPrompts(config.teacher, self.policy, ctx, self.teacher)

    def items(self, split: str) -> Sequence[TrainingSample]:
        """Those of supervised fine-tuning, with what the teacher reads before each."""
        samples, rows = super().items(split), {row.id: row for row in self.datasets.demonstrations(split)}
        items: list[TrainingSample] = []
        for sample in samples:
            row, columns = rows[sample.name], {"completion": rows[sample.name].completion}
            prompt = self.teacher_prompts(row.id, row.prompt, row.tools, columns, len(sample.completion_ids))
            items.append(distill_sample(sample, prompt))
        return items

    def complete(self, split: str, items: Sequence[Any]) -> Sequence[Any]:
        """The examples with what a server says of them; each rank asks for its share."""
        strategy = self.ctx.strategy
        shares = strategy.gather_objects(
            self.teacher.with_teacher_logprobs(items[strategy.rank :: strategy.world_size])
        )
        return [shares[n % strategy.world_size][n // strategy.world_size] for n in range(len(items))]


def build_trainer(config: DistillOfflineConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, DistillTask(config, ctx))
