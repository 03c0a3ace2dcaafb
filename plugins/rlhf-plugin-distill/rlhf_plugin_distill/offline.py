"""`rlhf train --algo distill_offline`: demonstrations to training items."""

from __future__ import annotations

from rlhf_core.config import BuildContext
from rlhf_core.training import OfflineTrainer
from rlhf_plugin_distill.config import DistillOfflineConfig
from rlhf_plugin_distill.module import DistillModule
from rlhf_plugin_distill.teacher import open_teacher
from rlhf_plugin_sft.task import SftTask


class DistillTask(SftTask):
    """A student, a teacher, and the completions on which one learns from the other."""

    def __init__(self, config: DistillOfflineConfig, ctx: BuildContext) -> None:
        self.teacher = open_teacher(config.teacher, ctx)
        super().__init__(config, ctx)
        loss = ctx.config.loss
        assert loss is not None
        self.module = DistillModule(self.module, self.teacher, loss.build(ctx))


def build_trainer(config: DistillOfflineConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, DistillTask(config, ctx))
