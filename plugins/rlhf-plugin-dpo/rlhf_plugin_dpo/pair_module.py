"""The policy forward for pairs: both responses of a pair in one forward, their common prompt read once.

Suffixes: ``_B`` pairs, ``_S`` sides (chosen and rejected of every pair), ``_T`` completion tokens, right-padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlhf_core.config import BuildContext
from rlhf_core.losses import PairBatch
from rlhf_core.models import on_device
from rlhf_core.training import completion_logprobs
from rlhf_plugin_dpo.items import Side, make_pair, sides_of


class PairModule(torch.nn.Module):
    """A policy and how the logprobs of pairs are computed.

    With ``conversation`` the supervised term covers the prompt too (ORPO); the chosen side's prompt is then not shared.
    ``paths`` are the ways through a model that ``completion_logprobs`` may take, all where it is None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        ld_alpha: float = 1.0,
        conversation: bool = False,
        paths: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.ld_alpha = model, ld_alpha
        self.conversation, self.paths = conversation, dict(paths or {})

    def forward(self, items: Sequence[Any], compute: Callable[[Any, Sequence[Any]], Any] | None = None) -> Any:
        """Return the batch of a micro-batch, shapes ``[B]``; with ``compute``, ``compute(self, items)`` instead."""
        return self.batch(items) if compute is None else compute(self, items)

    def batch(self, items: Sequence[Any]) -> Any:
        chosen = [i.chosen for i in items]
        with_prompt = self.conversation and items[0].nll_scale > 0
        prompt_every = 2 if with_prompt else 0
        logprobs_ST = self._logprobs(sides_of(items), prompt_every)
        sums_S = self._summed(logprobs_ST, sides_of(items), prompt_every)
        device = sums_S.device

        def numbers(values: Sequence[float | int | None]) -> torch.Tensor | None:
            return None if values[0] is None else on_device(values, device, None)

        nll_B = None
        if items[0].nll_scale > 0:
            scale_B = on_device([i.nll_scale for i in items], device, None)
            starts = [len(s.prompt_ids) - 1 if with_prompt else 0 for s in chosen]
            masked_BT = self._masked(logprobs_ST[0::2], chosen, starts)
            nll_B = -masked_BT.sum(-1) * scale_B
        return PairBatch(
            sums_S[0::2],
            sums_S[1::2],
            numbers([s.ref for s in chosen]),
            numbers([i.rejected.ref for i in items]),
            margin_B=numbers([i.margin for i in items]),
            chosen_lengths_B=numbers([s.counted for s in chosen]),
            rejected_lengths_B=numbers([i.rejected.counted for i in items]),
            beta_scale_B=numbers([i.beta_scale for i in items]),
            nll_B=nll_B,
            right_B=numbers([i.right for i in items]),
        )

    def _logprobs(self, sides: Sequence[Side], prompt_every: int) -> torch.Tensor:
        """Logprobs ``[S, T]``, 0 where padded; those of the prompt come first in every ``prompt_every``-th side."""
        prompts, completions = [s.prompt_ids for s in sides], [s.completion_ids for s in sides]
        for n in range(0, len(sides) if prompt_every else 0, prompt_every or 1):
            prompts[n], completions[n] = prompts[n][:1], (*prompts[n][1:], *completions[n])
        masks = None if prompt_every else [s.mask for s in sides]
        return completion_logprobs(self.model, prompts, completions, masks=masks, **self.paths).logprobs_BT

    def _summed(self, logprobs_ST: torch.Tensor, sides: Sequence[Side], prompt_every: int) -> torch.Tensor:
        """Sum of each side's chosen tokens' logprobs, the tail of the longer response weighted by ``ld_alpha``."""
        device, width = logprobs_ST.device, logprobs_ST.shape[1]
        skip = [len(s.prompt_ids) - 1 if prompt_every and n % prompt_every == 0 else 0 for n, s in enumerate(sides)]
        position_ST = torch.arange(width, device=device)[None, :] - on_device(skip, device)[:, None]
        head_S1 = on_device([s.head for s in sides], device)[:, None]
        weight_ST = (position_ST >= 0) * torch.where(position_ST < head_S1, 1.0, self.ld_alpha)
        return (self._masked(logprobs_ST, sides, skip) * weight_ST).sum(-1)

    @staticmethod
    def _masked(logprobs_ST: torch.Tensor, sides: Sequence[Side], skip: Sequence[int]) -> torch.Tensor:
        """Logprobs with 0 where an environment wrote the token; each completion begins at its ``skip``."""
        if all(s.mask is None for s in sides):
            return logprobs_ST
        keep_ST = torch.ones(logprobs_ST.shape, dtype=torch.bool)
        for row, side, begin in zip(keep_ST, sides, skip):
            if side.mask is not None:
                row[begin : begin + len(side.mask)] = torch.tensor(side.mask)
        return logprobs_ST * on_device(keep_ST.numpy(), logprobs_ST.device, None)

    @torch.no_grad()
    def sums(self, sides: Sequence[Side], micro_batch_size: int) -> list[float]:
        """Summed logprob of each side without gradient; ``micro_batch_size`` counts pairs of sides."""
        sums: list[float] = []
        for start in range(0, len(sides), 2 * micro_batch_size):
            sums += self.side_sums(sides[start : start + 2 * micro_batch_size])
        return sums

    def side_sums(self, sides: Sequence[Side]) -> list[float]:
        return self._summed(self._logprobs(sides, 0), sides, 0).tolist()


def pair_rehearsal(
    config: Any, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]], paths: Mapping[str, Any]
) -> tuple[PairModule, Sequence[Any]]:
    """Module and items as the trainer has them, for sizes (tokens of the prompt, tokens of each response) of pairs."""
    conversation = config.sft.weight > 0 and config.sft.on == "conversation"
    reads_reference = getattr(ctx.config.loss, "reference", "optional") != "unused" and not config.reference_free
    pairs: list[Any] = []
    for n, (prompt, responses) in enumerate(sizes):
        pair = make_pair(str(n), _ids(prompt, n), _ids(responses[0], n), _ids(responses[-1], n + 1))
        pair = pair.with_refs(-1.0, -1.0) if reads_reference else pair
        pairs.append(replace(pair, nll_scale=1.0) if config.sft.weight > 0 else pair)
    return PairModule(ctx.policy.model, config.ld_alpha, conversation, paths), pairs


def _ids(count: int, which: int) -> tuple[int, ...]:
    return tuple((which >> (2 * (n % 5))) & 3 for n in range(count))
