"""Log-probability and entropy of chosen tokens, from logits.

Suffixes: ``_B`` sequences, ``_T`` tokens, ``_V`` vocabulary; ``...`` any leading shape.
"""

from __future__ import annotations

import torch


def selected_logprobs(logits_BTV: torch.Tensor, targets_BT: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r""":math:`\log\mathrm{softmax}(z / \tau)_y` at the target tokens, in nats.

    Computed as :math:`z_y/\tau - \mathrm{logsumexp}(z/\tau)` in float32, without a second ``[B, T, V]`` tensor.

    Args:
        logits_BTV: any leading shape, any float type.
        targets_BT: int64 token ids, the leading shape.
        temperature: :math:`\tau > 0`; that of the sampler, so both mean the same distribution.

    Returns:
        float32, the leading shape, with gradient.

    Raises:
        ValueError: temperature not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive for a log-probability, got {temperature}")
    scaled = logits_BTV.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    return scaled.gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, dim=-1)


def entropy(logits_BTV: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""Entropy :math:`-\sum_v p_v \log p_v` of :math:`p = \mathrm{softmax}(z / \tau)`, in nats, 0 to log V.

    Args:
        logits_BTV: any leading shape. ``-inf`` (a banned token) is allowed and adds nothing.
        temperature: :math:`\tau > 0`.

    Returns:
        float32, the leading shape, with gradient.
    """
    logp = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
