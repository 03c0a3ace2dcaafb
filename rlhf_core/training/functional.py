r"""The maths of policy losses, per token: ratios, KL estimators and masked reductions.

Suffixes: ``_B`` sequences, ``_T`` completion tokens.

Estimators of KL(policy || reference), with :math:`r = \log\pi_{ref}(x) - \log\pi_\theta(x)` and
:math:`x \sim \pi_\theta`:

========= ======================= ====== ================= =====================================================
estimator value                   biased variance          gradient through the value, in expectation
========= ======================= ====== ================= =====================================================
k1        :math:`-r`              no     high, any sign    **zero**: useless inside a loss
k2        :math:`r^2/2`           yes    low, >= 0         :math:`\nabla KL(\pi_\theta\|\pi_{ref})`: the right one
k3        :math:`e^r - 1 - r`     no     low, >= 0         :math:`\nabla KL(\pi_{ref}\|\pi_\theta)`: the forward KL
========= ======================= ====== ================= =====================================================

Sources: J. Schulman (2020), "Approximating KL divergence", http://joschu.net/blog/kl-approx.html for the values.
The gradient column follows from :math:`E_\theta[f(r)\nabla\log\pi_\theta]`.

As a number (monitoring, or k1 subtracted from the reward) take :func:`kl_value`; as a term of a loss :func:`kl_loss`,
whose gradient is that of KL(policy || reference) whichever estimator gives its value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlhf_core.types.errors import ConfigError

RELATIVE_FLOOR = 2.0**-19
"""A standard deviation below this share of the largest score is rounding, by default: 16 roundings of float32 (2^-23
each), in which most scores are computed."""
LOG_LIMIT = 20.0
"""Logarithms of ratios are held within this distance of 0, so that no exponential overflows."""


def bounded_ratio(log_ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(ratio, held)``: exponential of a log ratio held within :data:`LOG_LIMIT` of 0, as verl does, and where it was.
    Past the limit there is no gradient: 0 times infinity, wherever a clip or a mask takes the value away, is NaN.
    """
    return log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), log_ratio.detach().abs() > LOG_LIMIT


def effective_sample_size(mean_ratio: float, mean_square: float) -> float:
    r"""Share of the samples that weighted ones are worth (Kong 1992): :math:`(\sum r)^2 / (n \sum r^2)`, 1/n to 1."""
    return mean_ratio**2 / mean_square if mean_square > 0 else 0.0


def kl_value(logprobs_BT: Any, ref_logprobs_BT: Any, estimator: str = "k3") -> Any:
    """The estimate at each sampled token, in nats; differentiating it gives the table's last column.

    Args:
        logprobs_BT: log-probabilities under the policy that sampled the tokens, any shape; numpy or torch.
        ref_logprobs_BT: under the reference policy, same tokens.
        estimator: ``k1``, ``k2`` or ``k3``.

    Returns:
        Same shape. k2 and k3 are never negative. The exponent of k3 is held at 20, so that it stays finite.

    Raises:
        ConfigError: unknown estimator.
    """
    r = ref_logprobs_BT - logprobs_BT
    if estimator == "k1":
        return -r
    if estimator == "k2":
        return 0.5 * r**2
    if estimator == "k3":
        if isinstance(r, torch.Tensor):
            return torch.expm1(r.clamp(max=LOG_LIMIT)) - r
        return np.expm1(np.minimum(r, np.float32(LOG_LIMIT))) - r
    raise ConfigError(f"unknown KL estimator '{estimator}'", fix="one of k1, k2, k3")


def kl_loss(
    logprobs_BT: torch.Tensor,
    ref_logprobs_BT: torch.Tensor,
    estimator: str = "k3",
    *,
    old_logprobs_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""A loss term whose value is the estimate and whose expected gradient is that of KL(policy || reference).

    The gradient used is :math:`w\,(\text{-}r)\,\nabla\log\pi_\theta`, that of k2, whatever the estimator.

    ``old_logprobs_BT`` are of the older policy that sampled, None on policy: value and gradient are then weighted by
    :math:`w = \pi_\theta / \pi_{old}` (held constant, within e^20). The result is not reduced.
    """
    ref, now = ref_logprobs_BT.detach(), logprobs_BT.detach()
    weight = torch.ones_like(now) if old_logprobs_BT is None else bounded_ratio(now - old_logprobs_BT.detach())[0]
    value = weight * kl_value(now, ref, estimator)
    slope = weight * (now - ref)
    return value + slope * (logprobs_BT - now)


def masked_sum(values_BT: torch.Tensor, mask_BT: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum over ``dim`` (all of them) where ``mask_BT`` is True; masked places may hold anything, NaN included."""
    masked_BT = torch.where(mask_BT.bool(), values_BT, values_BT.new_zeros(()))
    return masked_BT.sum() if dim is None else masked_BT.sum(dim)


def mean_or_zero(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean where ``mask`` is True, 0 where nothing is: a sequence without tokens adds nothing to a loss."""
    used = mask.bool()
    return masked_sum(tensor, mask, dim) / (used.sum() if dim is None else used.sum(dim)).clamp(min=1)


def reduce_loss(loss_BT: torch.Tensor, mask_BT: torch.Tensor, mode: str, denominator: float) -> torch.Tensor:
    r"""One micro-batch's share of the batch loss.

    ``token_mean`` and ``constant``: :math:`\sum_{b,t} m_{bt} l_{bt} / D`. ``sequence_mean``:
    :math:`\sum_b (\sum_t m_{bt} l_{bt} / \sum_t m_{bt}) / D`. Every sequence lies wholly in one micro-batch, so
    adding the results over micro-batches and ranks is exactly the loss of the whole batch.

    ``denominator`` is *global*, over all micro-batches and ranks: number of tokens, of sequences, or of sequences
    times the constant C.
    """
    if loss_BT.shape != mask_BT.shape:
        raise ValueError(f"loss_BT is {tuple(loss_BT.shape)} but mask_BT is {tuple(mask_BT.shape)}")
    if not denominator > 0:
        raise ValueError(f"the denominator must be positive, got {denominator}")
    if mode in ("token_mean", "constant"):
        return masked_sum(loss_BT, mask_BT) / denominator
    if mode == "sequence_mean":
        return mean_or_zero(loss_BT, mask_BT, dim=-1).sum() / denominator
    raise ValueError(f"unknown reduction {mode!r}; use token_mean, sequence_mean or constant")
