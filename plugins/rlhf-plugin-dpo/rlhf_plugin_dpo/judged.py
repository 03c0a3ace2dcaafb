"""`rlhf train --algo kto`: single responses with a verdict through the core's offline loop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rlhf_core.api import BuildContext, DatasetError, JudgedBatch
from rlhf_core.trainers.offline import OfflineTrainer
from rlhf_plugin_dpo.foundry import PairFoundry
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.judged_config import KtoConfig
from rlhf_plugin_dpo.reference import kept_logprobs
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.task import PairTask

log = logging.getLogger("rlhf")


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """A response with its verdict, and the same prompt with another prompt's response."""

    name: str
    side: Side
    desirable: bool
    other: Side
    """For the estimate of the KL; never trained on."""
    kl: float | None = None
    """That estimate, of the whole batch, in nats per response."""
    beta_scale: float | None = None

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return len(self.side.completion_ids)


class JudgedFoundry(PairFoundry):
    """Logprobs of single responses."""

    def forward(self, items: Sequence[JudgedItem]) -> JudgedBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the batch of a micro-batch, shapes ``[B]``."""
        sides = [i.side for i in items]
        sums_B = self._summed(self._logprobs(sides, 0), sides, 0)

        def numbers(values: Sequence[float | None]) -> torch.Tensor | None:
            return None if values[0] is None else torch.tensor(values, device=sums_B.device)

        return JudgedBatch(sums_B, torch.tensor([i.desirable for i in items], device=sums_B.device),
                           ref_logprobs_B=numbers([s.ref for s in sides]), kl_B=numbers([i.kl for i in items]),
                           beta_scale_B=numbers([i.beta_scale for i in items]))


class JudgedTask(PairTask):
    """Responses with verdicts, each with the reference logprobs of itself and of its stand-in."""

    def __init__(self, config: KtoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx)
        self.module = JudgedFoundry(self.model, paths=self.paths)

    def check_rows(self) -> None:
        """Find bad rows before the model is loaded.

        Raises:
            DatasetError: all responses are of one kind.
        """
        rows = self.datasets.judged("train")
        good = sum(r.desirable for r in rows)
        if good in (0, len(rows)):
            raise DatasetError(f"all {len(rows)} responses are {'' if good else 'un'}desirable",
                               why="there is nothing to tell apart",
                               fix="give responses of both kinds (column 'label')")
        loss = self.ctx.config.loss
        ratio = (getattr(loss, "desirable_weight", 1.0) * good) / (
            getattr(loss, "undesirable_weight", 1.0) * (len(rows) - good))
        if not 0.999 <= ratio <= 4 / 3 + 1e-3:
            log.warning("%d desirable and %d undesirable responses weigh %.2f to 1; between 1 and 1.33 is best (KTO, "
                        "eq. 8): set loss.desirable_weight or loss.undesirable_weight", good, len(rows) - good, ratio)

    def items(self, split: str) -> Sequence[JudgedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokenize; responses over ``max_length`` or the model's context are dropped and counted.

        Raises:
            DatasetError: more than ``dataset.max_dropped_fraction`` are too long, or all of one source.
        """
        config, rows = self.config, self.datasets.judged(split)
        limit = min(config.max_length, self.policy.context)
        sides = [Side(self.formatter.encode(r.prompt), ids, len(ids)) for r in rows
                 for ids in (self.formatter.encode_completion(r.completion),)]
        sizes = [len(s.prompt_ids) + len(s.completion_ids) for s in sides]
        self.datasets.check_lengths([(r.id, r.source, n) for r, n in zip(rows, sizes)], limit,
                                    f"max_length {config.max_length}, context {self.policy.context}",
                                    "raise trainer.max_length")
        kept = [(r, s) for r, s, n in zip(rows, sides, sizes) if n <= limit]
        self.ctx.session.counts.update(+Counter({"examples_too_long": len(rows) - len(kept)}))
        found = [JudgedItem(r.id, s, r.desirable, o) for (r, s), o in zip(kept, stand_ins([s for _, s in kept], limit))]
        return self._referenced(found, split) if found else found

    def texts(self, item: JudgedItem) -> Mapping[str, str]:
        """Prompt, response and verdict as the model sees them."""
        decode = self.policy.tokenizer.decode
        return {"prompt": decode(item.side.prompt_ids), "completion": decode(item.side.completion_ids),
                "verdict": "desirable" if item.desirable else "undesirable"}

    def _referenced(self, items: list[JudgedItem], split: str) -> list[JudgedItem]:
        sides = [s for i in items for s in (i.side, i.other)]
        refs = kept_logprobs(self.model, sides, self.ctx, split, 1.0, self.paths,
                             self.config.micro_batch_size)
        return [replace(item, side=replace(item.side, ref=refs[2 * n]), other=replace(item.other, ref=refs[2 * n + 1]))
                for n, item in enumerate(items)]


def stand_ins(sides: Sequence[Side], limit: int) -> list[Side]:
    """Each prompt with the response of the next example that has another prompt; cut to ``limit`` tokens.

    Two examples of one prompt are neighbours where pairs were split up, so the next one alone will not do.
    """
    found: list[Side] = []
    for n, side in enumerate(sides):
        others = (sides[(n + step) % len(sides)] for step in range(1, len(sides)))
        other = next((o for o in others if o.prompt_ids != side.prompt_ids), side)
        ids = other.completion_ids[: max(1, limit - len(side.prompt_ids))]
        found.append(Side(side.prompt_ids, ids, len(ids)))
    return found


class JudgedTrainer(OfflineTrainer):
    """The offline loop; every batch gets its estimate of the KL."""

    def __init__(self, config: KtoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx, JudgedTask(config, ctx))
        self.settings = config

    def prepared(self, step: int, items: list[Any]) -> list[Any]:
        """Beta of the step, and the KL: the mean of ``log pi - log pi_ref`` of the stand-ins over the whole batch,
        at least 0, without gradient."""
        scale = beta_scale(self.settings.beta_schedule, step, self.steps)
        kl = self._kl(items) if getattr(self.ctx.config.loss, "uses_kl", False) else None
        return [replace(i, kl=kl, beta_scale=scale) for i in items]

    def _kl(self, items: list[JudgedItem]) -> float:
        strategy = self.strategy
        mine = [i.other for i in items[strategy.rank :: strategy.world_size]]
        with strategy.gathered(self.updater.module):
            own = strategy.unwrap(self.updater.module).sums(mine, self.settings.micro_batch_size) if mine else []
        total = sum(s - float(o.ref or 0.0) for s, o in zip(own, mine))
        return max(0.0, strategy.sum_over_ranks([total])[0] / len(items))
