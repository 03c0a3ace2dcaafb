"""Log-probabilities and entropy of chosen tokens, without holding more logits than needed.

Suffixes: ``_N`` tokens in a flat batch, ``_V`` vocabulary, ``_H`` hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 256 * 1024 * 1024
"""Logits held at once; more tokens are recomputed chunk by chunk in the backward."""


class _ChosenLogprob(torch.autograd.Function):
    """``log_softmax(logits)[target]`` whose backward is one pass over the logits."""

    @staticmethod
    def forward(ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lse_N = logits_NV.logsumexp(-1)
        ctx.save_for_backward(logits_NV, lse_N, targets_N)
        chosen_N = logits_NV.gather(-1, targets_N.unsqueeze(-1)).squeeze(-1) - lse_N
        ctx.mark_non_differentiable(lse_N)
        return chosen_N, lse_N

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits_NV, lse_N, targets_N = ctx.saved_tensors
        grad_N = grads[0].unsqueeze(-1)
        grad_NV = (logits_NV - lse_N.unsqueeze(-1)).exp_().mul_(-grad_N)
        grad_NV.scatter_add_(-1, targets_N.unsqueeze(-1), grad_N.to(grad_NV.dtype))
        return grad_NV, None


def chosen_logprobs(logits_NV: torch.Tensor, targets_N: torch.Tensor, *, entropy: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and the entropy of each distribution.

    Args:
        logits_NV: float32, already divided by the temperature.
        targets_N: token ids.
        entropy: compute it too (without gradient).

    Returns:
        (logprobs_N with gradient, entropy_N in nats or None).
    """
    logprobs_N, lse_N = _ChosenLogprob.apply(logits_NV, targets_N)  # pyright: ignore[reportGeneralTypeIssues]
    if not entropy:
        return logprobs_N, None
    with torch.no_grad():
        raw = logits_NV.detach()
        entropy_N = lse_N - (torch.softmax(raw, -1) * raw).sum(-1)
    return logprobs_N, entropy_N


def head_logprobs(
    hidden_NH: torch.Tensor, head: torch.nn.Module, targets_N: torch.Tensor, *, temperature: float = 1.0,
    entropy: bool = False, chunk_bytes: int = CHUNK_BYTES,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Apply the language-model head only where a completion token is predicted, chunk by chunk.

    Args:
        hidden_NH: last hidden states that predict ``targets_N``.
        head: the model's output embedding.
        temperature: divides the logits.
        chunk_bytes: most bytes of float32 logits held at once.

    Returns:
        (logprobs_N float32, entropy_N or None).
    """

    def piece(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return chosen_logprobs(head(hidden).float() / temperature, targets, entropy=entropy)

    vocabulary = int(head.weight.shape[0])  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue, reportIndexIssue]
    size = max(1, chunk_bytes // (4 * vocabulary))
    if len(targets_N) <= size:
        return piece(hidden_NH, targets_N)
    keep_graph = torch.is_grad_enabled() and hidden_NH.requires_grad
    rows: list[Any] = []
    for hidden, targets in zip(hidden_NH.split(size), targets_N.split(size)):
        rows.append(checkpoint(piece, hidden, targets, use_reentrant=False) if keep_graph else piece(hidden, targets))
    return torch.cat([r[0] for r in rows]), torch.cat([r[1] for r in rows]) if entropy else None
