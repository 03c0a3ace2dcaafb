"""`rlhf train --algo dpo`: the core's offline loop over pairs."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.training import OfflineTrainer
from rlhf_plugin_dpo.batches import SupervisedTerm, prepare
from rlhf_plugin_dpo.config import DpoConfig
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.task import PairTask


class PairTrainer(OfflineTrainer):
    """The offline loop; every batch gets what only the whole of it knows."""

    def __init__(self, config: DpoConfig, ctx: BuildContext) -> None:
        conversation = config.sft.weight > 0 and config.sft.on == "conversation"
        self.pairs = PairTask(config, ctx, config.ld_alpha, conversation)
        super().__init__(config, ctx, self.pairs)
        self.settings = config

    def loss_terms(self) -> list[Any]:
        weight = self.settings.sft.weight
        return [SupervisedTerm(weight)] if weight > 0 else []

    def prepared(self, step: int, items: list[Any]) -> list[Any]:
        """Beta of the step, weight of the supervised tokens, and AOT's partners."""
        scale = beta_scale(self.settings.beta_schedule, step, self.steps)
        return prepare(items, self.settings, self.ctx.config.loss, scale, self.learner)
