"""Log-probabilities from hidden states: the head runs on a chunk of rows at a time, and again in the backward pass, so
that the ``[N, V]`` logits of a micro-batch, often the largest tensor of a step, are never held.

Suffixes: ``_N`` tokens (any number, flat), ``_H`` hidden, ``_V`` vocabulary, ``_C`` rows of one chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rlhf_core.models.layers.trunk_and_head import WITHOUT_TEXT, masked_bias


def selected_logprobs(logits_BTV: torch.Tensor, targets_BT: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r""":math:`z_y/\tau - \mathrm{logsumexp}(z/\tau)` at the target tokens, in nats: float32, with gradient."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive for a log-probability, got {temperature}")
    scaled = logits_BTV.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    return scaled.gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, dim=-1)


def entropy_of(logits_BTV: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""Entropy of :math:`\mathrm{softmax}(z / \tau)`, nats, float32, with gradient; ``-inf`` logits add nothing."""
    logp = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)


CHUNK_BYTES = 32 << 20
"""A chunk's logits where caches are small; elsewhere a chunk is eight times this, or as large as the hidden states."""
SMALL_CACHES = ("cpu",)
KEEP_BYTES = 256 << 20
"""Probabilities up to this size are kept for the backward pass instead of being computed twice."""

_PLAIN = (torch.nn.Parameter, FakeTensor)
"""Types of weights that are whole and in one place; the second has no memory."""


def head_logprobs(
    hidden_NH: torch.Tensor,
    head: torch.nn.Module,
    targets_N: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk_bytes: int | None = None,
    keep_bytes: int = KEEP_BYTES,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``(logprobs_N, entropy_N or None)`` of the int64 targets, float32, in nats, with gradient.

    A plain ``nn.Linear`` takes the hand-written backward; any other head is checkpointed chunk by chunk. A chunk's
    logits take at most ``chunk_bytes``, by default what suits the device; probabilities that all fit in ``keep_bytes``
    are kept for the backward pass.
    """
    if chunk_bytes is None:
        small = hidden_NH.device.type in SMALL_CACHES
        chunk_bytes = CHUNK_BYTES if small else max(8 * CHUNK_BYTES, 4 * hidden_NH.numel())
    if type(head) is torch.nn.Linear and type(head.weight) in _PLAIN:
        rows = _chunk_rows(head.weight.shape[0], chunk_bytes)
        graph = torch.is_grad_enabled() and (hidden_NH.requires_grad or head.weight.requires_grad)
        bias_V = masked_bias(head) if WITHOUT_TEXT in head._buffers else head.bias
        keep = graph and 4 * targets_N.numel() * head.weight.shape[0] <= keep_bytes
        logprobs_N, entropy_N = _LinearLogprobs.apply(
            hidden_NH, head.weight, bias_V, targets_N, temperature, entropy, rows, keep
        )  # pyright: ignore[reportGeneralTypeIssues]
        return logprobs_N, entropy_N if entropy else None
    return _checkpointed(hidden_NH, head, targets_N, temperature, entropy, chunk_bytes)


def logits_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``(logprobs_N, entropy_N or None)`` of all ``[N, V]`` logits at once: of a head's, the plain equivalent of
    :func:`head_logprobs`; of models that do not split, their own.
    """
    logprobs_N = selected_logprobs(logits_NV, targets_N, temperature)
    return logprobs_N, entropy_of(logits_NV, temperature) if entropy else None


def _chunk_rows(vocabulary: int, chunk_bytes: int) -> int:
    return max(1, chunk_bytes // (4 * vocabulary))


def _checkpointed(
    hidden_NH: torch.Tensor,
    head: torch.nn.Module,
    targets_N: torch.Tensor,
    temperature: float,
    entropy: bool,
    chunk_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    def chunk_logprobs(hidden_CH: torch.Tensor, targets_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits_CV = head(hidden_CH)
        logprobs_C = selected_logprobs(logits_CV, targets_C, temperature)
        return logprobs_C, entropy_of(logits_CV, temperature) if entropy else logprobs_C

    rows = _chunk_rows(int(getattr(head, "out_features", 0)) or 65536, chunk_bytes)
    parts: list[Any] = [
        checkpoint(chunk_logprobs, h, t, use_reentrant=False)
        for h, t in zip(hidden_NH.split(rows), targets_N.split(rows), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None


class _LinearLogprobs(torch.autograd.Function):
    r"""Gradient by the scaled logits, with :math:`p = softmax(z)`: of :math:`\log p_y` it is :math:`1_y - p`, of the
    entropy S it is :math:`-p (\log p + S)`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        entropy: bool,
        rows: int,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kept_probs: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        for hidden_CH, targets_C in zip(hidden_NH.split(rows), targets_N.split(rows), strict=True):
            scaled_CV = _centred_logits(hidden_CH, weight_VH, bias_V, temperature)
            picked_C = scaled_CV.gather(-1, targets_C[:, None]).squeeze(-1)
            weight_CV = scaled_CV.exp() if entropy else scaled_CV.exp_()
            total_C = weight_CV.sum(-1)
            logprobs.append(picked_C - total_C.log())
            if entropy:
                dot_C = torch.bmm(weight_CV.unsqueeze(1), scaled_CV.clamp_(min=-1e30).unsqueeze(2)).flatten()
                entropies.append(total_C.log() - dot_C / total_C)
            if keep:
                kept_probs.append(weight_CV.div_(total_C[:, None]))
        entropy_N = torch.cat(entropies) if entropy else hidden_NH.new_zeros((), dtype=torch.float32)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, entropy_N, *kept_probs)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: torch.Tensor | None
    ) -> tuple[Any, ...]:
        grad_logprobs_N, grad_entropy_N = grad_outputs
        hidden_NH, weight_VH, bias_V, targets_N, entropy_N, *kept_probs = ctx.saved_tensors
        if grad_logprobs_N is None:
            grad_logprobs_N = hidden_NH.new_zeros(targets_N.shape, dtype=torch.float32)
        want_hidden, want_weight, want_bias = ctx.needs_input_grad[:3]
        grad_hidden_NH = torch.empty_like(hidden_NH) if want_hidden else None
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if want_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if want_bias else None
        for n, start in enumerate(range(0, targets_N.numel(), ctx.rows)):
            C = slice(start, start + ctx.rows)
            p_CV = (
                kept_probs[n]
                if kept_probs
                else _centred_logits(hidden_NH[C], weight_VH, bias_V, ctx.temperature).softmax(-1)
            )
            d_CV = _logit_gradient(
                p_CV,
                targets_N[C],
                grad_logprobs_N[C],
                None if grad_entropy_N is None else (grad_entropy_N[C], entropy_N[C]),
            )
            d_CV = (d_CV if ctx.temperature == 1.0 else d_CV.div_(ctx.temperature)).to(weight_VH.dtype)
            if grad_bias_V is not None:
                grad_bias_V += d_CV.sum(0)
            if grad_hidden_NH is not None:
                torch.mm(d_CV, weight_VH, out=grad_hidden_NH[C])
            if grad_weight_VH is not None and d_CV.dtype == grad_weight_VH.dtype:
                grad_weight_VH.addmm_(d_CV.T, hidden_NH[C])
            elif grad_weight_VH is not None:
                grad_weight_VH += d_CV.T @ hidden_NH[C]
        return (
            grad_hidden_NH,
            None if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            *[None] * 5,
        )


def _centred_logits(
    hidden_CH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """float32 logits divided by the temperature, less their maximum; the product is in the model's own type."""
    logits_CV = F.linear(hidden_CH, weight_VH, bias_V).float()
    if temperature != 1.0:
        logits_CV.div_(temperature)
    return logits_CV.sub_(logits_CV.amax(-1, keepdim=True))


def _logit_gradient(
    p_CV: torch.Tensor,
    targets_C: torch.Tensor,
    grad_logprobs_C: torch.Tensor,
    entropy_terms: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    """Gradient by the scaled logits, a new ``[C, V]`` tensor; ``entropy_terms``: gradient by entropies, entropies."""
    if entropy_terms is None:
        d_CV = p_CV * -grad_logprobs_C[:, None]
    else:
        grad_entropy_C, entropy_C = entropy_terms
        d_CV = p_CV.clamp(min=torch.finfo(p_CV.dtype).tiny).log_().add_(entropy_C[:, None])
        d_CV = d_CV.mul_(-grad_entropy_C[:, None]).sub_(grad_logprobs_C[:, None]).mul_(p_CV)
    return d_CV.scatter_add_(1, targets_C[:, None], grad_logprobs_C[:, None])
