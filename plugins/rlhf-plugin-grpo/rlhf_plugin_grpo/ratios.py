r"""Importance ratios :math:`\rho = \pi_\theta / \pi_{old}` and their clipping: what every loss here shares.

Suffixes: ``_B`` sequences, ``_T`` completion tokens. A ratio per sequence is repeated over its tokens.
"""

from __future__ import annotations

from typing import Literal

import torch

from rlhf_core.losses import LossOutput, TokenBatch, bounded_ratio

Level = Literal["token", "sequence", "product"]
"""What a ratio belongs to: a token; a sequence, as the geometric mean over its tokens (GSPO); or a sequence, as the
plain product over its tokens (RLOO as TRL has it), which is exact but grows and shrinks with the length."""


def log_ratio(batch: TokenBatch, level: Level = "token") -> torch.Tensor:
    r""":math:`\log\rho`, with gradient, ``[B, T]``; masked tokens take no part in a sequence's.

    token: :math:`\delta_t = \log\pi_\theta(y_t) - \log\pi_{old}(y_t)`. sequence: the mean of :math:`\delta` over the
    sequence's tokens. product: their sum.
    """
    assert batch.old_logprobs_BT is not None, "an importance ratio needs old logprobs"
    delta_BT = batch.logprobs_BT - batch.old_logprobs_BT
    if level == "token":
        return delta_BT
    kept_BT = torch.where(batch.mask_BT, delta_BT, torch.zeros_like(delta_BT))
    sum_B1 = kept_BT.sum(-1, keepdim=True)
    count_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return (sum_B1 if level == "product" else sum_B1 / count_B1).expand_as(delta_BT)


def ratio(batch: TokenBatch, level: Level = "token") -> tuple[torch.Tensor, torch.Tensor]:
    """``(rho, held)`` of :func:`log_ratio`, see :func:`rlhf_core.losses.bounded_ratio`."""
    return bounded_ratio(log_ratio(batch, level))


def advantages(batch: TokenBatch) -> torch.Tensor:
    """The batch's advantages, ``[B, T]``."""
    assert batch.advantages_BT is not None, "a policy gradient needs advantages"
    return batch.advantages_BT


def output(
    loss_BT: torch.Tensor,
    batch: TokenBatch,
    ratio_BT: torch.Tensor,
    held_BT: torch.Tensor,
    clipped_BT: torch.Tensor | None = None,
) -> LossOutput:
    """The loss with the metrics ``importance_ratio`` and, if given which tokens were clipped, ``clip_fraction``;
    ``log_ratios_clamped`` is the number of tokens whose log ratio was held at its limit, and its own weight: none is no
    metric of an update."""
    token_count, zeros_BT = batch.mask_BT.sum(), torch.zeros_like(ratio_BT)
    metrics: dict[str, tuple[torch.Tensor | float, torch.Tensor | float]] = {
        "importance_ratio": (torch.where(batch.mask_BT, ratio_BT.detach(), zeros_BT).sum(), token_count)
    }
    if clipped_BT is not None:
        metrics["clip_fraction"] = ((clipped_BT & batch.mask_BT).sum(), token_count)
    held = (held_BT & batch.mask_BT).sum()
    metrics["log_ratios_clamped"] = (held, held)
    return LossOutput(loss_BT, metrics)
