"""KL divergence from a reference policy, estimated on sampled tokens (Schulman 2020).

With ``log r = log p_ref - log p``: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlhf_core.errors import ConfigError


def kl_value(logprobs: Any, ref_logprobs: Any, estimator: str) -> Any:
    """Per-token estimate of KL(policy || reference) in nats, same shape; numpy or torch.

    k1 is unbiased and may be negative; k3 is unbiased and never negative; k2 is biased with low variance.
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    if estimator == "k3":
        exp = torch.exp if isinstance(log_ratio, torch.Tensor) else np.exp
        return exp(log_ratio) - 1 - log_ratio
    raise ConfigError(f"unknown KL estimator '{estimator}'", fix="one of k1, k2, k3")


def kl_loss(logprobs_BT: torch.Tensor, ref_logprobs_BT: torch.Tensor, estimator: str) -> torch.Tensor:
    """Per-token term whose value is the estimate and whose expected gradient on-policy is that of the KL.

    Differentiating an estimate on sampled tokens misses the score-function part: the plain gradient of k1
    is zero in expectation and that of k3 is the gradient of the *reverse* direction. The right on-policy
    gradient is ``E[k1 * grad log p]``, which is also the plain gradient of k2 (Tang and Munos 2025).
    For k1 and k3 the value is kept and that gradient is substituted.

    Args:
        logprobs_BT: policy, with gradient.
        ref_logprobs_BT: reference, constant.
        estimator: ``k1``, ``k2`` or ``k3``.

    Returns:
        Tensor ``[B, T]``.
    """
    surrogate = 0.5 * (logprobs_BT - ref_logprobs_BT) ** 2
    if estimator == "k2":
        return surrogate
    value = kl_value(logprobs_BT, ref_logprobs_BT, estimator)
    return surrogate + (value - surrogate).detach()
