r"""Per-token estimators of KL(policy || reference) from samples of the policy.

With :math:`r = \log\pi_{ref}(x) - \log\pi_\theta(x)` and :math:`x \sim \pi_\theta`:

========= ======================= ====== ================= =====================================================
estimator value                   biased variance          gradient through the value, in expectation
========= ======================= ====== ================= =====================================================
k1        :math:`-r`              no     high, any sign    **zero**: useless inside a loss
k2        :math:`r^2/2`           yes    low, >= 0         :math:`\nabla KL(\pi_\theta\|\pi_{ref})`: the right one
k3        :math:`e^r - 1 - r`     no     low, >= 0         :math:`\nabla KL(\pi_{ref}\|\pi_\theta)`: the forward KL
========= ======================= ====== ================= =====================================================

Sources: J. Schulman (2020), "Approximating KL divergence", http://joschu.net/blog/kl-approx.html for the values.
The gradient column follows from :math:`E_\theta[f(r)\nabla\log\pi_\theta]`; ``tests/engine/test_kl_and_reductions.py``
checks every entry against exact enumeration.

So an estimator has two uses. As a *number* (monitoring, or k1 subtracted from the reward, where the policy
gradient differentiates it) take :func:`kl_value`. As a *term of a loss* take :func:`kl_loss`, whose value is the
estimator and whose gradient is that of KL(policy || reference) whichever estimator was chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlhf_core.training.functional.importance import LOG_LIMIT, bounded_ratio
from rlhf_core.types.errors import ConfigError


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

    The gradient used is :math:`w\,(\text{-}r)\,\nabla\log\pi_\theta`, that of k2, whatever the estimator; the
    value comes from the estimator. (Differentiating k1 gives noise around zero and k3 the forward KL.)

    Args:
        logprobs_BT: with gradient, any shape.
        ref_logprobs_BT: no gradient is taken through it.
        estimator: what the value is.
        old_logprobs_BT: behaviour policy, when the tokens were sampled by an older policy: value and gradient are
            weighted by the importance ratio :math:`w = \pi_\theta / \pi_{old}` (held constant, within e^20), so that
            both stay correct off policy. None means on policy, w = 1.

    Returns:
        Unreduced, the same shape.
    """
    ref, now = ref_logprobs_BT.detach(), logprobs_BT.detach()
    weight = torch.ones_like(now) if old_logprobs_BT is None else bounded_ratio(now - old_logprobs_BT.detach())[0]
    value = weight * kl_value(now, ref, estimator)
    slope = weight * (now - ref)
    return value + slope * (logprobs_BT - now)
