"""`rlhf train --algo dpo`: the core's offline loop over pairs."""

from __future__ import annotations

from typing import Any

from rlhf_core.api import BuildContext, LossOutput, PairBatch
from rlhf_core.trainers.offline import OfflineTrainer
from rlhf_plugin_dpo.batches import PAIRINGS, with_scales
from rlhf_plugin_dpo.config import DpoConfig
from rlhf_plugin_dpo.items import PairItem, sides_of
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.task import PairTask


class PairTrainer(OfflineTrainer):
    """The offline loop; every batch gets what only the whole of it knows."""

    def __init__(self, config: DpoConfig, ctx: BuildContext) -> None:
        self.pairs = PairTask(config, ctx)
        super().__init__(config, ctx, self.pairs)
        self.settings = config

    def loss(self) -> Any:
        """The run's loss, with the supervised term if one is asked for."""
        loss = super().loss()
        return WithSft(loss, self.settings.sft.weight) if self.settings.sft.weight > 0 else loss

    def prepared(self, step: int, items: list[Any]) -> list[Any]:
        """Beta of the step, weight of the supervised tokens, and AOT's partners."""
        config = self.settings
        scale = beta_scale(config.beta_schedule, step, self.steps)
        items = with_scales(items, scale, config.sft.weight > 0, self.pairs.conversation)
        pairing = PAIRINGS.get(getattr(self.ctx.config.loss, "pairing", "pairs"))
        return items if pairing is None else pairing(items, *self._sums(items))

    def _sums(self, items: list[PairItem]) -> tuple[list[float], list[float]]:
        """Summed logprobs of chosen and rejected under the policy as it is, over all ranks."""
        strategy = self.strategy
        mine = sides_of(items[strategy.rank :: strategy.world_size])
        with strategy.gathered(self.updater.module):
            own = strategy.unwrap(self.updater.module).sums(mine, self.settings.micro_batch_size)
        shards = strategy.gather_objects(own)
        world = strategy.world_size
        rows = [shards[n % world][2 * (n // world) : 2 * (n // world) + 2] for n in range(len(items))]
        return [r[0] for r in rows], [r[1] for r in rows]


class WithSft:
    """Adds ``weight`` times the supervised term to any pair loss."""

    def __init__(self, loss: Any, weight: float) -> None:
        self.loss, self.weight = loss, weight

    def __call__(self, batch: PairBatch) -> LossOutput:
        """Return the loss with its term; ``batch.nll_B`` must be there. Metric ``nll`` is in nats per token."""
        out = self.loss(batch)
        assert batch.nll_B is not None, "the supervised term needs the chosen texts' log-likelihood"
        nll = {"nll": (batch.nll_B.detach().sum(), float(len(batch.nll_B)))}
        return LossOutput(out.loss + self.weight * batch.nll_B, {**out.metrics, **nll})
