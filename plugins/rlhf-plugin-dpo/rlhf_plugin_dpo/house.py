"""The rooms of an on-policy run, with a pair loss in the fifth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.sdk import Learner, OnlineParts, load_weights
from rlhf_plugin_dpo.batches import SftTerm
from rlhf_plugin_dpo.items import PairItem, sides_of
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.pair_module import PairModule


class PairParts(OnlineParts):
    """Library, studio and court as of any on-policy run; no advantages; pairs are updated on.

    Args:
        config: the trainer's settings.
        ctx: strategy and session are set.
    """

    def __init__(self, config: IterativeDpoConfig, ctx: Any) -> None:
        super().__init__(config, ctx)
        self.settings = config

    def furnish(self, checkpoint: tuple[Path, dict[str, Any]] | None) -> None:
        """Build engine, reward, loss and optimizer, and load the checkpoint's weights."""
        config = self.settings
        self._furnish_sampling(self._build("rollout"))
        loss = self._build("loss")
        loss = SftTerm(loss, config.sft.weight) if config.sft.weight > 0 else loss
        if checkpoint:
            load_weights(self.policy.model, checkpoint[0] / "model")
            if self.reference is not None and config.kl.sync_every:
                self.reference.load(checkpoint[0])
        conversation = config.sft.weight > 0 and config.sft.on == "conversation"
        self.pair_foundry = PairModule(self.policy.model, config.ld_alpha, conversation, self.foundry.paths)
        self.module = self.strategy.prepare(self.pair_foundry)
        self.updater = Learner(self.module, loss, self.strategy, config, config.steps * config.updates)
        self._furnish_evaluation()
        self.ctx.session.counts.update({} if checkpoint else self.datasets.counts)

    def referenced(self, items: Sequence[PairItem]) -> list[PairItem]:
        """Pairs with their logprobs under the reference policy as it is now; each rank gives its own, maybe none."""
        assert self.reference is not None
        with self.strategy.gathered(self.module), self.reference.active() as model:
            room = PairModule(model, self.settings.ld_alpha, paths=self.foundry.paths)
            sums = room.sums(sides_of(items), self.settings.micro_batch_size)
        return [item.with_refs(*sums[2 * n : 2 * n + 2]) for n, item in enumerate(items)]
