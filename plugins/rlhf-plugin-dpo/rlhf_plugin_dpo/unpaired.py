"""`rlhf train --algo kto`: unpaired responses, each desirable or not, through the core's offline loop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError
from rlhf_core.losses import UnpairedBatch
from rlhf_core.models import on_device
from rlhf_core.training import OfflineTrainer
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_dpo.schedule import beta_scale
from rlhf_plugin_dpo.task import PairTask
from rlhf_plugin_dpo.unpaired_config import KtoConfig

log = logging.getLogger("rlhf")


@dataclass(frozen=True, slots=True)
class UnpairedItem:
    """A response with its label, and the same prompt with another prompt's response."""

    name: str
    side: Side
    desirable: bool
    mismatched: Side
    """The prompt with another prompt's response, for the estimate of the KL; never trained on."""
    kl: float | None = None
    """That estimate, of the whole batch, in nats per response."""
    beta_scale: float | None = None

    @property
    def tokens(self) -> int:
        return len(self.side.completion_ids)


class UnpairedModule(PairModule):
    """Logprobs of single responses."""

    def batch(self, items: Sequence[UnpairedItem]) -> UnpairedBatch:
        sides = [i.side for i in items]
        sums_B = self._summed(self._logprobs(sides, 0), sides, 0)

        def numbers(values: Sequence[float | None]) -> torch.Tensor | None:
            return None if values[0] is None else on_device(values, sums_B.device, None)

        return UnpairedBatch(
            sums_B,
            on_device([i.desirable for i in items], sums_B.device, None),
            ref_logprobs_B=numbers([s.ref for s in sides]),
            kl_B=numbers([i.kl for i in items]),
            beta_scale_B=numbers([i.beta_scale for i in items]),
        )


class UnpairedTask(PairTask):
    """Responses with labels, each with the reference logprobs of itself and of its mismatched response."""

    def __init__(self, config: KtoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx)
        self.module = UnpairedModule(self.model, paths=self.paths)

    def check_rows(self) -> None:
        rows = self.datasets.unpaired("train")
        desirable = sum(row.desirable for row in rows)
        undesirable = len(rows) - desirable
        if desirable == 0 or undesirable == 0:
            raise DatasetError(
                f"all {len(rows)} responses are {'desirable' if desirable else 'undesirable'}",
                why="there is nothing to tell apart",
                fix="give responses of both kinds (column 'label')",
            )
        loss = self.ctx.config.loss
        desirable_weight = getattr(loss, "desirable_weight", 1.0) * desirable
        ratio = desirable_weight / (getattr(loss, "undesirable_weight", 1.0) * undesirable)
        if not 0.999 <= ratio <= 4 / 3 + 1e-3:
            log.warning(
                "%d desirable and %d undesirable responses weigh %.2f to 1; between 1 and 1.33 is best (KTO, "
                "eq. 8): set loss.desirable_weight or loss.undesirable_weight",
                desirable,
                undesirable,
                ratio,
            )

    def items(self, split: str) -> Sequence[UnpairedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokenize; responses over ``max_length`` or the model's context are dropped and counted."""
        config, rows = self.config, self.datasets.unpaired(split)
        limit = min(config.max_length, self.policy.context)
        sides: list[Side] = []
        for row in rows:
            completion_ids = self.formatter.encode_reply(row.prompt, row.completion, row.turn, row.tools)
            sides.append(Side(self.formatter.encode(row.prompt, row.tools), completion_ids, len(completion_ids)))
        lengths = [len(side.prompt_ids) + len(side.completion_ids) for side in sides]
        self.datasets.check_lengths(
            [(row.id, row.source, length) for row, length in zip(rows, lengths)],
            limit,
            f"max_length {config.max_length}, context {self.policy.context}",
            "raise trainer.max_length",
            context=self.policy.context,
        )
        fitting = [(row, side) for row, side, length in zip(rows, sides, lengths) if length <= limit]
        self.ctx.session.counts.update(+Counter({"examples_too_long": len(rows) - len(fitting)}))
        others = mismatched_sides([side for _, side in fitting], limit, self.ctx.seed)
        return [UnpairedItem(row.id, side, row.desirable, other) for (row, side), other in zip(fitting, others)]

    def texts(self, item: UnpairedItem) -> Mapping[str, str]:
        decode = self.policy.tokenizer.decode
        return {
            "prompt": decode(item.side.prompt_ids),
            "completion": decode(item.side.completion_ids),
            "verdict": "desirable" if item.desirable else "undesirable",
        }

    def complete(self, split: str, items: Sequence[UnpairedItem]) -> list[UnpairedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Give examples their reference logprobs, and where the loss estimates the KL, those of the mismatched ones."""
        sides = [item.side for item in items]
        uses_kl = getattr(self.ctx.config.loss, "uses_kl", False)
        mismatched = [item.mismatched for item in items] if uses_kl else []
        refs = self._references([*sides, *mismatched], split)
        items = [replace(item, side=replace(item.side, ref=ref)) for item, ref in zip(items, refs)]
        if not mismatched:
            return items
        return [
            replace(item, mismatched=replace(item.mismatched, ref=ref)) for item, ref in zip(items, refs[len(sides) :])
        ]


def mismatched_sides(sides: Sequence[Side], limit: int, seed: int) -> list[Side]:
    """Each prompt with the next response, in a seeded permutation, to another prompt, cut to ``limit`` tokens; in the
    order of the rows it would always be a desirable one."""
    order = np.random.default_rng(seed).permutation(len(sides)).tolist()
    following: dict[int, int] = {}  # place in the order -> next place with another prompt; twice around the circle
    for position in reversed(range(2 * len(order))):
        here, after = position % len(order), (position + 1) % len(order)
        differs = sides[order[here]].prompt_ids != sides[order[after]].prompt_ids
        following[here] = after if differs else following.get(after, here)
    mismatched: dict[int, Side] = {}
    for position, n in enumerate(order):
        prompt = sides[n].prompt_ids
        ids = sides[order[following[position]]].completion_ids[: max(1, limit - len(prompt))]
        mismatched[n] = Side(prompt, ids, len(ids))
    return [mismatched[n] for n in range(len(sides))]


class UnpairedTrainer(OfflineTrainer):
    """The offline loop; every batch gets its estimate of the KL."""

    def __init__(self, config: KtoConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx, UnpairedTask(config, ctx))
        self.settings = config

    def prepared(self, step: int, items: list[Any]) -> list[Any]:
        """Beta of the step, and the KL: mean ``log pi - log pi_ref`` of mismatched responses, at least 0, detached."""
        scale = beta_scale(self.settings.beta_schedule, step, self.steps)
        kl = self._kl(items) if getattr(self.ctx.config.loss, "uses_kl", False) else None
        return [replace(i, kl=kl, beta_scale=scale) for i in items]

    def _kl(self, items: list[UnpairedItem]) -> float:
        strategy = self.strategy
        rank_sides = [item.mismatched for item in items[strategy.rank :: strategy.world_size]]
        size = 2 * self.settings.micro_batch_size
        logprobs = self.learner.no_grad.rows(rank_sides, size, lambda module, sides: module.side_sums(sides))
        total = sum(logprob - float(side.ref or 0.0) for logprob, side in zip(logprobs, rank_sides))
        return max(0.0, strategy.sum_over_ranks([total])[0] / len(items))
