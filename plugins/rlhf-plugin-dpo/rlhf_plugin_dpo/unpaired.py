"""`rlhf train --algo kto`: single responses with a verdict through the core's offline loop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlhf_core.api import BuildContext, DatasetError, UnpairedBatch
from rlhf_core.sdk import OfflineTrainer
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.task import PairTask
from rlhf_plugin_dpo.unpaired_config import KtoConfig

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


class UnpairedModule(PairModule):
    """Logprobs of single responses."""

    def forward(self, items: Sequence[JudgedItem]) -> UnpairedBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the batch of a micro-batch, shapes ``[B]``."""
        sides = [i.side for i in items]
        sums_B = self._summed(self._logprobs(sides, 0), sides, 0)

        def numbers(values: Sequence[float | None]) -> torch.Tensor | None:
            return None if values[0] is None else torch.tensor(values, device=sums_B.device)

        return UnpairedBatch(
            sums_B,
            torch.tensor([i.desirable for i in items], device=sums_B.device),
            ref_logprobs_B=numbers([s.ref for s in sides]),
            kl_B=numbers([i.kl for i in items]),
            beta_scale_B=numbers([i.beta_scale for i in items]),
        )


class JudgedTask(PairTask):
    """Responses with verdicts, each with the reference logprobs of itself and of its stand-in."""

    def __init__(self, config: KtoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx)
        self.module = UnpairedModule(self.model, paths=self.paths)

    def check_rows(self) -> None:
        """Find bad rows before the model is loaded.

        Raises:
            DatasetError: all responses are of one kind.
        """
        rows = self.datasets.judged("train")
        good = sum(r.desirable for r in rows)
        if good in (0, len(rows)):
            raise DatasetError(
                f"all {len(rows)} responses are {'' if good else 'un'}desirable",
                why="there is nothing to tell apart",
                fix="give responses of both kinds (column 'label')",
            )
        loss = self.ctx.config.loss
        ratio = (getattr(loss, "desirable_weight", 1.0) * good) / (
            getattr(loss, "undesirable_weight", 1.0) * (len(rows) - good)
        )
        if not 0.999 <= ratio <= 4 / 3 + 1e-3:
            log.warning(
                "%d desirable and %d undesirable responses weigh %.2f to 1; between 1 and 1.33 is best (KTO, "
                "eq. 8): set loss.desirable_weight or loss.undesirable_weight",
                good,
                len(rows) - good,
                ratio,
            )

    def items(self, split: str) -> Sequence[JudgedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokenize; responses over ``max_length`` or the model's context are dropped and counted.

        Raises:
            DatasetError: more than ``dataset.max_dropped_fraction`` are too long, or all of one source.
        """
        config, rows = self.config, self.datasets.judged(split)
        limit = min(config.max_length, self.policy.context)
        sides = [
            Side(self.formatter.encode(r.prompt), ids, len(ids))
            for r in rows
            for ids in (self.formatter.encode_completion(r.completion),)
        ]
        sizes = [len(s.prompt_ids) + len(s.completion_ids) for s in sides]
        self.datasets.check_lengths(
            [(r.id, r.source, n) for r, n in zip(rows, sizes)],
            limit,
            f"max_length {config.max_length}, context {self.policy.context}",
            "raise trainer.max_length",
        )
        kept = [(r, s) for r, s, n in zip(rows, sides, sizes) if n <= limit]
        self.ctx.session.counts.update(+Counter({"examples_too_long": len(rows) - len(kept)}))
        others = stand_ins([s for _, s in kept], limit, self.ctx.seed)
        return [JudgedItem(r.id, s, r.desirable, o) for (r, s), o in zip(kept, others)]

    def texts(self, item: JudgedItem) -> Mapping[str, str]:
        """Prompt, response and verdict as the model sees them."""
        decode = self.policy.tokenizer.decode
        return {
            "prompt": decode(item.side.prompt_ids),
            "completion": decode(item.side.completion_ids),
            "verdict": "desirable" if item.desirable else "undesirable",
        }

    def complete(self, split: str, items: Sequence[JudgedItem]) -> list[JudgedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Give examples their reference logprobs, and where the loss estimates the KL, those of their stand-ins."""
        own = [i.side for i in items]
        others = [i.other for i in items] if getattr(self.ctx.config.loss, "uses_kl", False) else []
        refs = self._references([*own, *others], split)
        items = [replace(i, side=replace(i.side, ref=ref)) for i, ref in zip(items, refs)]
        return [replace(i, other=replace(i.other, ref=ref)) for i, ref in zip(items, refs[len(own) :])] or items


def stand_ins(sides: Sequence[Side], limit: int, seed: int) -> list[Side]:
    """Each prompt with the response of another example that has another prompt; cut to ``limit`` tokens.

    That is the next such example in a seeded permutation: in the order of the rows, where pairs were split up, it
    would always be the next pair's desirable response, and the KL that of desirable responses alone.
    """
    order = np.random.default_rng(seed).permutation(len(sides)).tolist()
    following: dict[int, int] = {}  # place in the order -> next place with another prompt; twice around the circle
    for place in reversed(range(2 * len(order))):
        here, after = place % len(order), (place + 1) % len(order)
        differs = sides[order[here]].prompt_ids != sides[order[after]].prompt_ids
        following[here] = after if differs else following.get(after, here)
    found: dict[int, Side] = {}
    for place, n in enumerate(order):
        prompt = sides[n].prompt_ids
        ids = sides[order[following[place]]].completion_ids[: max(1, limit - len(prompt))]
        found[n] = Side(prompt, ids, len(ids))
    return [found[n] for n in range(len(sides))]


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
